"""The README's pictures, from the real app in a real browser.

    python -m tests.apps.screenshots .readme
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.apps.conftest import open_app, start_server
from tests.chromium import ARGUMENTS, chromium

SHOTS = (
    # name, query, width, height, colour scheme, tab
    ("choose", "?d=32000", 1440, 900, "light", None),
    ("choose-dark", "", 1440, 900, "dark", None),
    ("kimi", "?target=kimi-k2.5&draft_tp=8&target_tp=8&decode_tps=90", 1440, 900, "light", None),
    ("left-out", "?d=32000", 1440, 1200, "light", "Left-out tokens"),
    ("phone", "", 390, 844, "light", None),
)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, sync_playwright() as playwright:
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
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".readme"))
