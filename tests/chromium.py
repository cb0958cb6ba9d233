"""Where Chromium is, and how the tests start it."""

from __future__ import annotations

import os
import shutil

import pytest

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def chromium() -> str:
    names = (os.environ.get("EAGLE3_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here: make browser installs one, or set EAGLE3_CHROMIUM")
    return found
