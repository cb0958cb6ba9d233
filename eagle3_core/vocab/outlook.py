"""What more data would bring: an interval for the coverage a larger corpus of the same kind would show.

Held-out coverage at a fixed D rises with the tokens ranked on, since rare tokens
find their place. Ranked on 1, 3 and 9 of the document folds and measured on
another, it gives three points h1, h3, h9 of that learning curve. Along a power
law C - a n^-b equal ratios of n shrink the distance to C by an equal factor r, so

    r = (h9 - h3) / (h3 - h1),   C = h9 + (h9 - h3) r / (1 - r)

(Aitken's extrapolation). r is taken a little towards 1 (``CAUTION``), so that a
slower tail than the power law's is inside, and C never exceeds the in-sample
coverage, which no list beats on these tokens. The interval

    low = h9 - t s,   high = C + t s

adds the spread between documents: s is the standard error over the ten folds of
h9, t = 2.26 (Student, 9 degrees of freedom, 95 %). A corpus supports a claim about
its coverage when the interval is no wider than ``SUPPORTED``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from eagle3_core.corpus.counts import FOLDS, TokenCounts
from eagle3_core.errors import Eagle3Error
from eagle3_core.vocab.coverage import held_out
from eagle3_core.vocab.ranking import Plan, make_plan, rank_counts

STUDENT = 2.262
CAUTION = 0.35
"""Share of the way from the fitted r to 1."""
LARGEST_RATIO = 0.9
SUPPORTED = 0.01


def outlook(
    counts: TokenCounts, sizes: Sequence[int], *, strategy: str = "pooled", force: bool = True,
    weights: Mapping[str, float] | None = None, extra_forced: Sequence[int] = (),
) -> pl.DataFrame:
    """One row per size: draft_vocab, coverage (h9), expected (C), low, high, supported.

    Raises Eagle3Error when fewer than ten folds hold tokens: such a corpus says nothing about a larger one.
    """
    if not can_extrapolate(counts):
        raise Eagle3Error("too few documents for an outlook", found=f"{sum(map(sum, counts.meta.documents))} documents",
                          expected="tokens in all ten folds")
    at = np.minimum(np.asarray(sizes, dtype=np.int64), counts.vocab_size)
    plan = make_plan(counts, strategy, force=force, weights=weights, extra_forced=extra_forced)
    nine = held_out(counts, plan, at)
    tokens = nine.tokens.sum(axis=1)
    h9 = nine.hits.sum(axis=1) / tokens[:, None]
    h3, h1 = (_ranked_on(counts, plan, at, width) / tokens[:, None] for width in (3, 1))
    full = rank_counts(counts.by_domain, plan, counts.total)
    in_sample = np.cumsum(counts.total[full.order])[at - 1] / counts.tokens
    share = tokens / tokens.sum()
    m9, m3, m1 = share @ h9, share @ h3, share @ h1
    expected, high = extrapolate(m1, m3, m9, 0.0), extrapolate(m1, m3, m9, CAUTION)
    spread = STUDENT * h9.std(axis=0, ddof=1) / np.sqrt(FOLDS)
    high = np.minimum(np.minimum(high, np.maximum(in_sample, m9)) + spread, 1.0)
    low = np.maximum(m9 - spread, 0.0)
    return pl.DataFrame({
        "draft_vocab": np.asarray(sizes, dtype=np.int64), "coverage": m9,
        "expected": np.minimum(expected, np.maximum(in_sample, m9)), "low": low, "high": high,
        "supported": high - low <= SUPPORTED,
    })


def can_extrapolate(counts: TokenCounts) -> bool:
    """Every fold holds tokens."""
    return bool((counts.by_fold.sum(axis=1) > 0).all())


def extrapolate(h1: np.ndarray, h3: np.ndarray, h9: np.ndarray, caution: float) -> np.ndarray:
    """The limit of the learning curve through three points at equal ratios of n."""
    first, second = h3 - h1, np.maximum(h9 - h3, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(first > 0, second / first, LARGEST_RATIO)
    ratio = np.clip(ratio + caution * (1 - ratio), 0.0, LARGEST_RATIO)
    return h9 + second * ratio / (1 - ratio)


def _ranked_on(counts: TokenCounts, plan: Plan, at: np.ndarray, width: int) -> np.ndarray:
    """Hits of every fold under a ranking of the ``width`` folds after it: float64 [FOLDS, sizes]."""
    hits = np.zeros((FOLDS, len(at)))
    for fold in range(FOLDS):
        used = [(fold + 1 + i) % FOLDS for i in range(width)]
        part = counts.counts[:, used].sum(axis=1)
        order = rank_counts(part, plan).order
        hits[fold] = np.cumsum(counts.by_fold[fold][order])[at - 1]
    return hits
