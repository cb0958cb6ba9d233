"""The report as markdown, as PDF and compared; the commands it names make it again."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from eagle3_core.acceptance.model import assumed_alpha
from eagle3_core.cli.main import app
from eagle3_core.decide.conclude import decide
from eagle3_core.decide.record import decision_json
from eagle3_core.errors import Eagle3Error
from eagle3_core.report.again import COUNTS
from eagle3_core.report.compare import compare, comparison_html, comparison_markdown, read_either
from eagle3_core.report.data import ReportData
from eagle3_core.report.html import packed, render_html, unpacked
from eagle3_core.report.markdown import markdown_files
from eagle3_core.report.pdf import chromium
from tests.report.conftest import BAD, NOW, SIZE

RUNNER = CliRunner()
SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments: object) -> str:
    result = RUNNER.invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: object) -> str:
    result = RUNNER.invoke(app, list(map(str, arguments)))
    assert isinstance(result.exception, Eagle3Error), result.output
    return str(result.exception)


def test_the_page_stays_under_the_limit_and_is_the_same_each_time(html: str, data: ReportData) -> None:
    assert len(html.encode()) < 1_200_000
    assert render_html(data) == html


def test_markdown_has_the_choice_the_picture_and_no_markup_of_its_inputs(data: ReportData) -> None:
    files = markdown_files(data, "my report")
    text, picture = files["my report.md"], files["my-report.svg"]
    assert f"D = {SIZE:,}" in text.splitlines()[0]
    assert "](my-report.svg)" in text
    for heading in ("Options", "Evidence", "Assumptions", "Look again when", "Coverage by domain, held out",
                    "Left-out tokens that matter", "Does the recommendation move?", "Make it again"):
        assert f"\n## {heading}\n" in text
    outside = text.split("```")[0]
    assert not re.search(r"(?<!\\)<(script|img|h1|/)", outside)
    # Each table row has as many cells as its head, whatever the texts hold.
    for table in re.findall(r"(?:^\|.*\n)+", outside, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table
    root = ElementTree.fromstring(picture)
    assert root.tag == SVG + "svg"
    assert "var(--" not in picture
    assert f"{data.decision.row(SIZE)['coverage'] * 100:.1f} %" in "".join(root.itertext())
    assert not list(root.iter(SVG + "script"))


def test_a_recorded_decision_reports_in_every_format(samples: Path, tmp_path: Path) -> None:
    counts = samples / "smollm2.counts.parquet"
    run("export", "--target", "smollm2-135m", "--counts", counts, "--size", SIZE, "--for", "sglang", "--created", NOW,
        "--out", tmp_path / "b")
    record = tmp_path / "b" / "decision.json"
    wrote = json.loads(run("report", record, "--counts", counts, "--format", "md", "--out", tmp_path / "r.md",
                           "--json"))
    assert wrote["files"] == [str(tmp_path / "r.md"), str(tmp_path / "r.svg")]
    assert "already exists" in refused("report", record, "--counts", counts, "--format", "md", "--out",
                                       tmp_path / "r.md")
    run("report", record, "--counts", counts, "--out", tmp_path / "r.html")
    assert (tmp_path / "r.html").read_bytes() == (tmp_path / "b" / "report.html").read_bytes()
    assert decision_json(read_either(tmp_path / "r.html")) == record.read_text()
    assert "--counts is missing" in refused("report", record, "--out", tmp_path / "x.html")
    assert "pdf" in refused("report", record, "--counts", counts, "--format", "pdff", "--out", tmp_path / "x.html")


@pytest.mark.browser
def test_the_pdf_has_two_pages(samples: Path, tmp_path: Path) -> None:
    try:
        chromium()
    except Eagle3Error as error:
        pytest.skip(str(error))
    run("report", "--target", "qwen3-8b", "--counts", samples / "qwen3.counts.parquet", "--format", "pdf",
        "--out", tmp_path / "r.pdf")
    pdf = (tmp_path / "r.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 2


def test_without_a_browser_pdf_gives_one_line_and_writes_nothing(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("EAGLE3_CHROMIUM", raising=False)
    line = refused("report", "--target", "smollm2-135m", "--counts", samples / "smollm2.counts.parquet",
                   "--format", "pdf", "--out", tmp_path / "r.pdf")
    assert "needs Chromium" in line
    assert not list(tmp_path.iterdir())


def test_the_command_in_a_report_makes_the_same_report(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / COUNTS).write_bytes((samples / "smollm2.counts.parquet").read_bytes())
    run("report", "--target", "smollm2-135m", "--counts", COUNTS, "--size", SIZE, "--k", 3, "--acceptance", "0.7,0.6",
        "--ranking", "worst", "--batch", 8, "--decode-ms", 5.5, "--latency", "h100", "--context", 4096,
        "--out", "first.html")
    page = (tmp_path / "first.html").read_text()
    line = next(part for part in page.replace("&#39;", "'").splitlines() if part.startswith("eagle3 report"))
    arguments = shlex.split(line)
    run(*arguments[1:-1], "again.html")
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "first.html").read_bytes()


def test_two_decisions_side_by_side_name_what_changed(data: ReportData, tmp_path: Path) -> None:
    other = decide(dataclasses.replace(data.inputs, k=5, acceptance=assumed_alpha(0.8)), 24_576, created=NOW)
    result = compare(data.decision, other, ("before.json", BAD))
    assert "k: 3 to 5" in result.changes
    assert "draft vocabulary: 8,192 to 24,576" in result.changes
    names = [name for name, _ in result.columns]
    assert names[0] == "A: 8,192, chosen"
    assert names[-1] == "B: 24,576, chosen"
    chosen = dict(result.columns)["B: 24,576, chosen"]
    row = other.row(24_576)
    assert chosen[4] == f"{row['tau']:.2f}"
    page = comparison_html(result)
    assert "<script" not in page
    assert "<img" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert "<script" not in re.sub(r"\\<", "", comparison_markdown(result))
    first, second = tmp_path / "a.html", tmp_path / "b.json"
    first.write_text(render_html(data))
    second.write_text(decision_json(other))
    got = json.loads(run("report", "--compare", first, second, "--out", tmp_path / "c.html", "--json"))
    assert got["changes"] == list(result.changes)
    assert compare(data.decision, data.decision).changes == ()


@pytest.mark.parametrize(("name", "content", "said"), [
    ("x.html", "<html></html>", "holds no decision"),
    ("x.html", '<script type="text/plain" id="decision">AAAA</script>', "damaged"),
    ("x.html", f'<script type="text/plain" id="decision">{packed("[1]")}</script>', "x.html"),
    ("x.html", f'<script type="text/plain" id="decision">{packed("not json")}</script>', "damaged"),
    ("x.json", "[1]", "x.json"),
])
def test_a_file_that_holds_no_decision_cannot_be_compared(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    line = refused("report", "--compare", tmp_path / name, tmp_path / name, "--out", tmp_path / "c.html")
    assert said in line
    assert not (tmp_path / "c.html").exists()


def test_packed_text_comes_back_and_a_bomb_does_not() -> None:
    assert unpacked(packed("Größe ☃"), 100) == "Größe ☃"
    with pytest.raises(ValueError, match="too long"):
        unpacked(packed("a" * 1000), 999)
