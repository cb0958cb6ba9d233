"""How acceptance falls with the draft vocabulary: a measured curve, or a band around coverage.

Greedy verification rejects every position whose target token is outside the
draft vocabulary, and the drafter may gain where its own best token was outside.
With alpha at the reference size and the coverage C there and here,

    alpha - (C_ref - C)  <=  alpha'  <=  alpha

is the band: below, every lost token was one the drafter had right (each lost
position costs one acceptance); above, none was. The central value is
alpha * (C / C_ref)^0.7: elasticities of 0.41 to 1.1 follow from published pairs
(SPEED-Bench 2604.09557, FR-Spec 2502.14856). Independence, alpha * C / C_ref, is
one point of the band. Anything measured overrides all of this inside its range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eagle3_core.acceptance.record import AcceptanceRecord, read_acceptance
from eagle3_core.errors import Eagle3Error
from eagle3_core.evidence import Evidence, weakest

ELASTICITY = 0.7
DEFAULT_ALPHA = 0.8
DEPTH_ODDS = 0.865
"""Odds of acceptance at a position over those at the one before: SpecBundle's chains of 3, 5 and 7, ten targets."""


@dataclass(frozen=True)
class AcceptanceSource:
    """Conditional acceptance by position at one size, and the whole curve where it was measured."""

    alpha: tuple[float, ...]
    reference_size: int | None = None
    """D at which ``alpha`` holds; None is the full vocabulary."""
    evidence: Evidence = "assumed"
    source: str = "assumed"
    record: AcceptanceRecord | None = None
    spread: float = 0.0
    """Half-width of the uncertainty of alpha itself, absolute."""


@dataclass(frozen=True)
class AcceptanceBand:
    """alpha_k by size: low, central and high are float64 [sizes, K]; ``evidence`` one mark a size."""

    low: np.ndarray
    central: np.ndarray
    high: np.ndarray
    evidence: tuple[Evidence, ...]


def assumed_alpha(alpha: float | Sequence[float], *, reference_size: int | None = None) -> AcceptanceSource:
    """The same alpha at every position, or one a position. Raises Eagle3Error outside [0, 1]."""
    values = tuple(float(a) for a in alpha) if isinstance(alpha, Sequence) else (float(alpha),)
    if not values or any(not 0 <= a <= 1 for a in values):
        raise Eagle3Error("--acceptance", found=", ".join(f"{a:g}" for a in values) or "nothing",
                          expected="probabilities between 0 and 1")
    shown = ", ".join(f"{a:g}" for a in values)
    return AcceptanceSource(values, reference_size, "assumed", f"alpha = {shown} at full vocabulary, assumed")


def acceptance_from_record(record: AcceptanceRecord) -> AcceptanceSource:
    """The largest measured size is the reference."""
    last = record.points[-1]
    return AcceptanceSource(last.alpha, last.draft_vocab, record.evidence,
                            f"{record.source} ({record.method})", record)


def resolve_acceptance(text: str | None) -> AcceptanceSource:
    """``--acceptance``: an *.acceptance.json, one number, a comma list, or nothing (0.8, assumed)."""
    if text is None:
        return assumed_alpha(DEFAULT_ALPHA)
    try:
        return assumed_alpha([float(part) for part in text.split(",")])
    except ValueError:
        pass
    if not Path(text).exists():
        raise Eagle3Error("--acceptance is neither numbers nor a file", found=repr(text),
                          expected="0.8, or 0.8,0.75,0.7, or a *.acceptance.json")
    return acceptance_from_record(read_acceptance(text))


def per_position(alpha: Sequence[float], k: int, *, decay: float = 1.0) -> np.ndarray:
    """alpha_1..alpha_K, [K]; beyond the last known position its odds fall by ``decay`` a position."""
    known = np.asarray(alpha, dtype=np.float64)[:k]
    last = min(float(known[-1]), 1 - 1e-12)
    odds = last / (1 - last) * decay ** np.arange(1, k - len(known) + 1)
    return np.concatenate([known, np.full(k - len(known), known[-1]) if decay == 1 else odds / (1 + odds)])


def alphas_of_length(tau: float, steps: int, k: int | None = None, *, decay: float = DEPTH_ODDS) -> np.ndarray:
    """alpha_1..alpha_k of a chain that emits ``tau`` tokens a round with ``steps`` drafts.

    A mean length says one number, so a shape must be assumed: the odds of acceptance fall by ``decay``
    a position. With one alpha at every position chain 3 carried to chains 5 and 7 promises 2.8 % and
    5.5 % too much over SpecBundle; with this shape 0.1 % too much and 0.4 % too little, 1.5 % in mean
    absolute error on models left out of the fit. Raises Eagle3Error where no alpha gives ``tau``.
    """
    if not 1 <= tau <= steps + 1:
        raise Eagle3Error("accepted length", found=f"{tau:g}", expected=f"1 to {steps + 1} with {steps} drafts")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        short = 1 + np.cumprod(per_position([middle], steps, decay=decay)).sum() < tau
        low, high = (middle, high) if short else (low, middle)
    return per_position([(low + high) / 2], k or steps, decay=decay)


def acceptance_at(
    source: AcceptanceSource, sizes: Sequence[int], coverage: np.ndarray, k: int, *, vocab_size: int | None = None
) -> AcceptanceBand:
    """alpha_k at each size. ``coverage``: float [sizes], held out, of the same tokens the drafter will meet.

    A reference size between the given sizes is interpolated in log D.
    """
    at = np.asarray(sizes, dtype=np.float64)
    coverage = np.asarray(coverage, dtype=np.float64)
    # What was seen at some positions goes on falling beyond them; one assumed alpha holds at all of them.
    alpha = per_position(source.alpha, k, decay=DEPTH_ODDS if source.record is not None else 1.0)
    full = max(vocab_size or 0, int(at.max()))
    reference = source.reference_size or full
    reference_coverage = 1.0 if reference >= full else float(np.interp(np.log(reference), np.log(at), coverage))
    ratio = (coverage / reference_coverage)[:, None]
    lost = np.maximum(reference_coverage - coverage, 0.0)[:, None]
    central = np.clip(alpha * ratio**ELASTICITY, 0, 1)
    low = np.clip(np.minimum(alpha - source.spread - lost, central), 0, 1)
    high = np.clip(np.maximum(alpha + source.spread, central) + np.zeros_like(lost), 0, 1)
    evidence: list[Evidence] = [
        source.evidence if size == reference else weakest(source.evidence, "modelled") for size in at
    ]
    if source.record is not None and len(source.record.points) > 1:
        _override(source.record, at, k, low, central, high, evidence)
    return AcceptanceBand(low, central, high, tuple(evidence))


def _override(
    record: AcceptanceRecord, at: np.ndarray, k: int, low: np.ndarray, central: np.ndarray, high: np.ndarray,
    evidence: list[Evidence],
) -> None:
    """Replace the band by the measured curve where the record reaches, interpolated in log D."""
    x = np.log([point.draft_vocab for point in record.points])
    inside = (np.log(at) >= x[0] - 1e-12) & (np.log(at) <= x[-1] + 1e-12)
    for target, name in ((low, "alpha_low"), (central, "alpha"), (high, "alpha_high")):
        measured = np.array([per_position(getattr(point, name), k, decay=DEPTH_ODDS) for point in record.points])
        for position in range(k):
            target[inside, position] = np.interp(np.log(at[inside]), x, measured[:, position])
    for index in np.flatnonzero(inside):
        evidence[index] = record.evidence
