"""One real server and one real browser for all tests; a fresh window for each.

Debian's Chromium is used, or the one that ``EAGLE3_CHROMIUM`` names. Every window
fails its test when anything is fetched from another host, a dialog opens or a
script throws.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

ARTIFACTS = Path(os.environ.get("EAGLE3_SCREENSHOTS", "")) if os.environ.get("EAGLE3_SCREENSHOTS") else None
expect.set_options(timeout=15_000)


@dataclass
class Server:
    """``eagle3 app`` as a user starts it."""

    url: str
    process: subprocess.Popen[str]
    data: Path
    log: list[str] = field(default_factory=list)

    def stop(self) -> str:
        """Stop it and return what it wrote to stderr."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.communicate(timeout=15)[1]
        self.process.kill()
        return self.process.communicate()[1]


def start_server(data: Path, *options: str, port: int = 0, env: dict[str, str] | None = None) -> Server:
    process = subprocess.Popen(
        [sys.executable, "-m", "eagle3_core.cli.main", "app", "--port", str(port), "--json", "--data", str(data),
         *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1])
    return Server(json.loads(line)["url"].rstrip("/"), process, data)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("artifacts")
    running = start_server(data)
    yield running
    errors = running.stop()
    assert "Traceback" not in errors, errors


@pytest.fixture
def window(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Page]]:
    """``window(width=..., scheme=...)`` opens a window of its own; all are checked and closed at the end."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def open_window(*, width: int = 1440, height: int = 900, scheme: str = "light", tour: bool = False,
                    offline: bool = False, allow: str = "") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True,  # type: ignore[arg-type]
            reduced_motion="reduce", offline=offline)
        contexts.append(context)
        if not tour:
            context.add_init_script("try { localStorage.setItem('e3-tour', 'done') } catch {}")
        page = context.new_page()
        page.on("request", lambda r: None if _local(r.url) else faults.append(f"request to {r.url}"))
        page.on("pageerror", lambda e: None if allow and allow in str(e) else faults.append(f"script error {e}"))
        page.on("dialog", lambda d: (faults.append(f"dialog {d.message}"), d.dismiss()))
        return page

    yield open_window
    if ARTIFACTS is not None:
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        for number, context in enumerate(contexts):
            for page in context.pages[:1]:
                page.screenshot(path=ARTIFACTS / f"{request.node.name}-{number}.png")
    for context in contexts:
        context.close()
    assert not faults, faults


def _local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "file", "about") or parts.hostname == "127.0.0.1"


def open_app(page: Page, server: Server, query: str = "") -> Page:
    """Go to the main app and wait until its controls are live and its pictures drawn."""
    page.goto(f"{server.url}/choose/{query}", wait_until="commit")
    expect(page.locator("html[data-live=true]")).to_be_attached(timeout=40_000)
    expect(page.locator(".charts[data-ready=true]")).to_be_attached(timeout=30_000)
    return page
