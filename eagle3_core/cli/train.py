"""``eagle3 train``: a drafter from hidden states or chats, by options, a YAML file and dotted overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json
from eagle3_core.errors import Eagle3Error


def from_options(
    data: list[str], target: str | None, counts: Path | None, draft_vocab: int | None, out: Path | None,
    checkpoint: Path | None, remap: bool, steps: int | None, parallel: str | None,
) -> dict[str, Any]:
    """The configuration's sections that the options name; a folder is hidden states, a file is text."""
    folders = [str(item) for item in data if Path(item).is_dir()]
    files = [str(item) for item in data if not Path(item).is_dir()]
    sections: dict[str, dict[str, Any]] = {
        "model": {"target": target, "counts": counts and str(counts), "draft_vocab": draft_vocab,
                  "checkpoint": checkpoint and str(checkpoint), "remap": remap or None},
        "data": {"features": folders or None, "text": files or None},
        "optim": {"steps": steps}, "run": {"out": out and str(out), "parallel": parallel},
    }
    kept = {name: {k: v for k, v in section.items() if v is not None} for name, section in sections.items()}
    return {name: section for name, section in kept.items() if section}


def register(app: typer.Typer) -> None:
    @app.command()
    def train(
        overrides: list[str] = typer.Argument(None, metavar="[section.key=value]...",
                                              help="Settings that beat file and options: optim.lr=5e-4."),
        config: Path | None = typer.Option(None, "--config", help="YAML with sections model, data, loss, optim, run."),
        data: list[str] = typer.Option([], "--data", help="Folder of hidden states, or chat files; repeat it."),
        target: str | None = typer.Option(None, "--target", help="Model folder of the target."),
        counts: options.Counts = None,
        draft_vocab: int | None = typer.Option(None, "--draft-vocab", help="D; default the target's V."),
        checkpoint: Path | None = typer.Option(None, "--checkpoint", help="Start from this drafter."),
        remap: bool = typer.Option(False, "--remap", help="Move the checkpoint's rows to another draft vocabulary."),
        steps: int | None = typer.Option(None, "--steps", min=1, help="Optimizer steps."),
        parallel: str | None = typer.Option(None, "--parallel", help="ddp or fsdp, under torchrun."),
        out: options.Out = None,
        resume: Path | None = typer.Option(None, "--resume", help="Continue this run's folder."),
        dump_config: bool = typer.Option(False, "--dump-config", help="Print the whole configuration, and stop."),
        as_json: options.Json = False,
    ) -> None:
        """Train an EAGLE-3 drafter. A killed run continues with --resume, to the same numbers."""
        from eagle3_core.training import config as configs
        from eagle3_core.training.run_folder import read_metrics, read_status

        if resume is not None:
            if config or data or overrides:
                raise Eagle3Error("--resume takes the run's own configuration", where=resume,
                                  fix="leave out --config, --data and overrides")
            from eagle3_core.training.trainer import resume as go

            folder = go(resume, say=_say(as_json))
        else:
            given = from_options(data, target, counts, draft_vocab, out, checkpoint, remap, steps, parallel)
            loaded = configs.load_config(config, tuple(overrides or ()), given)
            if dump_config:
                print(configs.dump_config(loaded), end="")
                return
            from eagle3_core.training.trainer import train as go_train

            folder = go_train(loaded, say=_say(as_json))
        status = read_status(folder)
        records = read_metrics(folder)
        evals = [r for r in records if r.get("event") == "eval"]
        if as_json:
            print_json({"folder": str(folder), "state": status.state, "step": status.step, "steps": status.steps,
                        "eval": evals[-1] if evals else None})
        else:
            print(f"{status.state} at step {status.step} of {status.steps}: {folder}")


def _say(as_json: bool) -> Any:
    import sys

    return lambda line: print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
