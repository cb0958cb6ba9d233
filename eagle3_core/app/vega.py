"""Vega's script for the pages, made once and kept between runs: making it takes two seconds."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from pathlib import Path

from eagle3_core.files import write_text
from eagle3_core.report.html import vega_bundle


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eagle3"


@functools.cache
def cached_bundle() -> str:
    """A classic script that sets ``globalThis.vegaEmbed``. A cache that cannot be used costs time only."""
    version = importlib.metadata.version("vl-convert-python")
    path = cache_folder() / f"vega-{version}-2.js"
    try:
        text = path.read_text(encoding="utf-8")
        if text.endswith(END):
            return text
    except (OSError, UnicodeDecodeError):
        pass
    text = vega_bundle() + END
    try:
        write_text(path, text)
    except Exception as error:  # an unwritable home is no reason not to serve
        import logging

        logging.getLogger("eagle3.app").info("Vega's script is not kept: %s", error)
    return text


END = "\n/* complete */\n"
