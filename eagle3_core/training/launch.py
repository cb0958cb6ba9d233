"""Start a training run as a process that belongs to nobody: closing the browser or the server does not touch it.

    local      this Python, in a session of its own
    torchrun   the same under torch.distributed.run, one process a device
    slurm      the same handed to sbatch by submitit

The launcher writes config and ``launch.json`` into the run's folder and lets go;
everything after that is read from the folder. For clusters that train with
SpecForge or speculators the command is generated instead and started by hand.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import canonical_json, reason, write_text
from eagle3_core.training import run_folder
from eagle3_core.training.config import TrainConfig, dump_config
from eagle3_core.training.runs import LAUNCH, status_of

How = Literal["local", "torchrun", "slurm"]
CONFIG = "launch.yaml"


@dataclass(frozen=True)
class Slurm:
    partition: str | None = None
    gpus: int = 1
    hours: float = 24.0
    memory_gb: int = 64


def train_command(arguments: list[str], how: How = "local", processes: int = 1) -> list[str]:
    """``eagle3 train`` with these arguments by this very Python."""
    module = ["-m", "eagle3_core.cli.main", "train", *arguments]
    if how == "local":
        return [sys.executable, *module]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *module]


def launch(config: TrainConfig, *, how: How = "local", processes: int = 1, slurm: Slurm = Slurm()) -> Path:
    """Start training by ``config``; returns the run's folder at once. Raises Eagle3Error where a run stands already."""
    folder = config.run.out
    if (folder / "run.json").exists() or (folder / LAUNCH).exists():
        raise Eagle3Error("already holds a run", where=folder, fix="resume it, or choose another folder")
    if processes > 1 and config.run.parallel == "none":
        config = config.model_copy(update={"run": config.run.model_copy(update={"parallel": "ddp"})})
    write_text(folder / CONFIG, dump_config(config))
    start(folder, train_command(["--config", str(folder / CONFIG)], _shape(how, processes), processes), how=how,
          slurm=slurm, processes=processes)
    return folder


def resume(folder: Path, *, how: How = "local", processes: int = 1, slurm: Slurm = Slurm()) -> None:
    """Go on from the last checkpoint. Raises Eagle3Error while the run is alive."""
    status = status_of(folder)
    if status.state in ("starting", "running"):
        raise Eagle3Error("is still running", where=folder, found=f"process {status.pid}")
    if status.state == "finished":
        raise Eagle3Error("is finished", where=folder, fix="start another run from its checkpoint")
    begun = (folder / "run.json").is_file()
    arguments = ["--resume", str(folder)] if begun else ["--config", str(folder / CONFIG)]
    start(folder, train_command(arguments, _shape(how, processes), processes), how=how, slurm=slurm,
          processes=processes)


def measure(folder: Path, which: str) -> None:
    """Measure a checkpoint's acceptance at every size, in a process of its own; its output joins the run's log.

    Raises Eagle3Error for a name that is no checkpoint of the run.
    """
    checkpoint = run_folder.checkpoint_named(folder, which)
    _detached(folder, [sys.executable, "-m", "eagle3_core.cli.main", "runs", "acceptance", str(folder),
                       "--checkpoint", checkpoint.name])


def _shape(how: How, processes: int) -> How:
    return "torchrun" if how == "torchrun" or processes > 1 else "local"


def start(folder: Path, command: list[str], *, how: How = "local", slurm: Slurm = Slurm(), processes: int = 1) -> None:
    """Run ``command`` detached with its output in log.txt, and write launch.json."""
    record: dict[str, object] = {"how": how, "command": command, "host": socket.gethostname(),
                                 "launched": run_folder.now()}
    if how == "slurm":
        record |= {"job": _submit(folder, command, slurm, processes), "pid": None}
    else:
        process = _detached(folder, command)
        try:
            began = psutil.Process(process.pid).create_time()
        except psutil.NoSuchProcess:
            began = 0.0
        record |= {"pid": process.pid, "process_started": began}
    write_text(folder / LAUNCH, canonical_json(record))


def _detached(folder: Path, command: list[str]) -> subprocess.Popen[bytes]:
    with open(folder / "log.txt", "ab") as log:
        # Its own session: neither a closed terminal nor a signal to the server's group reaches it.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    # Collected when it ends, so that it does not stay in the process table as long as the server lives.
    threading.Thread(target=process.wait, name="eagle3-run", daemon=True).start()
    return process


def _submit(folder: Path, command: list[str], slurm: Slurm, processes: int) -> str:
    try:
        import submitit  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise Eagle3Error("Slurm needs submitit", fix="pip install submitit") from None
    executor = submitit.AutoExecutor(folder=str(folder / "slurm"), cluster="slurm")
    executor.update_parameters(
        name=f"eagle3-{folder.name}"[:60], gpus_per_node=max(slurm.gpus, processes), mem_gb=slurm.memory_gb,
        timeout_min=round(60 * slurm.hours), **({"slurm_partition": slurm.partition} if slurm.partition else {}))
    try:
        return str(executor.submit(submitit.helpers.CommandFunction(command)).job_id)
    except (RuntimeError, OSError, submitit.core.utils.FailedJobError) as error:
        raise Eagle3Error("the job was not taken", found=reason(error)) from None


def stop(folder: Path) -> str:
    """Ask the run to stop after its step; returns what happens next. Raises Eagle3Error when nothing runs."""
    status = status_of(folder)
    if status.state not in ("starting", "running"):
        raise Eagle3Error("is not running", where=folder, found=status.state)
    if not (folder / "run.json").is_file():
        raise Eagle3Error("has not begun yet", where=folder, fix="try again when its state is running")
    run_folder.request_stop(folder)
    return "it stops after the current step and keeps a checkpoint"


def shown(command: list[str]) -> str:
    """As one would type it."""
    return shlex.join(["eagle3" if part == sys.executable and command[1:3] == ["-m", "eagle3_core.cli.main"] else part
                       for index, part in enumerate(command)
                       if not (command[1:3] == ["-m", "eagle3_core.cli.main"] and index in (1, 2))])
