"""The rest of what a user does: files of every kind, decisions, comparisons, one file alone, hostile tokens."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from playwright.sync_api import Page, expect

from eagle3_core.acceptance.record import AcceptancePoint, AcceptanceRecord, write_acceptance
from eagle3_core.app.screen import screen_of
from eagle3_core.app.sources import catalogue
from eagle3_core.app.state import EXAMPLES
from eagle3_core.corpus.counts import read_counts, write_counts
from eagle3_core.export.bundle import make_bundle
from eagle3_core.resources import apps_folder
from eagle3_core.vocab.coverage import left_out
from eagle3_core.vocab.ranking import rank
from tests.apps.conftest import open_app, start_server
from tests.apps.test_choose import figure, slider, upload

pytestmark = pytest.mark.browser
HOSTILE = (
    b"</script><img src=x onerror=alert(1)>", b"<iframe srcdoc='<script>alert(1)</script>'>", b"javascript:alert(1)",
    "\u202egnp.exe\u2066".encode(), b"NUL\x00NUL", b"\x1b[31mred\x1b[0m", b"{{7*7}}${7*7}", b"A" * (1 << 20),
    b"[x](javascript:alert(1))", b"\xff\xfe",
)


def test_comparing_pins_a_size_and_a_link_carries_it(server, window):
    page = open_app(window(), server, "?d=8192")
    page.get_by_role("button", name="Compare with this size").click()
    page.get_by_role("button", name="Full 151,936").click()
    # Qwen3-8B: 151,936 / 8,192 = 18.55 times the parameters of the head.
    expect(page.locator("[data-card=lm_head_params] .against")).to_have_text("+1755 % against 8,192")
    expect(page).to_have_url(re.compile(r"vs=8192&d=151936"))
    expect(page.locator("table.options .differs").first).to_be_visible()
    other = open_app(window(), server, "?" + page.url.split("?", 1)[1])
    expect(other.locator("[data-card=lm_head_params] .against")).to_have_text("+1755 % against 8,192")
    other.get_by_role("button", name="Comparing with 8,192: stop").click()
    expect(other.locator("[data-card=lm_head_params] .against")).to_have_text(re.compile("against 32,000"))
    expect(other.locator("table.options .differs")).to_have_count(0)


def test_a_decision_is_shown_beside_the_screen(server, window):
    shown = screen_of(EXAMPLES["SmolLM2-135M"], catalogue())
    files = make_bundle(shown.inputs, 9_472, created="2026-01-01T00:00:00+00:00", hashes=shown.hashes(),
                        with_report=False)
    page = open_app(window(), server)
    page.get_by_role("tab", name="Decision").click()
    expect(page.get_by_text("No decision is open").first).to_be_visible()
    upload(page, "decision.json", files["decision.json"])
    # The same file may have been dropped under another name by an earlier window of this server.
    expect(page.get_by_label("Latency").first).to_have_value(re.compile("smollm2-135m.cpu|mine"))
    expect(page.get_by_text("Nothing has changed since.")).to_be_visible()
    page.get_by_role("button", name="Full 49,152").click()
    expect(page.get_by_text("draft vocabulary: 9,472 to 49,152")).to_be_visible()
    other = open_app(window(), server, "?" + page.url.split("?", 1)[1])
    expect(other.locator(".notice").first).to_contain_text("Decision of 2026-01-01: D = 9,472")


def acceptance_file(path: Path) -> bytes:
    points = tuple(
        AcceptancePoint(draft_vocab=d, alpha=(a,) * 3, alpha_low=(a - 0.01,) * 3, alpha_high=(a + 0.01,) * 3,
                        tau=1 + a + a**2 + a**3, tau_low=1.5, tau_high=3.5)
        for d, a in ((8_192, 0.5), (49_152, 0.55)))
    write_acceptance(AcceptanceRecord(tool_version="0", created="2026-01-01", target="smollm2-135m", drafter="d",
                                      vocab_size=49_152, method="free_running", points=points, source="a test"), path)
    return path.read_bytes()


CONFIG = b"""{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "vocab_size": 49152,
"num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536, "num_hidden_layers": 30,
"rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "max_position_embeddings": 2048, "rope_theta": 10000}"""


def test_files_of_every_kind_are_taken(server, window, samples: Path, tmp_path: Path):
    page = open_app(window(), server, "?target=smollm2-135m&counts=smollm2&k=3")
    upload(page, "mine.counts.parquet", (samples / "smollm2.counts.parquet").read_bytes())
    expect(page).to_have_url(re.compile("counts=mine"))
    upload(page, "mine.acceptance.json", acceptance_file(tmp_path / "a.acceptance.json"))
    expect(page).to_have_url(re.compile("acceptance=mine"))
    # Measured 0.55 at full size: tau = 1 + 0.55 + 0.3025 + 0.166 = 2.02.
    page.get_by_role("button", name="Full 49,152").click()
    expect(page.locator("[data-card=speedup] .detail")).to_contain_text("tau 2.02")
    expect(page).to_have_url(re.compile("d=49152"))  # the server knows the size
    np.save(tmp_path / "d2t.npy", np.arange(8_000) * 2 - np.arange(8_000))
    upload(page, "theirs_d2t.npy", (tmp_path / "d2t.npy").read_bytes())
    expect(page.get_by_role("button", name="Inherited 8,000")).to_be_visible()
    # 576 * (49,152 - 8,000) parameters more: 49,152 / 8,000 = 6.144.
    expect(page.locator("[data-card=lm_head_params] .against")).to_have_text("+514 % against theirs_d2t 8,000")
    upload(page, "config.json", CONFIG)
    expect(page).to_have_url(re.compile("target=config"))
    expect(figure(page, "lm_head_params")).to_be_visible()
    assert page.locator(".notice[role=alert]").count() == 0


def test_hostile_tokens_are_shown_as_text(window, samples: Path, tmp_path: Path):
    counts = read_counts(samples / "smollm2.counts.parquet")
    tokens = counts.token.to_list()
    dearest = left_out(counts, rank(counts), 1_984, len(HOSTILE))["token_id"].to_list()
    for at, text in zip(dearest, HOSTILE, strict=True):
        tokens[at] = text
    write_counts(dataclasses.replace(counts, token=pl.Series("token", tokens, dtype=pl.Binary)),
                 tmp_path / "hostile.counts.parquet")
    server = start_server(tmp_path)
    try:
        page = open_app(window(), server, "?target=smollm2-135m&counts=hostile&d=1984")
        page.get_by_role("tab", name="Left-out tokens").click()
        table = page.get_by_role("table").filter(has_text="token id").first
        expect(table).to_contain_text("onerror=alert(1)")
        assert "\u202e" not in (table.text_content() or "")
        assert page.locator("img[src=x], iframe[srcdoc], a[href^=javascript]").count() == 0
    finally:
        assert "Traceback" not in server.stop()


@pytest.mark.parametrize("tab", ["Left-out tokens", "Sensitivity", "Export", "Evidence", "Decision"])
def test_no_tab_has_a_serious_fault_for_axe(server, window, tab):
    from axe_playwright_python.sync_playwright import Axe

    page = open_app(window(width=390, height=844) if tab == "Export" else window(), server)
    page.get_by_role("tab", name=tab).click()
    expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
    expect(page.locator("table, marimo-callout-output, .e3-said").last).to_be_visible()
    serious = [(v["id"], [n["html"][:160] for n in v["nodes"]][:3]) for v in Axe().run(page).response["violations"]
               if v["impact"] in ("serious", "critical")]
    assert not serious, serious


def test_what_a_mark_means_is_shown_on_focus_and_hover(server, window):
    page = open_app(window(), server)
    mark = page.locator("[data-card=speedup] .mark")
    mark.focus()
    expect(page.locator("#e3-tip-speedup")).to_contain_text("tau * T_decode / T_round")
    assert mark.get_attribute("aria-describedby") == "e3-tip-speedup"
    word = page.get_by_role("row").filter(has_text="break-even alpha").locator("abbr").first
    expect(word).to_have_attribute("title", re.compile("neither gains nor loses"))


@pytest.fixture(params=["run", "edit"])
def single_file(request, tmp_path: Path) -> Iterator[str]:
    """``marimo run`` or ``marimo edit`` on a copy of the file, as a user of marimo starts it."""
    for name in ("choose_vocab.py", "choose_vocab.css"):
        (tmp_path / name).write_bytes((apps_folder() / name).read_bytes())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k != "EAGLE3_SERVED"}
    process = subprocess.Popen(
        [sys.executable, "-m", "marimo", "-q", request.param, str(tmp_path / "choose_vocab.py"), "--headless",
         "--no-token", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**environment, "MARIMO_SKIP_UPDATE_CHECK": "1"})
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(timeout=20)


def test_the_file_alone_opens_in_marimo(single_file, window, request):
    page: Page = window()
    for _ in range(300):
        try:
            urllib.request.urlopen(single_file + "health", timeout=1).close()
            break
        except OSError:
            page.wait_for_timeout(100)
    page.goto(single_file, wait_until="commit")
    if "edit" in request.node.name:
        # The editor shows the cells and leaves it to its user to run them.
        expect(page.get_by_text("nb.first_state").first).to_be_visible(timeout=60_000)
        return
    expect(page.locator(".verdict").first).to_contain_text("Recommended D = ", timeout=60_000)
    expect(page.locator(".charts svg").first).to_be_visible(timeout=30_000)
    slider(page).first.focus()
    page.keyboard.press("End")
    expect(slider(page).first).to_have_attribute("aria-valuetext", "151,936 tokens")
