"""One weight matrix as torch can multiply by it: plain, int8 weight-only, or fp8.

    float32, bfloat16, float16   F.linear
    int8                         int8 rows with one scale each (torch._weight_int8pack_mm); activations stay float
    fp8                          e4m3 on both sides, one scale each (torch._scaled_mm); the activation's
                                 quantisation is part of the call, as in serving

Values are random: only shapes and bytes matter to time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import reason

if TYPE_CHECKING:
    import torch

PLAIN = ("float32", "bfloat16", "float16")
KINDS = (*PLAIN, "int8", "fp8")
FP8_ROWS = 16
"""torch._scaled_mm takes sides in multiples of 16; fewer activations are padded, as serving kernels do."""


@dataclass(frozen=True)
class Weight:
    """[rows, columns], and scales [rows] where it is int8."""

    values: torch.Tensor
    scales: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.values.shape[0]

    def cut(self, start: int, stop: int) -> Weight:
        """Those rows, without a copy."""
        return Weight(self.values[start:stop], None if self.scales is None else self.scales[start:stop])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, columns] -> [batch, rows]."""
        import torch
        import torch.nn.functional as F

        if self.scales is not None:
            return torch.ops.aten._weight_int8pack_mm(x, self.values, self.scales)
        if self.values.dtype != torch.float8_e4m3fn:
            return F.linear(x, self.values)
        batch = len(x)
        scale = x.abs().amax().float().clamp_min(1e-6) / 448.0
        low = F.pad(x / scale, (0, 0, 0, -batch % FP8_ROWS)).to(torch.float8_e4m3fn)
        one = torch.ones((), dtype=torch.float32, device=x.device)
        return torch.ops.aten._scaled_mm(low, self.values.t(), scale, one, out_dtype=x.dtype)[:batch]


def activations(kind: str, device: torch.device) -> torch.dtype:
    """What flows between weights of this kind: bfloat16 on an accelerator and float32 on a CPU, unless kind says."""
    import torch

    if kind in PLAIN:
        return getattr(torch, kind)
    return torch.float32 if device.type == "cpu" and kind == "int8" else torch.bfloat16


def item_bytes(kind: str) -> int:
    return {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}[kind]


def make_weight(rows: int, columns: int, kind: str, device: torch.device) -> Weight:
    import torch

    if kind in PLAIN:
        return Weight(torch.empty(rows, columns, dtype=getattr(torch, kind), device=device).uniform_(-0.02, 0.02))
    if kind == "int8":
        values = torch.randint(-127, 128, (rows, columns), dtype=torch.int8, device=device)
        return Weight(values, torch.full((rows,), 1e-4, dtype=activations(kind, device), device=device))
    values = torch.empty(rows, columns, dtype=torch.bfloat16, device=device).uniform_(-0.02, 0.02)
    return Weight(values.to(torch.float8_e4m3fn))


def check_kernels(kind: str, device: torch.device) -> None:
    """Raises Eagle3Error where this torch has no kernel for ``kind`` on this device."""
    import torch

    if kind not in KINDS:
        raise Eagle3Error("--dtype cannot be measured here", found=repr(kind), expected=", ".join(KINDS))
    x = torch.ones(1, 64, dtype=activations(kind, device), device=device)
    try:
        make_weight(64, 64, kind, device)(x)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        raise Eagle3Error(f"torch {torch.__version__} has no {kind} kernel for this device",
                          found=f"{device.type}: {reason(error)[:80]}",
                          fix="measure another dtype, or model it: pass --latency a device") from None
