"""What a user does in the main app, in a real browser."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.apps.conftest import open_app

pytestmark = pytest.mark.browser


def slider(page: Page):
    return page.get_by_role("slider", name="Draft vocabulary size", exact=True)


def figure(page: Page, key: str):
    return page.locator(f"[data-card={key}] .value")


MARKERS = """() => {
  const find = (root) => [...root.querySelectorAll('*')].flatMap((e) => [
    ...(e.matches('.charts svg text[font-weight="700"]') && e.textContent ? [e.textContent] : []),
    ...(e.shadowRoot ? find(e.shadowRoot) : [])]);
  return find(document);
}"""


def marker_labels(page: Page) -> list[str]:
    """The texts beside the markers, one a chart."""
    return page.evaluate(MARKERS)


def test_first_visit_answers_before_anything_is_touched(server, window):
    page = window(tour=True)
    open_app(page, server)
    expect(page.locator(".verdict")).to_contain_text("Recommended D = ")
    for key in ("coverage", "lm_head_params", "step_ms", "speedup"):
        expect(figure(page, key)).to_be_in_viewport()
    box = page.locator(".charts svg").first.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 900
    expect(page.locator("[data-tour]")).to_be_visible()
    page.get_by_role("button", name="Got it").click()
    page.reload()
    expect(page.locator(".verdict")).to_be_visible()
    expect(page.locator("[data-tour]")).to_be_hidden()


def test_the_first_paint_is_there_without_the_notebook(server, window):
    page = window()
    page.route("**/assets/**", lambda route: route.abort())
    page.goto(f"{server.url}/choose/", wait_until="commit")
    expect(page.locator("#first-paint .verdict")).to_contain_text("Recommended")
    # A server that has just started draws the examples' pictures beside its first visits.
    page.wait_for_function(
        "async () => new DOMParser().parseFromString(await (await fetch(location.href)).text(), 'text/html')"
        ".querySelector('#first-paint .charts svg') !== null", polling=500, timeout=60_000)
    page.reload(wait_until="commit")
    expect(page.locator("#first-paint .charts svg").first).to_be_visible()
    slider(page).focus()
    before = figure(page, "coverage").text_content()
    page.keyboard.press("PageDown")
    expect(figure(page, "coverage")).not_to_have_text(before or "")


def test_keyboard_moves_the_size_the_figures_and_every_marker(server, window):
    page = open_app(window(), server)
    slider(page).focus()
    said, labels = slider(page).get_attribute("aria-valuetext"), marker_labels(page)
    figures = page.locator(".card .value").all_text_contents()
    page.keyboard.press("ArrowRight")
    expect(slider(page)).not_to_have_attribute("aria-valuetext", said or "")
    assert re.fullmatch(r"[\d,]+ tokens", slider(page).get_attribute("aria-valuetext") or "")
    page.keyboard.press("PageUp")
    expect(figure(page, "lm_head_params")).not_to_have_text(figures[1])
    changed = page.locator(".card .value").all_text_contents()
    assert sum(a != b for a, b in zip(figures, changed, strict=True)) >= 3
    # Eight steps are an octave: the label of every chart has changed.
    page.wait_for_function(f"(old) => {{ const now = ({MARKERS})(); return now.every((t, i) => t !== old[i]); }}",
                           arg=labels)
    assert len(labels) == len(marker_labels(page)) == 4
    page.keyboard.press("End")
    expect(slider(page)).to_have_attribute("aria-valuetext", "151,936 tokens")
    page.keyboard.press("Home")
    expect(slider(page)).to_have_attribute("aria-valuetext", "1,024 tokens")


def test_kimi_has_the_head_sizes_of_its_arithmetic(server, window):
    page = open_app(window(), server)
    page.get_by_role("link", name="Kimi-K2.5", exact=True).click()
    expect(page.get_by_role("button", name="Full 163,840")).to_be_visible()
    page.get_by_role("button", name="Inherited 32,000").click()
    expect(figure(page, "lm_head_params")).to_have_text("229.4M")
    page.get_by_role("button", name="Full 163,840").click()
    expect(figure(page, "lm_head_params")).to_have_text("1.17B")
    expect(page.locator("[data-card=coverage] .mark")).to_have_text("modelled")
    expect(page.get_by_text("98.3 % at 32,000")).to_be_visible()


def test_fifteen_percent_acceptance_is_slower_than_no_drafter(server, window):
    page = open_app(window(), server)
    page.get_by_role("link", name="Kimi-K2.5 at 15 %").click()
    expect(page.locator(".verdict")).to_contain_text("Slower than no drafter at every size")
    expect(page.locator(".verdict")).to_contain_text("break-even needs alpha")


def test_a_typed_size_between_the_steps_gets_its_exact_row(server, window):
    page = open_app(window(), server)
    field = page.get_by_role("spinbutton", name="Draft vocabulary size, exact")
    field.fill("33333")
    field.press("Enter")
    expect(figure(page, "lm_head_params")).to_have_text("136.5M")  # 33,333 * 4,096
    expect(page).to_have_url(re.compile(r"d=33333"))


def test_back_undoes_and_forward_redoes(server, window):
    page = open_app(window(), server)
    first = figure(page, "lm_head_params").text_content() or ""
    page.get_by_role("button", name="Inherited 32,000").click()
    expect(page).to_have_url(re.compile(r"d=32000"))
    page.get_by_role("link", name="SmolLM2-135M").click()
    expect(page.get_by_role("button", name="Full 49,152")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("button", name="Full 151,936")).to_be_visible()
    expect(figure(page, "lm_head_params")).to_have_text("131.1M")
    page.go_back()
    expect(figure(page, "lm_head_params")).to_have_text(first)


def test_a_link_restores_everything_in_a_new_window(server, window):
    page = open_app(window(), server, "?target=kimi-k2.5&draft_tp=8&target_tp=8&decode_tps=90&k=3&d=8192")
    expect(slider(page)).to_have_attribute("aria-valuetext", "8,192 tokens")
    verdict = page.locator(".verdict").text_content() or ""
    other = open_app(window(), server, "?" + page.url.split("?", 1)[1])
    expect(slider(other)).to_have_attribute("aria-valuetext", "8,192 tokens")
    expect(other.locator(".verdict")).to_have_text(verdict)


@pytest.mark.parametrize("query", [
    "?target=<img src=x onerror=alert(1)>&k=99&d=-4&latency=../../etc/passwd", "?%00=%ff&d=9e99&alpha=nan"])
def test_a_junk_link_gives_the_defaults_and_says_so(server, window, query):
    page = open_app(window(), server, query)
    expect(page.locator(".verdict")).to_contain_text("Recommended D = ")
    expect(page.locator(".notice").first).to_be_visible()
    assert page.locator("img[src=x]").count() == 0


def test_two_windows_never_see_each_other(server, window):
    one, two = open_app(window(), server), open_app(window(), server)
    one.get_by_role("link", name="SmolLM2-135M").click()
    expect(one.get_by_role("button", name="Full 49,152")).to_be_visible()
    slider(two).focus()
    two.keyboard.press("End")
    expect(slider(two)).to_have_attribute("aria-valuetext", "151,936 tokens")
    expect(two.get_by_role("button", name="Full 151,936")).to_be_visible()
    expect(one.get_by_role("button", name="Full 49,152")).to_be_visible()


def test_the_target_dropdown_changes_everything(server, window):
    page = open_app(window(), server)
    page.get_by_label("Target", exact=True).first.select_option("qwen3-32b")
    expect(page).to_have_url(re.compile("target=qwen3-32b"))
    expect(page.locator(".charts[data-ready=true]")).to_be_attached()
    page.get_by_label("Latency").first.select_option("a100")
    expect(page).to_have_url(re.compile("latency=a100"))
    page.get_by_label("Token counts").first.select_option("smollm2")
    expect(page.locator(".notice").first).to_contain_text("standing in")


def test_tabs_compute_when_opened(server, window):
    page = open_app(window(), server)
    page.get_by_role("tab", name="Left-out tokens").click()
    expect(page.get_by_role("table").filter(has_text="token id").first).to_be_visible()
    page.get_by_role("tab", name="Sensitivity").click()
    expect(page.get_by_role("table").filter(has_text="as chosen").first).to_be_visible()
    page.get_by_role("tab", name="Evidence").click()
    expect(page.get_by_role("table").filter(has_text="token counts").first).to_be_visible()
    page.get_by_role("tab", name="Options").click()
    expect(page.locator("table.options")).to_be_visible()


def test_downloads_are_what_the_command_line_makes(server, window, samples: Path, tmp_path: Path):
    page = open_app(window(), server, "?d=32000")
    page.get_by_role("tab", name="Export").click()
    with page.expect_download(timeout=60_000) as got:
        page.get_by_text("Export bundle (.zip)").first.click()
    bundle = zipfile.ZipFile(io.BytesIO(Path(got.value.path()).read_bytes()))
    root = bundle.namelist()[0].split("/")[0]
    decision = json.loads(bundle.read(f"{root}/decision.json"))
    assert decision["choice"]["draft_vocab"] == 32_000
    out = tmp_path / "cli.zip"
    subprocess.run(
        [sys.executable, "-m", "eagle3_core.cli.main", "export", "--target", "qwen3-8b", "--counts",
         str(samples / "qwen3.counts.parquet"), "--latency", "h200", "--size", "32000", "--created",
         decision["created"], "--out", str(out)], check=True, capture_output=True)
    with zipfile.ZipFile(out) as other:
        assert {n: other.read(n) for n in other.namelist()} == {n: bundle.read(n) for n in bundle.namelist()}
    # The record inside is one that the command line opens again.
    (tmp_path / "decision.json").write_bytes(bundle.read(f"{root}/decision.json"))
    again = subprocess.run(
        [sys.executable, "-m", "eagle3_core.cli.main", "check", str(tmp_path / "decision.json"), "--counts",
         str(samples / "qwen3.counts.parquet"), "--json"], check=True, capture_output=True, text=True)
    assert json.loads(again.stdout)["holds"] is True
    with page.expect_download(timeout=60_000) as got:
        page.get_by_text("Report (.html)").first.click()
    report = tmp_path / "report.html"
    got.value.save_as(report)
    reader = window(offline=True)
    reader.goto(report.as_uri())
    expect(reader.get_by_text("Recommended D").first).to_be_visible()


def upload(page: Page, name: str, content: bytes) -> None:
    page.locator("input[type=file]").first.set_input_files(
        {"name": name, "mimeType": "application/octet-stream", "buffer": content})


def test_good_files_are_taken_and_bad_ones_named_while_the_rest_works(server, window, samples: Path):
    page = open_app(window(), server, "?target=smollm2-135m&counts=smollm2")
    upload(page, "mine.latency.json", (samples / "smollm2-135m.cpu.latency.json").read_bytes())
    expect(page.locator("[data-card=step_ms] .mark")).to_have_text("measured")
    upload(page, "cut.counts.parquet", (samples / "smollm2.counts.parquet").read_bytes()[:5000])
    expect(page.get_by_text("cut.counts.parquet").first).to_be_visible()
    upload(page, '"><img src=x onerror=alert(1)>\u202e.json', b"this is text, not JSON")
    expect(page.get_by_text("is not JSON").first).to_be_visible()
    assert page.locator("img[src=x]").count() == 0
    slider(page).focus()
    page.keyboard.press("End")
    expect(slider(page)).to_have_attribute("aria-valuetext", "49,152 tokens")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_one_column_without_sideways_scrolling(server, window, scheme):
    page = open_app(window(width=390, height=844, scheme=scheme), server)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    for selector in (".verdict", ".card", ".charts svg"):
        box = page.locator(selector).first.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 391


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(server, window, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = open_app(window(scheme=scheme), server)
    found = Axe().run(page).response["violations"]
    serious = [(v["id"], [n["html"][:120] for n in v["nodes"]][:3]) for v in found
               if v["impact"] in ("serious", "critical")]
    assert not serious, serious


def test_the_figures_stay_when_the_server_restarts_under_the_page(window, tmp_path: Path):
    from tests.apps.conftest import start_server

    first = start_server(tmp_path)
    page = open_app(window(allow="Failed to fetch"), first, "?d=8192")
    port = int(first.url.rsplit(":", 1)[1])
    first.stop()
    expect(page.locator(".said.down")).to_contain_text("Server not reachable")
    slider(page).focus()
    page.keyboard.press("End")
    expect(slider(page)).to_have_attribute("aria-valuetext", "151,936 tokens")
    expect(page).to_have_url(re.compile("d=151936"))
    second = start_server(tmp_path, port=port)
    assert second.url == first.url
    expect(page.locator(".said.down")).to_have_count(0)
    # The same window goes on: its controls work again, and a reload brings the size back.
    page.reload(wait_until="commit")
    expect(page.locator("html[data-live=true]")).to_be_attached(timeout=40_000)
    expect(slider(page)).to_have_attribute("aria-valuetext", "151,936 tokens")
    second.stop()


def test_a_checkpoint_carried_over_locks_the_size(server, window):
    page = open_app(window(), server, "?target=qwen3-8b&locked=16000")
    expect(page.locator(".verdict")).to_contain_text("Locked at D = 16,000")
    expect(slider(page)).to_have_attribute("aria-valuetext", "16,000 tokens")
    expect(page.get_by_label("Checkpoint's D").first).to_be_visible()


def test_an_exported_decision_restores_its_setting(server, window):
    from eagle3_core.app.screen import screen_of
    from eagle3_core.app.sources import catalogue
    from eagle3_core.app.state import EXAMPLES
    from eagle3_core.export.bundle import make_bundle

    inputs = screen_of(EXAMPLES["SmolLM2-135M"], catalogue()).inputs
    files = make_bundle(inputs, 9_472, created="2026-01-01T00:00:00+00:00", with_report=False)
    page = open_app(window(), server)
    upload(page, "decision.json", files["decision.json"])
    expect(page.get_by_role("button", name="Full 49,152")).to_be_visible()
    expect(slider(page)).to_have_attribute("aria-valuetext", "9,472 tokens")
