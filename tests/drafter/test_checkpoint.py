from __future__ import annotations

import json

import pytest
import torch
from drafter_tiny import tiny_drafter, tiny_target_spec
from safetensors.torch import load_file, save_file

from eagle3_core.drafter.checkpoint import read_drafter, write_drafter
from eagle3_core.errors import Eagle3Error


def _same(a, b):
    for name, tensor in a.state_dict().items():
        torch.testing.assert_close(tensor, b.state_dict()[name], msg=name)


@pytest.mark.parametrize("flags", [{}, {"norm_before_fc": True, "norm_output": True}, {"fc_norm": True},
                                   {"qk_norm": True, "attention_bias": True, "norm_before_residual": True}])
def test_what_is_written_reads_back_the_same(tmp_path, flags):
    drafter = tiny_drafter(dtype=torch.float32, **flags)
    write_drafter(tmp_path, drafter, tiny_target_spec(), aux_layers=(0, 2, 3))
    loaded = read_drafter(tmp_path, embedding=drafter.embed_tokens.weight)
    assert loaded.drafter.spec == drafter.spec
    assert loaded.aux_layers == (0, 2, 3)
    assert loaded.notes == ("embedding taken from the target",)
    _same(drafter, loaded.drafter)


def test_a_full_vocabulary_is_written_without_a_mapping(tmp_path):
    drafter = tiny_drafter(96, dtype=torch.float32)
    write_drafter(tmp_path, drafter, tiny_target_spec(), with_embedding=True)
    assert not {"d2t", "t2d"} & set(load_file(tmp_path / "model.safetensors"))
    _same(drafter, read_drafter(tmp_path).drafter)


def _speculators(folder, drafter, **root):
    state = {}
    for name, tensor in drafter.state_dict().items():
        state[name.replace("midlayer.", "layers.0.")] = tensor.contiguous()
    state["t2d"] = torch.zeros(96, dtype=torch.bool).index_fill_(0, drafter.target_ids, True)
    save_file(state, folder / "model.safetensors")
    layer = {"model_type": "llama", "vocab_size": 96, "hidden_size": 32, "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 40, "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
             "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    config = {"speculators_model_type": "eagle3", "draft_vocab_size": 64, "transformer_layer_config": layer,
              "eagle_aux_hidden_state_layer_ids": [1, 3, 4, 5], **root}
    (folder / "config.json").write_text(json.dumps(config))


def test_speculators_names_and_state_counts_are_understood(tmp_path):
    drafter = tiny_drafter(dtype=torch.float32, norm_before_fc=True, norm_before_residual=True, norm_output=True)
    _speculators(tmp_path, drafter, norm_before_fc=True, norm_before_residual=True, norm_output=True)
    loaded = read_drafter(tmp_path)
    assert loaded.aux_layers == (0, 2, 3)
    assert loaded.drafter.spec == drafter.spec
    _same(drafter, loaded.drafter)


def test_an_eagle_pickle_with_prefixes_is_read_weights_only(tmp_path):
    drafter = tiny_drafter(dtype=torch.float32)
    torch.save({f"model.{k}": v for k, v in drafter.state_dict().items()}, tmp_path / "pytorch_model.bin")
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 96, "draft_vocab_size": 64, "hidden_size": 32,
              "num_attention_heads": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    _same(drafter, read_drafter(tmp_path).drafter)


def test_modelopt_without_head_and_embedding_takes_the_targets(tmp_path):
    drafter = tiny_drafter(dtype=torch.float32)
    head = torch.randn(96, 32)
    drafter.lm_head.weight.copy_(head[drafter.target_ids])
    state = {k.replace("midlayer.", "layers.0."): v for k, v in drafter.state_dict().items()
             if k not in ("lm_head.weight", "embed_tokens.weight")}
    save_file(state, tmp_path / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLMEagle3"], "vocab_size": 96, "draft_vocab_size": 64, "hidden_size": 32,
              "num_attention_heads": 4, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = read_drafter(tmp_path, embedding=drafter.embed_tokens.weight, head=head)
    assert loaded.aux_layers == (1, 2, 3)
    _same(drafter, loaded.drafter)


def test_legacy_feature_norms_become_fc_norm(tmp_path):
    drafter = tiny_drafter(dtype=torch.float32, fc_norm=True)
    write_drafter(tmp_path, drafter, tiny_target_spec(), with_embedding=True)
    state = load_file(tmp_path / "model.safetensors")
    for index, name in enumerate(("low", "mid", "high")):
        state[f"aux_norm_{name}.weight"] = state.pop(f"fc_norm.{index}.weight")
    save_file(state, tmp_path / "model.safetensors")
    _same(drafter, read_drafter(tmp_path).drafter)


def test_norm_output_of_specforge_is_not_the_engines(tmp_path):
    drafter = tiny_drafter(dtype=torch.float32, norm_output=True)
    write_drafter(tmp_path, drafter, tiny_target_spec(), with_embedding=True)
    assert read_drafter(tmp_path).drafter.spec.norm_output
    assert not read_drafter(tmp_path, trained_by="specforge").drafter.spec.norm_output


@pytest.mark.parametrize(("change", "message"), [
    (lambda s: s.pop("fc.weight"), "fc.weight"),
    (lambda s: s.pop("d2t"), "d2t"),
    (lambda s: s.pop("midlayer.mlp.up_proj.weight"), "up_proj"),
    (lambda s: s.update({"lm_head.weight": s["lm_head.weight"][:60].clone()}), "lm_head"),
    (lambda s: s.update({"midlayer.extra.weight": torch.zeros(1)}), "unknown tensor"),
    (lambda s: s.pop("embed_tokens.weight"), "has no embedding"),
    (lambda s: s.update({"d2t": s["d2t"] + 1000}), "outside"),
])
def test_a_broken_checkpoint_is_refused_by_name(tmp_path, change, message):
    write_drafter(tmp_path, tiny_drafter(dtype=torch.float32), tiny_target_spec(), with_embedding=True)
    state = load_file(tmp_path / "model.safetensors")
    change(state)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(Eagle3Error, match=message):
        read_drafter(tmp_path)
