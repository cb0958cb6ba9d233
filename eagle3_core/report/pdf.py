"""The report as PDF, printed by Chromium where one is present, from the page without its scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from eagle3_core.errors import Eagle3Error

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TIMEOUT_S = 120


def chromium() -> str:
    """The browser that ``EAGLE3_CHROMIUM`` names, or one on the path. Raises Eagle3Error when there is none."""
    wanted = (os.environ.get("EAGLE3_CHROMIUM", ""), *NAMES)
    found = next((path for name in wanted if name and (path := shutil.which(name))), None)
    if found is None:
        raise Eagle3Error("--format pdf needs Chromium", expected="chromium or google-chrome on the path",
                          fix="install one or name it in EAGLE3_CHROMIUM, or print the HTML report from any browser")
    return found


def print_pdf(page: str) -> bytes:
    """HTML text to PDF bytes, A4. Raises Eagle3Error when the browser fails."""
    browser = chromium()
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "report.html"), Path(folder, "report.pdf")
        source.write_text(page, encoding="utf-8")
        # A container's root has no sandbox; the page runs no script and the policy lets it load nothing.
        root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        command = [browser, "--headless", "--disable-gpu", "--disable-background-networking", *root,
                   f"--user-data-dir={folder}/profile", "--no-pdf-header-footer", f"--print-to-pdf={out}",
                   source.as_uri()]
        try:
            subprocess.run(command, check=False, capture_output=True, timeout=TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Eagle3Error("the browser made no PDF", where=browser, found=type(error).__name__) from None
        data = out.read_bytes() if out.is_file() else b""
    if not data.startswith(b"%PDF"):
        raise Eagle3Error("the browser made no PDF", where=browser)
    return data
