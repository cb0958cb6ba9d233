"""How fast the main app is under the hand, against a one-slider marimo app in the same run.

    python -m tests.benchmarks.app

Everything is measured in headless Chromium on this machine, server and browser
sharing its cores. Limits are the project's own; a figure beyond its limit is marked.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
from playwright.sync_api import Browser, Page, expect, sync_playwright

from eagle3_core.cli.output import print_table
from tests.apps.conftest import Server, open_app, start_server
from tests.chromium import ARGUMENTS, chromium

MOVES = 50
TRIVIAL = '''
import marimo
__generated_with = "0.25.2"
app = marimo.App()

@app.cell
def _():
    import marimo as mo
    size = mo.ui.slider(1, 100, label="size")
    size
    return mo, size

@app.cell
def _(mo, size):
    mo.md(f"value {size.value}")
    return

if __name__ == "__main__":
    app.run()
'''
# One move: from the key to the frame after which the figures, and after which every marker, have changed.
WATCH = """() => {
  const deep = (root, pick) => [...root.querySelectorAll(pick), ...[...root.querySelectorAll('*')].flatMap(
    (e) => e.shadowRoot ? deep(e.shadowRoot, pick) : [])];
  const input = deep(document, 'input[type=range]').find(
    (e) => e.getAttribute('aria-label') === 'Draft vocabulary size');
  const root = input.closest('.e3-view');
  const figures = () => [...root.querySelectorAll('.card .value')].map((e) => e.textContent).join('|');
  const markers = () => [...root.querySelectorAll('.charts svg .mark-symbol path')].filter(
    (e) => (e.getAttribute('fill') || '').toLowerCase() === '#d55e00').map((e) => e.getAttribute('transform'));
  window.e3bench = { input, moves: [], wait(start, figuresBefore, markersBefore) { return new Promise((done) => {
    const result = {};
    const look = () => {
      if (!result.figures && figures() !== figuresBefore) result.figures = performance.now();
      const now = markers();
      if (!result.markers && now.length && now.every((t, i) => t !== markersBefore[i]))
        result.markers = performance.now();
      if (result.figures && result.markers) requestAnimationFrame(() => setTimeout(() => {
        const painted = performance.now();
        done([result.figures - start + (painted - Math.max(result.figures, result.markers)), painted - start]); }));
      else if (performance.now() - start > 3000) done(null);
      else setTimeout(look, 1);
    };
    look(); }); }, figures, markers };
  addEventListener('keydown', () => {
    window.e3bench.last = window.e3bench.wait(performance.now(), figures(), markers()); }, true);
  return markers().length;
}"""
LOOP = """async (n) => { const b = window.e3bench, out = []; let up = false;
  for (let i = 0; i < n; i++) {
    const s = performance.now(), f = b.figures(), m = b.markers();
    if (+b.input.value >= +b.input.max - 2) up = false; if (+b.input.value <= 2) up = true;
    b.input.value = String(+b.input.value + (up ? 1 : -1));
    b.input.dispatchEvent(new Event('input', { bubbles: true }));
    const r = await b.wait(s, f, m); if (r) out.push(r[1]);
    await new Promise((go) => setTimeout(go, 60));
  } return out; }"""


# Ready is looked for at every frame: waiting by assertions would round to their pauses, up to a second.
DEEP = """const deep = (root, pick) => [...root.querySelectorAll(pick), ...[...root.querySelectorAll('*')].flatMap(
  (e) => e.shadowRoot ? deep(e.shadowRoot, pick) : [])];
const shown = (e) => { const box = e.getBoundingClientRect(); return box.width > 0 && box.height > 0; };"""
OURS_READY = f"""() => {{ {DEEP}
  return document.documentElement.dataset.live === 'true' && deep(document, '.verdict').some(shown)
    && deep(document, 'select').filter(shown).length >= 6 && performance.now(); }}"""
ONE_READY = f"""() => {{ {DEEP}
  return deep(document, '[role=slider]').some(shown) && document.body.innerText.includes('value 1')
    && performance.now(); }}"""


def p95(values: list[float]) -> float:
    return sorted(values)[max(0, round(0.95 * len(values)) - 1)]


def new_page(browser: Browser) -> Page:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    context.add_init_script("try { localStorage.setItem('e3-tour', 'done') } catch {}")
    return context.new_page()


def tree(process: psutil.Process) -> tuple[float, int]:
    """CPU seconds and resident bytes of the server."""
    times, memory = process.cpu_times(), process.memory_info().rss
    return times.user + times.system, memory


def moves(page: Page, server: Server) -> dict[str, tuple[float, float] | float]:
    assert page.evaluate(WATCH) >= 4, "no markers found"
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    count = {"bytes": 0}

    def add(size: int) -> None:
        count["bytes"] += size

    network.on("Network.webSocketFrameReceived", lambda e: add(len(e["response"]["payloadData"])))
    network.on("Network.webSocketFrameSent", lambda e: add(len(e["response"]["payloadData"])))
    network.on("Network.dataReceived", lambda e: add(e["encodedDataLength"]))
    network.on("Network.requestWillBeSent", lambda e: add(len(e["request"].get("postData", ""))))
    page.get_by_role("slider", name="Draft vocabulary size", exact=True).focus()
    figures, markers = [], []
    before = tree(psutil.Process(server.process.pid))[0]
    for move in range(MOVES):
        page.keyboard.press("ArrowLeft" if move % 20 < 10 else "ArrowRight")
        seen = page.evaluate("() => window.e3bench.last")
        if seen:
            figures.append(seen[0])
            markers.append(seen[1])
        page.wait_for_timeout(250)  # each move is told to the server
    spent = tree(psutil.Process(server.process.pid))[0] - before
    return {"markers": (statistics.median(markers), p95(markers)),
            "figures": (statistics.median(figures), p95(figures)),
            "seen": len(markers), "server": spent / MOVES * 1e3, "bytes": count["bytes"] / MOVES}


def load(page: Page, url: str, ours: bool) -> dict[str, float]:
    page.goto(url, wait_until="commit")
    readable = 0.0
    if ours:
        expect(page.locator(".e3-view .verdict")).to_be_visible()
        page.wait_for_function("() => document.querySelector('#first-paint .charts svg') || "
                               "document.documentElement.dataset.live")
        readable = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? "
                                 "performance.now()")
    ready = page.wait_for_function(OURS_READY if ours else ONE_READY, timeout=60_000)
    return {"readable": readable, "interactive": ready.json_value()}


def loads(browser: Browser, url: str, ours: bool, rounds: int = 3) -> dict[str, float]:
    """Cold: a new window with an empty cache. Warm: the same window again."""
    cold, warm = [], []
    for _ in range(rounds):
        page = new_page(browser)
        cold.append(load(page, url, ours))
        page.wait_for_timeout(3000)  # what the first visit still has to do is not the second's
        warm.append(load(page, url, ours))
        page.context.close()
    middle = lambda runs, key: statistics.median(run[key] for run in runs)  # noqa: E731
    return {"cold": middle(cold, "interactive"), "warm": middle(warm, "interactive"),
            "readable_cold": middle(cold, "readable"), "readable_warm": middle(warm, "readable")}


def start_trivial(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    file = folder / "one_slider.py"
    file.write_text(TRIVIAL)
    port = 28_641
    process = subprocess.Popen(
        [sys.executable, "-m", "marimo", "-q", "run", str(file), "--headless", "--port", str(port), "--no-token",
         "--no-check"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "MARIMO_SKIP_UPDATE_CHECK": "1"})
    url = f"http://127.0.0.1:{port}"
    for _ in range(200):
        try:
            urllib.request.urlopen(url + "/health", timeout=1).close()
            return process, url
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the one-slider app did not start")


def dropdown(page: Page) -> float:
    """From choosing another target to its verdict and figures."""
    taken = []
    for name in ("qwen3-32b", "gpt-oss-120b", "llama-3.1-8b", "glm-5", "deepseek-v3"):
        page.wait_for_timeout(1500)  # a reader's pause
        before = page.locator(".verdict").text_content()
        begin = time.perf_counter()
        page.get_by_label("Target", exact=True).first.select_option(name)
        expect(page.locator(".verdict")).not_to_have_text(before or "")
        taken.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(taken)


def main() -> None:
    rows: list[tuple[str, str, str]] = []

    def row(name: str, value: float, limit: float, unit: str = "ms") -> None:
        rows.append((name, f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2f} {unit}",
                     f"{limit:g} {unit}" + ("" if value <= limit else "  over")))

    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary)
        server = start_server(folder)
        trivial, trivial_url = start_trivial(folder)
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            time.sleep(6)  # the examples' first pages are made in the background
            base = loads(browser, trivial_url, ours=False)
            ours = loads(browser, server.url + "/choose/", ours=True)
            row("readable, cold", ours["readable_cold"], 1000)
            row("readable, warm", ours["readable_warm"], 1000)
            row("interactive, cold, of one slider", ours["cold"] / base["cold"], 1.4, "x")
            row("interactive, warm, of one slider", ours["warm"] / base["warm"], 1.25, "x")
            rows.append(("  in ms, cold and warm", f"{ours['cold']:,.0f}, {ours['warm']:,.0f}",
                         f"one slider {base['cold']:,.0f}, {base['warm']:,.0f}"))
            page = open_app(new_page(browser), server)
            got = moves(page, server)
            for key, limits in (("markers", (70, 160)), ("figures", (110, 220))):
                for value, limit, name in zip(got[key], limits, ("median", "p95"), strict=True):  # type: ignore[arg-type]
                    row(f"key to {key} moved, {name}", value, limit)
            row("server work a move", got["server"], 15)  # type: ignore[arg-type]
            row("bytes a move", got["bytes"] / 1e3, 10, "KB")  # type: ignore[operator]
            begin = time.perf_counter()
            page.get_by_role("tab", name="Left-out tokens").click()
            expect(page.get_by_role("table").filter(has_text="token id").first).to_be_visible()
            row("left-out table after its tab", (time.perf_counter() - begin) * 1e3, 400)
            page.context.close()
            page = open_app(new_page(browser), server)
            row("another target", dropdown(page), 500)
            page.context.close()
            before = tree(psutil.Process(server.process.pid))[1]
            pages = [open_app(new_page(browser), server) for _ in range(5)]
            row("memory a window", (tree(psutil.Process(server.process.pid))[1] - before) / 5 / 1e6, 60, "MB")
            for one in pages:
                one.evaluate(WATCH)
                one.evaluate(f"() => {{ window.e3run = ({LOOP})(30); }}")
            together = [value for one in pages for value in one.evaluate("() => window.e3run")]
            row("five windows at once, p95", p95(together), 600)
        finally:
            browser.close()
            trivial.terminate()
            server.stop()
    print_table(f"the app on {os.cpu_count()} cores, {MOVES} moves", ("what", "measured", "limit"), rows, left=1)


if __name__ == "__main__":
    main()
