"""Does the recommendation move? One input changed at a time, the others as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import polars as pl

from eagle3_core.acceptance.model import AcceptanceSource, per_position
from eagle3_core.cost.hardware import Gpu
from eagle3_core.cost.profile import LatencyProfile
from eagle3_core.decide.recommend import Constraints, recommend
from eagle3_core.decide.tradeoff import TradeoffInputs, tradeoff

ALPHA_STEPS = (-0.2, -0.1, 0.1)
K_STEPS = (1, 3, 5, 7)
LATENCY_FACTORS = (0.5, 2.0)
BATCHES = (1, 8, 32)


def sensitivity(inputs: TradeoffInputs, size: int, constraints: Constraints | None = None) -> pl.DataFrame:
    """One row per changed input.

    Columns: factor, value (both text), recommended, low, high (sizes), speedup
    (of the recommended), cost_of_size (share of the best speedup that ``size`` gives up there).
    """
    rows = []
    for factor, value, changed in _variations(inputs):
        table = tradeoff(changed, sorted({*_grid(changed), size}))
        result = recommend(table, tolerance=inputs.tolerance, constraints=constraints)
        here = table.filter(pl.col("draft_vocab") == size)["speedup"][0]
        rows.append((factor, value, result.size, result.low_size, result.high_size, result.speedup,
                     1 - here / result.best_speedup))
    return pl.DataFrame(rows, orient="row", schema={
        "factor": pl.String, "value": pl.String, "recommended": pl.Int64, "low": pl.Int64, "high": pl.Int64,
        "speedup": pl.Float64, "cost_of_size": pl.Float64,
    })


def _grid(inputs: TradeoffInputs) -> tuple[int, ...]:
    from eagle3_core.specs.sizes import size_grid

    return size_grid(inputs.target.vocab_size)


def _variations(inputs: TradeoffInputs) -> Iterator[tuple[str, str, TradeoffInputs]]:
    yield "as chosen", "", inputs
    first = inputs.acceptance.alpha[0]
    for step in ALPHA_STEPS:
        alpha = [min(max(a + step, 0.0), 0.99) for a in per_position(inputs.acceptance.alpha, inputs.k)]
        moved = AcceptanceSource(tuple(alpha), inputs.acceptance.reference_size, "assumed", "sensitivity")
        yield "alpha", f"{min(max(first + step, 0), 0.99):.2f}", dataclasses.replace(inputs, acceptance=moved)
    for k in K_STEPS:
        if k != inputs.k and (inputs.verify_ms is None or inputs.decode_ms is None):
            yield "K", str(k), _with_k(inputs, k)
    for factor in LATENCY_FACTORS:
        yield "draft step", f"x {factor:g}", dataclasses.replace(inputs, latency=scaled(inputs.latency, factor),
                                                                 **_pinned(inputs))
    if isinstance(inputs.latency, Gpu):
        for batch in BATCHES:
            if batch != inputs.batch:
                yield "batch", str(batch), dataclasses.replace(inputs, batch=batch)


def _with_k(inputs: TradeoffInputs, k: int) -> TradeoffInputs:
    """Another draft length; a tree verifies no more tokens than it then drafts."""
    tokens = inputs.draft_tokens
    most = 1 + inputs.topk + (k - 1) * inputs.topk**2
    return dataclasses.replace(inputs, k=k, draft_tokens=None if tokens is None else min(tokens, most))


def _pinned(inputs: TradeoffInputs) -> dict[str, float]:
    """The target's times as they are now: a slower drafter does not slow the target."""
    from eagle3_core.decide.tradeoff import target_timing

    times = target_timing(inputs)
    return {"decode_ms": times.decode_ms, "verify_ms": times.verify_ms}


def scaled(source: LatencyProfile | Gpu, factor: float) -> LatencyProfile | Gpu:
    """The same device with every draft time multiplied."""
    if isinstance(source, Gpu):
        return dataclasses.replace(
            source, bandwidth_tbps=source.bandwidth_tbps / factor, overhead_us=source.overhead_us * factor,
            bf16_tflops=source.bf16_tflops / factor, all_reduce_us=source.all_reduce_us * factor,
            all_gather_us=source.all_gather_us * factor, link_gbps=source.link_gbps / factor,
        )
    points = tuple(
        point.model_copy(update={"timing": point.timing.model_copy(update={
            name: getattr(point.timing, name) * factor for name in ("median_ms", "q05_ms", "q95_ms")
        })})
        for point in source.points
    )
    return source.model_copy(update={"points": points})
