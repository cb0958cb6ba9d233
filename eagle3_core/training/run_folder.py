"""A training run is a folder; everything that watches or steers it goes through these files.

    RUN/
      config.yaml          the whole configuration, as started
      run.json             who runs it: process id and its start time, host, command, tool version, data hashes
      state.json           {"state", "step", "steps", "message", "updated"}; replaced whole
      metrics.jsonl        one JSON object a line, append-only; a resumed run repeats steps, the last one counts
      log.txt              what the process printed
      stop                 its presence asks the run to stop after the current step
      mapping/             the draft vocabulary (d2t, t2d) of the run
      checkpoints/step-00000100/   model.safetensors, config.json, training_state.pt
      checkpoints/latest, best     text files with a checkpoint's name

A checkpoint is written beside and renamed, so a name without a dot is complete.
A run whose process is gone while its state says ``running`` is dead, and shown so.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import psutil

from eagle3_core import __version__
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import canonical_json, read_json, write_text

State = Literal["starting", "running", "finished", "stopped", "failed", "dead"]


@dataclass(frozen=True)
class RunStatus:
    """What the folder says now."""

    name: str
    folder: Path
    state: State
    step: int
    steps: int | None
    message: str
    updated: str
    pid: int | None
    host: str


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def create_run(folder: Path, config_yaml: str, command: list[str], **facts: Any) -> None:
    """Lay out a new run. Raises Eagle3Error when the folder already holds one."""
    if (folder / "run.json").exists():
        raise Eagle3Error("already holds a run", where=folder, fix="resume it, or choose another --out")
    write_text(folder / "config.yaml", config_yaml)
    (folder / "checkpoints").mkdir(exist_ok=True)
    claim_run(folder, command, **facts)
    write_state(folder, "starting", 0, None)


def claim_run(folder: Path, command: list[str], **facts: Any) -> None:
    """Record this process as the one that runs ``folder``. Raises Eagle3Error while another one does."""
    file = folder / "run.json"
    before = read_json(file) if file.exists() else {}
    if before and before.get("pid") != os.getpid() and is_alive(before):
        raise Eagle3Error("is being run by another process", where=folder, found=f"process {before['pid']}")
    me = psutil.Process()
    write_text(file, canonical_json({
        "created": before.get("created", now()), "claimed": now(), "tool_version": __version__,
        "pid": me.pid, "process_started": me.create_time(), "host": socket.gethostname(), "command": command,
        **{k: v for k, v in before.items() if k in ("data", "mapping")}, **facts,
    }))
    (folder / "stop").unlink(missing_ok=True)


def write_state(folder: Path, state: State, step: int, steps: int | None, message: str = "") -> None:
    write_text(folder / "state.json", canonical_json(
        {"state": state, "step": step, "steps": steps, "message": message, "updated": now()}))


def read_status(folder: Path) -> RunStatus:
    """Raises Eagle3Error when ``folder`` is not a run of ours."""
    if not (folder / "run.json").is_file():
        raise Eagle3Error("is not a training run", where=folder, expected="a folder made by eagle3 train")
    run = read_json(folder / "run.json")
    state = read_json(folder / "state.json") if (folder / "state.json").exists() else {}
    value: State = state.get("state", "starting")
    message = state.get("message", "")
    here = run.get("host") == socket.gethostname()
    if value in ("starting", "running") and here and not is_alive(run):
        value, message = "dead", message or f"process {run.get('pid')} is gone"
    return RunStatus(
        name=folder.name, folder=folder, state=value, step=state.get("step", 0), steps=state.get("steps"),
        message=message, updated=state.get("updated", ""), pid=run.get("pid"), host=run.get("host", ""),
    )


def is_alive(run: dict[str, Any]) -> bool:
    """The recorded process still runs here: same id, same start time (ids are reused)."""
    if run.get("host") != socket.gethostname():
        return False
    try:
        process = psutil.Process(run["pid"])
        return abs(process.create_time() - run["process_started"]) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, KeyError, TypeError):
        return False


def request_stop(folder: Path) -> None:
    """Ask the run to stop after its current step."""
    read_status(folder)
    (folder / "stop").touch()


def stop_requested(folder: Path) -> bool:
    return (folder / "stop").exists()


def append_metrics(folder: Path, record: dict[str, Any]) -> None:
    """One line, written by a single call so that a reader never sees half of one it cannot skip."""
    line = json.dumps({"time": now(), **record}, allow_nan=False) + "\n"
    descriptor = os.open(folder / "metrics.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All records; a last line cut off by a kill is left out. Of a repeated (event, step) the last one counts."""
    file = folder / "metrics.jsonl"
    if not file.exists():
        return []
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            # A kill can cut one line; the resumed run starts its next line behind it.
            continue
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            raise Eagle3Error(f"line {number}", where=file, found=line[:60].decode(errors="replace"),
                              expected="an object with a step")
        key = (str(record.get("event", "train")), record["step"])
        latest.pop(key, None)
        latest[key] = record
    return list(latest.values())


def mend_metrics(folder: Path) -> None:
    """End a line that a kill cut off, so that the next record starts on its own."""
    file = folder / "metrics.jsonl"
    if file.exists() and (size := file.stat().st_size):
        with file.open("rb+") as handle:
            handle.seek(size - 1)
            if handle.read(1) != b"\n":
                handle.write(b"\n")


@contextmanager
def new_checkpoint(folder: Path, step: int) -> Iterator[Path]:
    """A folder to fill; it becomes ``checkpoints/step-<step>`` and ``latest`` when the block succeeds.

    Raises Eagle3Error when the disk is full; earlier checkpoints stay as they are.
    """
    name = f"step-{step:08d}"
    root = folder / "checkpoints"
    part = root / f".{name}.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        yield part
        for file in part.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        final = root / name
        if final.exists():
            # A run resumed from before this step writes it again, identically.
            shutil.rmtree(final)
        part.rename(final)
        write_text(root / "latest", name + "\n")
    except OSError as error:
        raise Eagle3Error("checkpoint cannot be written", where=root / name, found=error.strerror,
                          fix="earlier checkpoints are untouched") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    root = folder / "checkpoints"
    return sorted(p for p in root.glob("step-*") if p.is_dir()) if root.is_dir() else []


def checkpoint_named(folder: Path, which: str = "latest") -> Path:
    """``latest``, ``best`` or a checkpoint's own name. Raises Eagle3Error when it is not there.

    A kill between renaming a checkpoint and writing ``latest`` leaves a newer
    one on disk; ``latest`` then means that one.
    """
    root = folder / "checkpoints"
    if which == "latest" and (found := checkpoints(folder)):
        return found[-1]
    name = (root / which).read_text().strip() if (root / which).is_file() else which
    if not (root / name).is_dir() or "/" in name:
        raise Eagle3Error(f"no checkpoint {which}", where=folder)
    return root / name


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove the oldest beyond ``keep``, never the best one."""
    best = folder / "checkpoints" / "best"
    spared = best.read_text().strip() if best.exists() else None
    for old in checkpoints(folder)[:-keep]:
        if old.name != spared:
            shutil.rmtree(old)


def list_runs(root: Path) -> list[RunStatus]:
    """Runs directly below ``root``, newest first."""
    if not root.is_dir():
        return []
    found = [read_status(p) for p in root.iterdir() if (p / "run.json").is_file()]
    return sorted(found, key=lambda run: run.updated, reverse=True)
