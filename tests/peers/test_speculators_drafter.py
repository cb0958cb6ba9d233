"""Our drafter against speculators' own module on the same weights. ``make peers`` installs it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from drafter_tiny import VOCAB, tiny_drafter, tiny_model, tiny_target_spec

from eagle3_core.drafter.rope import rope_of

pytestmark = pytest.mark.peers
pytest.importorskip("speculators")

ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def _theirs(drafter, model_type, rope):
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config

    spec = drafter.spec
    extra = {} if model_type == "llama" else {"layer_types": ["full_attention"]}
    layer = (LlamaConfig if model_type == "llama" else Qwen3Config)(
        vocab_size=spec.vocab_size, hidden_size=spec.hidden_size, intermediate_size=spec.intermediate_size,
        num_hidden_layers=1, num_attention_heads=spec.num_heads, num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim, rms_norm_eps=spec.rms_norm_eps, attention_bias=spec.attention_bias,
        max_position_embeddings=512, rope_parameters=rope, **extra)
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=spec.draft_vocab_size,
        norm_before_residual=spec.norm_before_residual, norm_before_fc=spec.norm_before_fc, fc_norm=spec.fc_norm,
        norm_output=spec.norm_output, eagle_aux_hidden_state_layer_ids=[1, 2, 3],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3", default_proposal_method="greedy",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])))
    model = Eagle3DraftModel(config).float().eval()
    state = {name.replace("midlayer.", "layers.0."): value for name, value in drafter.state_dict().items()}
    state["t2d"] = torch.zeros(spec.vocab_size, dtype=torch.bool).index_fill_(0, drafter.target_ids, True)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.startswith("verifier") for name in missing)
    return model


def _logits(model, aux, ids, documents, steps):
    seen: list[torch.Tensor] = []
    handle = model.lm_head.register_forward_hook(lambda module, args, output: seen.append(output))
    shifted = torch.cat([ids[:, 1:], ids.new_zeros(1, 1)], dim=1)
    with torch.no_grad():
        model(hidden_states=aux, input_ids=shifted, document_ids=documents, ttt_steps=steps)
    handle.remove()
    return seen


VARIANTS = [
    ("llama", {}), ("llama", {"norm_before_residual": True}), ("llama", {"norm_before_fc": True}),
    ("llama", {"fc_norm": True}), ("llama", {"norm_output": True}), ("llama", {"attention_bias": True}),
    ("llama", {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True}),
    ("qwen3", {"qk_norm": True}), ("qwen3", {"qk_norm": True, "norm_before_residual": True, "norm_output": True}),
]


@pytest.mark.parametrize(("model_type", "flags"), VARIANTS, ids=lambda v: v if isinstance(v, str) else "+".join(v))
def test_logits_equal_those_of_speculators(model_type, flags):
    drafter = tiny_drafter(dtype=torch.float32, std=0.1, rope=rope_of({"rope_parameters": ROPE}, 512), **flags)
    model = _theirs(drafter, model_type, dict(ROPE))
    generator = torch.Generator().manual_seed(0)
    length, steps = 24, 3
    ids = torch.randint(0, VOCAB, (1, length), generator=generator)
    aux = torch.randn(1, length, 96, generator=generator)
    documents = torch.tensor([[0] * 14 + [1] * 10])
    seen = _logits(model, aux, ids, documents, steps)
    with torch.no_grad():
        ours = drafter.unroll(aux, ids, steps, documents=documents, positions=torch.arange(length)[None])
    assert len(seen) == steps
    for k in range(steps):
        torch.testing.assert_close(drafter.lm_head(ours[k]), seen[k], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("flags", [{}, {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
                                   {"fc_norm": True}, {"qk_norm": True}], ids=lambda v: "+".join(v) or "plain")
def test_they_load_what_we_export_and_propose_the_same(flags, tmp_path):
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel

    from eagle3_core.drafter.checkpoint import write_drafter
    from eagle3_core.export.convert import convert

    drafter = tiny_drafter(dtype=torch.float32, std=0.1, rope=rope_of({"rope_parameters": ROPE}, 512), **flags)
    tiny_model(layers=8, dtype=torch.float32).save_pretrained(tmp_path / "verifier")
    target = dataclasses.replace(tiny_target_spec(layers=8), name=str(tmp_path / "verifier"))
    write_drafter(tmp_path / "ours", drafter, target, with_embedding=True)
    convert(tmp_path / "ours", "speculators", tmp_path / "theirs", target=target)
    config = Eagle3SpeculatorConfig.from_pretrained(tmp_path / "theirs")
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel.from_pretrained(tmp_path / "theirs", config=config).float().eval()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCAB, (1, 24), generator=generator)
    aux = torch.randn(1, 24, 96, generator=generator)
    documents = torch.zeros(1, 24, dtype=torch.int64)
    with torch.no_grad():
        ours = drafter.unroll(aux, ids, 3, documents=documents, positions=torch.arange(24)[None])
    for own, theirs in zip(ours, _logits(model, aux, ids, documents, 3), strict=True):
        torch.testing.assert_close(drafter.lm_head(own), theirs, atol=1e-5, rtol=1e-5)
    # Their mapping is ours: offsets and mask arrive with the weights.
    assert torch.equal(model.d2t.cpu(), drafter.d2t)
    assert torch.equal(torch.nonzero(model.t2d).flatten().cpu(), drafter.target_ids)


def test_their_trainer_reads_the_mapping_files_we_write(tmp_path):
    import numpy as np

    from eagle3_core.vocab.formats.writers import write_mapping
    from eagle3_core.vocab.mapping import mapping_from_ids

    mapping = mapping_from_ids(np.arange(1, 65), VOCAB)
    write_mapping("speculators", mapping, tmp_path)
    drafter = tiny_drafter(64, dtype=torch.float32)
    model = _theirs(drafter, "llama", dict(ROPE))
    model.load_vocab_mappings(torch.from_numpy(np.load(tmp_path / "t2d-64.npy")),
                              torch.from_numpy(np.load(tmp_path / "d2t-64.npy")))
    assert (model.d2t + torch.arange(64)).tolist() == list(range(1, 65))


def test_a_checkpoint_they_save_loads_here_with_the_same_tensors(tmp_path):
    from eagle3_core.drafter.checkpoint import read_drafter

    drafter = tiny_drafter(dtype=torch.float32, norm_before_fc=True, norm_before_residual=True, norm_output=True)
    _theirs(drafter, "llama", dict(ROPE)).save_pretrained(tmp_path)
    loaded = read_drafter(tmp_path, embedding=drafter.embed_tokens.weight)
    assert loaded.drafter.spec == drafter.spec
    assert loaded.aux_layers == (0, 1, 2)
    for name, tensor in drafter.state_dict().items():
        torch.testing.assert_close(loaded.drafter.state_dict()[name], tensor, msg=name)
