"""Bad input, through the real command line: one line on stderr, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3_core.cli.main import app
from eagle3_core.errors import Eagle3Error

RUNNER = CliRunner()
COUNTS = "qwen3.counts.parquet"
LATENCY = "qwen3-8b.cpu.latency.json"


@pytest.fixture
def folder(tmp_path: Path, samples: Path) -> Path:
    """Good files and, beside them, one bad file of each kind."""
    for name in (COUNTS, LATENCY, "smollm2.counts.parquet"):
        (tmp_path / name).write_bytes((samples / name).read_bytes())
    whole = (samples / COUNTS).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.parquet").write_text("tokens: 12\n")
    (tmp_path / "text.json").write_text("draft vocabulary: 32000\n")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "nan.json").write_text('{"hidden_size": NaN}')
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4096}))
    return tmp_path


TRADEOFF = ("tradeoff", "--target", "qwen3-8b", "--counts", COUNTS)
EXPORT = ("export", "--target", "qwen3-8b", "--counts", COUNTS, "--out", "bundle")
REPORT = ("report", "--target", "qwen3-8b", "--counts", COUNTS, "--out", "out.html")
CASES = [
    # arguments, parts of the line
    (("coverage", "missing.parquet"), ("missing.parquet", "no such file")),
    (("coverage", "cut.parquet"), ("cut.parquet",)),
    (("coverage", "text.parquet"), ("text.parquet",)),
    (("coverage", "."), ("folder",)),
    (("coverage", COUNTS, "--sizes", "32"), ("32", "64")),
    (("coverage", COUNTS, "--sizes", "1000000"), ("1,000,000", "151,936")),
    (("coverage", COUNTS, "--sizes", "many"), ("many",)),
    (("coverage", COUNTS, "--ranking", "poled"), ("poled", "pooled")),
    (("coverage", COUNTS, "--ranking", "weights", "--weights", "nowhere=1"), ("nowhere",)),
    (("coverage", COUNTS, "--force-ids", "text.json"), ("text.json", "JSON")),
    (("coverage", COUNTS, "--pad-from", "smollm2.counts.parquet"), ("smollm2",)),
    (("params", "--target", "kimi-k2"), ("kimi-k2",)),
    (("params", "--target", "config.json"), ("config.json",)),
    (("params", "--target", "nan.json"), ("nan.json",)),
    (("params", "--target", "list.json"), ("list.json",)),
    (("params", "--target", "qwen3-8b", "--sizes", "63"), ("63", "64")),
    ((*TRADEOFF, "--latency", "text.json"), ("text.json", "JSON")),
    ((*TRADEOFF, "--latency", "h20"), ("h20",)),
    ((*TRADEOFF, "--latency", "missing.latency.json"), ("missing.latency.json",)),
    ((*TRADEOFF, "--acceptance", "1.5"), ("1.5",)),
    ((*TRADEOFF, "--acceptance", "text.json"), ("text.json", "JSON")),
    ((*TRADEOFF, "--sizes", "0"), ("0", "64")),
    ((*TRADEOFF, "--locked", "999999"), ("--locked", "999,999")),
    ((*TRADEOFF, "--engine", "triton"), ("triton",)),
    ((*TRADEOFF, "--dtype", "int3"), ("int3",)),
    ((*TRADEOFF, "--decode-ms", "-1"), ("-1",)),
    (("tradeoff", "--target", "kimi-k2.5", "--counts", COUNTS), ("151,936", "163,840", "--stand-in")),
    (("tradeoff", "--target", "qwen3-8b", "--counts", "smollm2.counts.parquet"), ("49,152", "151,936")),
    (("tradeoff", "--target", "qwen3-8b"), ("--counts is missing",)),
    (("tradeoff", "--target", "llama-3.1-8b", "--counts", COUNTS, "--stand-in", "--latency", LATENCY),
     ("128256", "151936")),
    ((*EXPORT, "--size", "32"), ("32", "64")),
    ((*EXPORT, "--size", "200000"), ("200,000", "151,936")),
    ((*EXPORT, "--for", "sglan"), ("sglan", "sglang")),
    (("export", "--target", "qwen3-8b", "--counts", COUNTS), ("--out is missing",)),
    (("export", "--decision", "list.json", "--out", "bundle"), ("list.json",)),
    (("export", "--decision", "text.json", "--out", "bundle"), ("text.json", "JSON")),
    ((*REPORT, "--size", "63"), ("63", "64")),
    (("report", "missing.json", "--out", "out.html"), ("missing.json", "no such file")),
    ((*REPORT, "--format", "doc"), ("doc", "html, md, pdf")),
    (("report", "--compare", "list.json", "list.json", "--out", "out.html"), ("list.json",)),
    (("report", "--compare", "missing.html", "list.json", "--out", "out.html"), ("missing.html", "no such file")),
    (("report", "--compare", "list.json", "list.json", "--target", "qwen3-8b", "--out", "out.html"), ("--compare",)),
    (("check", "missing.json", "--counts", COUNTS), ("missing.json", "no such file")),
    (("check", "text.json", "--counts", COUNTS), ("text.json", "JSON")),
    (("audit", "--checkpoint", "missing", "--counts", COUNTS, "--target", "qwen3-8b", "--out", "a.json"), ("missing",)),
    (("count", "missing.jsonl", "--tokenizer", "missing", "--out", "c.counts.parquet"), ("missing",)),
    (("count", "list.json", "--tokenizer", "text.json", "--out", "c.counts.parquet"), ("text.json",)),
    (("measure", "acceptance", "--from", "text.json", "--size", "32000", "--out", "a.acceptance.json"), ("text.json",)),
    (("measure", "latency", "--target", "nothing-like-it", "--out", "l.latency.json"), ("nothing-like-it",)),
    (("measure", "latency", "--target", "smollm2-135m", "--device", "tpu", "--out", "l.latency.json"), ("tpu",)),
    (("extract", "--target", "missing", "--data", "list.json", "--out", "hs"), ("missing",)),
]


@pytest.mark.parametrize(("arguments", "parts"), CASES, ids=[" ".join(case[0]) for case in CASES])
def test_bad_input_gives_one_line_that_names_it_and_writes_nothing(
    arguments: tuple[str, ...], parts: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    result = RUNNER.invoke(app, list(arguments))
    assert isinstance(result.exception, Eagle3Error), result.output
    line = str(result.exception)
    assert result.exception.exit_code == 2
    assert "\n" not in line
    for part in parts:
        assert part in line, line
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(("coverage", "text.parquet"), "text.parquet"),
     (("params", "--target", "nowhere/config.json"), "nowhere/config.json"),
     (("params", "--sizes", "32000"), "--target"), (("params", "--target", "qwen3-8b", "--k", "x"), "--k"),
     (("nonsense",), "nonsense")],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_the_process_exits_with_2_and_prints_no_traceback(arguments: tuple[str, ...], part: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "eagle3_core.cli.main", *arguments], cwd=folder, text=True,
                          capture_output=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_a_hostile_file_name_cannot_forge_a_second_line(tmp_path: Path) -> None:
    name = "a\nerror: all good\x1b[2J‮.parquet"
    done = subprocess.run([sys.executable, "-m", "eagle3_core.cli.main", "coverage", name], cwd=tmp_path, text=True,
                          capture_output=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.rstrip("\n").isprintable()
