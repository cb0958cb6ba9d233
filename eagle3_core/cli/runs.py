"""``eagle3 runs``: what training runs are there, how they do, and stopping, resuming, comparing, exporting them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json, print_table
from eagle3_core.errors import Eagle3Error

Folder = Annotated[Path, typer.Argument(help="Folder of the run.")]


def facts(run: Any) -> dict[str, Any]:
    """A run without its curves, for JSON and tables."""
    return {"name": run.name, "folder": str(run.folder), "project": run.project, "state": run.state, "step": run.step,
            "steps": run.steps, "message": run.message, "updated": run.updated,
            "checkpoints": [path.name for path in run.checkpoints], "latest": {n: run.last(n) for n in run.curves}}


def figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"


def register(app: typer.Typer) -> None:
    runs = typer.Typer(no_args_is_help=True,
                       help="Training runs: list, show, stop, resume, compare, acceptance, export.")
    app.add_typer(runs, name="runs")

    @runs.command("list")
    def list_(root: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("runs"),
              as_json: options.Json = False) -> None:
        """Runs of eagle3 train, SpecForge and speculators below a folder, the newest first."""
        from eagle3_core.training.runs import find_runs

        found = find_runs(root)
        if as_json:
            print_json([facts(run) for run in found])
            return
        if not found:
            print(f"no training run in {root}")
            return
        print_table(f"Runs in {root}", ("run", "trainer", "state", "step", "of", "loss", "updated", ""), [
            (run.name, run.project, run.state, f"{run.step:,}", "" if run.steps is None else f"{run.steps:,}",
             figure(run.last("loss") if "loss" in run.curves else run.last("train/loss")), run.updated, run.message)
            for run in found], left=3)

    @runs.command()
    def show(folder: Folder, lines: Annotated[int, typer.Option("--lines", min=0, help="Lines of the log.")] = 10,
             as_json: options.Json = False) -> None:
        """State, last figures, checkpoints and the end of the log of one run."""
        from eagle3_core.training.runs import log_tail, open_run, seconds_left

        run = open_run(folder)
        tail, left = log_tail(folder, lines), seconds_left(run)
        if as_json:
            print_json(facts(run) | {"log": tail, "seconds_left": left})
            return
        of = "" if run.steps is None else f" of {run.steps:,}"
        more = "" if left is None else f", about {left / 60:,.0f} min left"
        print(f"{run.name}: {run.state}, step {run.step:,}{of}{more}{': ' if run.message else ''}{run.message}")
        if run.curves:
            print_table("", ("quantity", "first", "last", "at step"), [
                (name, figure(values[min(values)]), figure(values[max(values)]), f"{max(values):,}")
                for name, values in run.curves.items()], left=1)
        print("checkpoints: " + (", ".join(path.name for path in run.checkpoints) or "none yet"))
        for line in tail:
            print(f"| {line}")

    @runs.command()
    def stop(folder: Folder, as_json: options.Json = False) -> None:
        """Stop a run after its current step, with a checkpoint."""
        from eagle3_core.training.launch import stop as ask

        said = ask(folder)
        print_json({"folder": str(folder), "said": said}) if as_json else print(f"{folder.name}: {said}")

    @runs.command()
    def resume(folder: Folder,
               processes: Annotated[int, typer.Option("--processes", min=1, help="More than one: torchrun.")] = 1,
               as_json: options.Json = False) -> None:
        """Go on from the last checkpoint, as a process of its own."""
        from eagle3_core.training.launch import resume as again

        again(folder, processes=processes)
        if as_json:
            print_json({"folder": str(folder), "state": "starting"})
        else:
            print(f"{folder.name}: resumed; eagle3 runs show {folder}")

    @runs.command()
    def compare(folders: Annotated[list[Path], typer.Argument(help="Two runs or more.")],
                quantity: Annotated[str, typer.Option("--quantity", help="A recorded quantity.")] = "loss",
                as_json: options.Json = False) -> None:
        """One quantity of several runs, at the tokens they have in common."""
        from eagle3_core.training.runs import compare as table
        from eagle3_core.training.runs import open_run

        if len(folders) < 2:
            raise Eagle3Error("one run compares to nothing", expected="two folders or more")
        frame = table([open_run(folder) for folder in folders], quantity)
        if as_json:
            print_json(frame.to_dicts())
            return
        rows = []
        for (name,), group in frame.group_by(["run"], maintain_order=True):
            values, last = group["value"].to_list(), group.row(-1, named=True)
            rows.append((str(name), f"{len(group):,}", f"{last['step']:,}",
                         "" if last["tokens"] is None else f"{last['tokens']:,.0f}", figure(values[0]),
                         figure(min(values)), figure(max(values)), figure(values[-1])))
        heads = ("run", "records", "last step", "tokens", "first", "lowest", "highest", "last")
        print_table(quantity, heads, rows, left=1)

    @runs.command()
    def acceptance(folder: Folder,
                   checkpoint: Annotated[str, typer.Option("--checkpoint", help="latest, best or a name.")] = "latest",
                   as_json: options.Json = False) -> None:
        """Acceptance at every size of one checkpoint, on the documents that its run held out."""
        from eagle3_core.acceptance.record import read_acceptance
        from eagle3_core.training.validate import measure_checkpoint

        file = measure_checkpoint(folder, checkpoint)
        record = read_acceptance(file)
        if as_json:
            print_json({"file": str(file), "points": [p.model_dump(mode="json") for p in record.points]})
            return
        print_table(f"{record.documents} held-out documents, {record.tokens:,} positions", ("D", "alpha_1", "tau"),
                    [(f"{p.draft_vocab:,}", f"{p.alpha[0]:.3f}", f"{p.tau:.3f}") for p in record.points])
        print(f"wrote {file}")

    @runs.command()
    def export(folder: Folder, out: options.Out = None,
               checkpoint: Annotated[str, typer.Option("--checkpoint", help="latest, best or a name.")] = "best",
               consumer: Annotated[str, typer.Option("--for", help="sglang, vllm or speculators.")] = "vllm",
               force: options.Force = False, as_json: options.Json = False) -> None:
        """Write a finished run's drafter for an engine, with its mapping and the decision it came from; lint it."""
        from eagle3_core.training.release import release

        if out is None:
            raise Eagle3Error("--out is missing", expected="a new folder")
        written, said = release(folder, out, checkpoint=checkpoint, consumer=consumer, force=force)
        if as_json:
            print_json({"out": str(written), "findings": said})
            return
        for line in said:
            print(line)
        print(f"wrote {written}")
