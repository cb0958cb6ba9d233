"""From acceptance and times to speedup.

    tau      = 1 + sum_{k=1..K} prod_{i<=k} alpha_i          tokens a round, bonus token included
    T_round  = T_fc + K * T_step + T_verify(K + 1) + T_other
    speedup  = tau * T_decode / T_round                      (SPEED-Bench 2604.09557 measures it within 1.5 %)

For one alpha at every position tau is (1 - alpha^(K+1)) / (1 - alpha) and with
T_verify = T_decode the speedup is Leviathan's (2211.17192).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def acceptance_length(alpha: np.ndarray) -> np.ndarray:
    """tau of conditional acceptances, float [..., K] -> [...]."""
    return 1.0 + np.cumprod(np.asarray(alpha, dtype=np.float64), axis=-1).sum(axis=-1)


def round_time(
    step_ms: np.ndarray, *, k: int, verify_ms: float, fc_ms: np.ndarray | float = 0.0, overhead_ms: float = 0.0
) -> np.ndarray:
    """Milliseconds of one round: K draft steps, one verify pass, the rest."""
    return fc_ms + k * np.asarray(step_ms) + verify_ms + overhead_ms


def speedup(tau: np.ndarray, round_ms: np.ndarray, decode_ms: float) -> np.ndarray:
    """Against the target decoding alone; below 1 the drafter costs more than it brings."""
    return tau * decode_ms / round_ms


def break_even_alpha(
    round_ms: np.ndarray, decode_ms: float, k: int,
    length: Callable[[np.ndarray], np.ndarray] = acceptance_length,
) -> np.ndarray:
    """The alpha, equal at every position, at which the speedup is exactly 1; NaN where not even 1 suffices.

    tau must reach T_round / T_decode. ``length`` gives tau, rising in alpha, of float [n, K]: it is
    tabulated once on 1,025 alphas and inverted between them (error in alpha below 1e-6 for K up to 16).
    """
    needed = np.atleast_1d(np.asarray(round_ms, dtype=np.float64) / decode_ms)
    grid = np.linspace(0, 1, 1025)
    tau = length(np.repeat(grid[:, None], k, axis=1))
    alpha = np.interp(needed, tau, grid)
    return np.where(needed <= tau[-1], np.where(needed <= 1, 0.0, alpha), np.nan)


def harmonic_mix(tau: Sequence[float], share: Sequence[float]) -> float:
    """tau over a task mix: token shares w_s combine as 1 / sum(w_s / tau_s), not as an arithmetic mean."""
    weights = np.asarray(share, dtype=np.float64)
    return float(weights.sum() / (weights / np.asarray(tau, dtype=np.float64)).sum())
