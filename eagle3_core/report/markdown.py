"""The report for a pull request: markdown, and the four pictures as one SVG beside it."""

from __future__ import annotations

import re
from typing import Any

from eagle3_core.decide.record import decision_markdown, markdown_cell
from eagle3_core.report import text
from eagle3_core.report.again import commands
from eagle3_core.report.data import ReportData, chart_spec

LEFT_OUT = 20


def picture(chart: dict[str, Any]) -> str:
    """The charts as an SVG that stands by itself: its own colours, on white."""
    from eagle3_core.report.html import chart_svg

    svg = re.sub(r"var\(--\w+,(#[0-9a-f]+)\)", r"\1", chart_svg(chart))
    return re.sub(r"(<svg [^>]*>)", r'\1<rect width="100%" height="100%" fill="#fff"/>', svg, count=1)


def render_markdown(data: ReportData, picture_name: str) -> str:
    """DECISION.md with the charts, coverage by domain, left-out tokens, sensitivity and commands."""
    d, row = data.decision, data.decision.row(data.size)
    domains = data.inputs.counts.domains
    head, _, rest = decision_markdown(d).partition("\n## Options\n")
    lines = [head.rstrip(), "", f"![Coverage, parameters, draft step and speedup over D]({picture_name})", "",
             "## Options\n" + rest.rstrip(), "", "## Coverage by domain, held out", "",
             f"| domain | D = {data.size:,} |", "|---|---:|"]
    lines += [f"| {markdown_cell(name)} | {text.percent(row['coverage:' + name])} |" for name in domains]
    lines += [f"| all tokens | {text.percent(row['coverage'])} ({text.percent(row['coverage_low'])} to "
              f"{text.percent(row['coverage_high'])} over folds) |"]
    lines += ["", "## Left-out tokens that matter", ""]
    if data.left_out is None:
        lines.append("None can be listed: the counts are another tokenizer's.")
    else:
        lines += ["| rank | token | id | count | share |", "|---:|---|---:|---:|---:|"]
        lines += [f"| {t['rank']:,} | {markdown_cell(t['text'])} | {t['token_id']} | {t['count']:,} "
                  f"| {t['share']:.4%} |" for t in data.left_out.head(LEFT_OUT).to_dicts()]
    lines += ["", "## Does the recommendation move?", "",
              f"| changed | recommended | equivalent | speedup | cost of {data.size:,} |", "|---|---:|---:|---:|---:|"]
    lines += [_moved(s) for s in d.sensitivity]
    lines += ["", "## Make it again", "", "```", *commands(data.inputs, d), "```"]
    return "\n".join(lines) + "\n"


def _moved(s: dict[str, Any]) -> str:
    name = markdown_cell(f"{s['factor']} {s['value']}".strip())
    return (f"| {name} | {s['recommended']:,} | {s['low']:,} to {s['high']:,} | {s['speedup']:.2f}x "
            f"| {s['cost_of_size']:.1%} |")


def markdown_files(data: ReportData, stem: str) -> dict[str, str]:
    """File name -> text: ``stem``.md and ``stem``.svg."""
    safe = re.sub(r"[^\w.-]", "-", stem)
    chart = chart_spec(data.table, data.recommendation, data.size, data.inputs.locked_size)
    return {f"{stem}.md": render_markdown(data, f"{safe}.svg"), f"{safe}.svg": picture(chart)}
