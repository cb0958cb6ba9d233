"""LatencyProfile: draft-step times measured on one device, as a file (``*.latency.json``).

Times are milliseconds, bandwidths GB/s (1e9 bytes). A profile is made where the
device is and opened anywhere; it refuses to be used for a drafter of other
dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import canonical_json, read_json, write_text
from eagle3_core.specs.drafter import DrafterSpec

FORMAT_VERSION = 1
Component = Literal[
    "fc", "layer", "norm", "lm_head", "lm_head_cached", "argmax", "topk", "softmax", "map", "step"
]
"""``lm_head_cached`` repeats one head that fits the last-level cache; ``lm_head`` always reads it from memory."""
Mode = Literal["eager", "cuda_graph"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Timing(_Record):
    """Repeated timings of one call, milliseconds."""

    median_ms: float = Field(gt=0)
    q05_ms: float = Field(gt=0)
    q95_ms: float = Field(gt=0)
    repeats: int = Field(ge=1)
    outliers: int = 0
    """Repeats beyond 3 interquartile ranges of the median; they stay in the quantiles."""


class LatencyPoint(_Record):
    """One component at one size and batch. ``draft_vocab`` is None where D does not matter."""

    component: Component
    draft_vocab: int | None = None
    batch: int = Field(ge=1)
    mode: Mode = "eager"
    timing: Timing
    bytes: int = Field(ge=0)
    """Bytes the call must move at least (weights, cache, logits)."""
    bandwidth_share: float | None = None
    """Achieved share of the device's measured bandwidth."""
    note: str = ""
    """Why a share is low (launch-bound, compute-bound) or above 1 (fits the cache)."""


class TargetPoint(_Record):
    """The target's own forward on ``tokens`` new tokens (1 = plain decode step)."""

    tokens: int = Field(ge=1)
    batch: int = Field(ge=1)
    timing: Timing


class Device(_Record):
    name: str
    kind: Literal["cpu", "cuda", "mps"]
    threads: int | None = None
    memory_bytes: int | None = None
    cache_bytes: int | None = None
    """Last-level cache (L3 on a CPU, L2 on a GPU)."""
    clock_mhz: float | None = None
    software: str = ""


class DrafterDims(_Record):
    """The dimensions a profile is valid for."""

    hidden_size: int
    target_hidden_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int


class LatencyProfile(_Record):
    format_version: int = FORMAT_VERSION
    tool_version: str
    created: str
    target: str
    drafter: DrafterDims
    device: Device
    dtype: str
    draft_tp: int = 1
    context: int
    bandwidth_gbps: float = Field(gt=0)
    """Measured in the same run: the best read rate of a buffer far larger than the cache."""
    points: tuple[LatencyPoint, ...]
    target_points: tuple[TargetPoint, ...] = ()
    disturbed: bool = False
    """Other work was seen on the device while measuring."""
    skipped: tuple[str, ...] = ()
    """Sizes or batches left out, each with the reason."""
    notes: tuple[str, ...] = ()


def dims_of(spec: DrafterSpec) -> DrafterDims:
    return DrafterDims(**{name: getattr(spec, name) for name in DrafterDims.model_fields})


def read_profile(path: str | Path) -> LatencyProfile:
    """Raises Eagle3Error naming the file and the first bad field."""
    value = read_json(path)
    try:
        profile = LatencyProfile.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise Eagle3Error(f"field {'.'.join(map(str, first['loc'])) or '(root)'}", where=path, found=first["msg"],
                          expected="a *.latency.json made by eagle3 measure latency") from None
    if profile.format_version > FORMAT_VERSION:
        raise Eagle3Error("was made by a newer version", where=path, found=f"format {profile.format_version}",
                          expected=f"at most {FORMAT_VERSION}")
    return profile


def write_profile(profile: LatencyProfile, path: str | Path) -> None:
    write_text(path, canonical_json(profile.model_dump(mode="json")))
