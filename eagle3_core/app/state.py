"""The state of the main app as one frozen value, and as a URL query.

A link restores everything. Junk in a query gives the default and a notice,
never a broken page: each field is parsed alone, against what it may be.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlencode

from eagle3_core.cost.roofline import ENGINES
from eagle3_core.specs.parameters import DTYPE_BYTES

RANKINGS = ("pooled", "balanced", "worst", "robust")


@dataclass(frozen=True)
class AppState:
    """Names refer to the catalogue (``sources.py``); ``size`` None is the recommendation."""

    target: str = "qwen3-8b"
    counts: str = "qwen3"
    latency: str = "h200"
    acceptance: str = ""
    """Name of an acceptance file, or empty for ``alpha``."""
    alpha: float = 0.8
    k: int = 5
    draft_tp: int = 1
    target_tp: int = 1
    batch: int = 1
    dtype: str = "bfloat16"
    engine: str = "sglang"
    ranking: str = "pooled"
    decode_tps: float | None = None
    """The target's own tokens/s, where known."""
    locked: int | None = None
    """D of the checkpoint that fine-tuning starts from."""
    baseline: str = ""
    """What is inherited: a D in digits, or the name of a mapping (``sources.add_mapping``)."""
    vs: int | None = None
    """The size that is compared with; None is the baseline."""
    decision: str = ""
    """Name of an opened decision."""
    d: int | None = None
    """The chosen size."""

    def without_size(self) -> AppState:
        """What is computed anew when it changes: all but the sizes that move in the page."""
        return dataclasses.replace(self, d=None, vs=None)


EXAMPLES: dict[str, AppState] = {
    "Qwen3-8B": AppState(),
    "Kimi-K2.5": AppState(target="kimi-k2.5", draft_tp=8, target_tp=8, decode_tps=90.0),
    "Kimi-K2.5 at 15 %": AppState(target="kimi-k2.5", draft_tp=8, target_tp=8, decode_tps=90.0, alpha=0.15),
    "SmolLM2-135M": AppState(target="smollm2-135m", counts="smollm2", latency="smollm2-135m.cpu", dtype="float32", k=3,
                             alpha=0.6),
}
"""One click away. Counts and profiles are the bundled samples."""
HINTS = {
    "Qwen3-8B": "Real token counts, modelled H200",
    "Kimi-K2.5": "Draft TP 8 on a modelled H200, 90 tokens/s alone; another tokenizer's counts stand in",
    "Kimi-K2.5 at 15 %": "The same with 15 % of drafts accepted: slower than no drafter",
    "SmolLM2-135M": "Counts and latency measured on a CPU",
}


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return parse


def _real(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError
        return value

    return parse


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError
        return text

    return parse


def _name(text: str) -> str:
    if len(text) > 120 or not text.isprintable():
        raise ValueError
    return text


PARSERS: dict[str, Callable[[str], Any]] = {
    "target": _name, "counts": _name, "latency": _name, "acceptance": _name, "alpha": _real(0, 1), "k": _whole(1, 16),
    "draft_tp": _whole(1, 64), "target_tp": _whole(1, 64), "batch": _whole(1, 1024), "dtype": _one_of(*DTYPE_BYTES),
    "engine": _one_of(*ENGINES), "ranking": _one_of(*RANKINGS), "decode_tps": _real(0.01, 1e6),
    "locked": _whole(1, 1 << 24), "baseline": _name, "vs": _whole(1, 1 << 24), "decision": _name,
    "d": _whole(1, 1 << 24),
}


def parse_query(query: Mapping[str, str]) -> tuple[AppState, tuple[str, ...]]:
    """State and notices. Unknown keys are ignored: other tools add their own to links."""
    values: dict[str, Any] = {}
    notices = []
    for key, parse in PARSERS.items():
        text = query.get(key)
        if text is None:
            continue
        if isinstance(text, (list, tuple)):
            text = text[0] if text else ""
        try:
            values[key] = parse(str(text))
        except (ValueError, OverflowError):
            notices.append(f"the link's {key} is not usable; the default is shown")
    return AppState(**values), tuple(notices)


def to_query(state: AppState) -> str:
    """The shortest query that restores the state: defaults are left out."""
    default = AppState()
    pairs = []
    for field in fields(AppState):
        value = getattr(state, field.name)
        if value is not None and value != getattr(default, field.name):
            pairs.append((field.name, f"{value:.15g}" if isinstance(value, float) else str(value)))
    return urlencode(pairs)
