"""From the sums of a one-pass evaluation to an AcceptanceRecord: alpha with intervals, tau, C_acc, rescue, elasticity.

Intervals are 95 % percentile bootstraps over documents (tokens of one document
are not independent). With fewer than five documents that says little, and the
record notes it; a single document gets the Wilson interval of its positions.
"""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from eagle3_core import __version__
from eagle3_core.acceptance.one_pass import Tally
from eagle3_core.acceptance.record import AcceptancePoint, AcceptanceRecord

RESAMPLES = 1000
FEW_DOCUMENTS = 5
OWN_TEXT = 0.95
"""Share of text tokens that must be the target's argmax for the text to count as its own greedy output."""


def record_of(
    tally: Tally, *, target: str, drafter: str, vocab_size: int, trained_draft_vocab: int | None, source: str,
    notes: tuple[str, ...] = (), seed: int = 0,
) -> AcceptanceRecord:
    """One ranking and temperature as a record, per domain where there is more than one."""
    everything = np.ones(len(tally.domains), dtype=bool)
    points = points_of(tally, everything, seed)
    names = sorted(set(tally.domains))
    domains = {
        name: points_of(tally, np.array([d == name for d in tally.domains]), seed) for name in names
    } if len(names) > 1 else {}
    said = list(notes)
    own = own_text(tally, everything)
    if tally.temperature == 0 and own < OWN_TEXT:
        said.append(f"{own:.0%} of the text's tokens are the target's own argmax: deeper positions are estimated from "
                    "the chains that agree with the text; measure on text the target generated greedily to be exact")
    elif tally.temperature > 0:
        said.append("exact for text sampled from the target at this temperature, an estimate for other text")
    if len(tally.domains) < FEW_DOCUMENTS:
        said.append(f"intervals rest on {len(tally.domains)} documents only")
    if trained_draft_vocab is not None and trained_draft_vocab < vocab_size:
        said.append(f"the drafter was trained at D = {trained_draft_vocab:,}; nothing above it can be measured")
    return AcceptanceRecord(
        tool_version=__version__, created=datetime.now(UTC).isoformat(timespec="seconds"), target=target,
        drafter=drafter, vocab_size=vocab_size, trained_draft_vocab=trained_draft_vocab,
        temperature=tally.temperature, method="one_pass", ranking=tally.ranking, points=points, domains=domains,
        over="rounds" if tally.temperature == 0 and own >= OWN_TEXT else "positions",
        tokens=int(tally.positions[:, 0].sum()), documents=len(tally.domains), elasticity=elasticity(points),
        source=source, notes=tuple(said),
    )


def own_text(tally: Tally, chosen: np.ndarray) -> float:
    """Share of the text's tokens that are the target's own argmax."""
    return float(tally.agree[chosen].sum() / max(tally.positions[chosen][:, 0].sum(), 1))


def points_of(tally: Tally, chosen: np.ndarray, seed: int = 0) -> tuple[AcceptancePoint, ...]:
    """One point a size, over the chosen documents.

    Along the target's own greedy text alpha_k is that of the rounds a server would run. A
    mean over all positions would count the easy stretches, which a server crosses in few
    rounds, once a token: 8 % too long a tau was seen so.
    """
    replayed = tally.temperature == 0 and own_text(tally, chosen) >= OWN_TEXT
    accepted, reached = (tally.replay_accepted[chosen], tally.replay_reached[chosen]) if replayed else (
        tally.accepted[chosen], tally.reached[chosen])
    documents, _, depth = accepted.shape
    total, base = accepted.sum(axis=0), reached.sum(axis=0)
    alpha = _alpha(total, base)
    if documents > 1:
        draws = np.random.default_rng(seed).multinomial(documents, np.full(documents, 1 / documents), size=RESAMPLES)
        drawn = _alpha(np.tensordot(draws, accepted, 1), np.tensordot(draws, reached, 1))  # [resamples, sizes, K]
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        taus = _tau(drawn)
        tau_low, tau_high = np.quantile(taus, [0.025, 0.975], axis=0)
    else:
        low, high = _wilson(total, base)
        tau_low, tau_high = _tau(low), _tau(high)
    low, high = np.minimum(low, alpha), np.maximum(high, alpha)
    tau = _tau(alpha)
    positions = tally.positions[chosen].sum(axis=0)
    count = max(positions[0], 1.0)
    right, kept = tally.right[chosen].sum(axis=0), tally.right_covered[chosen].sum(axis=0)
    covered = tally.covered[chosen].sum(axis=0)
    forced = tally.forced[chosen].sum(axis=0) / np.maximum(positions, 1)
    greedy = tally.temperature == 0
    full = right[-1]
    return tuple(
        AcceptancePoint(
            draft_vocab=size, alpha=_tuple(alpha[i]), alpha_low=_tuple(low[i]), alpha_high=_tuple(high[i]),
            tau=float(tau[i]), tau_low=float(min(tau_low[i], tau[i])), tau_high=float(max(tau_high[i], tau[i])),
            coverage=float(covered[i] / count),
            coverage_accepted=float(kept[i] / full) if greedy and full else None,
            rescue=float(max(right[i] - kept[i], 0.0) / count) if greedy else None,
            teacher_forced=_tuple(forced[i][:depth]),
        )
        for i, size in enumerate(tally.sizes)
    )


def elasticity(points: tuple[AcceptancePoint, ...]) -> float | None:
    """e of alpha = alpha_ref (C / C_ref)^e, least squares in logs through the largest size; None when C never moves."""
    last = points[-1]
    pairs = [
        (np.log(p.coverage / last.coverage), np.log(p.alpha[0] / last.alpha[0]))
        for p in points[:-1] if p.coverage and last.coverage and p.alpha[0] > 0 and last.alpha[0] > 0
    ]
    x = np.array([a for a, _ in pairs])
    y = np.array([b for _, b in pairs])
    return float(x @ y / (x @ x)) if len(pairs) and float(x @ x) > 0 else None


def _alpha(accepted: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """accepted / reached; a depth that no chain reached repeats the one before it."""
    alpha = np.divide(accepted, reached, out=np.full_like(accepted, np.nan, dtype=np.float64), where=reached > 0)
    alpha[..., 0] = np.nan_to_num(alpha[..., 0])
    for k in range(1, alpha.shape[-1]):
        missing = np.isnan(alpha[..., k])
        alpha[..., k][missing] = alpha[..., k - 1][missing]
    return np.clip(alpha, 0.0, 1.0)


def _tau(alpha: np.ndarray) -> np.ndarray:
    return 1.0 + np.cumprod(alpha, axis=-1).sum(axis=-1)


def _wilson(hits: np.ndarray, count: np.ndarray, z: float = 1.96) -> tuple[np.ndarray, np.ndarray]:
    n = np.maximum(count, 1e-9)
    p = np.clip(hits / n, 0, 1)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def _tuple(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(v) for v in values)
