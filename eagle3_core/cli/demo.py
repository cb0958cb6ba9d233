"""``eagle3 demo``: a real small target, its counts and its hidden states, in one command from an empty folder."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json, progress_bar


def register(app: typer.Typer) -> None:
    @app.command()
    def demo(
        folder: Path = typer.Argument(..., help="Where to build it; about 0.7 GB."),
        documents: int | None = typer.Option(
            None, "--documents", min=1, help="Prompts that the target answers: 48, with --train all 240."),
        max_new: int | None = typer.Option(
            None, "--max-new", min=1, help="Tokens an answer at most: 96, with --train 192."),
        train: bool = typer.Option(False, "--train", help="Train a drafter on them as well."),
        steps: int = typer.Option(900, "--steps", min=1, help="With --train: optimizer steps."),
        as_json: options.Json = False,
    ) -> None:
        """Build SmolLM2-135M with counts and hidden states, to try everything on without a GPU."""
        from eagle3_core.demo import build, train_demo

        def say(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

        with progress_bar("hidden states") as advance:
            made = build(folder, documents=documents or (240 if train else 48),
                         max_new=max_new or (192 if train else 96),
                         say=say, progress=advance)
        paths = {"target": str(made.target), "counts": str(made.counts), "features": str(made.features),
                 "chats": str(made.chats)}
        if train:
            paths["run"] = str(train_demo(made, folder, steps=steps, say=say))
        if as_json:
            print_json(paths)
            return
        for name, path in paths.items():
            print(f"{name}: {path}")
        print(f"next: eagle3 tradeoff --target {made.target} --counts {made.counts}")
