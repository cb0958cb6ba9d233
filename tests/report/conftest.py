"""A report with hostile texts everywhere, and windows that fail their test on any request, fault or dialog."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import polars as pl
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from eagle3_core.acceptance.model import assumed_alpha
from eagle3_core.corpus.counts import TokenCounts, read_counts
from eagle3_core.cost.hardware import devices
from eagle3_core.decide.conclude import decide
from eagle3_core.decide.record import Decision
from eagle3_core.decide.tradeoff import TradeoffInputs
from eagle3_core.report.data import ReportData, report_data
from eagle3_core.report.html import render_html
from eagle3_core.specs.presets import resolve_target
from eagle3_core.vocab.ranking import rank

NOW = "2026-01-01T00:00:00+00:00"
SIZE = 8_192
BAD = "</script><script>parent.pwned=1</script><img src=x onerror=alert(1)>"
HOSTILE = (b"</script><script>alert(1)</script>", b'"><img src=x onerror=alert(1)>', b"</td></table><h1>x</h1>",
           "\u202egnp.exe\u2066".encode(), b"{{7*7}}{% raw %}", b"\x00\x1b[31m\xff", b"<!--", b"javascript:alert(1)")
expect.set_options(timeout=15_000)


@pytest.fixture(scope="session")
def inputs(samples: Path) -> TradeoffInputs:
    """SmolLM2 on a modelled device, the first left-out tokens and a domain renamed to hostile texts."""
    counts = read_counts(samples / "smollm2.counts.parquet")
    left = rank(counts).order[SIZE : SIZE + len(HOSTILE)].tolist()
    tokens = counts.token.to_list()
    for index, text in zip(left, HOSTILE, strict=True):
        tokens[index] = text
    domains = (BAD, *counts.domains[1:])
    changed = TokenCounts(counts.counts, pl.Series(counts.token.name, tokens, dtype=pl.Binary), counts.role,
                          counts.meta.model_copy(update={"domains": domains, "tokenizer": BAD}))
    target = dataclasses.replace(resolve_target("smollm2-135m"), name="smol-" + BAD)
    return TradeoffInputs(target, changed, devices()["h200"], assumed_alpha(0.7), k=3)


@pytest.fixture(scope="session")
def decision(inputs: TradeoffInputs) -> Decision:
    return decide(inputs, SIZE, created=NOW, decided_by=BAD, reason=BAD)


@pytest.fixture(scope="session")
def data(inputs: TradeoffInputs, decision: Decision) -> ReportData:
    return report_data(inputs, decision)


@pytest.fixture(scope="session")
def html(data: ReportData) -> str:
    return render_html(data)


@pytest.fixture(scope="session")
def report_file(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(html, encoding="utf-8")
    return file


@pytest.fixture
def window(browser: Browser) -> Iterator[Callable[..., Page]]:
    """``window(file, width=..., scheme=..., scripts=...)``: offline; its faults fail the test at the end."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def open_window(
        file: Path, *, width: int = 1440, scheme: str = "light", scripts: bool = True, hash: str = ""
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True,  # type: ignore[arg-type]
            java_script_enabled=scripts, accept_downloads=True)
        contexts.append(context)
        page = context.new_page()
        own = file.as_uri()
        page.on("request", lambda r: None if r.url.split("#")[0] == own or urlsplit(r.url).scheme in ("blob", "data")
                else faults.append(f"request to {r.url}"))
        page.on("console", lambda m: faults.append(f"console {m.type}: {m.text}"))
        page.on("pageerror", lambda e: faults.append(f"script error {e}"))
        page.on("dialog", lambda d: (faults.append(f"dialog {d.message}"), d.dismiss()))
        page.goto(own + hash)
        if scripts:
            expect(page.locator(".charts[data-ready=true]")).to_be_attached(timeout=30_000)
        return page

    open_window.faults = faults  # type: ignore[attr-defined]
    yield open_window
    for context in contexts:
        context.close()
    assert not faults, faults
