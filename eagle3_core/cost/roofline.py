"""Draft-step time on a device that is not here, from bytes, bandwidth and launches.

A GEMV of a small batch is bound by reading its weights:

    t = t0 + rows * H * bytes / (TP * eta * BW)

with t0 and eta per GPU from ``hardware.csv`` (fits to measured GEMMs: mean
absolute error 2 to 6 %). Added to it: the KV cache of the drafter's one layer,
the small kernels around the products, two all-reduces and one logit gather
where the drafter is sharded, and reading the logits for argmax or top-k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from eagle3_core.cost.hardware import Gpu
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.drafter import DrafterSpec
from eagle3_core.specs.parameters import dtype_bytes

ENGINES = ("sglang", "vllm")
LAYER_GEMMS = 4
"""qkv, o, gate and up fused, down."""
SMALL_KERNELS = 7
"""Three norms, rope, attention, activation, residual, beside the GEMMs of one layer."""
EAGER_GAP_US = 1.5
"""Idle time per ungraphed launch: pegainfer#582 reports 0.18 ms for about 120 of them on an H200."""
LARGE_BATCH_EFFICIENCY = 0.93
"""eta at 64 rows relative to 16: fitted to aiconfigurator's measured lm_head GEMMs of six GPUs (0.90 to 0.98)."""


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds of one draft step at one D."""

    fc: float
    layer: float
    lm_head: float
    sampling: float
    collective: float
    launch: float

    @property
    def step(self) -> float:
        return self.layer + self.lm_head + self.sampling + self.collective + self.launch


def padded_rows(draft_vocab: int, draft_tp: int, engine: str) -> int:
    """Rows of the head over all ranks: engines pad to 64, SGLang to 64 * tp where that does not divide."""
    rows = math.ceil(draft_vocab / 64) * 64
    if rows % draft_tp:
        step = 64 * draft_tp if engine == "sglang" else draft_tp
        rows = math.ceil(rows / step) * step
    return rows


def gemm_ms(gpu: Gpu, rows: float, width: int, *, batch: int, bytes_per_weight: int) -> float:
    """One [batch, width] x [width, rows] product, weights read once, milliseconds."""
    efficiency = 1.0 - (1 - LARGE_BATCH_EFFICIENCY) * min(max(batch - 16, 0) / 48, 1.0)
    memory = gpu.overhead_us / 1e3 + (gpu.stream_ms(rows * width * bytes_per_weight, kernels=0)) / efficiency
    return max(memory, gpu.compute_ms(2.0 * batch * rows * width))


def roofline_step(
    gpu: Gpu,
    drafter: DrafterSpec,
    *,
    batch: int = 1,
    dtype: str = "bfloat16",
    draft_tp: int = 1,
    engine: str = "sglang",
    context: int = 1024,
    graphs: bool = True,
) -> StepTimes:
    """Components of one draft step. Raises Eagle3Error for an unknown engine or a TP that does not divide."""
    if engine not in ENGINES:
        raise Eagle3Error("unknown engine", found=repr(engine), expected=", ".join(ENGINES))
    if drafter.num_heads % draft_tp:
        raise Eagle3Error("draft TP does not divide the drafter's heads", found=draft_tp,
                          expected=f"a divisor of {drafter.num_heads}")
    width, hidden, h = dtype_bytes(dtype), drafter.hidden_size, drafter.head_dim
    # Key/value heads are replicated once there are fewer than ranks.
    kv_heads = max(drafter.num_kv_heads / draft_tp, 1)
    q_heads = drafter.num_heads / draft_tp
    mlp = drafter.intermediate_size / draft_tp

    def gemm(rows: float, columns: float) -> float:
        return gemm_ms(gpu, rows, int(columns), batch=batch, bytes_per_weight=width)

    layer = (
        gemm(h * (q_heads + 2 * kv_heads), 2 * hidden) + gemm(hidden, q_heads * h)
        + gemm(2 * mlp, hidden) + gemm(hidden, mlp)
        + gpu.stream_ms(batch * context * 2 * kv_heads * h * 2, kernels=0)
        + SMALL_KERNELS * gpu.overhead_us / 1e3
    )
    rows = padded_rows(drafter.draft_vocab_size, draft_tp, engine)
    lm_head = gemm(rows / draft_tp, hidden)
    collective = 0.0
    if draft_tp > 1:
        gathered = batch * rows * width
        collective = (2 * gpu.all_reduce_us + gpu.all_gather_us) / 1e3 + gathered / (gpu.link_gbps * 1e9) * 1e3
    return StepTimes(
        fc=gemm(hidden, 3 * drafter.target_hidden_size),
        layer=layer,
        lm_head=lm_head,
        sampling=_sampling_ms(gpu, drafter, batch, engine),
        collective=collective,
        launch=0.0 if graphs else (LAYER_GEMMS + SMALL_KERNELS + 4) * EAGER_GAP_US / 1e3,
    )


def _sampling_ms(gpu: Gpu, drafter: DrafterSpec, batch: int, engine: str) -> float:
    """Reading fp32 logits for the maximum, then mapping ids.

    vLLM with D < V first fills a [batch, V] tensor with -inf, scatters the D
    logits and takes the maximum over V, so its cost grows with V.
    """
    draft, vocab = drafter.draft_vocab_size, drafter.vocab_size
    moved = 2 * draft
    kernels = 2
    if engine == "vllm" and draft < vocab:
        moved = 2 * vocab + 3 * draft
        kernels = 4
    return gpu.stream_ms(4.0 * batch * moved, kernels=kernels)
