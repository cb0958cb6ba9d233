"""The README's pictures, from the real app in a real browser.

    python -m tests.apps.screenshots .readme
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from eagle3_core.corpus.counts import read_counts
from eagle3_core.resources import samples_folder
from eagle3_core.training.trainer import train
from eagle3_core.vocab.formats import write_mapping
from eagle3_core.vocab.ranking import mapping_at, rank
from tests.apps.conftest import open_app, start_server
from tests.chromium import ARGUMENTS, chromium
from tests.training.tiny_run import lay_out, tiny_config

SHOTS = (
    # name, query, width, height, colour scheme, tab
    ("choose", "?d=32000", 1440, 900, "light", None),
    ("choose-dark", "", 1440, 900, "dark", None),
    ("kimi", "?target=kimi-k2.5&draft_tp=8&target_tp=8&decode_tps=90", 1440, 900, "light", None),
    ("left-out", "?d=32000", 1440, 1200, "light", "Left-out tokens"),
    ("phone", "", 390, 844, "light", None),
)
MAPPING = "maps/vocab_mapping.pt"


def artifacts(data: Path) -> None:
    """A mapping of the bundled counts, and two training runs of a few thousand weights, for the other two pages."""
    counts = read_counts(samples_folder() / "qwen3.counts.parquet")
    (data / "maps").mkdir()
    write_mapping("specforge", mapping_at(rank(counts, "pooled", force=False), 32_000), data / "maps")
    lay_out(data)
    for rate in ("1e-3", "1e-2"):
        train(tiny_config(data, f"optim.lr={rate}", "optim.steps=40", out=f"runs/rate-{rate}"), say=lambda line: None)


def other_pages(new_page: Callable[[], Page], url: str) -> dict[str, Page]:
    """Name of the picture -> the page, when it shows what it was asked for."""
    inspect, runs = new_page(), new_page()
    inspect.goto(f"{url}/inspect/?path={MAPPING}", wait_until="commit")
    expect(inspect.get_by_label("Coverage", exact=True)).to_contain_text("tokens", timeout=60_000)
    runs.goto(f"{url}/runs/?runs=rate-1e-3,rate-1e-2&target=smollm2-135m&counts=smollm2&d=8192", wait_until="commit")
    expect(runs.get_by_role("img", name="loss from")).to_be_visible(timeout=60_000)
    return {"inspect": inspect, "runs": runs}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, sync_playwright() as playwright:
        artifacts(Path(data))
        server = start_server(Path(data))
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            for name, query, width, height, scheme, tab in SHOTS:
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme,  # type: ignore[arg-type]
                                              reduced_motion="reduce")
                context.add_init_script("try { localStorage.setItem('e3-tour', 'done') } catch {}")
                page = open_app(context.new_page(), server, query)
                if tab:
                    page.get_by_role("tab", name=tab).click()
                    page.get_by_role("table").filter(has_text="token id").first.wait_for()
                page.evaluate("() => document.fonts.ready")
                page.screenshot(path=folder / f"{name}.png")
                print(folder / f"{name}.png")
                context.close()
            context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
            for name, page in other_pages(context.new_page, server.url).items():
                page.screenshot(path=folder / f"{name}.png")
                print(folder / f"{name}.png")
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".readme"))
