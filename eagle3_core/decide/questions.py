"""The recommendation asked backwards.

The largest D that costs at most x %; the alpha at which 32,000 and the full
vocabulary are level; the coverage of 32,000 at which they are.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import polars as pl

from eagle3_core.acceptance.model import ELASTICITY, assumed_alpha
from eagle3_core.decide.tradeoff import TradeoffInputs, length_of, tradeoff
from eagle3_core.specs.sizes import INHERITED

STEPS = 50


@dataclass(frozen=True)
class Answers:
    """None where no value makes it so."""

    max_cost: float
    largest_within: int
    """Largest D that gives up at most ``max_cost`` of the best projected speedup."""
    smallest_within: int
    compared: int
    """The size held against the full vocabulary: 32,000, or the smaller size asked for."""
    alpha_level: float | None
    """alpha (equal at every position, full vocabulary) up to which ``compared`` is the faster one."""
    coverage_level: float | None
    """Held-out coverage of ``compared`` below which the full vocabulary is the faster one."""


def within_cost(table: pl.DataFrame, max_cost: float) -> tuple[int, int]:
    """Smallest and largest D whose projected speedup is within ``max_cost`` of the best."""
    near = table.filter(pl.col("speedup") >= pl.col("speedup").max() * (1 - max_cost))["draft_vocab"]
    return int(near.min()), int(near.max())  # type: ignore[arg-type]


def answers(inputs: TradeoffInputs, table: pl.DataFrame, *, max_cost: float = 0.02,
            compared: int = INHERITED) -> Answers:
    """``table`` holds the full vocabulary; ``compared`` is put to it where V is smaller."""
    vocab = inputs.target.vocab_size
    compared = min(compared, vocab)
    small, large = within_cost(table, max_cost)
    if compared == vocab:
        return Answers(max_cost, large, small, compared, None, None)
    pair = tradeoff(inputs, (compared, vocab))
    return Answers(max_cost, large, small, compared, alpha_level(inputs, compared), coverage_level(inputs, pair))


def alpha_level(inputs: TradeoffInputs, compared: int) -> float | None:
    """The alpha at which ``compared`` and the full vocabulary project the same speedup, between 0 and 1.

    Lost coverage costs more of tau the higher alpha is, so the smaller size wins below and loses
    above; None where one of them wins at every alpha.
    """
    vocab = inputs.target.vocab_size

    def lead(alpha: float) -> float:
        moved = dataclasses.replace(inputs, acceptance=assumed_alpha(alpha))
        pair = tradeoff(moved, (compared, vocab))["speedup"]
        return float(pair[0] - pair[1])

    low, high = 0.01, 0.999
    if lead(low) <= 0 or lead(high) >= 0:
        return None
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if lead(middle) > 0 else (low, middle)
    return (low + high) / 2


def coverage_level(inputs: TradeoffInputs, pair: pl.DataFrame) -> float | None:
    """The coverage of the smaller of two sizes at which its speedup falls to the full vocabulary's.

    Solves tau(alpha_full * C^0.7) = tau_full * T_round(small) / T_round(full).
    """
    small, full = pair.row(0, named=True), pair.row(1, named=True)
    needed = full["tau"] * small["round_ms"] / full["round_ms"]
    alpha = np.asarray(full["alpha"], dtype=np.float64)
    length = length_of(inputs)
    if needed <= 1 or needed >= float(length(alpha)):
        return None
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        short = float(length(alpha * middle**ELASTICITY)) < needed
        low, high = (middle, high) if short else (low, middle)
    return (low + high) / 2


def answers_text(found: Answers) -> tuple[str, ...]:
    lines = [f"Sizes from {found.smallest_within:,} to {found.largest_within:,} cost at most {found.max_cost:.0%}."]
    name = f"{found.compared:,}"
    if found.alpha_level is not None:
        lines.append(f"The full vocabulary is faster than {name} once alpha exceeds {found.alpha_level:.2f}.")
    elif found.coverage_level is not None:
        lines.append(f"{name} and the full vocabulary keep their order at every alpha.")
    if found.coverage_level is not None:
        lines.append(f"The full vocabulary is faster than {name} once held-out coverage at {name} falls below "
                     f"{found.coverage_level:.1%}.")
    return tuple(lines)
