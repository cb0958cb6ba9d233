"""The export bundle: the same bytes from every way in, hashes that hold, files that load, nothing overwritten."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from eagle3_core.acceptance.model import assumed_alpha
from eagle3_core.corpus.counts import TokenCounts, read_counts
from eagle3_core.cost.hardware import devices
from eagle3_core.decide.conclude import decide
from eagle3_core.decide.record import Decision, read_decision
from eagle3_core.decide.tradeoff import TradeoffInputs
from eagle3_core.errors import Eagle3Error
from eagle3_core.export.bundle import bundle_name, bundle_of, make_bundle, write_bundle, zip_bytes
from eagle3_core.export.commands import launch_commands
from eagle3_core.export.configs import CONSUMERS
from eagle3_core.specs.drafter import drafter_for
from eagle3_core.specs.presets import resolve_target
from eagle3_core.vocab.formats import read_mapping

NOW = "2026-01-01T00:00:00+00:00"
SIZE = 8_192


@pytest.fixture(scope="module")
def inputs(samples: Path) -> TradeoffInputs:
    return TradeoffInputs(resolve_target("smollm2-135m"), read_counts(samples / "smollm2.counts.parquet"),
                          devices()["h200"], assumed_alpha(0.8))


@pytest.fixture(scope="module")
def decision(inputs: TradeoffInputs) -> Decision:
    return decide(inputs, SIZE, created=NOW)


@pytest.fixture(scope="module")
def files(decision: Decision) -> dict[str, bytes]:
    return bundle_of(decision)


def test_the_manifest_holds_the_hash_of_every_other_file(files: dict[str, bytes]) -> None:
    manifest = json.loads(files["MANIFEST.json"])["sha256"]
    assert set(manifest) == set(files) - {"MANIFEST.json"}
    assert all(manifest[path] == hashlib.sha256(files[path]).hexdigest() for path in manifest)


def test_every_consumer_has_config_mapping_and_commands(files: dict[str, bytes]) -> None:
    for name in CONSUMERS:
        mine = [path for path in files if path.startswith(f"{name}/")]
        assert f"{name}/config.json" in mine
        assert any(path.endswith(".sh") for path in mine)
        assert any("d2t" in path or "mapping" in path or path.endswith(".pt") for path in mine), mine


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_the_mapping_read_back_is_the_decisions(
    consumer: str, files: dict[str, bytes], decision: Decision, tmp_path: Path
) -> None:
    write_bundle(files, tmp_path / "out", root="x")
    found = read_mapping(tmp_path / "out" / consumer, vocab_size=49_152)
    assert decision.token_set is not None
    expected = decision.token_set.ranked(49_152) if consumer == "modelopt" else decision.token_set.mapping(49_152)
    assert expected is not None
    assert found.target_ids.tolist() == expected.target_ids.tolist()


def test_only_the_time_stamp_changes_the_bytes(inputs: TradeoffInputs, files: dict[str, bytes]) -> None:
    again = make_bundle(inputs, SIZE, created=NOW, with_report=False)
    assert again == files
    later = make_bundle(inputs, SIZE, created="2027-01-01T00:00:00+00:00", with_report=False)
    assert {path for path in files if files[path] != later[path]} == {"decision.json", "DECISION.md", "MANIFEST.json"}


def test_a_zip_depends_on_its_content_alone(files: dict[str, bytes]) -> None:
    data = zip_bytes(files, "root")
    assert data == zip_bytes(dict(reversed(files.items())), "root")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.namelist() == sorted(f"root/{path}" for path in files)
        assert all(archive.read(f"root/{path}") == files[path] for path in files)
        scripts = [i for i in archive.infolist() if i.filename.endswith(".sh")]
        assert scripts
        assert all(i.external_attr >> 16 & 0o111 for i in scripts)


def test_a_folder_is_written_whole_and_never_over_another(files: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    write_bundle(files, out, root="x")
    assert {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()} == files
    assert os.access(out / "sglang" / "serve.sh", os.X_OK)
    with pytest.raises(Eagle3Error, match="already exists"):
        write_bundle(files, out, root="x")
    (out / "old.txt").write_text("stale")
    write_bundle(files, out, root="x", force=True)
    assert not (out / "old.txt").exists()
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_a_folder_of_something_else_is_not_replaced_even_by_force(files: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    with pytest.raises(Eagle3Error, match="not an export of ours"):
        write_bundle(files, tmp_path / "thesis", root="x", force=True)
    assert (tmp_path / "thesis" / "chapter1.txt").read_text() == "years of work"


@pytest.mark.parametrize("name", ["file/out", "file/out.zip"])
def test_a_place_that_cannot_be_written_gives_one_line(files: dict[str, bytes], tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Eagle3Error, match="cannot be written") as caught:
        write_bundle(files, tmp_path / name, root="x")
    assert "\n" not in str(caught.value)


def test_without_the_targets_own_tokens_there_is_a_note_instead_of_a_mapping(inputs: TradeoffInputs) -> None:
    kimi = TradeoffInputs(resolve_target("kimi-k2.5"), inputs.counts, devices()["h200"], assumed_alpha(0.8))
    files = make_bundle(kimi, 32_000, ("sglang",), created=NOW, with_report=False)
    assert "sglang/MAPPING_MISSING.txt" in files
    assert not [path for path in files if "mapping" in path and path.endswith(".safetensors")]


def test_the_full_vocabulary_can_be_exported(inputs: TradeoffInputs) -> None:
    files = make_bundle(inputs, 49_152, created=NOW, with_report=False)
    assert json.loads(files["sglang/config.json"])["draft_vocab_size"] == 49_152


def test_forced_ids_and_the_padding_order_reach_the_mapping_and_the_record(inputs: TradeoffInputs) -> None:
    counts = inputs.counts
    unseen = np.flatnonzero(counts.total == 0)
    wanted, likely = int(unseen[-1]), int(unseen[-2])
    elsewhere = np.zeros_like(counts.counts)
    elsewhere[0, 0, likely] = 5
    size = int((counts.total > 0).sum()) + 300
    changed = dataclasses.replace(
        inputs, extra_forced=(wanted,),
        pad_from=TokenCounts(elsewhere, counts.token, counts.role, counts.meta))
    plain, found = decide(inputs, size, created=NOW), decide(changed, size, created=NOW)
    assert plain.token_set is not None
    assert found.token_set is not None
    before, after = (set(d.token_set.mapping(49_152).target_ids.tolist()) for d in (plain, found))
    assert {wanted, likely} <= after
    assert not {wanted, likely} & before
    assert found.token_set.forced == plain.token_set.forced + 1
    assert found.token_set.padding > 0
    assert found.sources.extra_forced == (wanted,)
    assert found.inputs[0].name == "padding order"


@pytest.mark.parametrize(("name", "expected"), [
    ("kimi-k2.5", "kimi-k2.5-d64"), ("a/b c", "a-b-c-d64"), ("../../x", "..-..-x-d64"), ("", "target-d64")])
def test_the_root_folder_of_a_zip_is_a_plain_name(name: str, expected: str) -> None:
    assert bundle_name(name, 64) == expected


def _run(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "eagle3_core.cli.main", *map(str, args)], capture_output=True,
                          text=True, check=False, timeout=180)


@pytest.mark.slow
def test_the_command_gives_the_functions_bytes_and_a_recorded_decision_gives_them_again(
    inputs: TradeoffInputs, samples: Path, tmp_path: Path
) -> None:
    counts = samples / "smollm2.counts.parquet"
    first = _run("export", "--target", "smollm2-135m", "--counts", counts, "--size", SIZE, "--for", "sglang,modelopt",
                 "--created", NOW, "--out", tmp_path / "a", "--json")
    assert first.returncode == 0, first.stderr
    written = {str(p.relative_to(tmp_path / "a")): p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    expected = make_bundle(inputs, SIZE, ("sglang", "modelopt"), created=NOW,
                           hashes={"counts": hashlib.sha256(counts.read_bytes()).hexdigest()})
    assert {k: hashlib.sha256(v).hexdigest() for k, v in written.items()} == {
        k: hashlib.sha256(v).hexdigest() for k, v in expected.items()}
    second = _run("export", "--decision", tmp_path / "a" / "decision.json", "--counts", counts, "--for",
                  "sglang,modelopt", "--out", tmp_path / "b.zip")
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "b.zip").read_bytes() == zip_bytes(expected, bundle_name(inputs.target.name, SIZE))
    other = _run("export", "--decision", tmp_path / "a" / "decision.json", "--counts", samples / "qwen3.counts.parquet",
                 "--out", tmp_path / "c")
    assert other.returncode == 2
    assert "not the file of this decision" in other.stderr
    assert not (tmp_path / "c").exists()
    assert read_decision(tmp_path / "a" / "decision.json").choice.draft_vocab == SIZE


def test_serving_lines_carry_the_tree_that_was_decided() -> None:
    target = resolve_target("qwen3-8b")
    drafter = drafter_for(target, 32_000)
    chain = launch_commands("sglang", target, drafter, k=5)["serve.sh"]
    assert "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6 " in chain
    tree = launch_commands("sglang", target, drafter, k=4, topk=8, draft_tokens=32)["serve.sh"]
    assert "--speculative-num-steps 4 --speculative-eagle-topk 8 --speculative-num-draft-tokens 32 " in tree
    assert "chain" in launch_commands("vllm", target, drafter, k=4, topk=8, draft_tokens=32)["serve.sh"]
