"""``eagle3 inspect`` as a user calls it: exit codes, JSON, and nothing forged by a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "inspect"))

from small import IDS, D, V, small

from eagle3_core.cli.main import app
from eagle3_core.errors import Eagle3Error


def run(*arguments: object):
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def test_exit_codes_are_0_1_and_2(tmp_path):
    good = small("sglang").write(tmp_path / "good")
    assert run(good, "--for", "sglang").exit_code == 0
    warned = small("sglang")
    warned.config["norm_before_residual"] = True
    result = run(warned.write(tmp_path / "warned"), "--for", "sglang")
    assert result.exit_code == 0
    assert "warning: config.json: norm_before_residual is true" in result.output
    broken = small("sglang")
    del broken.tensors["d2t"], broken.tensors["t2d"]
    result = run(broken.write(tmp_path / "broken"))
    assert result.exit_code == 1
    assert "error: weights: no d2t though D = 128 < V = 1,280" in result.output
    assert "NVIDIA-NeMo/Automodel#2447" in result.output
    result = run(tmp_path / "nothing")
    assert isinstance(result.exception, Eagle3Error)
    assert result.exception.exit_code == 2


def test_json_has_the_facts_the_lint_and_who_could_load_it(tmp_path):
    value = json.loads(run(small("speculators").write(tmp_path), "--json").output)
    assert (value["dimensions"]["D"], value["dimensions"]["V"]) == (D, V)
    assert value["size"]["state"] == "re-cut"
    assert value["lint"] == []
    assert {row["consumer"] for row in value["who_could_load"] if row["loads"]} == {"speculators", "vllm"}
    assert value["parameters"]["frozen"] == D * 16


def test_counts_and_another_mapping_add_their_parts(tmp_path, samples):
    del samples
    folder = small().write(tmp_path / "a")
    other = small()
    moved = IDS.copy()
    moved[3] = 31
    other.tensors["d2t"], other.tensors["t2d"] = moved - np.arange(D), np.isin(np.arange(V), moved)
    value = json.loads(run(folder, "--against", other.write(tmp_path / "b"), "--json").output)
    assert value["against"]["rows"] == [{"row": 3, "before": 30, "after": 31, "now_at": None}]
    assert "1 change" in run(folder, "--against", tmp_path / "b").output


def test_the_bundled_counts_measure_a_mapping_of_their_target(tmp_path, samples):
    from eagle3_core.corpus.counts import read_counts
    from eagle3_core.vocab.formats import write_mapping
    from eagle3_core.vocab.ranking import mapping_at, rank

    counts = next(samples.glob("*smollm2*.counts.parquet"))
    held = read_counts(counts)
    (file,) = write_mapping("specforge", mapping_at(rank(held, force=False), 8192), tmp_path)
    result = run(file, "--counts", counts, "--json")
    found = json.loads(result.output)["coverage"]
    # Ranked on these very tokens, so it is the best of its size in sample.
    assert found["coverage"] == pytest.approx(found["best_in_sample"])
    assert found["best_heldout"] <= found["best_in_sample"]
    assert result.exit_code == 0
    assert "lost tokens that matter most" in run(file, "--counts", counts).output


def test_names_in_a_file_cannot_forge_a_line(tmp_path):
    s = small("speculators")
    s.config["speculators_config"]["verifier"]["name_or_path"] = "x\nlint: nothing found\x1b[2J"
    output = run(s.write(tmp_path)).output
    assert "x\\nlint: nothing found\\x1b[2J" in output
