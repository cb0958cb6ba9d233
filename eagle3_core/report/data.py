"""What a screen or a report shows, as plain data: one function, used by the app and the report alike.

``explorer_payload`` is the part that moves with the slider, as JSON for the
page's script. ``ReportData`` is all of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from eagle3_core.decide.conclude import constraints_of, full_table, option_sizes, ranking_of, rounded
from eagle3_core.decide.recommend import Recommendation, recommend, verdict
from eagle3_core.decide.record import Decision
from eagle3_core.decide.tradeoff import COLUMNS, TradeoffInputs
from eagle3_core.report.charts import THEMES, tradeoff_chart
from eagle3_core.specs.sizes import INHERITED
from eagle3_core.vocab.coverage import DOMAIN_PREFIX, left_out

FIGURES = (
    "draft_vocab", "coverage", "coverage_low", "coverage_high", "coverage_in_sample", "worst_domain", "worst_coverage",
    "lm_head_params", "trainable_params", "total_params", "lm_head_bytes", "training_bytes", "step_ms", "step_low_ms",
    "step_high_ms", "tau", "tau_low", "tau_high", "round_ms", "speedup", "speedup_low", "speedup_high", "tokens_per_s",
    "break_even_alpha", "vs_best", "coverage_evidence", "latency_evidence", "acceptance_evidence", "speedup_evidence",
    "padding", "forced_cost", "unseen_mass",
)
LEFT_OUT_ROWS = 30


@dataclass(frozen=True)
class ReportData:
    """Everything a report shows. Frames keep their documented columns."""

    inputs: TradeoffInputs
    decision: Decision
    table: pl.DataFrame
    recommendation: Recommendation
    verdict: str
    size: int
    left_out: pl.DataFrame | None
    """None where another tokenizer's counts stand in: its tokens are not the target's."""


ROUND_STEP = 8_192
"""A report holds a row at each multiple as well: round sizes are what people type, and it cannot compute more rows."""


def report_data(inputs: TradeoffInputs, decision: Decision) -> ReportData:
    size = decision.choice.draft_vocab
    # Recommended from the same rows as everywhere; the round sizes are only shown.
    grid = full_table(inputs, size)
    recommendation = recommend(grid, tolerance=inputs.tolerance, constraints=constraints_of(inputs))
    vocab = inputs.target.vocab_size
    table = full_table(inputs, size, also=range(ROUND_STEP, vocab, ROUND_STEP))
    missing = None if inputs.stand_in else left_out(inputs.counts, ranking_of(inputs), size, LEFT_OUT_ROWS)
    return ReportData(inputs, decision, table, recommendation, verdict(recommendation, grid), size, missing)


def table_rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    """The table as the page's script reads it."""
    domains = [c for c in table.columns if c.startswith(DOMAIN_PREFIX)]
    return [
        {key: _number(row[key]) for key in FIGURES} | {
            "domains": {name.removeprefix(DOMAIN_PREFIX): _number(row[name]) for name in domains}}
        for row in table.iter_rows(named=True)
    ]


def explorer_payload(
    table: pl.DataFrame, recommendation: Recommendation, sentence: str, size: int, *, inherited: int | None = None,
    stand_in: str | None = None, with_chart: bool = True,
) -> dict[str, Any]:
    """JSON-ready data of the interactive part: rows, baselines, the chart and the explanations.

    The chart takes longer than all the rest; the app sends it after the figures.
    """
    rows = table_rows(table)
    vocab = int(table["draft_vocab"].max())  # type: ignore[arg-type]
    return {
        "size": size,
        "verdict": sentence,
        "rows": rows,
        "vocab": vocab,
        "baseline": INHERITED if vocab > INHERITED else vocab,
        "baselineRow": None,
        "baselineName": "",
        "inherited": inherited,
        "recommended": recommendation.size,
        "range": [recommendation.low_size, recommendation.high_size],
        "best": recommendation.best_size,
        "slower": recommendation.slower_than_none,
        "standIn": stand_in,
        "published": None,
        "chart": chart_spec(table, recommendation, size, inherited) if with_chart else None,
        "themes": {name: dataclasses.asdict(theme) for name, theme in THEMES.items()},
        "explain": {name: column._asdict() for name, column in COLUMNS.items()},
    }


def chart_spec(
    table: pl.DataFrame, recommendation: Recommendation, size: int, inherited: int | None = None
) -> dict[str, Any]:
    """The four pictures as Vega-Lite."""
    chart = tradeoff_chart(table, size=size, recommendation=recommendation, inherited=inherited, layout="row")
    return _rounded(chart.to_dict(validate=False))


def payload_of(
    inputs: TradeoffInputs, size: int, *, with_chart: bool = True, also: Sequence[int] = ()
) -> dict[str, Any]:
    """The payload for inputs and a chosen size; what the app sends to its page. ``also``: sizes that need a row."""
    table = full_table(inputs, size, also=also)
    recommendation = recommend(table, tolerance=inputs.tolerance, constraints=constraints_of(inputs))
    return explorer_payload(
        table, recommendation, verdict(recommendation, table), size, inherited=inputs.locked_size,
        stand_in=inputs.counts.meta.tokenizer if inputs.stand_in else None, with_chart=with_chart,
    )


def options_of(inputs: TradeoffInputs, size: int, recommended: int) -> tuple[int, ...]:
    return option_sizes(inputs, size, recommended)


def _number(value: Any) -> Any:
    """Six significant digits; NaN and infinity become null."""
    return rounded(value, 6)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    # A picture needs no more.
    return rounded(value, 5)
