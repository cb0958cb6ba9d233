"""``eagle3 measure latency``: run the drafter's parts here and keep what they took, as a LatencyProfile.

Every point is repeated until the 95 % interval of its median is under 3 % or
its share of the time budget is spent. Outliers stay in the quantiles and are
counted. The read bandwidth of the device is measured in the same run, so each
point carries its share of that ceiling and, under 70 %, the likely reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from eagle3_core import __version__
from eagle3_core.cost.device import ASSUMED_CACHE, Neighbours, describe, free_bytes, pick_device, read_bandwidth
from eagle3_core.cost.parts import TOP_K, Call, Parts, Shapes
from eagle3_core.cost.profile import Component, LatencyPoint, LatencyProfile, Mode, Timing, dims_of
from eagle3_core.cost.roofline import padded_rows
from eagle3_core.cost.weights import activations, check_kernels, item_bytes
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.drafter import DrafterSpec
from eagle3_core.specs.sizes import INHERITED, SMALLEST

if TYPE_CHECKING:
    import torch

WANTED_INTERVAL = 0.03
LOW_SHARE = 0.70
DISTURBED_CORES = 0.15
MIN_REPEATS, MAX_REPEATS = 5, 400


@dataclass(frozen=True)
class Plan:
    """What to measure. Sizes ascending; ``seconds`` is the whole run's time budget."""

    sizes: tuple[int, ...]
    batches: tuple[int, ...] = (1,)
    context: int = 1024
    draft_tp: int = 1
    seconds: float = 240.0


def auto_sizes(vocab_size: int) -> tuple[int, ...]:
    """Powers of two from 1,024, the inherited 32,000, and V."""
    sizes = {vocab_size}
    size = SMALLEST
    while size < vocab_size:
        sizes.add(size)
        size *= 2
    if vocab_size > INHERITED:
        sizes.add(INHERITED)
    return tuple(sorted(sizes))


def measure_latency(
    drafter: DrafterSpec,
    target_name: str,
    plan: Plan,
    *,
    device: str = "auto",
    dtype: str = "auto",
    progress: Callable[[float, float], None] | None = None,
) -> LatencyProfile:
    """Measure on this machine. Raises Eagle3Error when the device or dtype is not usable, or nothing fits."""
    import torch

    where = pick_device(device)
    facts = describe(where)
    name = ("float32" if where.type == "cpu" else "bfloat16") if dtype == "auto" else dtype
    check_kernels(name, where)
    if drafter.num_heads % plan.draft_tp:
        raise Eagle3Error("--draft-tp", found=plan.draft_tp, expected=f"a divisor of {drafter.num_heads} heads")
    shapes = Shapes.of(drafter, plan.draft_tp)
    sizes, skipped = _fitting(shapes, plan, where, name)
    neighbours = Neighbours()
    started = time.perf_counter()
    with torch.inference_mode():
        bandwidth = read_bandwidth(where)
        rows = {size: padded_rows(size, plan.draft_tp, "sglang") // plan.draft_tp for size in sizes}
        parts = Parts(shapes, max(rows.values()), device=where, dtype=name, context=plan.context,
                      cache_bytes=facts.cache_bytes or ASSUMED_CACHE)
        recorder = _Recorder(parts, where, bandwidth, facts.cache_bytes or ASSUMED_CACHE)
        jobs = [job for batch in plan.batches for job in recorder.jobs(batch, rows)]
        points: list[LatencyPoint] = []
        for index, job in enumerate(jobs):
            left = plan.seconds - (time.perf_counter() - started)
            points += recorder.measure(job, max(left / (len(jobs) - index), 0.05))
            if progress is not None:
                progress(index + 1, len(jobs))
    taken = neighbours.cores_taken()
    notes = []
    if facts.cache_bytes is None:
        notes.append(f"the system does not say its cache size; {ASSUMED_CACHE >> 20} MiB assumed for rotation")
    if taken >= DISTURBED_CORES:
        notes.append(f"other processes used {taken:.2f} cores while measuring")
    if plan.draft_tp > 1:
        notes.append("one rank's shard; collectives between ranks are not in the times")
    return LatencyProfile(
        tool_version=__version__, created=datetime.now(UTC).isoformat(timespec="seconds"), target=target_name,
        drafter=dims_of(drafter), device=facts, dtype=name, draft_tp=plan.draft_tp, context=plan.context,
        bandwidth_gbps=bandwidth, points=tuple(points), disturbed=taken >= DISTURBED_CORES, skipped=tuple(skipped),
        notes=tuple(notes),
    )


def _fitting(
    shapes: Shapes, plan: Plan, device: torch.device, dtype: str
) -> tuple[tuple[int, ...], list[str]]:
    """Sizes whose weights and logits fit the free memory, and the others by name."""
    import torch

    item, kept = item_bytes(dtype), torch.empty(0, dtype=activations(dtype, device)).element_size()
    batch = max(plan.batches)
    base = (shapes.layer_weights() + shapes.fc_weights()) * item + 600 * 2**20
    base += 4 * batch * plan.context * shapes.kv_heads * shapes.head_dim * kept
    free = free_bytes(device)
    fits, skipped = [], []
    for size in plan.sizes:
        need = base + size // plan.draft_tp * shapes.hidden * item + 3 * batch * size * 4
        if need <= free:
            fits.append(size)
        else:
            skipped.append(f"D = {size:,}: needs {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free")
    if not fits:
        raise Eagle3Error("no size fits the free memory", found=skipped[0])
    return tuple(fits), skipped


@dataclass(frozen=True)
class _Job:
    component: Component
    batch: int
    draft_vocab: int | None
    rows: int
    build: Callable[[], list[Call]]
    bytes: int


class _Recorder:
    """Runs the jobs; eager everywhere, and as CUDA graphs beside where the device has them."""

    def __init__(self, parts: Parts, device: torch.device, bandwidth: float, cache: int) -> None:
        self.parts, self.device, self.bandwidth, self.cache = parts, device, bandwidth, cache

    def jobs(self, batch: int, rows: dict[int, int]) -> list[_Job]:
        import torch

        p, s, item, kept = self.parts, self.parts.shapes, self.parts.itemsize, self.parts.activation_size
        kv = 2 * batch * p.context * s.kv_heads * s.head_dim * kept
        jobs = [
            _Job("fc", batch, None, 0, lambda: p.fc(batch), s.fc_weights() * item),
            _Job("layer", batch, None, 0, lambda: p.layer(batch), s.layer_weights() * item + kv),
            _Job("norm", batch, None, 0, lambda: p.final_norm(batch), 0),
        ]
        for size, r in rows.items():
            head = r * s.hidden * item
            logit_bytes = batch * r * kept

            def on_logits(call: Callable[[torch.Tensor], object], r: int = r) -> Callable[[], list[Call]]:
                def build() -> list[Call]:
                    logits = p.logits(batch, r)
                    return [lambda: call(logits)]

                return build

            def mapped(r: int = r) -> list[Call]:
                ids, d2t = torch.zeros(batch, dtype=torch.int64, device=self.device), p.id_map(r)
                return [lambda: ids + d2t[ids]]

            jobs += [
                _Job("lm_head", batch, size, r, lambda r=r: p.lm_head(batch, r), head),
                _Job("argmax", batch, size, r, on_logits(lambda x: x.argmax(dim=-1)), logit_bytes),
                _Job("topk", batch, size, r, on_logits(lambda x, r=r: x.topk(min(TOP_K, r), dim=-1)), logit_bytes),
                _Job("softmax", batch, size, r, on_logits(lambda x: torch.softmax(x, dim=-1)), 2 * logit_bytes),
                _Job("map", batch, size, r, mapped, 0),
                _Job("step", batch, size, r, lambda r=r: p.step(batch, r), head + s.layer_weights() * item + kv),
            ]
            if head <= self.cache // 2:
                jobs.append(_Job("lm_head_cached", batch, size, r, lambda r=r: p.lm_head(batch, r)[:1], head))
        return jobs

    def measure(self, job: _Job, seconds: float) -> list[LatencyPoint]:
        calls = job.build()
        if self.device.type != "cuda":
            return [self._point(job, "eager", _repeat(calls, self.device, seconds))]
        points = [self._point(job, "eager", _repeat(calls, self.device, seconds / 2))]
        graph = _as_graph(calls, self.device)
        times = _repeat([graph], self.device, seconds / 2) / len(calls)
        return [*points, self._point(job, "cuda_graph", times)]

    def _point(self, job: _Job, mode: Mode, times: np.ndarray) -> LatencyPoint:
        q25, median, q75 = np.quantile(times, [0.25, 0.5, 0.75])
        low, high = np.quantile(times, [0.05, 0.95])
        outliers = int((np.abs(times - median) > 3 * max(q75 - q25, 1e-9)).sum())
        share = job.bytes / (median / 1e3) / (self.bandwidth * 1e9) if job.bytes else None
        return LatencyPoint(
            component=job.component, draft_vocab=job.draft_vocab, batch=job.batch, mode=mode, bytes=job.bytes,
            timing=Timing(median_ms=float(median), q05_ms=float(low), q95_ms=float(high), repeats=len(times),
                          outliers=outliers),
            bandwidth_share=None if share is None else float(share), note=self._why(job, float(median), share),
        )

    def _why(self, job: _Job, median_ms: float, share: float | None) -> str:
        if job.component == "lm_head_cached":
            return f"fits the {self.cache >> 20} MiB cache and is repeated there"
        if share is None or share >= LOW_SHARE:
            return "" if share is None or share <= 1.05 else "part of it stays in the cache"
        if job.batch >= 8 and job.component in ("fc", "layer", "lm_head", "step"):
            return "compute-bound: several rows share each weight"
        launch_ms = 0.02 if self.device.type == "cuda" else 0.05
        if median_ms < 5 * launch_ms:
            return "launch-bound: the call itself takes about as long"
        if self.device.type == "cpu":
            return "below the read ceiling: torch's CPU kernels do not reach it for one row"
        return "below the read ceiling"


def _repeat(calls: Sequence[Call], device: torch.device, seconds: float) -> np.ndarray:
    """Times of single calls in milliseconds, taken in turns over ``calls``."""
    from eagle3_core.cost.device import synchronize

    for call in [*list(calls)[:3], calls[0]]:
        call()
    synchronize(device)
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < MAX_REPEATS:
        call = calls[len(times) % len(calls)]
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append((time.perf_counter() - start) * 1e3)
        if len(times) >= MIN_REPEATS and (time.perf_counter() > until or _settled(times)):
            break
    return np.array(times)


def _settled(times: list[float]) -> bool:
    """95 % interval of the median, by the notch rule 1.57 IQR / sqrt(n) (McGill, Tukey, Larsen 1978)."""
    if len(times) < 15 or len(times) % 5:
        return False
    q25, median, q75 = np.quantile(times, [0.25, 0.5, 0.75])
    return 1.57 * (q75 - q25) / np.sqrt(len(times)) < WANTED_INTERVAL * median


def _as_graph(calls: Sequence[Call], device: torch.device) -> Call:
    """One CUDA graph of all the calls in turn, so that rotation stays and launch gaps go."""
    import torch

    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay
