"""Figures as people read them: two or three significant digits, units, changes against a stated baseline.

The page's script (``web/explorer.js``) has the same functions; a test holds the
two to each other in a browser.
"""

from __future__ import annotations

from typing import Any


def percent(share: float) -> str:
    """``94.8 %``; near the ends a second decimal, since 99.9 and 100 are different claims."""
    value = share * 100
    return f"{value:.2f} %" if 99 <= value < 99.995 else f"{value:.1f} %"


def count(value: float) -> str:
    """``131.1M``, ``1.17B``."""
    if value >= 1e9:
        return f"{value / 1e9:.2f}B"
    return f"{value / 1e6:.1f}M"


def gigabytes(value: float) -> str:
    """Bytes in MB or GB (1e6, 1e9)."""
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 99.95 else f"{value:.0f} ms"


def times(value: float, low: float, high: float) -> str:
    """``2.8x``; a second decimal where the band is narrower than a tenth."""
    return f"{value:.{1 if high - low >= 0.1 else 2}f}x"


def change(value: float, baseline: float) -> str:
    """``-21 %`` of ``value`` against ``baseline``; ``same`` below half a per mille."""
    share = value / baseline - 1
    if abs(share) < 0.0005:
        return "same"
    return f"{share * 100:+.1f} %" if abs(share) < 0.1 else f"{share * 100:+.0f} %"


def points(value: float, baseline: float) -> str:
    """Difference of two shares in percentage points."""
    difference = (value - baseline) * 100
    return "same" if abs(difference) < 0.005 else f"{difference:+.1f} points" if abs(difference) >= 0.1 \
        else f"{difference:+.2f} points"


def against(difference: str, name: str) -> str:
    """``+1.5 points against 32,000``, or ``the same as 32,000``."""
    return f"the same as {name}" if difference == "same" else f"{difference} against {name}"


def cards(row: dict[str, Any], baseline: dict[str, Any], best_speedup: float) -> list[dict[str, str]]:
    """The four figures: name, value, detail, comparison, evidence and the column that explains each."""
    name = baseline["name"]
    band = f"{row['speedup_low']:.{_digits(row)}f} to {row['speedup_high']:.{_digits(row)}f}"
    behind = 1 - row["speedup"] / best_speedup
    return [
        {"key": "coverage", "name": "Coverage, held out", "value": percent(row["coverage"]),
         "detail": f"worst: {row['worst_domain']} {percent(row['worst_coverage'])}",
         "against": against(points(row["coverage"], baseline["coverage"]), name),
         "evidence": row["coverage_evidence"]},
        {"key": "lm_head_params", "name": "lm_head", "value": count(row["lm_head_params"]),
         "detail": f"{gigabytes(row['lm_head_bytes'])}; trainable {count(row['trainable_params'])}",
         "against": against(change(row["lm_head_params"], baseline["lm_head_params"]), name),
         "evidence": "derived"},
        {"key": "step_ms", "name": "Draft step", "value": milliseconds(row["step_ms"]),
         "detail": f"{milliseconds(row['step_low_ms'])} to {milliseconds(row['step_high_ms'])}",
         "against": against(change(row["step_ms"], baseline["step_ms"]), name),
         "evidence": row["latency_evidence"]},
        {"key": "speedup", "name": "Projected speedup",
         "value": times(row["speedup"], row["speedup_low"], row["speedup_high"]),
         "detail": f"{band}; tau {row['tau']:.2f}",
         "against": "the best" if behind < 0.0005 else f"{behind * 100:.1f} % behind the best",
         "evidence": row["speedup_evidence"]},
    ]


def _digits(row: dict[str, Any]) -> int:
    return 1 if row["speedup_high"] - row["speedup_low"] >= 0.1 else 2
