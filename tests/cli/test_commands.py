"""The documented commands, run as a user runs them, against arithmetic shown here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3_core.cli.main import app
from eagle3_core.demo import find_gguf
from eagle3_core.errors import Eagle3Error

RUNNER = CliRunner()


def run(*arguments: object) -> Any:
    result = RUNNER.invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_params_of_the_standing_example() -> None:
    rows = run("params", "--target", "kimi-k2.5", "--sizes", "32000,163840")
    hidden, heads, width, inner = 7_168, 64, 128, 18_432
    for row, size in zip(rows, (32_000, 163_840), strict=True):
        qkv = 2 * hidden * width * (heads + 2 * heads)
        body = qkv + heads * width * hidden + 3 * hidden * inner + 3 * hidden * hidden + 4 * hidden
        assert row["draft_vocab"] == size
        assert row["lm_head"] == size * hidden
        assert row["trainable"] == body + size * hidden
        assert row["lm_head_bytes"] == 2 * size * hidden
    assert [row["lm_head"] for row in rows] == [229_376_000, 1_174_405_120]
    assert [row["trainable"] for row in rows] == [1_190_948_864, 2_135_977_984]
    # Frozen beside it: the embedding (V x H) and the verifier head sliced to D rows.
    assert rows[0]["total"] == 2_594_729_984 == 1_190_948_864 + 163_840 * hidden + 32_000 * hidden


def test_coverage_has_the_documented_keys_and_ends_at_one(samples: Path) -> None:
    rows = run("coverage", samples / "qwen3.counts.parquet", "--sizes", "8192,32000,full")
    for row in rows:
        assert {"draft_vocab", "coverage_heldout", "coverage_in_sample", "worst_domain", "domains",
                "unseen_mass"} <= set(row)
        assert set(row["domains"]) == {"code", "en_chat", "math", "zh"}
        assert row["domains"][row["worst_domain"]] == pytest.approx(min(row["domains"].values()))
    assert rows[0]["coverage_heldout"] < rows[1]["coverage_heldout"] < rows[1]["coverage_in_sample"] < 1
    assert rows[2]["coverage_heldout"] == rows[2]["coverage_in_sample"] == 1


def test_tradeoff_prints_every_column_of_the_table(samples: Path) -> None:
    from eagle3_core.decide.tradeoff import COLUMNS

    got = run("tradeoff", "--target", "qwen3-8b", "--counts", samples / "qwen3.counts.parquet")
    assert got["verdict"].startswith("Recommended D = ")
    assert set(got["table"][0]) >= set(COLUMNS)
    best = max(row["speedup"] for row in got["table"])
    inside = [row["draft_vocab"] for row in got["table"] if row["speedup"] >= 0.99 * best]
    assert got["recommendation"]["size"] == min(inside)


def test_fifteen_percent_acceptance_is_slower_than_no_drafter_and_the_break_even_alpha_breaks_even(
    samples: Path,
) -> None:
    setting = ("tradeoff", "--target", "kimi-k2.5", "--counts", samples / "qwen3.counts.parquet", "--stand-in",
               "--k", 5, "--decode-ms", 11.1, "--sizes", "32000,163840")
    got = run(*setting, "--acceptance", 0.15)
    assert got["verdict"].startswith("Slower than no drafter at every size")
    tau = 1 + sum(0.15**k for k in range(1, 6))
    full = got["table"][-1]
    assert full["tau"] == pytest.approx(tau, rel=1e-6)
    assert full["speedup"] < 1
    assert all(row["speedup_evidence"] != "measured" for row in got["table"])
    alpha = full["break_even_alpha"]
    assert run(*setting, "--acceptance", f"{alpha:.6f}")["table"][-1]["speedup"] == pytest.approx(1, abs=1e-3)


def test_a_stand_in_marks_every_figure_it_touches(samples: Path) -> None:
    got = run("tradeoff", "--target", "kimi-k2.5", "--counts", samples / "qwen3.counts.parquet", "--stand-in")
    assert {row["coverage_evidence"] for row in got["table"]} <= {"modelled", "derived"}


def test_report_and_export_write_what_they_say(samples: Path, tmp_path: Path) -> None:
    common = ("--target", "qwen3-8b", "--counts", samples / "qwen3.counts.parquet", "--size", 32_000)
    run("report", *common, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert len(page.encode()) < 1_200_000
    assert "32,000" in page
    got = run("export", *common, "--for", "sglang,speculators", "--out", tmp_path / "bundle")
    assert got["draft_vocab"] == 32_000
    written = sorted(str(p.relative_to(tmp_path / "bundle")) for p in (tmp_path / "bundle").rglob("*") if p.is_file())
    assert written == got["files"]


def test_counting_the_bundled_chats_covers_itself(samples: Path, tmp_path: Path) -> None:
    try:
        weights = find_gguf()
    except Eagle3Error as error:
        pytest.skip(str(error))
    out = tmp_path / "chats.counts.parquet"
    got = run("count", samples / "chats.jsonl", "--tokenizer", weights, "--domain-field", "source", "--out", out)
    assert got["documents"] == 240
    rows = run("coverage", out, "--sizes", "full")
    assert rows[0]["coverage_heldout"] == 1
