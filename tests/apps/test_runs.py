"""The page of training runs: its parts without a browser, then a real process watched and stopped in one."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from eagle3_core.app import runs_page as page
from eagle3_core.app.sources import DATA_VARIABLE
from eagle3_core.app.state import AppState, parse_query
from eagle3_core.errors import Eagle3Error
from eagle3_core.training import launch, run_folder, runs

STATE = AppState(target="smollm2-135m", counts="smollm2", latency="smollm2-135m.cpu", dtype="float32", k=3, d=8192)
TRAINER = """
import sys, time
from pathlib import Path
from eagle3_core.training import run_folder as r
folder = Path(sys.argv[1])
r.create_run(folder, "model: {target: x}", sys.argv)
for step in range(1, 4000):
    r.append_metrics(folder, {"step": step, "loss": 4 + 4 / step, "tokens": 64 * step, "alpha": [0.5, 0.25]})
    r.write_state(folder, "running", step, 4000)
    print("step", step, "<b>", flush=True)
    if r.stop_requested(folder):
        r.write_state(folder, "stopped", step, 4000)
        break
    time.sleep(0.02)
"""


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    monkeypatch.setenv(page.ANY_PATH, "1")
    return tmp_path


def begin(folder: Path) -> int:
    folder.mkdir(parents=True)
    launch.start(folder, [sys.executable, "-c", TRAINER, str(folder)])
    pid = runs.status_of(folder).pid
    assert pid is not None
    return pid


def finished(folder: Path, losses: dict[int, float]) -> Path:
    folder.mkdir(parents=True)
    run_folder.create_run(folder, "model: {target: x}\n", ["eagle3", "train"])
    for step, loss in losses.items():
        run_folder.append_metrics(folder, {"step": step, "loss": loss, "tokens": 100 * step})
    run_folder.write_state(folder, "finished", max(losses), max(losses))
    return folder


def test_the_launch_carries_size_counts_and_ranking_of_the_screen(data):
    (data / "chats.jsonl").write_text("{}\n")
    form = page.Form(name="mine", target="/models/smol", text=str(data / "chats.jsonl"), steps=50)
    config = page.config_of(form, STATE)
    assert (config.model.draft_vocab, config.model.ranking, config.optim.steps) == (8192, "pooled", 50)
    assert config.model.counts is not None
    assert config.model.counts.name == "smollm2.counts.parquet"
    assert config.run.out == data / "runs" / "mine"
    assert page.config_of(form, STATE, probe=True).optim.steps == page.PROBE_STEPS


@pytest.mark.parametrize(("form", "message"), [
    (page.Form(name="../up", target="t", text="x"), "name of the run"),
    (page.Form(target="t"), "nothing to train on"),
    (page.Form(target="t", text="/none/at/all"), "is not there"),
])
def test_a_form_that_cannot_run_says_why(data, form, message):
    with pytest.raises(Eagle3Error, match=message):
        page.config_of(form, STATE)


def test_cost_is_shown_before_anything_starts(data):
    rows = {what: figure for what, figure, _ in page.cost(page.Form(steps=100, batch_tokens=1000), STATE)}
    # lm_head: D * H = 8192 * 576. Hidden states: 100,000 tokens * 4 * 576 values * 2 bytes = 0.4608 GB.
    assert rows["of them lm_head"] == f"{8192 * 576:,}"
    assert rows["Hidden states of as many tokens"].startswith("0.46 GB")
    assert rows["Time"] == "run the probe first"


def test_the_probe_gives_the_time(data):
    folder = finished(data / "runs" / "mine-probe", {1: 4.0})
    lines = [f'{{"time": "2026-01-01T00:00:{s:02d}+00:00", "step": {i}, "loss": 1}}'
             for i, s in ((1, 0), (2, 30), (3, 33), (13, 53))]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    # After two warm-up records: 10 steps in 20 s; 300 steps take 600 s.
    assert page.probe_pace("mine") == pytest.approx(2.0)
    assert ("Time", "10 min") in {row[:2] for row in page.cost(page.Form(name="mine", steps=300), STATE)}


def test_elsewhere_gets_its_command_and_starts_nothing(data):
    form = page.Form(where="specforge")
    assert "specforge train --config run.yaml" in page.render_cost(form, STATE)
    with pytest.raises(Eagle3Error, match="elsewhere"):
        page.launch_now(form, STATE)


def test_a_server_open_to_others_starts_and_stops_nothing(data, monkeypatch):
    monkeypatch.delenv(page.ANY_PATH)
    finished(data / "runs" / "a", {1: 1.0})
    for act in (lambda: page.launch_now(page.Form(), STATE), lambda: page.stop("a"), lambda: page.resume("a")):
        with pytest.raises(Eagle3Error, match="only from the machine"):
            act()


def test_names_lead_to_listed_runs_only(data):
    finished(data / "runs" / "a", {1: 1.0})
    (data / "runs" / "link").symlink_to("/etc")
    assert page.named("a") == data / "runs" / "a"
    for bad in ("..", "../a", "link", "", "none"):
        with pytest.raises(Eagle3Error):
            page.named(bad)


def test_a_link_restores_what_is_looked_at_and_junk_gives_the_default():
    asked = page.asked_in({"runs": "a,b,../c", "quantity": "loss", "d": "8192", "target": "smollm2-135m"})
    assert (asked.runs, asked.quantity, asked.state.d) == (("a", "b"), "loss", 8192)
    assert page.asked_in({"runs": "", "quantity": "a\nb"}) == page.Asked()


def test_curves_run_over_tokens_from_corner_to_corner():
    drawn = page.picture({"a": [(0, 4.0), (50, 3.0), (100, 2.0)]}, "loss", width=100, height=100)
    assert drawn["lines"][0]["points"] == "0.0,0.0 50.0,50.0 100.0,100.0"
    assert drawn["y"] == ("2", "4")


def test_measured_acceptance_of_a_run_goes_back_to_the_main_app(data):
    from eagle3_core.acceptance.record import AcceptancePoint, AcceptanceRecord, write_acceptance
    from eagle3_core.app.sources import catalogue, get_acceptance

    folder = finished(data / "runs" / "a", {1: 1.0})
    point = AcceptancePoint(draft_vocab=8192, alpha=(0.5,), alpha_low=(0.4,), alpha_high=(0.6,), tau=1.5, tau_low=1.4,
                            tau_high=1.6)
    write_acceptance(AcceptanceRecord(tool_version="0", created="", target="t", drafter="d", vocab_size=49152,
                                      method="one_pass", points=(point,), source="s"),
                     folder / "step-1.acceptance.json")
    link = page.acceptance_links(runs.open_run(folder), STATE)[0]["href"]
    query = link.partition("?")[2].replace("%7E", "~")
    state, notices = parse_query(dict(pair.split("=") for pair in query.split("&")))
    assert notices == ()
    assert state.d == 8192
    assert get_acceptance(catalogue(), state.acceptance, 0.8).alpha == (0.5,)


def test_a_checkpoint_is_measured_from_the_page_by_a_process_of_its_own(data, monkeypatch):
    folder = finished(data / "runs" / "a", {1: 1.0})
    with pytest.raises(Eagle3Error, match="no checkpoint"):
        page.measure("a")
    (folder / "checkpoints" / "step-00000001").mkdir(parents=True)
    asked = []
    monkeypatch.setattr(launch, "_detached", lambda where, command: asked.append((where, command[3:])))
    assert "measured" in page.measure("a")
    assert asked == [(folder, ["runs", "acceptance", str(folder), "--checkpoint", "step-00000001"])]


def live(window: Page, url: str) -> Page:
    window.goto(url, wait_until="commit")
    expect(window.get_by_role("heading", name="Runs", exact=True)).to_be_visible(timeout=60_000)
    return window


def test_a_run_is_watched_and_stopped_from_two_windows_and_outlives_them(server, window):
    pid = begin(server.data / "runs" / "alive")
    finished(server.data / "runs" / "done", {1: 8.0, 2: 4.0})
    try:
        url = f"{server.url}/runs/?runs=alive,done&target=smollm2-135m&counts=smollm2&d=8192"
        first = live(window(), url)
        expect(first.get_by_role("img", name="loss from")).to_be_visible()
        expect(first.locator("[data-state=running]")).to_be_visible()
        expect(first.get_by_text("8,192", exact=False).first).to_be_visible()
        second = live(window(), url)
        expect(second.locator("[data-state=running]")).to_be_visible()
        second.get_by_role("button", name="Stop alive").click()
        expect(second.locator("[data-state=stopped]")).to_be_visible()
        expect(first.locator("[data-state=stopped]")).to_be_visible()
        assert "<b>" in first.get_by_label("Last lines of the log").inner_text()
    finally:
        if run_folder.is_alive({"pid": pid, **_began(server.data / "runs" / "alive")}):
            os.kill(pid, signal.SIGKILL)


def _began(folder: Path) -> dict[str, object]:
    from eagle3_core.files import read_json

    return {k: v for k, v in read_json(folder / runs.LAUNCH).items() if k in ("host", "process_started")}
