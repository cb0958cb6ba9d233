"""Rotary position embedding frequencies: default, linear, dynamic, llama3 and yarn, from any spelling of a config.

With b the base, d the rotated width and i = 0..d/2-1:

    default   w_i = b^(-2i/d)                                                    RoPE, Su et al. 2104.09864
    linear    w_i / factor                                                       Chen et al. 2306.15595
    dynamic   b' = b (factor L / L0 - (factor - 1))^(d / (d-2)) past L0          NTK-aware, as in transformers
    llama3    long waves divided by factor, short ones kept, a ramp between      Llama 3.1 release
    yarn      the same by rotations over L0, cos and sin times 0.1 ln(factor)+1  Peng et al. 2309.00071

Configs spell it three ways: ``rope_theta`` beside ``rope_scaling``,
``rope_parameters`` with both inside, and the older key ``type``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle3_core.errors import Eagle3Error

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class Rope:
    """One spelling of every config. ``original`` is L0, the length the scaling starts from."""

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original: int = 2048
    partial: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


def rope_of(config: Mapping[str, Any], max_position: int, *, where: object = None) -> Rope:
    """Read any spelling. Raises Eagle3Error for a kind that is not one of KINDS."""
    parameters = config.get("rope_parameters")
    scaling = config.get("rope_scaling")
    merged: dict[str, Any] = {}
    for part in (scaling, parameters):
        if isinstance(part, Mapping):
            merged |= part
    kind = str(merged.get("rope_type", merged.get("type", "default")) or "default")
    if kind not in KINDS:
        raise Eagle3Error("rope type", where=where, found=repr(kind), expected=", ".join(KINDS))

    def number(key: str, default: float) -> float:
        value = merged.get(key)
        return float(default if value is None else value)

    def optional(key: str) -> float | None:
        return None if merged.get(key) is None else float(merged[key])

    theta = merged.get("rope_theta", config.get("rope_theta"))
    original = merged.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    factor = merged.get("factor")
    if factor is None:
        factor = max_position / original if kind == "yarn" and original else 1.0
    partial = merged.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    return Rope(
        kind=kind, theta=float(10000.0 if theta is None else theta), factor=float(factor),
        original=int(original or max_position), partial=float(1.0 if partial is None else partial),
        low_freq_factor=number("low_freq_factor", 1.0), high_freq_factor=number("high_freq_factor", 4.0),
        beta_fast=number("beta_fast", 32.0), beta_slow=number("beta_slow", 1.0),
        attention_factor=optional("attention_factor"), mscale=optional("mscale"),
        mscale_all_dim=optional("mscale_all_dim"), truncate=bool(merged.get("truncate", True)),
    )


def frequencies(rope: Rope, head_dim: int, length: int) -> tuple[Tensor, float]:
    """Angular steps a position, fp32 [rotated / 2], and the factor on cos and sin. ``length``: positions in use."""
    import torch

    dim = int(head_dim * rope.partial)
    even = torch.arange(0, dim, 2, dtype=torch.float32)
    theta = rope.theta
    if rope.kind == "dynamic":
        used = max(length, rope.original)
        theta *= (rope.factor * used / rope.original - (rope.factor - 1)) ** (dim / (dim - 2))
    steps = 1.0 / theta ** (even / dim)
    if rope.kind == "linear":
        return steps / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(steps, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(steps, rope, dim), _yarn_attention(rope)
    return steps, 1.0


def _llama3(steps: Tensor, rope: Rope) -> Tensor:
    import torch

    wavelength = 2 * math.pi / steps
    longest, shortest = rope.original / rope.low_freq_factor, rope.original / rope.high_freq_factor
    blend = (rope.original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    between = (1 - blend) * steps / rope.factor + blend * steps
    scaled = torch.where(wavelength > longest, steps / rope.factor, steps)
    return torch.where((wavelength <= longest) & (wavelength >= shortest), between, scaled)


def _yarn(steps: Tensor, rope: Rope, dim: int) -> Tensor:
    import torch

    def dimension_of(rotations: float) -> float:
        """The dimension that turns ``rotations`` times over the original length."""
        return dim * math.log(rope.original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return steps / rope.factor * ramp + steps * (1 - ramp)


def _yarn_attention(rope: Rope) -> float:
    def scale(factor: float, mscale: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.factor, rope.mscale) / scale(rope.factor, rope.mscale_all_dim)
    return scale(rope.factor)
