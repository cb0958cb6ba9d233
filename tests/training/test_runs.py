"""Runs from outside: launching, dying, stopping, foreign folders, comparing, exporting."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from eagle3_core.cli.main import app
from eagle3_core.errors import Eagle3Error
from eagle3_core.training import launch, run_folder, runs
from eagle3_core.training.config import load_config

CLI = CliRunner()
TRAINER = """
import sys, time
from pathlib import Path
from eagle3_core.training import run_folder as r
folder = Path(sys.argv[1])
r.create_run(folder, "model: {target: x}", sys.argv)
for step in range(1, 4000):
    r.append_metrics(folder, {"step": step, "loss": 8 / step, "tokens": 64 * step, "alpha": [0.5, 0.25]})
    r.write_state(folder, "running", step, 4000)
    print("step", step, flush=True)
    if r.stop_requested(folder):
        r.write_state(folder, "stopped", step, 4000)
        break
    time.sleep(0.01)
"""


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "nothing happened for a minute"
        time.sleep(0.05)


def state(folder: Path) -> str:
    return runs.status_of(folder).state


@pytest.fixture
def started(tmp_path: Path):
    folder = tmp_path / "one"
    folder.mkdir()
    launch.start(folder, [sys.executable, "-c", TRAINER, str(folder)])
    yield folder
    record = json.loads((folder / runs.LAUNCH).read_text())
    if run_folder.is_alive(record):
        os.kill(record["pid"], signal.SIGKILL)


def test_a_launched_run_is_its_own_session_and_stops_after_a_step(started: Path):
    assert state(started) in ("starting", "running")
    wait_for(lambda: state(started) == "running")
    pid = runs.status_of(started).pid
    assert pid is not None
    assert os.getsid(pid) == pid != os.getsid(0)
    done = CLI.invoke(app, ["runs", "stop", str(started)])
    assert done.exit_code == 0, done.output
    wait_for(lambda: state(started) == "stopped")
    view = runs.open_run(started)
    assert view.curves["loss"][1] == 8.0
    assert view.curves["alpha_2"][1] == 0.25
    assert runs.log_tail(started, 1) == [f"step {view.step}"]


def test_a_killed_run_is_shown_dead_with_its_last_lines(started: Path):
    wait_for(lambda: state(started) == "running" and bool(runs.log_tail(started)))
    pid = runs.status_of(started).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: state(started) == "dead")
    shown = CLI.invoke(app, ["runs", "show", str(started)])
    assert "dead" in shown.output
    assert "| step" in shown.output


def test_a_process_that_ends_before_training_begins_is_dead_not_starting(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    launch.start(folder, [sys.executable, "-c", "raise SystemExit('error: no such target')"])
    wait_for(lambda: state(folder) == "dead")
    assert runs.log_tail(folder) == ["error: no such target"]


def test_a_run_is_never_launched_over_another_nor_resumed_while_alive(started: Path):
    config = load_config(defaults={"model": {"target": "x"}, "data": {"text": ["a.jsonl"]},
                                   "run": {"out": str(started)}})
    with pytest.raises(Eagle3Error, match="already holds a run"):
        launch.launch(config)
    wait_for(lambda: state(started) == "running")
    with pytest.raises(Eagle3Error, match="still running"):
        launch.resume(started)


def test_commands_for_one_process_and_for_several():
    assert launch.train_command(["--config", "c"])[1:] == ["-m", "eagle3_core.cli.main", "train", "--config", "c"]
    several = launch.train_command(["--config", "c"], "torchrun", 2)
    assert several[1:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert launch.shown(launch.train_command(["--config", "a b"])) == "eagle3 train --config 'a b'"


def make_run(folder: Path, losses: dict[int, float], **more: float) -> Path:
    folder.mkdir(parents=True)
    run_folder.create_run(folder, "model: {target: smollm2-135m}\n", ["eagle3", "train"])
    for step, loss in losses.items():
        run_folder.append_metrics(folder, {"step": step, "loss": loss, "tokens": 100 * step, **more})
    run_folder.write_state(folder, "finished", max(losses), max(losses))
    return folder


def test_runs_are_compared_over_tokens(tmp_path: Path):
    one, two = make_run(tmp_path / "a", {1: 4.0, 2: 2.0}), make_run(tmp_path / "b", {1: 3.0})
    frame = runs.compare([runs.open_run(one), runs.open_run(two)])
    assert frame.rows() == [("a", 1, 100.0, 4.0), ("a", 2, 200.0, 2.0), ("b", 1, 100.0, 3.0)]
    with pytest.raises(Eagle3Error, match="loss"):
        runs.compare([runs.open_run(one), runs.open_run(two)], "tau")
    listed = CLI.invoke(app, ["runs", "list", str(tmp_path), "--json"])
    assert {run["name"]: run["state"] for run in json.loads(listed.output)} == {"a": "finished", "b": "finished"}


def test_records_of_events_keep_their_events_name(tmp_path: Path):
    folder = make_run(tmp_path / "a", {1: 4.0})
    run_folder.append_metrics(folder, {"event": "eval", "step": 1, "tau": 1.5, "good": True, "note": "x"})
    curves = runs.open_run(folder).curves
    assert curves["eval/tau"] == {1: 1.5}
    assert set(curves) == {"loss", "tokens", "eval/tau"}


def test_time_left_is_the_pace_of_the_last_steps(tmp_path: Path):
    folder = make_run(tmp_path / "a", {1: 4.0})
    times = ["2026-01-01T00:00:00+00:00", "2026-01-01T00:00:20+00:00"]
    lines = [json.dumps({"time": t, "step": s, "loss": 1.0}) for t, s in zip(times, (1, 11), strict=True)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run_folder.write_state(folder, "running", 11, 31)
    # 10 steps in 20 s, 20 steps to go.
    assert runs.seconds_left(runs.open_run(folder)) == pytest.approx(40.0)


def write_events(folder: Path, values: dict[str, dict[int, float]]) -> None:
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    log = writer.EventFileWriter(str(folder))
    for tag, series in values.items():
        for step, value in series.items():
            log.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)])))
    log.close()


def test_a_specforge_folder_is_read_from_its_events_and_best_record(tmp_path: Path):
    folder = tmp_path / "output"
    for step in (100, 200):
        (folder / f"try-step{step}").mkdir(parents=True)
        state = {"draft_state_dict": {"fc.weight": torch.zeros(8, 24), "lm_head.weight": torch.zeros(64, 8)},
                 "global_step": step}
        torch.save(state, folder / f"try-step{step}" / "training_state.pt")
    best = {"run_id": "try", "step": 100, "score": 1.5, "metric": "acc"}
    (folder / "try.best_meta.json").write_text(json.dumps(best))
    write_events(folder / "runs", {"train/loss": {50: 3.0, 150: 2.0}})
    view = runs.open_run(folder)
    assert (view.project, view.state, view.step) == ("specforge", "recorded", 200)
    assert view.curves["train/loss"] == {50: 3.0, 150: 2.0}
    assert view.message == "best acc 1.5 at step 100"


def test_a_speculators_folder_is_read_from_its_epochs(tmp_path: Path):
    folder = tmp_path / "save"
    for epoch in (0, 1):
        (folder / str(epoch)).mkdir(parents=True)
        state = {"epoch": epoch, "global_step": 10 * (epoch + 1)}
        (folder / str(epoch) / "training_state.json").write_text(json.dumps(state))
    (folder / "1" / "val_metrics.json").write_text(json.dumps({"val/loss_epoch": 1.25}))
    (folder / "train_command.txt").write_text("speculators train --epochs 2\n")
    view = runs.open_run(folder)
    assert (view.project, view.step) == ("speculators", 20)
    assert view.curves["val/loss_epoch"] == {20: 1.25}
    stopped = CLI.invoke(app, ["runs", "stop", str(folder)])
    assert stopped.exit_code != 0


@pytest.mark.parametrize("consumer", ["vllm", "sglang", "speculators"])
def test_an_exported_run_loads_again_and_carries_where_it_came_from(tmp_path: Path, consumer: str):
    from eagle3_core.drafter.checkpoint import read_drafter, write_drafter
    from eagle3_core.drafter.model import Drafter
    from eagle3_core.specs.drafter import drafter_for
    from eagle3_core.specs.presets import resolve_target
    from eagle3_core.training.release import release

    target = resolve_target("smollm2-135m")
    folder = tmp_path / "run"
    config = load_config(defaults={"model": {"target": "smollm2-135m"}, "data": {"text": ["a.jsonl"]},
                                   "run": {"out": str(folder)}})
    from eagle3_core.training.config import dump_config

    run_folder.create_run(folder, dump_config(config), ["eagle3", "train"])
    drafter = Drafter(drafter_for(target, 640)).reset()
    drafter.d2t += 7
    with run_folder.new_checkpoint(folder, 3) as part:
        write_drafter(part, drafter, target)
    run_folder.write_state(folder, "finished", 3, 3)
    (folder / "decision.json").write_text("{}")
    out, said = release(folder, tmp_path / "out", consumer=consumer)
    assert said[0] == "from step-00000003 of run, finished at step 3"
    again = read_drafter(out, embedding=drafter.embed_tokens.weight)
    assert torch.equal(again.drafter.lm_head.weight, drafter.lm_head.weight)
    assert again.mapping.target_ids.tolist() == list(range(7, 647))
    assert again.aux_layers in (None, target.aux_layers)
    assert (out / "training.yaml").is_file()
    assert (out / "decision.json").is_file()
    with pytest.raises(Eagle3Error, match="already exists"):
        release(folder, out, consumer=consumer)


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path):
    with pytest.raises(Eagle3Error):
        runs.open_run(tmp_path)
    with pytest.raises(Eagle3Error, match="no such folder"):
        runs.find_runs(tmp_path / "none")
