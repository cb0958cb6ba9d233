"""Fixtures shared by all tests. Measured reference data lies outside the repository and may be absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("MARIMO_SKIP_UPDATE_CHECK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference corpora and tables; ``EAGLE3_SHARED`` names another place than ``../shared``."""
    folder = Path(os.environ.get("EAGLE3_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"needs the reference data folder {folder.name}/ beside the checkout")
    return folder


@pytest.fixture(scope="session")
def samples() -> Path:
    return ROOT / "data_samples"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium a process: Playwright's sync interface cannot be started twice in one."""
    from playwright.sync_api import sync_playwright

    from tests.chromium import ARGUMENTS, chromium

    path = chromium()
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield running
        running.close()
