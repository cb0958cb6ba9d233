"""The run folder: what it says of live, dead and broken runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_core.errors import Eagle3Error
from eagle3_core.training import run_folder as rf


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    rf.create_run(folder, "model: {}\n", ["eagle3", "train"], data={"sha256": "0"})
    return folder


def test_a_run_of_this_process_is_seen_running(run: Path) -> None:
    rf.write_state(run, "running", 3, 10)
    status = rf.read_status(run)
    assert (status.state, status.step, status.steps, status.pid) == ("running", 3, 10, os.getpid())


def test_a_run_whose_process_is_gone_is_dead(run: Path) -> None:
    rf.write_state(run, "running", 3, 10)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    facts = json.loads((run / "run.json").read_text()) | {"pid": process.pid}
    (run / "run.json").write_text(json.dumps(facts))
    assert rf.read_status(run).state == "dead"


def test_a_reused_process_id_does_not_revive_a_run(run: Path) -> None:
    rf.write_state(run, "running", 3, 10)
    facts = json.loads((run / "run.json").read_text()) | {"process_started": 1.0}
    (run / "run.json").write_text(json.dumps(facts))
    assert rf.read_status(run).state == "dead"
    rf.claim_run(run, ["eagle3", "train", "--resume"])
    assert rf.read_status(run).state == "running"
    assert json.loads((run / "run.json").read_text())["data"] == {"sha256": "0"}


def test_a_folder_is_never_used_for_two_runs(run: Path) -> None:
    with pytest.raises(Eagle3Error, match="already holds a run"):
        rf.create_run(run, "", [])


def test_a_line_cut_by_a_kill_is_skipped_and_the_next_starts_fresh(run: Path) -> None:
    rf.append_metrics(run, {"step": 1, "loss": 2.0})
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert [r["step"] for r in rf.read_metrics(run)] == [1]
    rf.mend_metrics(run)
    rf.append_metrics(run, {"step": 2, "loss": 1.0})
    assert [(r["step"], r["loss"]) for r in rf.read_metrics(run)] == [(1, 2.0), (2, 1.0)]


def test_the_last_record_of_a_repeated_step_counts(run: Path) -> None:
    for step, loss in [(1, 3.0), (2, 2.0), (2, 2.5), (3, 1.0)]:
        rf.append_metrics(run, {"step": step, "loss": loss})
    rf.append_metrics(run, {"event": "eval", "step": 2, "tau": 1.2})
    assert [(r["step"], r.get("loss")) for r in rf.read_metrics(run)] == [(1, 3.0), (2, 2.5), (3, 1.0), (2, None)]


def test_a_failed_checkpoint_leaves_the_earlier_ones(run: Path) -> None:
    for step in (1, 2):
        with rf.new_checkpoint(run, step) as folder:
            (folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(Eagle3Error, match="cannot be written"), rf.new_checkpoint(run, 3):
        raise OSError(28, "No space left on device")
    assert [p.name for p in rf.checkpoints(run)] == ["step-00000001", "step-00000002"]
    assert rf.checkpoint_named(run).name == "step-00000002"


def test_pruning_spares_the_best(run: Path) -> None:
    for step in range(1, 6):
        with rf.new_checkpoint(run, step) as folder:
            (folder / "model.safetensors").write_bytes(b"x")
    (run / "checkpoints" / "best").write_text("step-00000001\n")
    rf.prune_checkpoints(run, keep=2)
    assert [p.name[-1] for p in rf.checkpoints(run)] == ["1", "4", "5"]
    assert rf.checkpoint_named(run, "best").name == "step-00000001"


def test_another_folder_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(Eagle3Error, match="is not a training run"):
        rf.request_stop(tmp_path)
