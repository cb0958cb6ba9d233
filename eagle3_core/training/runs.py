"""Training runs as they are shown: ours, SpecForge's and speculators', by what each writes down.

    ours          run_folder.py: state, metrics.jsonl, checkpoints, log.txt; launch.json until the trainer has begun
    SpecForge     <run>-step<N>/, <run>.best_meta.json, TensorBoard below runs/; no state of the process
    speculators   <epoch>/training_state.json, val_metrics.json of best epochs, TensorBoard below logs/

A quantity is a curve: step -> value, under the name that its trainer gives it;
a list in a record gives one curve an entry, ``alpha_1`` onwards.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import polars as pl

from eagle3_core.acceptance.events import read_series
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import read_json
from eagle3_core.training import run_folder
from eagle3_core.training.run_folder import RunStatus

Project = Literal["eagle3", "specforge", "speculators", "eagle"]
LAUNCH = "launch.json"
TAIL_BYTES = 64 << 10
_NOT_CURVES = ("step", "time", "event")


@dataclass(frozen=True)
class RunView:
    """``curves``: name -> {step: value}, ascending. ``state`` is "recorded" where the trainer keeps none."""

    name: str
    folder: Path
    project: Project
    state: str
    step: int
    steps: int | None
    message: str
    updated: str
    checkpoints: tuple[Path, ...]
    curves: dict[str, dict[int, float]]

    @property
    def alive(self) -> bool:
        return self.state in ("starting", "running")

    def last(self, name: str) -> float | None:
        values = self.curves.get(name)
        return values[max(values)] if values else None


def open_run(folder: str | Path) -> RunView:
    """Raises Eagle3Error when the folder is no training run that is known."""
    folder = Path(folder)
    if (folder / "run.json").is_file() or (folder / LAUNCH).is_file():
        status = status_of(folder)
        return RunView(status.name, folder, "eagle3", status.state, status.step, status.steps, status.message,
                       status.updated, tuple(run_folder.checkpoints(folder)), our_curves(folder))
    return _foreign(folder)


def status_of(folder: Path) -> RunStatus:
    """``read_status``, and before the trainer has begun what the launcher knows of its process."""
    begun, known = (folder / "run.json").is_file(), (folder / LAUNCH).is_file()
    launched = read_json(folder / LAUNCH) if known else {}
    if not isinstance(launched, dict):
        raise Eagle3Error("is not a launch record", where=folder / LAUNCH)
    if begun:
        status = run_folder.read_status(folder)
        # Resumed: the process is there, but has not claimed the folder yet.
        again = known and status.state != "running" and launched.get("pid") not in (None, status.pid)
        if again and (folder / LAUNCH).stat().st_mtime >= (folder / "run.json").stat().st_mtime and (
                run_folder.is_alive(launched)):
            return dataclasses.replace(status, state="starting", message="resuming", pid=launched["pid"])
        return status
    state: run_folder.State = "starting"
    message = f"job {launched['job']}" if launched.get("job") else ""
    if launched.get("pid") is not None and not run_folder.is_alive(launched):
        state, message = "dead", f"process {launched['pid']} ended before training began"
    return RunStatus(folder.name, folder, state, 0, None, message, str(launched.get("launched", "")),
                     launched.get("pid"), str(launched.get("host", "")))


def our_curves(folder: Path) -> dict[str, dict[int, float]]:
    """Every number of metrics.jsonl. Held-out records carry their event's name before the quantity's."""
    curves: dict[str, dict[int, float]] = {}
    for record in run_folder.read_metrics(folder):
        event = str(record.get("event", "train"))
        prefix = "" if event == "train" else f"{event}/"
        for key, value in record.items():
            if key in _NOT_CURVES:
                continue
            items = enumerate(value, start=1) if isinstance(value, list) else [(None, value)]
            for index, item in items:
                if isinstance(item, (int, float)) and not isinstance(item, bool) and math.isfinite(item):
                    name = prefix + (key if index is None else f"{key}_{index}")
                    curves.setdefault(name, {})[record["step"]] = float(item)
    return {name: dict(sorted(values.items())) for name, values in curves.items()}


def _foreign(folder: Path) -> RunView:
    if not folder.is_dir():
        raise Eagle3Error("is not a training run", where=folder, found="no such folder")
    from eagle3_core.inspect.read import inspect_path

    facts = inspect_path(folder)
    if facts.kind != "run" or facts.run is None:
        raise Eagle3Error("is not a training run", where=folder, found=facts.what,
                          expected="a run of eagle3 train, SpecForge or speculators")
    curves: dict[str, dict[int, float]] = {}
    for file in sorted({*folder.rglob("*tfevents*"), *(folder.parent / "logs").glob(f"{folder.name}/**/*tfevents*")}):
        for name, values in read_series(file).items():
            curves.setdefault(name, {}).update(values)
    saved = [folder / name for name in facts.run.checkpoints]
    step, message = 0, ""
    for checkpoint in saved:
        told = checkpoint / "training_state.json"
        state = read_json(told) if told.is_file() else {}
        if isinstance(state, dict):
            step = max(step, *(int(v) for k, v in state.items() if k in ("step", "global_step") and _whole(v)), 0)
        validated = checkpoint / "val_metrics.json"
        metrics = read_json(validated) if validated.is_file() else {}
        for name, value in metrics.items() if isinstance(metrics, dict) else ():
            if isinstance(value, (int, float)) and math.isfinite(value):
                curves.setdefault(str(name), {}).setdefault(step, float(value))
        if "-step" in checkpoint.name:
            step = max(step, int(checkpoint.name.rpartition("-step")[2]))
    for best in sorted(folder.glob("*.best_meta.json")):
        meta = read_json(best)
        if isinstance(meta, dict):
            message = f"best {meta.get('metric', 'score')} {meta.get('score')} at step {meta.get('step')}"
    step = max([step, *(max(values) for values in curves.values())])
    updated = max((p.stat().st_mtime for p in saved), default=folder.stat().st_mtime)
    return RunView(folder.name, folder, facts.run.project, "recorded", step, None, message,  # type: ignore[arg-type]
                   datetime.fromtimestamp(updated).astimezone().isoformat(timespec="seconds"), tuple(saved),
                   {name: dict(sorted(values.items())) for name, values in curves.items()})


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def find_runs(root: Path) -> list[RunView]:
    """Runs that are ``root`` itself or directly below it, the newest first; other folders are passed over."""
    if not root.is_dir():
        raise Eagle3Error("no such folder", where=root, expected="a folder of training runs")
    found = []
    for folder in (root, *sorted(root.iterdir())):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        try:
            found.append(open_run(folder))
        except Eagle3Error:
            continue
    return sorted(found, key=lambda run: run.updated, reverse=True)


def log_tail(folder: Path, lines: int = 20) -> list[str]:
    """The last lines that the run printed, of a log of any size."""
    file = folder / "log.txt"
    if not file.is_file():
        return []
    with file.open("rb") as handle:
        size = handle.seek(0, 2)
        handle.seek(max(0, size - TAIL_BYTES))
        text = handle.read().decode("utf-8", "replace")
    # A progress bar overwrites its line; what stood there last is what was seen.
    return [line.rpartition("\r")[2] for line in text.rstrip("\r\n").split("\n")][-lines:]


def seconds_a_step(folder: Path, *, last: int = 20, skip: int = 0) -> float | None:
    """The pace of the last records of metrics.jsonl, the first ``skip`` left out; None where nothing can be said."""
    records = [r for r in run_folder.read_metrics(folder) if r.get("event", "train") == "train" and "time" in r]
    records = records[skip:][-last:]
    if len(records) < 2:
        return None
    first, final = (datetime.fromisoformat(records[i]["time"]) for i in (0, -1))
    done, spent = records[-1]["step"] - records[0]["step"], (final - first).total_seconds()
    return spent / done if done > 0 and spent > 0 else None


def seconds_left(run: RunView) -> float | None:
    """Steps to go at the pace of the last ones; None for a run that is not running."""
    pace = seconds_a_step(run.folder) if run.alive and run.steps is not None else None
    return None if pace is None or run.steps is None else pace * max(run.steps - run.step, 0)


def compare(runs: Sequence[RunView], quantity: str = "loss") -> pl.DataFrame:
    """run, step, tokens, value: one quantity of several runs, over the tokens trained on where they are recorded.

    Raises Eagle3Error naming the quantities that all of them have when ``quantity`` is none of those.
    """
    common = set.intersection(*(set(run.curves) for run in runs)) if runs else set()
    if quantity not in common:
        raise Eagle3Error("not recorded by all of these runs", found=quantity,
                          expected=", ".join(sorted(common)[:12]) or "a quantity in common")
    frames = []
    for run in runs:
        tokens, values = run.curves.get("tokens", {}), run.curves[quantity]
        frames.append(pl.DataFrame({
            "run": [run.name] * len(values), "step": list(values), "tokens": [tokens.get(step) for step in values],
            "value": list(values.values()),
        }, schema={"run": pl.String, "step": pl.Int64, "tokens": pl.Float64, "value": pl.Float64}))
    return pl.concat(frames)
