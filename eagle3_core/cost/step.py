"""``step_latency``: draft-step time at each D, from a measured profile or the roofline, in one table.

Columns, milliseconds unless said otherwise:

    draft_vocab      D
    fc_ms            the feature projection; paid once a round, so not part of step_ms
    layer_ms         decoder layer with its KV read
    lm_head_ms       the head
    sampling_ms      argmax or top-k, softmax where needed, id mapping
    collective_ms    all-reduces and the logit gather of a sharded drafter
    launch_ms        gaps between launches
    step_ms          one draft step; step_low_ms and step_high_ms are its 5 and 95 % quantiles
    latency_evidence "measured" or "modelled"
    interpolated     True where D lies between measured sizes
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from eagle3_core.cost.hardware import Gpu
from eagle3_core.cost.profile import Component, LatencyPoint, LatencyProfile, dims_of
from eagle3_core.cost.roofline import roofline_step
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.drafter import DrafterSpec

FITTED_SPREAD = 0.10
"""Half-width of the roofline's band on a GPU whose constants were fitted (largest errors 7 to 17 %)."""
ASSUMED_SPREAD = 0.25
HEAD_COMPONENTS: tuple[Component, ...] = ("lm_head",)
SAMPLING_COMPONENTS: tuple[Component, ...] = ("argmax", "map")


def step_latency(
    source: LatencyProfile | Gpu,
    drafter: DrafterSpec,
    sizes: Sequence[int],
    *,
    batch: int = 1,
    dtype: str = "bfloat16",
    draft_tp: int = 1,
    engine: str = "sglang",
    context: int = 1024,
) -> pl.DataFrame:
    """One row per size. Raises Eagle3Error where a profile is for other dimensions, dtype or TP."""
    if isinstance(source, Gpu):
        return _modelled(source, drafter, sizes, batch=batch, dtype=dtype, draft_tp=draft_tp, engine=engine,
                         context=context)
    return _measured(source, drafter, sizes, batch=batch, dtype=dtype, draft_tp=draft_tp)


def _modelled(gpu: Gpu, drafter: DrafterSpec, sizes: Sequence[int], **options) -> pl.DataFrame:
    spread = FITTED_SPREAD if gpu.fit == "published" else ASSUMED_SPREAD
    rows = []
    for size in sizes:
        times = roofline_step(gpu, drafter.with_draft_vocab(size), **options)
        rows.append((size, times.fc, times.layer, times.lm_head, times.sampling, times.collective, times.launch,
                     times.step, times.step * (1 - spread), times.step * (1 + spread)))
    return _frame(rows, ["modelled"] * len(rows), [False] * len(rows))


_COLUMNS = ("draft_vocab", "fc_ms", "layer_ms", "lm_head_ms", "sampling_ms", "collective_ms", "launch_ms",
            "step_ms", "step_low_ms", "step_high_ms")


def _frame(rows: list[tuple], evidence: list[str], interpolated: list[bool]) -> pl.DataFrame:
    schema = {name: pl.Int64 if name == "draft_vocab" else pl.Float64 for name in _COLUMNS}
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        pl.Series("latency_evidence", evidence), pl.Series("interpolated", interpolated),
    )


def _measured(
    profile: LatencyProfile, drafter: DrafterSpec, sizes: Sequence[int], *, batch: int, dtype: str, draft_tp: int
) -> pl.DataFrame:
    check_fits(profile, drafter, dtype=dtype, draft_tp=draft_tp)
    batches = sorted({point.batch for point in profile.points if point.component == "step"})
    if not batches:
        raise Eagle3Error("profile holds no whole-step times", where=profile.target)
    used = min(batches, key=lambda b: (abs(np.log(b / batch)), b))
    at = np.asarray(sizes, dtype=np.float64)

    def curve(component: Component, quantile: str = "median_ms") -> np.ndarray:
        return _curve(profile, component, used, at, quantile)

    step = curve("step")
    low, high = curve("step", "q05_ms"), curve("step", "q95_ms")
    layer = curve("layer") + curve("norm")
    head = curve("lm_head")
    sampling = curve("argmax") + curve("map")
    # What the whole step takes beyond its parts: launches and what lies between them.
    launch = np.maximum(step - layer - head - sampling, 0.0)
    measured_sizes = {p.draft_vocab for p in profile.points if p.component == "step" and p.batch == used}
    inside = (at >= min(measured_sizes)) & (at <= max(measured_sizes))  # type: ignore[type-var]
    evidence = ["measured" if ok and used == batch else "modelled" for ok in inside]
    rows = list(zip(
        [int(size) for size in sizes], curve("fc"), layer, head, sampling, np.zeros(len(at)), launch, step, low, high,
        strict=True,
    ))
    return _frame(rows, evidence, [int(size) not in measured_sizes for size in sizes])


def check_fits(profile: LatencyProfile, drafter: DrafterSpec, *, dtype: str, draft_tp: int) -> None:
    """Raises Eagle3Error naming the first dimension in which the profile is for another drafter."""
    have, want = profile.drafter.model_dump(), dims_of(drafter).model_dump()
    for name, value in want.items():
        if have[name] != value:
            raise Eagle3Error(f"latency profile is for another drafter ({name})", where=profile.target,
                              found=have[name], expected=value)
    if profile.dtype != dtype:
        raise Eagle3Error("latency profile is for another dtype", where=profile.target, found=profile.dtype,
                          expected=dtype)
    if profile.draft_tp != draft_tp:
        raise Eagle3Error("latency profile is for another draft TP", where=profile.target, found=profile.draft_tp,
                          expected=draft_tp)


def _curve(
    profile: LatencyProfile, component: Component, batch: int, at: np.ndarray, quantile: str
) -> np.ndarray:
    """Piecewise linear through the measured sizes; beyond them the end segment's slope goes on."""
    points = [p for p in profile.points if p.component == component and p.batch == batch and p.mode == _mode(profile)]
    if not points:
        return np.zeros(len(at))
    if all(point.draft_vocab is None for point in points):
        return np.full(len(at), getattr(points[0].timing, quantile))
    points.sort(key=lambda point: point.draft_vocab or 0)
    x = np.array([point.draft_vocab for point in points], dtype=np.float64)
    y = np.array([getattr(point.timing, quantile) for point in points])
    if len(x) == 1:
        return np.full(len(at), y[0])
    segment = np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2)
    slope = (y[segment + 1] - y[segment]) / (x[segment + 1] - x[segment])
    return np.maximum(y[segment] + slope * (at - x[segment]), y.min() * 0.1)


def _mode(profile: LatencyProfile) -> str:
    return "cuda_graph" if any(p.mode == "cuda_graph" for p in profile.points) else "eager"


def graph_points(profile: LatencyProfile, component: Component) -> list[LatencyPoint]:
    """Measured points of a component in the mode that serving uses, for charts."""
    return [p for p in profile.points if p.component == component and p.mode == _mode(profile)]
