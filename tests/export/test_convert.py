"""Checkpoints in another layout: the same weights, rows that follow their tokens, memory that does not grow."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from eagle3_core.cli.main import app
from eagle3_core.drafter.checkpoint import read_drafter, write_drafter
from eagle3_core.errors import Eagle3Error
from eagle3_core.export.configs import CONSUMERS
from eagle3_core.export.convert import convert
from eagle3_core.vocab.formats import read_mapping
from eagle3_core.vocab.formats.writers import write_mapping
from eagle3_core.vocab.mapping import VocabMapping, mapping_from_d2t

_SPEC = importlib.util.spec_from_file_location(
    "drafter_tiny", Path(__file__).parents[1] / "drafter" / "tiny.py")
assert _SPEC is not None
assert _SPEC.loader is not None
tiny = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny)
RUNNER = CliRunner()


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, object]:
    drafter = tiny.tiny_drafter(dtype=torch.float32)
    write_drafter(tmp_path / "from", drafter, tiny.tiny_target_spec(), aux_layers=(0, 2, 3), with_embedding=True)
    return tmp_path / "from", drafter


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_every_layout_holds_the_same_drafter(checkpoint, tmp_path: Path, consumer: str) -> None:
    source, drafter = checkpoint
    made = convert(source, consumer, tmp_path / consumer)
    assert made.rows is None
    state = load_file(tmp_path / consumer / "model.safetensors")
    prefix = "layers.0." if consumer in ("speculators", "modelopt") else "midlayer."
    assert f"{prefix}self_attn.q_proj.weight" in state
    loaded = read_drafter(tmp_path / consumer)
    for name, tensor in drafter.state_dict().items():
        torch.testing.assert_close(tensor, loaded.drafter.state_dict()[name], msg=name)
    config = json.loads((tmp_path / consumer / "config.json").read_text())
    if consumer == "eagle":  # its layers are fixed in its code
        assert "eagle_aux_hidden_state_layer_ids" not in json.dumps(config)
    else:
        assert loaded.aux_layers == (0, 2, 3)
        root = config.get("eagle_aux_hidden_state_layer_ids")
        assert root == ([1, 3, 4] if consumer in ("vllm", "speculators") else None)


def test_there_and_back_is_the_same_file(checkpoint, tmp_path: Path) -> None:
    source, _ = checkpoint
    convert(source, "speculators", tmp_path / "there")
    convert(tmp_path / "there", "vllm", tmp_path / "back")
    a, b = load_file(source / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert set(a) == set(b)
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_the_verifier_that_speculators_names_is_kept(checkpoint, tmp_path: Path) -> None:
    source, _ = checkpoint
    convert(source, "speculators", tmp_path / "a")
    file = tmp_path / "a" / "config.json"
    config = json.loads(file.read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = "org/Real-8B"
    file.write_text(json.dumps(config))
    convert(tmp_path / "a", "speculators", tmp_path / "b")
    written = json.loads((tmp_path / "b" / "config.json").read_text())
    assert written["speculators_config"]["verifier"]["name_or_path"] == "org/Real-8B"


def test_a_frequency_order_is_sorted_and_its_rows_follow(checkpoint, tmp_path: Path) -> None:
    assert VocabMapping(np.array([7, 3, 1]), 96).ascending()[1].tolist() == [2, 1, 0]
    source, drafter = checkpoint
    state = load_file(source / "model.safetensors")
    backwards = drafter.target_ids.flip(0)
    state["d2t"] = backwards - torch.arange(64)
    save_file(state, source / "model.safetensors")
    made = convert(source, "vllm", tmp_path / "to")
    assert made.rows is not None
    assert made.rows.tolist() == list(range(63, -1, -1))
    out = load_file(tmp_path / "to" / "model.safetensors")
    assert torch.equal(out["d2t"] + torch.arange(64), drafter.target_ids)
    assert torch.equal(out["lm_head.weight"], state["lm_head.weight"].flip(0))
    assert torch.equal(torch.nonzero(out["t2d"]).flatten(), drafter.target_ids)


def test_a_smaller_head_is_cut_by_target_id(tmp_path: Path) -> None:
    drafter = tiny.tiny_drafter(80, dtype=torch.float32)
    write_drafter(tmp_path / "from", drafter, tiny.tiny_target_spec(), with_embedding=True)
    own = drafter.target_ids.numpy()
    chosen = VocabMapping(np.random.default_rng(0).permutation(own)[:64], 96)
    made = convert(tmp_path / "from", "sglang", tmp_path / "to", mapping=chosen)
    assert (made.draft_vocab, made.from_vocab) == (64, 80)
    out = load_file(tmp_path / "to" / "model.safetensors")
    tokens = (out["d2t"] + torch.arange(64)).tolist()
    assert tokens == sorted(chosen.target_ids.tolist())
    for row, token in enumerate(tokens):
        assert torch.equal(out["lm_head.weight"][row], drafter.lm_head.weight[int(np.flatnonzero(own == token)[0])])
    assert json.loads((tmp_path / "to" / "config.json").read_text())["draft_vocab_size"] == 64


def test_a_token_without_a_row_is_refused_and_nothing_is_written(checkpoint, tmp_path: Path) -> None:
    source, drafter = checkpoint
    missing = min(set(range(96)) - set(drafter.target_ids.tolist()))
    ids = np.sort(np.append(drafter.target_ids.numpy()[:63], missing))
    with pytest.raises(Eagle3Error, match=f"first id {missing}"):
        convert(source, "vllm", tmp_path / "to", mapping=VocabMapping(ids, 96))
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_at_the_full_vocabulary_d2t_stays_only_where_the_consumer_insists(tmp_path: Path, consumer: str) -> None:
    drafter = tiny.tiny_drafter(96, dtype=torch.float32)
    write_drafter(tmp_path / "from", drafter, tiny.tiny_target_spec(), with_embedding=True)
    convert(tmp_path / "from", consumer, tmp_path / "to")
    held = {"d2t", "t2d"} & set(load_file(tmp_path / "to" / "model.safetensors"))
    assert held == ({"d2t", "t2d"} if consumer in ("sglang", "specforge", "eagle") else set())


def test_the_embedding_is_dropped_when_asked(checkpoint, tmp_path: Path) -> None:
    source, _ = checkpoint
    made = convert(source, "vllm", tmp_path / "to", embedding="drop")
    assert "embed_tokens.weight" in made.dropped
    assert "embed_tokens.weight" not in load_file(tmp_path / "to" / "model.safetensors")
    with pytest.raises(Eagle3Error, match="no embedding to keep"):
        convert(tmp_path / "to", "vllm", tmp_path / "again", embedding="keep")


def test_nothing_is_overwritten_without_force(checkpoint, tmp_path: Path) -> None:
    source, _ = checkpoint
    convert(source, "vllm", tmp_path / "to")
    with pytest.raises(Eagle3Error, match="already exists"):
        convert(source, "vllm", tmp_path / "to")
    convert(source, "vllm", tmp_path / "to", force=True)


def test_a_mapping_alone_says_the_rows_and_with_a_checkpoint_moves_them(checkpoint, tmp_path: Path) -> None:
    source, drafter = checkpoint
    order = np.random.default_rng(0).permutation(drafter.target_ids.numpy())
    write_mapping("modelopt", VocabMapping(order, 96), tmp_path / "map")
    run = RUNNER.invoke(app, ["convert", str(tmp_path / "map" / "d2t.pt"), "--for", "specforge", "--vocab-size", "96",
                              "--out", str(tmp_path / "sorted"), "--json"], catch_exceptions=False)
    rows = json.loads(run.stdout)["rows"]
    np.testing.assert_array_equal(order[rows], np.sort(order))
    assert read_mapping(tmp_path / "sorted").is_ascending
    run = RUNNER.invoke(app, ["convert", str(tmp_path / "map" / "d2t.pt"), "--checkpoint", str(source),
                              "--for", "modelopt", "--vocab-size", "96", "--out", str(tmp_path / "moved"), "--json"],
                        catch_exceptions=False)
    assert json.loads(run.stdout)["rows_moved"] > 0
    out = load_file(tmp_path / "moved" / "model.safetensors")
    np.testing.assert_array_equal(mapping_from_d2t(out["d2t"].numpy(), 96).target_ids, order)
    at = {token: row for row, token in enumerate(drafter.target_ids.tolist())}
    for row, token in enumerate(order.tolist()):
        assert torch.equal(out["lm_head.weight"][row], drafter.lm_head.weight[at[token]])


def test_peak_memory_stays_below_one_and_a_half_of_the_largest_tensor(checkpoint, tmp_path: Path) -> None:
    source, _ = checkpoint
    state = load_file(source / "model.safetensors")
    vocab, draft = 60_000, 50_000
    ids = torch.randperm(vocab, generator=torch.Generator().manual_seed(0))[:draft]
    # A head of 400 MB, whose rows are in another order.
    state |= {"lm_head.weight": torch.ones(draft, 2_048), "d2t": ids - torch.arange(draft),
              "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill_(0, ids, True)}
    state["fc.weight"] = torch.zeros(2_048, 96)
    for name in [n for n in state if n.startswith("midlayer.") or n in ("norm.weight", "embed_tokens.weight")]:
        shape = [2_048 if s == 32 else 4_096 if s == 64 else s for s in state[name].shape]
        state[name] = torch.zeros(shape)
    config = json.loads((source / "config.json").read_text())
    config |= {"hidden_size": 2_048, "target_hidden_size": 32, "vocab_size": vocab, "draft_vocab_size": draft,
               "num_attention_heads": 4, "head_dim": 8}
    (source / "config.json").write_text(json.dumps(config))
    state["embed_tokens.weight"] = torch.zeros(1, 2_048).expand(vocab, 2_048).contiguous()
    save_file(state, source / "model.safetensors")
    largest = max(t.numel() * t.element_size() for t in state.values())
    assert largest > 400e6
    code = (
        "import resource, sys\n"
        "from eagle3_core.export.convert import convert\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "convert(sys.argv[1], 'vllm', sys.argv[2])\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(source), str(tmp_path / "to")], capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert int(done.stdout) < 1.5 * largest
    out = load_file(tmp_path / "to" / "model.safetensors")
    assert out["lm_head.weight"].shape == (draft, 2_048)
    assert (torch.diff(out["d2t"] + torch.arange(draft)) > 0).all()


def test_a_drafter_with_qk_norm_gets_the_layer_type_that_has_it(tmp_path: Path) -> None:
    drafter = tiny.tiny_drafter(dtype=torch.float32, qk_norm=True)
    write_drafter(tmp_path / "from", drafter, tiny.tiny_target_spec(), with_embedding=True)
    convert(tmp_path / "from", "speculators", tmp_path / "to")
    config = json.loads((tmp_path / "to" / "config.json").read_text())
    assert config["transformer_layer_config"]["model_type"] == "qwen3"
    assert read_drafter(tmp_path / "to").drafter.spec == drafter.spec
    # vLLM's plain config has no word for it: the norms would be left out in silence.
    with pytest.raises(Eagle3Error, match="qk_norm"):
        convert(tmp_path / "from", "vllm", tmp_path / "plain")


def test_feature_layers_that_eagle_cannot_read_are_told_or_refused(checkpoint, tmp_path: Path) -> None:
    source, _ = checkpoint  # layers 0, 2, 3 are written in it; of 5 layers EAGLE reads the outputs of 1, 1 and 1
    made = convert(source, "eagle", tmp_path / "told")
    assert "0, 2, 3" in made.notes[0]
    with pytest.raises(Eagle3Error, match="other feature layers"):
        convert(source, "eagle", tmp_path / "refused", target=tiny.tiny_target_spec())
    assert not (tmp_path / "refused").exists()
    run = RUNNER.invoke(app, ["convert", str(source), "--for", "eagle", "--out", str(tmp_path / "c")],
                        catch_exceptions=False)
    assert "note: feature layers 0, 2, 3 are not written" in run.stdout


def test_an_ambiguous_file_is_settled_by_the_option_its_message_names(tmp_path: Path) -> None:
    torch.save(torch.tensor([0, 1, 2]), tmp_path / "ids.pt")
    command = ["convert", str(tmp_path / "ids.pt"), "--for", "vllm", "--vocab-size", "9", "--out", str(tmp_path / "to")]
    with pytest.raises(Eagle3Error, match="--format"):
        RUNNER.invoke(app, command, catch_exceptions=False)
    RUNNER.invoke(app, [*command, "--format", "offsets"], catch_exceptions=False)
    assert read_mapping(tmp_path / "to", vocab_size=9).target_ids.tolist() == [0, 2, 4]
