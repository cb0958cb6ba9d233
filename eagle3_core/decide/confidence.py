"""How sure is the recommendation? The same table drawn many times over what is not known.

One draw moves, for all sizes alike, the acceptance within its band, the elasticity
with which acceptance falls with coverage (0.41 to 1.1 follow from published pairs),
coverage within its range over folds, and the draft step and the target's passes
within their quantiles; each size's own step time moves a little by itself where it
was measured. The seed is fixed: the same inputs give the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from eagle3_core.acceptance.model import ELASTICITY
from eagle3_core.decide.projection import acceptance_length

DRAWS = 1000
SEED = 20_261_201
ELASTICITIES = (0.41, 0.7, 1.1)
"""Low, central and high elasticity e of alpha * C^e (SPEED-Bench 2604.09557, FR-Spec 2502.14856)."""
VERIFY_SPREAD = 0.05
"""Standard deviation of the target's passes as a share, where nothing better is known."""


@dataclass(frozen=True)
class Confidence:
    """Over the draws. ``stays``: share in which the size is within tolerance of that draw's best."""

    size: int
    stays: float
    cost_when_not: float
    """Mean share of that draw's best speedup given up where it does not stay; 0 where it always does."""
    best_low: int
    best_high: int
    """5 and 95 % quantiles of the best size."""
    speedup_low: float
    speedup_high: float
    """5 and 95 % quantiles of the size's own speedup."""
    draws: int


def confidence(table: pl.DataFrame, size: int, *, k: int, tolerance: float = 0.01, draws: int = DRAWS,
               seed: int = SEED) -> Confidence:
    """``table``: rows of ``tradeoff``. Raises ValueError where ``size`` is not among them."""
    table = table.sort("draft_vocab")
    sizes = table["draft_vocab"].to_list()
    at = sizes.index(size)
    speedups = draw_speedups(table, k=k, draws=draws, seed=seed)
    best = speedups.max(axis=1)
    lost = 1 - speedups[:, at] / best
    outside = lost > tolerance
    winners = np.array(sizes)[speedups.argmax(axis=1)]
    low, high = np.quantile(winners, (0.05, 0.95), method="nearest")
    own_low, own_high = np.quantile(speedups[:, at], (0.05, 0.95))
    return Confidence(size, float(1 - outside.mean()), float(lost[outside].mean()) if outside.any() else 0.0,
                      int(low), int(high), float(own_low), float(own_high), draws)


def draw_speedups(table: pl.DataFrame, *, k: int, draws: int = DRAWS, seed: int = SEED) -> np.ndarray:
    """float64 [draws, sizes], sizes in the table's order."""
    random = np.random.default_rng(seed)
    alpha = np.array(table["alpha"].to_list(), dtype=np.float64)
    coverage = table["coverage"].to_numpy()
    half = ((table["coverage_high"] - table["coverage_low"]) / 2).to_numpy()
    measured = np.array([mark == "measured" for mark in table["acceptance_evidence"]])
    moved = _alphas(alpha, coverage, half, measured, random, draws)
    # A chain's change of tau stands for a tree's and a mix's, whose own tau the table has.
    tau = table["tau"].to_numpy() * acceptance_length(moved) / acceptance_length(alpha)
    step = table["step_ms"].to_numpy()
    shared = random.standard_normal((draws, 1))
    spread = ((table["step_high_ms"] - table["step_low_ms"]) / 2 / 1.645).to_numpy()
    own = random.standard_normal((draws, len(step))) * (table["latency_evidence"] == "measured").to_numpy()
    modelled = (table["latency_evidence"] != "measured").to_numpy()
    steps = np.maximum(step + spread * np.where(modelled, shared, own), step * 0.2)
    decode, verify = table["decode_ms"].to_numpy(), table["verify_ms"].to_numpy()
    verify = verify * np.exp(VERIFY_SPREAD * random.standard_normal((draws, 1)))
    rest = table["round_ms"].to_numpy() - k * step - table["verify_ms"].to_numpy()
    return tau * decode / (rest + k * steps + verify)


def _alphas(
    alpha: np.ndarray, coverage: np.ndarray, half: np.ndarray, measured: np.ndarray, random: np.random.Generator,
    draws: int,
) -> np.ndarray:
    """[draws, sizes, K]: the level moves for all sizes alike; the fall with coverage by its own elasticity."""
    level = 1 + 0.03 * random.standard_normal((draws, 1, 1))
    low, mode, high = ELASTICITIES
    elasticity = random.triangular(low, mode, high, (draws, 1))
    drawn = np.clip(coverage + half * random.standard_normal((draws, 1)), 1e-6, 1)
    ratio = drawn**elasticity / np.maximum(coverage, 1e-6) ** ELASTICITY
    fall = np.where(measured, 1.0, ratio)[:, :, None]
    return np.clip(alpha * level * fall, 0, 1)


def confidence_text(found: Confidence, tolerance: float = 0.01) -> str:
    """One sentence; shares no finer than a thousand draws can tell."""
    sentence = (f"D = {found.size:,} is within {tolerance:.0%} of the best in {found.stays:.0%} of {found.draws:,} "
                "draws over what is not known (acceptance, its elasticity, coverage, times)")
    if found.stays < 0.995:
        sentence += f"; in the others it gives up {found.cost_when_not:.1%} on average"
    return sentence + f". The best size lies between {found.best_low:,} and {found.best_high:,} in nine of ten."
