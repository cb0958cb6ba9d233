"""Which size, by how much, and in words: the smallest D within tolerance of the best projected speedup.

When many sizes are equivalent the verdict says so: a choice that hardly matters
should be made on memory and coverage, not on a third digit of a projection.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.sizes import INHERITED

HARDLY = 0.02
"""If no size from 8,192 up loses more than this, the choice hardly matters."""
HARDLY_FROM = 8_192


@dataclass(frozen=True)
class Constraints:
    """What a size must satisfy. ``multiple_of`` is 64 * draft TP, so that no engine pads; V is always allowed."""

    max_lm_head_bytes: int | None = None
    min_worst_coverage: float | None = None
    multiple_of: int = 64
    locked_size: int | None = None


@dataclass(frozen=True)
class Recommendation:
    """``low_size`` to ``high_size``: the range of D whose projected speedup lies within tolerance of the best."""

    size: int
    best_size: int
    best_speedup: float
    speedup: float
    low_size: int
    high_size: int
    tolerance: float
    hardly_matters: bool
    slower_than_none: bool
    break_even_alpha: float
    inherited_cost: float | None
    """Share of the best speedup that 32,000 gives up; None where V < 32,000."""
    full_cost: float
    locked: bool
    reason: str


def recommend(
    table: pl.DataFrame, *, tolerance: float = 0.01, constraints: Constraints | None = None
) -> Recommendation:
    """Raises Eagle3Error when no size of the table satisfies the constraints, naming the strictest one."""
    constraints = constraints or Constraints()
    vocab = int(table["draft_vocab"].max())  # type: ignore[arg-type]
    allowed = _allowed(table, constraints, vocab)
    best = allowed.row(int(allowed["speedup"].arg_max()), named=True)  # type: ignore[arg-type]
    near = allowed.filter(pl.col("speedup") >= best["speedup"] * (1 - tolerance))
    # Equivalent sizes must hang together around the best one; a second hill is another choice.
    sizes = allowed["draft_vocab"].to_list()
    near_set = set(near["draft_vocab"].to_list())
    low = high = sizes.index(best["draft_vocab"])
    while low > 0 and sizes[low - 1] in near_set:
        low -= 1
    while high + 1 < len(sizes) and sizes[high + 1] in near_set:
        high += 1
    chosen = allowed.row(low, named=True)
    by_size = {row["draft_vocab"]: row for row in table.iter_rows(named=True)}
    inherited = by_size.get(INHERITED)
    large = table.filter(pl.col("draft_vocab") >= min(HARDLY_FROM, vocab))
    spread = 1 - float(large["speedup"].min()) / best["speedup"]  # type: ignore[arg-type]
    locked = constraints.locked_size is not None
    return Recommendation(
        size=chosen["draft_vocab"],
        best_size=best["draft_vocab"],
        best_speedup=best["speedup"],
        speedup=chosen["speedup"],
        low_size=sizes[low],
        high_size=sizes[high],
        tolerance=tolerance,
        hardly_matters=spread <= HARDLY and not locked,
        slower_than_none=best["speedup"] < 1,
        break_even_alpha=best["break_even_alpha"],
        inherited_cost=1 - inherited["speedup"] / best["speedup"] if inherited else None,
        full_cost=1 - by_size[vocab]["speedup"] / best["speedup"],
        locked=locked,
        reason="fine-tuning keeps the checkpoint's draft vocabulary" if locked
        else f"the smallest size within {tolerance:.0%} of the best projected speedup",
    )


def _allowed(table: pl.DataFrame, constraints: Constraints, vocab: int) -> pl.DataFrame:
    size = pl.col("draft_vocab")
    if constraints.locked_size is not None:
        steps = [(f"locked at {constraints.locked_size:,}", size == constraints.locked_size)]
    else:
        steps = [(f"a multiple of {constraints.multiple_of}",
                  (size % constraints.multiple_of == 0) | (size == vocab))]
    if constraints.max_lm_head_bytes is not None:
        steps.append((f"lm_head within {constraints.max_lm_head_bytes:,} bytes",
                      pl.col("lm_head_bytes") <= constraints.max_lm_head_bytes))
    if constraints.min_worst_coverage is not None:
        steps.append((f"worst-domain coverage of at least {constraints.min_worst_coverage:.1%}",
                      pl.col("worst_coverage") >= constraints.min_worst_coverage))
    for name, condition in steps:
        table = table.filter(condition)
        if table.is_empty():
            raise Eagle3Error("no draft vocabulary size satisfies the constraints", found=f"none with {name}",
                              fix="relax it")
    return table.sort("draft_vocab")


def speedup_text(row: dict) -> str:
    """``2.6x, 2.4 to 2.8``: as many digits as the band supports."""
    digits = 1 if row["speedup_high"] - row["speedup_low"] >= 0.1 else 2
    return f"{row['speedup']:.{digits}f}x, {row['speedup_low']:.{digits}f} to {row['speedup_high']:.{digits}f}"


def cost_text(cost: float) -> str:
    """A share of the best speedup given up, no finer than a projection can tell."""
    if cost < 0.0005:
        return "nothing"
    return f"{cost:.1%}" if cost < 0.1 else f"{cost:.0%}"


def verdict(recommendation: Recommendation, table: pl.DataFrame) -> str:
    """One or two sentences a colleague could repeat."""
    r = recommendation
    vocab = int(table["draft_vocab"].max())  # type: ignore[arg-type]
    name = "the full vocabulary" if r.size == vocab else f"{r.size:,}"
    if r.locked:
        head = f"Locked at D = {r.size:,}: fine-tuning keeps the checkpoint's rows. Projected {r.speedup:.2g}x"
        return head + (f", slower than no drafter until alpha reaches {r.break_even_alpha:.2f}." if r.speedup < 1
                       else f", break-even at alpha {r.break_even_alpha:.2f}.")
    if r.slower_than_none:
        reach = (f"break-even needs alpha = {r.break_even_alpha:.2f}" if r.break_even_alpha == r.break_even_alpha
                 else "no acceptance breaks even")
        return (f"Slower than no drafter at every size: at best {r.best_speedup:.2f}x (D = {r.best_size:,}); {reach}. "
                f"The vocabulary size cannot mend this.")
    same = (f"sizes from {r.low_size:,} to {r.high_size:,} are equivalent" if r.low_size != r.high_size
            else "no other size is equivalent")
    sentence = f"Recommended D = {name}: the smallest within {r.tolerance:.0%} of the best projected speedup; {same}"
    if r.inherited_cost is not None and r.size != INHERITED:
        inside = r.low_size <= INHERITED <= r.high_size
        cost = cost_text(r.inherited_cost)
        sentence += f"; 32,000 costs {cost}" if not inside or r.inherited_cost >= 0.0005 else "; 32,000 costs nothing"
    if r.size != vocab:
        sentence += f"; the full vocabulary costs {cost_text(r.full_cost)}"
    sentence += "."
    if r.hardly_matters:
        sentence += " It hardly matters here: choose by memory and by the worst domain."
    return sentence
