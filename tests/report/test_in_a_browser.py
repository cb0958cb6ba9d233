"""The report as its reader meets it: a file, a browser, no network."""

from __future__ import annotations

import base64
import csv
import hashlib
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import polars as pl
import pytest
from playwright.sync_api import Page, expect

from eagle3_core.decide.record import decision_json
from eagle3_core.decide.tradeoff import tradeoff
from eagle3_core.report import text
from eagle3_core.report.data import ReportData
from tests.report.conftest import BAD, HOSTILE, SIZE

pytestmark = pytest.mark.browser
Window = Callable[..., Page]
SIZES = (1_024, 8_192, 24_576, 32_000, 49_152)


def cards(page: Page) -> dict[str, tuple[str, str]]:
    out = {}
    for card in page.locator(".card").all():
        out[card.get_attribute("data-card") or ""] = (card.locator(".value").inner_text(),
                                                      card.locator(".detail").inner_text())
    return out


@pytest.mark.parametrize("size", SIZES)
def test_every_figure_and_marker_is_the_tables_at_the_size_in_the_link(
    window: Window, report_file: Path, data: ReportData, size: int
) -> None:
    page = window(report_file, hash=f"#d={size}")
    rows = tradeoff(data.inputs, sorted({size, 49_152}))
    row = rows.row(by_predicate=pl.col("draft_vocab") == size, named=True)
    assert row["draft_vocab"] == size
    digits = 1 if row["speedup_high"] - row["speedup_low"] >= 0.1 else 2
    shown = cards(page)
    assert shown["coverage"] == (text.percent(row["coverage"]),
                                 f"worst: {row['worst_domain']} {text.percent(row['worst_coverage'])}")
    assert shown["lm_head_params"][0] == f"{size * 576 / 1e6:.1f}M"
    assert shown["step_ms"][0] == text.milliseconds(row["step_ms"])
    assert shown["speedup"] == (f"{row['speedup']:.{digits}f}x", f"{row['speedup_low']:.{digits}f} to "
                                f"{row['speedup_high']:.{digits}f}; tau {row['tau']:.2f}")
    chosen = {cell.get_attribute("data-option"): cell.inner_text()
              for cell in page.locator("td[data-size=chosen]").all()}
    assert chosen["tau"] == f"{row['tau']:.2f}"
    assert chosen["trainable"] == text.count(row["trainable_params"])
    domains = {cell.get_attribute("data-domain"): cell.inner_text() for cell in page.locator("[data-domain]").all()}
    assert domains == {name: text.percent(row[f"coverage:{name}"]) for name in data.inputs.counts.domains}
    drawn = page.locator(".charts").inner_text()
    assert f"{row['coverage'] * 100:.1f} %" in drawn
    assert f"{row['speedup']:.2f}x" in drawn
    expect(page.locator("[data-chosen-size]").first).to_have_text(f"{size:,}")


def test_a_size_between_two_rows_is_marked_as_such(window: Window, report_file: Path) -> None:
    page = window(report_file, hash="#d=20000")
    assert page.locator("[data-card=coverage] .mark").inner_text() == "measured, between rows"
    assert page.locator("[data-card=lm_head_params] .value").inner_text() == f"{20_000 * 576 / 1e6:.1f}M"
    page.evaluate("location.hash = 'd=24576'")
    expect(page.locator("[data-card=coverage] .mark")).to_have_text("measured")


def test_keyboard_typing_and_a_click_in_a_chart_move_the_size_and_the_link(window: Window, report_file: Path) -> None:
    page = window(report_file)
    slider, field = page.locator("input[type=range]"), page.locator("input[type=number]")
    before = cards(page)
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert int(field.input_value()) > SIZE
    assert cards(page) != before
    page.keyboard.press("End")
    expect(page).to_have_url(re.compile(r"#d=49152$"))
    field.fill("20000")
    field.press("Enter")
    expect(page).to_have_url(re.compile(r"#d=20000$"))
    box = page.locator(".charts svg").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 0.12, box["y"] + box["height"] * 0.5)
    expect(page).not_to_have_url(re.compile(r"#d=20000$"))
    page.evaluate("location.hash = 'd=24576'")
    expect(slider).to_have_attribute("aria-valuetext", "24,576 tokens")


@pytest.mark.parametrize("hash", ["#d=", "#d=abc", "#d=99999999999", "#d=<img src=x onerror=alert(1)>", "#e=5"])
def test_a_junk_link_shows_what_was_decided(window: Window, report_file: Path, hash: str) -> None:
    page = window(report_file, hash=hash)
    expect(page.locator("input[type=range]")).to_have_attribute("aria-valuetext", f"{SIZE:,} tokens")


def test_without_scripts_everything_is_there_but_the_controls(
    window: Window, report_file: Path, data: ReportData
) -> None:
    page = window(report_file, scripts=False)
    body = page.locator("main").inner_text()
    for heading in ("Options side by side", "Coverage by domain", "Does the recommendation move?", "Left-out tokens",
                    "Evidence", "Assumptions", "Look again when", "How each number is computed", "Provenance"):
        assert heading in body
    assert data.verdict in body
    assert page.locator(".charts svg").count() == 1
    labels = page.locator(".charts").text_content() or ""
    row = data.decision.row(SIZE)
    assert f"{row['coverage'] * 100:.1f} %" in labels
    assert page.locator(".long tbody tr").count() == 30
    assert page.locator("[data-save]:visible").count() == 0
    for wire in data.decision.tripwires:
        assert wire.condition in body
    for item in data.decision.inputs:
        assert item.evidence in body
    assert "eagle3 report --target" in body


def test_hostile_texts_are_shown_and_do_nothing(window: Window, report_file: Path) -> None:
    page = window(report_file)
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0
    assert page.locator("h1").count() == 1
    assert page.locator("main script").count() == 0
    tokens = page.locator("td.token").all_inner_texts()[: len(HOSTILE)]
    assert tokens[0] == "</script><script>alert(1)</script>"
    assert tokens[4] == "{{7*7}}{%␣raw␣%}"
    assert all(token.isprintable() for token in tokens)
    assert BAD in page.locator("h1").inner_text()
    assert page.locator("[data-domain]").first.get_attribute("data-domain") == BAD


def test_the_policy_lets_the_two_scripts_run_and_no_other(window: Window, report_file: Path, html: str) -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    rules = dict(part.strip().split(" ", 1) for part in unescape(policy[1]).split(";"))
    assert rules["default-src"] == "'none'"
    assert len(rules["script-src"].split()) == 2
    inline = re.findall(r"<script>(.*?)</script>", html, re.S)
    assert len(inline) == 1
    digest = base64.b64encode(hashlib.sha256(inline[0].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in rules["script-src"].split()
    page = window(report_file)
    page.evaluate("const s = document.createElement('script'); s.textContent = 'ran = 1'; document.head.append(s)")
    assert page.evaluate("window.ran") is None
    refused = window.faults  # type: ignore[attr-defined]
    assert len(refused) == 1
    assert "Content Security Policy" in refused.pop()


def test_downloads_are_the_table_and_the_decision_byte_for_byte(
    window: Window, report_file: Path, data: ReportData, tmp_path: Path
) -> None:
    page = window(report_file)
    with page.expect_download() as got:
        page.get_by_role("button", name="Download the decision as JSON").click()
    got.value.save_as(tmp_path / "decision.json")
    assert (tmp_path / "decision.json").read_text(encoding="utf-8") == decision_json(data.decision)
    with page.expect_download() as got:
        page.get_by_role("button", name="Download the table as CSV").click()
    got.value.save_as(tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["draft_vocab"]) for row in rows] == data.table["draft_vocab"].to_list()
    assert [float(row["speedup"]) for row in rows] == pytest.approx(data.table["speedup"].to_list(), rel=1e-5)
    name = f"coverage:{BAD}"
    assert [float(row[name]) for row in rows] == pytest.approx(data.table[name].to_list(), rel=1e-5)


def test_it_prints_on_two_pages_of_a4(window: Window, report_file: Path) -> None:
    pdf = window(report_file).pdf(format="A4", prefer_css_page_size=True)
    assert pages(pdf) == 2


def pages(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_reads_it_without_sideways_scrolling(window: Window, report_file: Path, scheme: str) -> None:
    page = window(report_file, width=390, scheme=scheme)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    size = page.locator(".charts svg").bounding_box()
    assert size is not None
    assert size["width"] <= 390
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 24, 31)")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 1440), ("light", 390)])
def test_axe_finds_no_serious_fault(window: Window, report_file: Path, scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = window(report_file, scheme=scheme, width=width)
    found = Axe().run(page).response["violations"]
    serious = [(v["id"], [n["html"][:120] for n in v["nodes"]][:3]) for v in found
               if v["impact"] in ("serious", "critical")]
    assert not serious, serious
