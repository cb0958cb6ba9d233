"""Lists that serve every domain: the strategies ``worst`` and ``robust``.

Let F_d(S) be the share of domain d's tokens inside the list S. Both maximise a
concave function g of (F_1 .. F_n) over lists of D tokens:

    worst   g = min_d F_d
    robust  g = mean_d F_d - std_d F_d / sqrt(n - 1)

The divisor is the largest weight of the spread under which no domain ever does
better by being covered less; for two domains both are the same.

Both are the smallest of sum_d w_d F_d over domain weights w: for ``worst`` over
all weights that add up to one, for ``robust`` over the largest ball inside that
simplex (radius 1 / sqrt(n (n - 1)) around equal weights).

For fixed w the list with the largest sum_d w_d F_d is the D tokens with the
largest sum_d w_d f_d(v): one sort. That sum is convex in w, so w is found by
projected subgradient steps of Polyak's length (1969), from equal weights; of all
rounds the list with the best g is kept. Every round also bounds from above what
any list can reach, min_w sum_d w_d F_d(S) <= the round's sum, so the distance
from the optimum is known: ``Solution.bound - Solution.value``. It does not
vanish when single tokens are large shares or tie exactly.

One ranking must serve all sizes, so weights are found at doubling sizes, each
given the tokens already taken: ids D_i to D_(i+1) are the best by weights i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROUNDS = 60
FIRST_STAGE = 1_024
_SMALL = 4_096
"""Below this V the stages start at 8, so that tiny lists are served as well."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Domain weights [domains], the g of their list, and what no list exceeds."""

    weights: np.ndarray
    value: float
    bound: float


@dataclass(frozen=True, eq=False)
class Stages:
    """Weights [stages, domains] for the ids up to each size in ``ends``."""

    ends: tuple[int, ...]
    weights: np.ndarray


def objective(name: str, coverage: np.ndarray) -> float:
    """g of one coverage a domain, [domains]."""
    if name == "worst":
        return float(coverage.min())
    return float(coverage.mean() - coverage.std() / np.sqrt(max(len(coverage) - 1, 1)))


def _project(name: str, weights: np.ndarray) -> np.ndarray:
    """The nearest admissible weights to ``weights``, whose sum is one."""
    n = len(weights)
    if name == "robust":
        off = weights - 1 / n
        return 1 / n + off * min(1.0, 1 / np.sqrt(n * (n - 1)) / max(float(np.linalg.norm(off)), 1e-300))
    ordered = np.sort(weights)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, n + 1)
    return np.maximum(weights - excess[np.flatnonzero(ordered > excess)[-1]], 0.0)


def solve(name: str, shares: np.ndarray, base: np.ndarray, free: int) -> Solution:
    """The best ``free`` tokens of ``shares`` [domains, tokens] beside a coverage ``base`` [domains] already had."""
    n = shares.shape[0]
    uniform = np.full(n, 1 / n)
    everything = base + shares.sum(axis=1)
    if free >= shares.shape[1] or n == 1:
        value = objective(name, everything)
        return Solution(uniform, value, value)
    if free <= 0:
        value = objective(name, base)
        return Solution(uniform, value, value)
    weights, best, best_value, bound = uniform, uniform, -np.inf, np.inf
    for step in range(ROUNDS):
        chosen = np.argpartition(-(weights @ shares), free - 1)[:free]
        coverage = base + shares[:, chosen].sum(axis=1)
        value, reach = objective(name, coverage), float(weights @ coverage)
        bound = min(bound, reach)
        if value > best_value:
            best, best_value = weights, value
        slope = coverage - coverage.mean()
        length = float(slope @ slope)
        if bound - best_value < 1e-6 or length < 1e-18:
            break
        # The best value so far stands for the unknown optimum; shorter steps later make up for that.
        step_length = (reach - best_value) / length if reach > best_value else 1e-4 / np.sqrt(length)
        weights = _project(name, weights - step_length * (1 - step / ROUNDS) * slope)
    return Solution(best, best_value, max(bound, best_value))


def stage_ends(vocab: int) -> tuple[int, ...]:
    ends, size = [], FIRST_STAGE if vocab > _SMALL else 8
    while size < vocab:
        ends.append(size)
        size *= 2
    return (*ends, vocab)


def find_stages(name: str, shares: np.ndarray, forced: np.ndarray) -> Stages:
    """Weights for every stage. shares: float64 [domains, V]; forced ids are taken first."""
    left = shares.sum(axis=0) > 0
    left[forced] = False
    base, taken = shares[:, forced].sum(axis=1), len(forced)
    ends, rows = stage_ends(shares.shape[1]), []
    for end in ends:
        live = np.flatnonzero(left)
        pool = shares[:, live]
        weights = solve(name, pool, base, end - taken).weights
        rows.append(weights)
        free = min(end - taken, len(live))
        if free > 0:
            chosen = np.argpartition(-(weights @ pool), free - 1)[:free]
            base = base + pool[:, chosen].sum(axis=1)
            left[live[chosen]] = False
            taken += free
    return Stages(ends, np.array(rows))


def staged_scores(shares: np.ndarray, stages: Stages, forced: Sequence[int] | np.ndarray) -> np.ndarray:
    """One score per id, float64 [V] in (0, stages + 1], whose descending order is the stages' order.

    Stage i of n lies in (n - i - 1, n - i]; forced and unseen ids score 0.
    """
    score = np.zeros(shares.shape[1])
    left = shares.sum(axis=0) > 0
    left[np.asarray(forced, dtype=np.int64)] = False
    taken, n = len(forced), len(stages.ends)
    for index, end in enumerate(stages.ends):
        live = np.flatnonzero(left)
        free = min(end - taken, len(live))
        if free <= 0:
            continue
        here = stages.weights[index] @ shares[:, live]
        keys = np.rint(here * float(1 << 40)).astype(np.int64)
        # Ties at the edge go to the smaller id, as everywhere.
        order = np.argsort(-keys, kind="stable")[:free] if free < len(live) else np.arange(len(live))
        chosen = live[order]
        score[chosen] = (n - index - 1) + 2.0**-40 + here[order] * (1 - 2.0**-39)
        left[chosen] = False
        taken += free
    return score
