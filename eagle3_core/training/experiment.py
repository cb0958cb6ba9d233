"""Does the draft vocabulary have to be chosen before training? One model, one corpus, one budget, three ways to a size.

    trained       trained at D from the start
    restricted    trained at V, its head cut to D afterwards
    tuned         restricted, then only the head's rows trained a little more

Every way is judged on the same held-out documents, by the same one-pass
acceptance. A run that was killed goes on where it stopped; a finished one is
left as it is, so that the whole experiment resumes by the same command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from eagle3_core.errors import Eagle3Error
from eagle3_core.training import run_folder
from eagle3_core.training.config import TrainConfig, load_config

Say = Callable[[str], None]
DEPTH = 5
SCHEMA = {
    "way": pl.String, "draft_vocab": pl.Int64, "seed": pl.Int64, "steps": pl.Int64, "tokens": pl.Int64,
    "coverage": pl.Float64, "tau": pl.Float64, "tau_low": pl.Float64, "tau_high": pl.Float64,
    **{f"alpha_{k}": pl.Float64 for k in range(1, DEPTH + 1)},
    "alpha_1_low": pl.Float64, "alpha_1_high": pl.Float64, "documents": pl.Int64, "positions": pl.Int64,
}


@dataclass(frozen=True)
class Budget:
    """``share`` of the positions is judged at a step; ``tune_steps`` come on top of ``steps`` for the tuned way."""

    steps: int = 1500
    tune_steps: int = 150
    batch_tokens: int = 512
    share: float = 0.25
    lr: float = 2e-3
    tune_lr: float = 2e-4


def masked_vs_retrained(
    target: Path, counts: Path, features: Path, out: Path, *, vocab_size: int, sizes: Sequence[int],
    seeds: Sequence[int], budget: Budget, say: Say = print,
) -> pl.DataFrame:
    """One row a way, size and seed; columns of ``SCHEMA``; tau and alpha_1 with 95 % intervals over documents.

    Raises Eagle3Error when a size lies outside 1..V, or a folder holds a run of another budget.
    """
    smaller = sorted({size for size in sizes if size != vocab_size})
    if not smaller or smaller[0] < 1 or smaller[-1] > vocab_size:
        raise Eagle3Error("--sizes", found=",".join(map(str, sizes)), expected=f"sizes from 1 to {vocab_size:,}, "
                          "one of them smaller than the target's vocabulary")
    rows = []
    for seed in seeds:
        def config(name: str, size: int, seed: int = seed, **changes: dict) -> TrainConfig:
            tuned = "checkpoint" in changes.get("model", {})
            model = {"target": str(target), "counts": str(counts), "draft_vocab": size, "head": "target_trained"}
            return load_config(None, (), {
                "model": model | changes.get("model", {}),
                "data": {"features": [str(features)], "batch_tokens": budget.batch_tokens, "heldout": 0.1},
                "loss": {"steps": DEPTH, "share": budget.share},
                "optim": {"steps": budget.tune_steps if tuned else budget.steps,
                          "lr": budget.tune_lr if tuned else budget.lr},
                "run": {"out": str(out / f"{name}-{size}-seed{seed}"), "seed": seed, "eval_every": 100_000,
                        "save_every": 50, "keep": 1, "acceptance_sizes": smaller}})

        full = _finished(config("trained", vocab_size), say)
        rows += _points(full, "trained", seed, (vocab_size,))
        rows += _points(full, "restricted", seed, smaller)
        for size in smaller:
            rows += _points(_finished(config("trained", size), say), "trained", seed, (size,))
            start = {"checkpoint": str(run_folder.checkpoint_named(full)), "remap": True, "trainable": "head"}
            rows += _points(_finished(config("tuned", size, model=start), say), "tuned", seed, (size,))
    return pl.DataFrame(rows, schema=SCHEMA).sort("draft_vocab", "way", "seed")


def _finished(config: TrainConfig, say: Say) -> Path:
    """The run's folder, trained to its end."""
    from eagle3_core.training.trainer import resume, train

    folder = config.run.out
    if not (folder / "run.json").is_file():
        say(f"{folder.name}: {config.optim.steps} steps")
        return train(config, say=say)
    before = load_config(folder / "config.yaml")
    if before != config:
        raise Eagle3Error("holds a run of another budget", where=folder, fix="choose another --out")
    if run_folder.read_status(folder).state == "finished":
        return folder
    say(f"{folder.name}: goes on")
    return resume(folder, say=say)


def _points(folder: Path, way: str, seed: int, sizes: Sequence[int]) -> Iterator[dict]:
    """Rows from the acceptance that the run measured at its end."""
    from eagle3_core.acceptance.record import read_acceptance

    status = run_folder.read_status(folder)
    record = read_acceptance(folder / "acceptance" / f"step-{status.steps:08d}.acceptance.json")
    tokens = [r["tokens"] for r in run_folder.read_metrics(folder) if r.get("event", "train") == "train"][-1]
    by_size = {point.draft_vocab: point for point in record.points}
    for size in sizes:
        if size not in by_size:
            raise Eagle3Error(f"acceptance at D = {size:,} was not measured", where=folder,
                              found=",".join(map(str, by_size)))
        point = by_size[size]
        yield {
            "way": way, "draft_vocab": size, "seed": seed, "steps": status.steps, "tokens": tokens,
            "coverage": point.coverage, "tau": point.tau, "tau_low": point.tau_low, "tau_high": point.tau_high,
            **{f"alpha_{k}": alpha for k, alpha in enumerate(point.alpha, 1)},
            "alpha_1_low": point.alpha_low[0], "alpha_1_high": point.alpha_high[0],
            "documents": record.documents, "positions": record.tokens,
        }
