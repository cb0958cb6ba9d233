"""``eagle3 experiment``: questions that only training answers, each one command that resumes."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json, print_table
from eagle3_core.errors import Eagle3Error


def register(app: typer.Typer) -> None:
    experiment = typer.Typer(no_args_is_help=True, help="Questions that only training answers: masked-vs-retrained.")
    app.add_typer(experiment, name="experiment")

    # A group of one command needs a callback to stay a group.
    @experiment.callback()
    def _group() -> None:
        pass

    @experiment.command("masked-vs-retrained")
    def masked_vs_retrained(
        demo: Path = typer.Argument(..., help="Folder of eagle3 demo; it is built there when it is not."),
        sizes: options.Sizes = "2048,8192,32000,full",
        seeds: str = typer.Option("0,1", "--seeds", help="Comma list."),
        steps: int = typer.Option(1500, "--steps", min=1, help="Optimizer steps of every drafter."),
        tune_steps: int = typer.Option(150, "--tune-steps", min=1, help="Steps on the head alone after restricting."),
        out: options.Out = None,
        as_json: options.Json = False,
    ) -> None:
        """A drafter trained at D, against one trained at V and cut to D, against that one with its head tuned."""
        from eagle3_core.demo import build
        from eagle3_core.files import atomic_path
        from eagle3_core.specs.presets import resolve_target
        from eagle3_core.specs.sizes import parse_sizes
        from eagle3_core.training.experiment import Budget
        from eagle3_core.training.experiment import masked_vs_retrained as run

        def say(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

        try:
            numbers = tuple(int(seed) for seed in seeds.split(","))
        except ValueError:
            raise Eagle3Error("--seeds", found=repr(seeds), expected="whole numbers, comma separated") from None
        made = build(demo, documents=240, max_new=192, say=say)
        vocab = resolve_target(str(made.target)).vocab_size
        folder = out or demo / "experiment"
        frame = run(made.target, made.counts, made.features, folder, vocab_size=vocab,
                    sizes=parse_sizes(sizes, vocab), seeds=numbers,
                    budget=Budget(steps=steps, tune_steps=tune_steps), say=say)
        with atomic_path(folder / "masked-vs-retrained.csv") as part:
            frame.write_csv(part, float_precision=4)
        if as_json:
            print_json(frame.to_dicts())
            return
        print_table("tokens a round (tau) on held-out documents, 95 % over documents",
                    ("D", "way", "seed", "tau", "from", "to", "alpha_1"),
                    [(f"{r['draft_vocab']:,}", r["way"], r["seed"], f"{r['tau']:.3f}", f"{r['tau_low']:.3f}",
                      f"{r['tau_high']:.3f}", f"{r['alpha_1']:.3f}") for r in frame.to_dicts()], left=2)
        print(f"wrote {folder / 'masked-vs-retrained.csv'}")
