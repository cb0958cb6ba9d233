"""How soon a report can be read, when it is live, and how fast figures and charts follow the size.

    python -m tests.benchmarks.report

Opens the report of each bundled sample from ``file://`` in headless Chromium, offline, a fresh profile each time.
``first content`` is the browser's own first-contentful-paint; ``live`` the moment the controls answer; ``charts`` the
moment the live charts stand in place of the still ones. A move is one step of the slider: ``figures`` until the texts
have changed, ``charts`` until the last mark of the four pictures has moved. The first content of a page of one line,
opened in the same run, is the part that is the machine's.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from eagle3_core.acceptance.model import assumed_alpha
from eagle3_core.corpus.counts import read_counts
from eagle3_core.cost.hardware import resolve_latency
from eagle3_core.cost.profile import LatencyProfile
from eagle3_core.decide.conclude import decide, recommended_for
from eagle3_core.decide.tradeoff import TradeoffInputs
from eagle3_core.report.data import report_data
from eagle3_core.report.html import render_html
from eagle3_core.report.pdf import chromium
from eagle3_core.specs.presets import resolve_target

SAMPLES = Path(__file__).resolve().parents[2] / "data_samples"
CASES = (("qwen3-8b", "qwen3", "h200"), ("smollm2-135m", "smollm2", str(SAMPLES / "smollm2-135m.cpu.latency.json")))
OPENINGS, MOVES = 7, 40
LIMITS = {"first content": 300, "live": 2000, "charts": 2000, "move: figures": 50, "move: charts": 50}

WATCH = """
addEventListener('DOMContentLoaded', () => {
  const seen = (name, test) => { const watch = new MutationObserver(() => {
      if (test()) { globalThis['at_' + name] = performance.now(); watch.disconnect(); } });
    watch.observe(document.documentElement, { subtree: true, attributes: true, childList: true }); };
  seen('live', () => document.documentElement.dataset.live === 'true');
  seen('charts', () => document.querySelector('.charts[data-ready=true]'));
});
"""
MOVE = """
() => new Promise((resolve) => {
  const slider = document.querySelector('input[type=range]'), box = document.querySelector('.charts svg');
  let last = 0;
  const watch = new MutationObserver(() => { last = performance.now(); });
  watch.observe(box, { subtree: true, attributes: true, childList: true, characterData: true });
  slider.value = String(Number(slider.value) + (Number(slider.value) < Number(slider.max) ? 1 : -20));
  const begun = performance.now();
  slider.dispatchEvent(new Event('input', { bubbles: true }));
  const figures = performance.now() - begun;
  setTimeout(() => { watch.disconnect(); resolve([figures, last - begun]); }, 150);
})
"""


def page_of(target: str, counts: str, latency: str) -> str:
    source = resolve_latency(latency)
    inputs = TradeoffInputs(resolve_target(target), read_counts(SAMPLES / f"{counts}.counts.parquet"),
                            source, assumed_alpha(0.8),
                            dtype=source.dtype if isinstance(source, LatencyProfile) else "bfloat16")
    size = recommended_for(inputs)[1].size
    return render_html(report_data(inputs, decide(inputs, size, created="2026-01-01T00:00:00+00:00")))


def one_line(browser: Browser, file: Path) -> list[float]:
    """First content of a page of one line, milliseconds."""
    out = []
    for _ in range(OPENINGS):
        context = browser.new_context(viewport={"width": 1440, "height": 900}, offline=True)
        page = context.new_page()
        page.goto(file.as_uri())
        page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
        out.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        context.close()
    return out


def measure(browser: Browser, file: Path) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {name: [] for name in LIMITS}
    for opening in range(OPENINGS):
        context = browser.new_context(viewport={"width": 1440, "height": 900}, offline=True)
        context.add_init_script(WATCH)
        page = context.new_page()
        page.goto(file.as_uri())
        page.wait_for_selector(".charts[data-ready=true]", timeout=60_000)
        page.wait_for_function("globalThis.at_charts")
        out["first content"].append(page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        out["live"].append(page.evaluate("globalThis.at_live"))
        out["charts"].append(page.evaluate("globalThis.at_charts"))
        if opening == 0:
            for _ in range(MOVES):
                figures, charts = page.evaluate(MOVE)
                out["move: figures"].append(figures)
                out["move: charts"].append(charts)
        context.close()
    return out


def main() -> None:
    print(f"{platform.machine()}, {os.cpu_count()} cores; {OPENINGS} openings, {MOVES} moves; load "
          f"{os.getloadavg()[0]:.1f} at the start; milliseconds")
    print(f"{'report':14} {'MB':>5}  {'what':16} {'median':>8} {'worst':>8} {'limit':>6}")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium(), args=[
            "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        plain = Path(folder, "plain.html")
        plain.write_text("<!doctype html><p>one line", encoding="utf-8")
        first = one_line(browser, plain)
        print(f"{'one line':14} {0:5.2f}  {'first content':16} {statistics.median(first):8.1f} {max(first):8.1f}")
        for target, counts, latency in CASES:
            file = Path(folder, f"{target}.html")
            file.write_text(page_of(target, counts, latency), encoding="utf-8")
            for name, values in measure(browser, file).items():
                median = statistics.median(values)
                print(f"{target:14} {file.stat().st_size / 1e6:5.2f}  {name:16} {median:8.1f} {max(values):8.1f} "
                      f"{LIMITS[name]:6}{'' if median <= LIMITS[name] else '  over'}")
        browser.close()


if __name__ == "__main__":
    main()
