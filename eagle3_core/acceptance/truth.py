"""The projection held to real speculative decoding: what was said beforehand, what the clock said, how far apart.

Projected, from two files made before any speculation,

    tau      = 1 + sum_k prod_{i<=k} alpha_i     of the one-pass acceptance record
    T_round  = T_fc + K T_step + T_verify(K + 1) of the latency profile
    speedup  = tau T_decode / T_round

Measured, from runs of the real loop in turns with plain decoding: a run's time a
round over the plain time a token of the same prompt, taken between the plain runs
before and after it; the median over prompts; and the tokens a round that all runs
of the setting made. The product of tau and the inverse ratio is tokens/s against
plain tokens/s, without the last round that the end of a text cuts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from eagle3_core.acceptance.model import per_position
from eagle3_core.acceptance.record import AcceptanceRecord
from eagle3_core.cost.profile import LatencyProfile
from eagle3_core.cost.step import step_latency
from eagle3_core.cost.target_time import target_times
from eagle3_core.decide.projection import acceptance_length, round_time, speedup
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.drafter import DrafterSpec
from eagle3_core.specs.target import TargetSpec

RUNS_SCHEMA = {
    "prompt": pl.Int64, "turn": pl.Int64, "draft_vocab": pl.Int64, "k": pl.Int64, "tokens": pl.Int64,
    "rounds": pl.Int64, "kept": pl.Int64, "draft_ms": pl.Float64, "verify_ms": pl.Float64, "total_ms": pl.Float64,
    "same_text": pl.Boolean,
}
"""One timed run a row, in the order of the clock. Plain decoding has draft_vocab and k 0; ``kept`` counts accepted
drafts; ``tokens`` leaves out the one that the prompt's own pass made."""
RESAMPLES = 2000


def project(
    record: AcceptanceRecord, profile: LatencyProfile, target: TargetSpec, drafter: DrafterSpec,
    sizes: Sequence[int], lengths: Sequence[int], *, context: int,
) -> pl.DataFrame:
    """draft_vocab, k, tau, round_ms, decode_ms, speedup: a row for each size and draft length.

    Raises Eagle3Error where the record lacks a size or the profile is for other dimensions.
    """
    points = {point.draft_vocab: point for point in record.points}
    missing = [size for size in sizes if size not in points]
    if missing:
        raise Eagle3Error("acceptance was not measured at", found=missing, expected=sorted(points))
    steps = step_latency(profile, drafter, sizes, dtype=profile.dtype, context=context)
    frames = []
    for k in lengths:
        times = target_times(profile, target, k=k, dtype=profile.dtype, context=context)
        if times.evidence != "measured":
            raise Eagle3Error("the latency profile has no verify time", found=f"K = {k}",
                              expected=f"the target timed on {k + 1} tokens", fix="measure latency with --verify")
        tau = acceptance_length(np.array([per_position(points[size].alpha, k) for size in sizes]))
        rounds = round_time(steps["step_ms"].to_numpy(), k=k, verify_ms=times.verify_ms,
                            fc_ms=steps["fc_ms"].to_numpy())
        frames.append(pl.DataFrame({
            "draft_vocab": list(sizes), "k": [k] * len(sizes), "tau": tau, "round_ms": rounds,
            "decode_ms": [times.decode_ms] * len(sizes), "speedup": speedup(tau, rounds, times.decode_ms)}))
    return pl.concat(frames)


def paired(runs: pl.DataFrame) -> pl.DataFrame:
    """Every drafted run beside plain decoding around it: ``ratio`` is ms a round over plain ms a token.

    runs: ``RUNS_SCHEMA``. A run without a plain one before and after it in its prompt is left out.
    """
    rows = []
    for (prompt,), group in runs.sort("turn").group_by(["prompt"], maintain_order=True):
        plain = [(r["turn"], r["total_ms"] / r["tokens"]) for r in group.iter_rows(named=True) if r["k"] == 0]
        for row in group.iter_rows(named=True):
            before = [ms for turn, ms in plain if turn < row["turn"]]
            after = [ms for turn, ms in plain if turn > row["turn"]]
            if row["k"] == 0 or not before or not after or row["rounds"] == 0:
                continue
            token_ms = (before[-1] + after[0]) / 2
            round_ms = row["total_ms"] / row["rounds"]
            rows.append({"prompt": prompt, "draft_vocab": row["draft_vocab"], "k": row["k"], "rounds": row["rounds"],
                         "kept": row["kept"], "token_ms": token_ms, "round_ms": round_ms,
                         "draft_ms": row["draft_ms"] / row["rounds"], "verify_ms": row["verify_ms"] / row["rounds"],
                         "ratio": round_ms / token_ms})
    if not rows:
        raise Eagle3Error("no drafted run stands between two plain ones", expected="a finished prompt")
    return pl.DataFrame(rows)


def measured(pairs: pl.DataFrame) -> pl.DataFrame:
    """A row for each size and draft length: tau, speedup, their 95 % interval over prompts, times a round."""
    rows = []
    for (k, size), group in pairs.sort("k", "draft_vocab").group_by(["k", "draft_vocab"], maintain_order=True):
        low, high = np.quantile(_resampled(group), [0.025, 0.975])
        middle = {name: float(np.median(group[name].to_numpy()))
                  for name in ("round_ms", "token_ms", "draft_ms", "verify_ms", "ratio")}
        tau = 1 + float(group["kept"].to_numpy().sum() / group["rounds"].to_numpy().sum())
        rows.append({"draft_vocab": size, "k": k, "prompts": len(group), "tau": tau, **middle,
                     "speedup": tau / middle["ratio"], "low": float(low), "high": float(high)})
    return pl.DataFrame(rows)


def _resampled(group: pl.DataFrame, seed: int = 0) -> np.ndarray:
    """Speedups of prompts drawn with replacement, [RESAMPLES]; the same draws for every setting."""
    group = group.sort("prompt")
    draw = np.random.default_rng(seed).integers(0, len(group), size=(RESAMPLES, len(group)))
    kept, rounds, ratio = (group[name].to_numpy()[draw] for name in ("kept", "rounds", "ratio"))
    return (1 + kept.sum(axis=1) / rounds.sum(axis=1)) / np.median(ratio, axis=1)


@dataclass(frozen=True)
class Verdict:
    """``error``: |projected / measured - 1| of the speedup. ``kendall``: over pairs of one draft length whose
    measured difference exceeds its 95 % interval; None where there is no such pair."""

    table: pl.DataFrame
    mean_error: float
    worst_error: float
    kendall: float | None
    pairs: int


def compare(projected: pl.DataFrame, pairs: pl.DataFrame) -> Verdict:
    """projected: ``project``. pairs: ``paired``."""
    seen = measured(pairs)
    table = projected.select(
        "draft_vocab", "k", *(pl.col(n).alias(f"projected_{n}") for n in ("tau", "round_ms", "decode_ms", "speedup")),
    ).join(seen, on=["draft_vocab", "k"]).with_columns(
        error=(pl.col("projected_speedup") / pl.col("speedup") - 1)).sort("k", "draft_vocab")
    if table.is_empty():
        raise Eagle3Error("nothing that was projected was measured")
    error = table["error"].abs()
    agree = count = 0
    for (_,), group in table.group_by(["k"], maintain_order=True):
        said = dict(zip(group["draft_vocab"], group["projected_speedup"], strict=True))
        drawn = {size: _resampled(pairs.filter((pl.col("k") == group["k"][0]) & (pl.col("draft_vocab") == size)))
                 for size in said}
        for a, b in itertools.combinations(said, 2):
            low, high = np.quantile(np.log(drawn[a]) - np.log(drawn[b]), [0.025, 0.975])
            if low <= 0 <= high:
                continue
            count += 1
            agree += 1 if (said[a] > said[b]) == (low > 0) else -1
    mean, worst = float(error.to_numpy().mean()), float(error.to_numpy().max())
    return Verdict(table, mean, worst, agree / count if count else None, count)
