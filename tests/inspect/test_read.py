"""What a path is, from real files of each project's kind: checkpoints, mappings, run directories."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small import IDS, D, H, V, small

from eagle3_core.errors import Eagle3Error
from eagle3_core.inspect.read import inspect_path, serving_in
from eagle3_core.vocab.formats import FORMATS, write_mapping
from eagle3_core.vocab.mapping import VocabMapping

MAPPING = VocabMapping(IDS, V)


def test_dimensions_come_from_the_tensors_and_parts_add_up(tmp_path):
    facts = inspect_path(small("specforge").write(tmp_path))
    assert (facts.kind, facts.project, facts.container) == ("checkpoint", "specforge", "safetensors")
    assert (facts.vocab_size, facts.draft_vocab_size, facts.hidden_size, facts.target_hidden_size) == (V, D, H, H)
    assert facts.dtype == "float32"
    # The formula of specs/parameters.py: 2H h (n_q + 2 n_kv) + n_q h H; 3 H I; 3 H_t H; 4H; D H; V H.
    assert {p.name: p.parameters for p in facts.parts} == {
        "attention": 2 * 16 * 8 * (2 + 2) + 2 * 8 * 16, "mlp": 3 * 16 * 24, "fc": 3 * 16 * 16, "norms": 4 * 16,
        "lm_head": 128 * 16, "embedding": 1280 * 16,
    }
    assert facts.parameters("trainable") == sum(p.parameters for p in facts.parts) - 1280 * 16
    assert facts.parameters("shared with the target") == 1280 * 16
    assert sum(p.stored for p in facts.parts) == 4 * sum(p.parameters for p in facts.parts)


def test_a_part_that_is_not_stored_counts_as_the_targets(tmp_path):
    facts = inspect_path(small("modelopt").write(tmp_path))
    embedding = next(p for p in facts.parts if p.name == "embedding")
    assert (embedding.parameters, embedding.stored, embedding.standing) == (V * H, 0, "shared with the target")


def test_speculators_head_is_frozen_and_its_config_nested(tmp_path):
    facts = inspect_path(small("speculators").write(tmp_path))
    assert facts.project == "speculators"
    assert facts.whole("num_attention_heads") == 2
    assert facts.parameters("frozen") == D * H
    assert any("some/target" in line for line in facts.evidence)


@pytest.mark.parametrize("prefix", ["", "model.", "draft_model."])
def test_the_mapping_is_found_under_any_prefix(tmp_path, prefix):
    # vllm-project/vllm#18909: a name check that missed the prefix dropped the map.
    s = small("specforge")
    s.tensors = {prefix + k if k in ("d2t", "t2d") else k: v for k, v in s.tensors.items()}
    facts = inspect_path(s.write(tmp_path))
    assert facts.mapping is not None
    assert facts.mapping.checked(V) == MAPPING
    assert {"d2t", "t2d"} <= set(facts.tensors)


@pytest.mark.parametrize("fmt", sorted(FORMATS))
def test_a_mapping_file_of_every_format_is_read_and_named(tmp_path, fmt):
    for file in write_mapping(fmt, MAPPING, tmp_path):
        if "t2d" in file.name:
            continue
        for path in (file, tmp_path):
            facts = inspect_path(path)
            assert facts.kind == "mapping"
            assert facts.mapping is not None
            assert facts.mapping.checked(V) == MAPPING
            assert facts.draft_vocab_size == D


def test_token_counts_of_speculators_are_told_from_a_mapping(tmp_path):
    torch.save({5: 10, 9: 2}, tmp_path / "token_freq.pt")
    facts = inspect_path(tmp_path / "token_freq.pt")
    assert facts.kind == "token counts"
    assert "2 ids, 12 tokens" in facts.what


def test_a_gguf_drafter_has_absolute_ids_and_our_names(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "draft.gguf", "eagle3")
    for name, array in small().tensors.items():
        renamed = {"lm_head.weight": "output.weight", "embed_tokens.weight": "token_embd.weight"}.get(name, name)
        if name not in ("d2t", "t2d"):
            writer.add_tensor(renamed, array)
    writer.add_tensor("d2t", IDS.astype(np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    facts = inspect_path(tmp_path / "draft.gguf")
    assert (facts.project, facts.draft_vocab_size, facts.vocab_size) == ("llama.cpp", D, V)
    assert facts.mapping is not None
    assert facts.mapping.checked(V) == MAPPING


def torch_state(folder: Path, layout: str = "specforge", **more: object) -> None:
    folder.mkdir(parents=True)
    state = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in small(layout).tensors.items()}
    torch.save({"draft_state_dict": state, **more}, folder / "training_state.pt")


def test_a_specforge_run_is_read_at_its_newest_step(tmp_path):
    for step in (900, 1000):
        torch_state(tmp_path / f"eagle3-step{step}", global_step=step, strategy="eagle3")
    (tmp_path / "eagle3-latest").symlink_to("eagle3-step1000")
    facts = inspect_path(tmp_path)
    assert facts.kind == "run"
    assert facts.run is not None
    assert (facts.run.project, facts.run.inspected) == ("specforge", "eagle3-step1000")
    assert facts.run.checkpoints == ("eagle3-step900", "eagle3-step1000")
    assert facts.draft_vocab_size == D
    assert facts.parameters("trainable") > 0
    assert any("global_step 1000" in line for line in facts.evidence)


def test_a_legacy_specforge_run_and_an_eagle_run_are_known(tmp_path):
    small("specforge").write(tmp_path / "a" / "epoch_0_step_50")
    small("specforge").write(tmp_path / "a" / "epoch_1_step_100")
    assert inspect_path(tmp_path / "a").run.inspected == "epoch_1_step_100"  # type: ignore[union-attr]
    small("eagle").write(tmp_path / "b" / "state_3")
    facts = inspect_path(tmp_path / "b")
    assert facts.run is not None
    assert facts.run.project == "eagle"


def test_a_speculators_run_is_known_by_its_command(tmp_path):
    for epoch in ("2", "10"):
        small("speculators").write(tmp_path / epoch)
    (tmp_path / "train_command.txt").write_text("speculators train --draft-vocab-size 128\ngit abc\n")
    facts = inspect_path(tmp_path)
    assert facts.run is not None
    assert (facts.run.project, facts.run.inspected) == ("speculators", "10")
    assert any("--draft-vocab-size 128" in line for line in facts.evidence)


def test_our_own_run_is_known_by_its_record(tmp_path):
    from eagle3_core.training.run_folder import create_run, new_checkpoint

    run = tmp_path / "run"
    create_run(run, "model: {}\n", ["eagle3", "train", "--config", "x.yaml"])
    assert inspect_path(run).run.inspected is None  # type: ignore[union-attr]
    with new_checkpoint(run, 100) as part:
        small("vllm").write(part)
    facts = inspect_path(run)
    assert facts.run is not None
    assert facts.run.inspected == "step-00000100"
    assert any("eagle3 train" in line for line in facts.evidence)


def test_a_decision_beside_it_means_that_the_size_was_chosen(tmp_path):
    from eagle3_core.inspect.coverage import size_standing

    folder = small().write(tmp_path / "sglang")
    assert size_standing(inspect_path(folder)).inherited
    assert size_standing(inspect_path(folder)).state == "locked"
    (tmp_path / "decision.json").write_text("{}")
    assert not size_standing(inspect_path(folder)).inherited
    assert size_standing(inspect_path(small("speculators").write(tmp_path / "b"))).state == "re-cut"


def test_settings_in_a_launch_command_are_read():
    found = serving_in("x --speculative-num-steps 3 --speculative-eagle-topk=1 --speculative-num-draft-tokens 4", "a")
    assert found is not None
    assert (found.steps, found.topk, found.draft_tokens) == (3, 1, 4)
    assert serving_in("vllm serve m", "a") is None


@pytest.mark.parametrize("make", [
    lambda p: None,
    lambda p: (p / "config.json").write_text("[]"),
    lambda p: (p / "config.json").write_text("{"),
    lambda p: (p / "model.safetensors").write_bytes(b"x"),
    lambda p: torch.save({"weight": torch.ones(2)}, p / "pytorch_model.bin"),
    lambda p: (p / "config.json").symlink_to("/etc/hostname"),
    lambda p: (p / "d2t.npy").write_bytes(b"\x93NUMPY"),
    lambda p: (p / "run.json").write_text("[]"),
    lambda p: (p / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}})),
])
def test_what_cannot_be_read_is_one_line(tmp_path, make):
    make(tmp_path)
    with pytest.raises(Eagle3Error) as caught:
        inspect_path(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_renamed_copy_of_the_weights_alone_is_still_a_drafter(tmp_path):
    folder = small("specforge").write(tmp_path / "a")
    shutil.copy(folder / "model.safetensors", tmp_path / "weights.safetensors")
    facts = inspect_path(tmp_path / "weights.safetensors")
    assert (facts.kind, facts.has_config, facts.draft_vocab_size) == ("checkpoint", False, D)


@pytest.mark.parametrize("value", [None, -1, 10**30, "x", {}, [None]])
@pytest.mark.parametrize("layout", ["specforge", "speculators"])
def test_a_config_of_odd_values_is_judged_and_never_crashed_on(tmp_path, layout, value):
    from eagle3_core.inspect.summary import facts_dict

    s = small(layout)
    folder = s.write(tmp_path)
    layer = s.config.get("transformer_layer_config", s.config)
    for name in [*s.config, *layer]:
        holder = s.config if name in s.config else layer
        (folder / "config.json").write_text(json.dumps({**s.config, name: value} if holder is s.config else {
            **s.config, "transformer_layer_config": {**layer, name: value}}))
        assert len(facts_dict(inspect_path(folder))["who_could_load"]) == 7


def test_an_id_beyond_every_vocabulary_takes_no_memory(tmp_path):
    torch.save([5, 1 << 50], tmp_path / "freq_2.pt")
    with pytest.raises(Eagle3Error, match="more target ids than any model has"):
        inspect_path(tmp_path / "freq_2.pt")
