"""Two decisions beside each other: what changed, the figures of both choices, both curves.

Either side is a ``decision.json`` or a report, which carries its decision whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from eagle3_core.decide.record import Decision, markdown_cell, parse_decision, read_decision
from eagle3_core.decide.restore import changes
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import read_bytes
from eagle3_core.report import text
from eagle3_core.report.charts import ACCENT, THEMES, TICK_LABEL, axis_ticks

PACKED = re.compile(r'<script type="text/plain" id="decision">([A-Za-z0-9+/=]*)</script>')
_LIMIT = 64 << 20
ROWS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("coverage, held out", lambda r: text.percent(r["coverage"])),
    ("worst domain", lambda r: f"{r['worst_domain']} {text.percent(r['worst_coverage'])}"),
    ("lm_head", lambda r: text.count(r["lm_head_params"])),
    ("draft step", lambda r: text.milliseconds(r["step_ms"])),
    ("tau", lambda r: f"{r['tau']:.2f}"),
    ("projected speedup", lambda r: f"{r['speedup']:.2f}x, {r['speedup_low']:.2f} to {r['speedup_high']:.2f}"),
    ("behind the best", lambda r: f"{-r['vs_best']:.1%}"),
)


@dataclass(frozen=True)
class Comparison:
    """``columns``: heading and the figures of ``ROWS``, one for each choice and each size both tables have."""

    names: tuple[str, str]
    old: Decision
    new: Decision
    changes: tuple[str, ...]
    columns: tuple[tuple[str, tuple[str, ...]], ...]


def read_either(path: str | Path) -> Decision:
    """The decision of a ``decision.json`` or inside a report. Raises Eagle3Error when there is none."""
    from eagle3_core.report.html import unpacked

    if Path(path).suffix.lower() not in (".html", ".htm"):
        return read_decision(path)
    page = read_bytes(path, limit=_LIMIT).decode("utf-8", errors="replace")
    found = PACKED.search(page)
    if found is None:
        raise Eagle3Error("holds no decision", where=path, expected="a report made by eagle3 report")
    try:
        value = json.loads(unpacked(found[1], _LIMIT))
    except ValueError as error:
        raise Eagle3Error("its decision is damaged", where=path, found=error) from None
    return parse_decision(value, path)


def compare(old: Decision, new: Decision, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """What differs, and the figures: A's choice, A's table at B's choice, and the other way round."""
    columns = []
    for decision, name in ((old, "A"), (new, "B")):
        sizes = dict.fromkeys((old.choice.draft_vocab, new.choice.draft_vocab))
        for size in sizes:
            row = next((r for r in decision.table if r.get("draft_vocab") == size), None)
            if row is not None and all(isinstance(row.get(key), int | float) for key in _NEEDED):
                mark = ", chosen" if size == decision.choice.draft_vocab else ""
                columns.append((f"{name}: {size:,}{mark}", tuple(make(row) for _, make in ROWS)))
    return Comparison(names, old, new, changes(old, new), tuple(columns))


_NEEDED = ("coverage", "worst_coverage", "lm_head_params", "step_ms", "tau", "speedup", "speedup_low", "speedup_high",
           "vs_best")


def comparison_chart(comparison: Comparison) -> dict[str, Any]:
    """Coverage and speedup of both over one log axis, as Vega-Lite."""
    both = (("A", comparison.old), ("B", comparison.new))
    charts = []
    for key, title, factor in (("coverage", "Coverage, held out, %", 100), ("speedup", "Projected speedup", 1)):
        rows = [{"which": which, "d": r["draft_vocab"], "y": r[key] * factor} for which, d in both for r in d.table]
        chosen = [{"which": which, "d": d.choice.draft_vocab, "y": d.row(d.choice.draft_vocab)[key] * factor}
                  for which, d in both]
        x = alt.X("d:Q", title=None, scale=alt.Scale(type="log", nice=False), axis=alt.Axis(
            grid=False, values=axis_ticks(min(r["d"] for r in rows), max(r["d"] for r in rows)), labelExpr=TICK_LABEL,
            labelFlush=True, labelOverlap=False))
        y = alt.Y("y:Q", title=None, scale=alt.Scale(zero=False))
        color = alt.Color("which:N", title=None, scale=alt.Scale(domain=["A", "B"], range=["#0072B2", ACCENT]),
                          legend=alt.Legend(orient="top-left"))
        line = alt.Chart(alt.InlineData(values=rows)).mark_line(strokeWidth=2.5).encode(x, y, color)
        dots = alt.Chart(alt.InlineData(values=chosen)).mark_point(size=90, filled=True, opacity=1).encode(x, y, color)
        charts.append(alt.layer(line, dots).properties(width=400, height=190, title=alt.TitleParams(
            title, anchor="start", fontSize=13)))
    theme = THEMES["light"]
    chart = alt.concat(*charts, columns=2, spacing=24).configure(
        background="transparent", font="system-ui, -apple-system, Segoe UI, Roboto, sans-serif",
    ).configure_view(stroke=None).configure_axis(
        labelColor=theme.faint, domainColor=theme.rule, tickColor=theme.rule, gridColor=theme.rule,
    ).configure_title(color=theme.text).configure_legend(labelColor=theme.faint)
    return chart.to_dict()


def comparison_markdown(c: Comparison) -> str:
    """For a pull request."""
    lines = [f"# {markdown_cell(c.names[0])} and {markdown_cell(c.names[1])}", "",
             f"- A, {markdown_cell(c.names[0])}: {markdown_cell(c.old.choice.verdict)}",
             f"- B, {markdown_cell(c.names[1])}: {markdown_cell(c.new.choice.verdict)}", "",
             "| | " + " | ".join(markdown_cell(name) for name, _ in c.columns) + " |",
             "|---|" + "---:|" * len(c.columns)]
    lines += [f"| {name} | " + " | ".join(markdown_cell(cells[i]) for _, cells in c.columns) + " |"
              for i, (name, _) in enumerate(ROWS)]
    lines += ["", "## What changed from A to B", ""]
    lines += [f"- {markdown_cell(change)}" for change in c.changes] or ["- nothing"]
    return "\n".join(lines) + "\n"


def comparison_html(c: Comparison) -> str:
    """One page without scripts, under the same policy as the report."""
    from eagle3_core.report.html import environment, svg_of, web_file

    return environment().get_template("compare.html.j2").render(
        c=c, rows=[name for name, _ in ROWS], svg=svg_of(comparison_chart(c)), css=web_file("explorer.css"),
        page_css=web_file("report.css"))


def comparison_json(c: Comparison) -> dict[str, Any]:
    """For scripts."""
    return {
        "a": {"name": c.names[0], "draft_vocab": c.old.choice.draft_vocab, "verdict": c.old.choice.verdict},
        "b": {"name": c.names[1], "draft_vocab": c.new.choice.draft_vocab, "verdict": c.new.choice.verdict},
        "changes": list(c.changes),
    }
