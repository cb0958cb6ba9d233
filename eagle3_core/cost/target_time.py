"""The target's own times: one plain decode step, and one verify pass over K + 1 tokens.

Measured where a profile has them; else bytes over bandwidth. A dense target
reads the same weights for both, so verify costs little more until it is
compute-bound. A mixture of experts reads every distinct expert its tokens are
routed to: E (1 - (1 - k/E)^t) of them for t tokens under uniform routing
(MoESD, 2505.19645). Real routing overlaps: 8/22/36/56 distinct experts at
1/4/8/16 tokens with 256 experts and top-8 were measured (Cohere blog), 0.4 of
the uniform growth less, the default here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eagle3_core.cost.hardware import Gpu
from eagle3_core.cost.profile import LatencyProfile
from eagle3_core.evidence import Evidence
from eagle3_core.specs.parameters import dtype_bytes
from eagle3_core.specs.target import TargetSpec

ROUTING_OVERLAP = 0.4


@dataclass(frozen=True)
class TargetTimes:
    """Milliseconds. ``verify_ms`` is for K + 1 tokens a sequence."""

    decode_ms: float
    verify_ms: float
    evidence: Evidence

    @property
    def verify_ratio(self) -> float:
        return self.verify_ms / self.decode_ms


def distinct_experts(experts: int, per_token: int, tokens: float, overlap: float = ROUTING_OVERLAP) -> float:
    """Expected distinct experts for ``tokens`` tokens; ``overlap`` 0 is uniform routing."""
    uniform = experts * (1.0 - (1.0 - per_token / experts) ** tokens)
    return per_token + (1.0 - overlap) * max(uniform - per_token, 0.0)


def weights_read(target: TargetSpec, tokens: float, overlap: float = ROUTING_OVERLAP) -> float:
    """Weights read by one forward over ``tokens`` tokens (all sequences together), in parameters."""
    hidden, layers = target.hidden_size, target.num_layers
    if target.kv_lora_rank:
        # MLA: low-rank q and kv paths, then the output projection.
        heads = target.num_heads * target.head_dim
        q_rank = target.q_lora_rank or hidden
        attention = hidden * q_rank + q_rank * heads * 1.5 + hidden * target.kv_lora_rank
        attention += target.kv_lora_rank * heads * 2 + heads * hidden
    else:
        attention = hidden * target.head_dim * (2 * target.num_heads + 2 * target.num_kv_heads)
    if target.num_experts and target.experts_per_token and target.moe_intermediate_size:
        active = distinct_experts(target.num_experts, target.experts_per_token, tokens, overlap)
        mlp = 3 * hidden * target.moe_intermediate_size * (active + (target.num_shared_experts or 0))
    else:
        mlp = 3 * hidden * target.intermediate_size
    return layers * (attention + mlp) + target.vocab_size * hidden


def target_times(
    source: LatencyProfile | Gpu,
    target: TargetSpec,
    *,
    k: int,
    batch: int = 1,
    dtype: str = "bfloat16",
    target_tp: int = 1,
    context: int = 1024,
    routing_overlap: float = ROUTING_OVERLAP,
) -> TargetTimes:
    """Decode and verify time. A profile's own target points beat the model."""
    if isinstance(source, LatencyProfile):
        measured = _measured(source, k, batch)
        if measured is not None:
            return measured

    def forward(tokens: int) -> float:
        width = dtype_bytes(dtype)
        nbytes = weights_read(target, tokens * batch, routing_overlap) * width / target_tp
        kv_width = target.kv_lora_rank + 64 if target.kv_lora_rank else 2 * target.num_kv_heads * target.head_dim
        nbytes += batch * context * target.num_layers * kv_width * 2 / target_tp
        flops = 2.0 * weights_read(target, 1) * tokens * batch / target_tp
        if isinstance(source, Gpu):
            kernels = 8 * target.num_layers
            collectives = 2 * target.num_layers * source.all_reduce_us / 1e3 if target_tp > 1 else 0.0
            return max(source.stream_ms(nbytes, kernels=kernels), source.compute_ms(flops)) + collectives
        # A CPU's products of several rows are bound by arithmetic long before a GPU's are; without a
        # measured point only the read is known, a lower bound.
        return nbytes / (source.bandwidth_gbps * 1e9) * 1e3

    return TargetTimes(forward(1), forward(k + 1), "modelled")


def _measured(profile: LatencyProfile, k: int, batch: int) -> TargetTimes | None:
    """From the profile's target points: exact where K + 1 was timed, else linear between its neighbours."""
    points = sorted((p.tokens, p.timing.median_ms) for p in profile.target_points if p.batch == batch)
    if not points or points[0][0] != 1:
        return None
    tokens, times = map(np.array, zip(*points, strict=True))
    if k + 1 > tokens.max():
        return None
    evidence: Evidence = "measured" if k + 1 in tokens else "modelled"
    return TargetTimes(float(times[0]), float(np.interp(k + 1, tokens, times)), evidence)
