"""The report: one HTML file that opens from ``file://`` with no network, complete without its script.

The pictures are SVG made from the app's own charts; the script replaces them by
live ones once Vega has started. Vega and the decision are packed (zlib, base64):
1.2 MB become half, text is on screen before they are looked at, and the decision
comes back byte for byte. A strict content security policy with hashes lets exactly
these scripts run, the unpacked Vega among them. Text comes from token tables and
file names and is hostile: Jinja escapes it, JSON is escaped for script blocks, and
the script writes text only.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import jinja2

from eagle3_core.decide.conclude import option_sizes
from eagle3_core.decide.record import decision_json
from eagle3_core.decide.tradeoff import COLUMNS
from eagle3_core.report import text
from eagle3_core.report.again import commands
from eagle3_core.report.charts import THEMES
from eagle3_core.report.data import ReportData, explorer_payload

GLOSSARY = {
    "measured": "Measured: seen on a machine or counted in data.",
    "derived": "Derived: arithmetic on dimensions.",
    "published": "Published: from a paper, model card or tracker.",
    "modelled": "Modelled: a formula with fitted constants.",
    "inherited": "Inherited: taken over and not re-examined.",
    "assumed": "Assumed: chosen without evidence.",
}
WORDS = {
    "coverage": "Share of held-out tokens inside the draft vocabulary: ranked on nine parts of the documents, measured "
                "on the tenth.",
    "worst": "The domain whose tokens are covered least.",
    "lm_head": "Parameters of the draft head: D rows of the hidden size.",
    "bytes": "Bytes of the head, read from memory once a draft step.",
    "trainable": "Parameters a trainer updates: layer, projections, norms and head.",
    "training": "Weights, masters, gradients and optimizer moments; activations left out.",
    "step": "Median time of one draft step: layer, head, sampling, collectives, launches.",
    "tau": "Acceptance length: tokens a round of drafting and verifying yields, bonus token included.",
    "speedup": "Tokens a second against the target decoding alone, with its uncertainty.",
    "even": "The acceptance probability, equal at every position, at which drafting neither gains nor loses.",
}
"""Option row -> what the word means, for readers who hover or ask."""
OPTION_ROWS: tuple[tuple[str, str], ...] = (
    ("coverage", "coverage, held out"), ("worst", "worst domain"), ("lm_head", "lm_head"), ("bytes", "lm_head bytes"),
    ("trainable", "trainable"), ("training", "training memory"), ("step", "draft step"), ("tau", "tau"),
    ("speedup", "projected speedup"), ("even", "break-even alpha"),
)


@functools.cache
def web_file(name: str) -> str:
    return resources.files("eagle3_core.report").joinpath("web", name).read_text(encoding="utf-8")


@functools.cache
def vega_bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one script that sets ``globalThis.vegaEmbed``."""
    import vl_convert

    code = vl_convert.javascript_bundle("globalThis.vegaEmbed = vegaEmbed;")
    # It declares hundreds of short constants at its top level: a function keeps them its own.
    return "(function(){" + code + "\n})();"


@functools.cache
def environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(web_file), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=False, lstrip_blocks=False,
    )
    environment.globals["glossary"] = GLOSSARY
    return environment


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    out = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return out.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def packed(value: str) -> str:
    """Text as base64 of its zlib stream, which browsers unpack by themselves."""
    return base64.b64encode(zlib.compress(value.encode(), 9)).decode()


@functools.cache
def _packed_vega() -> str:
    return packed(vega_bundle())


def unpacked(value: str, limit: int) -> str:
    """The text that ``packed`` was given. Raises ValueError when it is damaged or longer than ``limit`` bytes."""
    worker = zlib.decompressobj()
    try:
        data = worker.decompress(base64.b64decode(value, validate=True), limit)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not worker.eof:
        raise ValueError("cut short or too long")
    return data.decode()


def chart_svg(chart: dict[str, Any], *, columns: int = 2) -> str:
    """The chart as an SVG whose theme colours are CSS variables, so that one picture serves light and dark."""
    spec = json.loads(json.dumps(chart))
    spec["columns"] = columns
    for part in spec["concat"]:
        part["width"], part["height"] = 400 if columns == 2 else 255, 165
        # The layer that catches clicks is invisible and its nearest-point cells are most of the file.
        part["layer"] = part["layer"][:-1]
    spec["params"] = [param for param in spec["params"] if param["name"] == "size"]
    return svg_of(spec)


def svg_of(spec: dict[str, Any]) -> str:
    """A Vega-Lite picture as SVG: short numbers, the same bytes each time, theme colours as CSS variables."""
    import vl_convert

    svg = vl_convert.vegalite_to_svg(spec)
    # Hundredths of a pixel are enough; longer numbers double the file.
    svg = re.sub(r"(\d+\.\d\d)\d+", r"\1", svg)
    # Vega numbers its clip paths through the life of a process; the same chart must give the same bytes.
    numbers: dict[str, str] = {}
    svg = re.sub(r"\b(clip|gradient_)(\d+)\b",
                 lambda m: m[1] + numbers.setdefault(m[1] + m[2], str(len(numbers) + 1)), svg)
    names = {"text": "--ink", "faint": "--faint", "rule": "--line", "band": "--band"}
    for key, variable in names.items():
        colour = getattr(THEMES["light"], key)
        svg = svg.replace(f'"{colour}"', f'"var({variable},{colour})"')
    return svg


def _option_value(key: str, row: dict[str, Any]) -> str:
    digits = 1 if row["speedup_high"] - row["speedup_low"] >= 0.1 else 2
    even = row["break_even_alpha"]
    return {
        "coverage": lambda: text.percent(row["coverage"]),
        "worst": lambda: f"{row['worst_domain']} {text.percent(row['worst_coverage'])}",
        "lm_head": lambda: text.count(row["lm_head_params"]),
        "bytes": lambda: text.gigabytes(row["lm_head_bytes"]),
        "trainable": lambda: text.count(row["trainable_params"]),
        "training": lambda: text.gigabytes(row["training_bytes"]),
        "step": lambda: text.milliseconds(row["step_ms"]),
        "tau": lambda: f"{row['tau']:.2f}",
        "speedup": lambda: f"{row['speedup']:.{digits}f}x, {row['speedup_low']:.{digits}f} to "
                           f"{row['speedup_high']:.{digits}f}",
        "even": lambda: "none" if even is None or even != even else f"{even:.2f}",
    }[key]()


_CHANGES: dict[str, tuple[str, Callable[[float, float], str]]] = {
    "coverage": ("coverage", text.points), "worst": ("worst_coverage", text.points),
    "lm_head": ("lm_head_params", text.change), "bytes": ("lm_head_bytes", text.change),
    "trainable": ("trainable_params", text.change), "training": ("training_bytes", text.change),
    "step": ("step_ms", text.change), "tau": ("tau", text.change), "speedup": ("speedup", text.change),
}
"""Option row -> column and how its difference is written."""


def _difference(key: str, row: dict[str, Any], other: dict[str, Any] | None) -> str:
    if other is None or key not in _CHANGES or row["draft_vocab"] == other["draft_vocab"]:
        return ""
    column, write = _CHANGES[key]
    return write(row[column], other[column])


def _options(payload: dict[str, Any], sizes: Sequence[int], compare: int | None = None) -> list[dict[str, Any]]:
    names = {payload["vocab"]: "full", payload["recommended"]: "recommended"}
    if payload["inherited"]:
        names.setdefault(payload["inherited"], "inherited")
    elif payload["vocab"] > 32_000:
        names.setdefault(32_000, "inherited")
    if compare is not None:
        names.setdefault(compare, "compared")
    out = [{"key": "chosen", "name": "chosen", "size": payload["size"]}]
    out += [{"key": str(size), "name": names.get(size, "option"), "size": size}
            for size in sizes if size != payload["size"] or size in names]
    return out


def baseline_name(payload: dict[str, Any]) -> str:
    size = payload["baseline"]
    if size == payload["vocab"]:
        return "full"
    return f"{payload['baselineName']} {size:,}" if payload["baselineName"] else f"{size:,}"


def explorer_context(
    payload: dict[str, Any], svg: str, sizes: Sequence[int], compare: int | None = None
) -> dict[str, Any]:
    """What the explorer's template needs besides the payload. ``compare``: a size to write differences against."""
    by_size = {row["draft_vocab"]: row for row in payload["rows"]}
    base = dict(payload["baselineRow"] or by_size[payload["baseline"]])
    row, base["name"] = by_size[payload["size"]], baseline_name(payload)
    best = max(r["speedup"] for r in payload["rows"])
    options = _options(payload, sizes, compare)
    rows = [by_size[o["size"]] for o in options]
    inherited = payload["baselineRow"]
    if inherited is not None:
        # The inherited column is the mapping's own, not the best of its size.
        rows = [inherited if o["name"] == "inherited" else row for o, row in zip(options, rows, strict=True)]
    other = None if compare is None else by_size[compare]
    return {
        "p": payload, "cards": text.cards(row, base, best), "svg": svg, "options": options,
        "slider": [r["draft_vocab"] for r in payload["rows"]].index(payload["size"]),
        "option_rows": [(key, name, [(_option_value(key, row), _difference(key, row, other)) for row in rows])
                        for key, name in OPTION_ROWS],
        "words": WORDS,
    }


@functools.cache
def _macro(call: str) -> jinja2.Template:
    return environment().from_string("{% import 'explorer.html.j2' as e with context %}{{ e." + call + " }}")


def render_explorer(payload: dict[str, Any], svg: str = "", sizes: Sequence[int] = ()) -> str:
    """The explorer's markup alone, for the app and its first paint."""
    context = explorer_context(payload, svg, sizes or default_options(payload))
    return _macro("explorer(p, cards, options)").render(**context)


def render_options(payload: dict[str, Any], sizes: Sequence[int] = (), compare: int | None = None) -> str:
    """The side-by-side table alone; with ``compare`` each figure's difference against that size stands below it."""
    wanted = sizes or default_options(payload)
    context = explorer_context(payload, "", sorted({*wanted, compare} if compare else wanted), compare)
    return _macro("side_by_side(p, options)").render(**context)


def render_table(rows: Sequence[dict[str, Any]], *, label: str = "Table") -> str:
    """A plain table of texts, columns from the first row."""
    return _macro("plain_table(rows, label)").render(rows=rows, label=label, **_NO_EXPLORER)


def render_list(lines: Sequence[str]) -> str:
    return _macro("plain_list(lines)").render(lines=lines, **_NO_EXPLORER)


_NO_EXPLORER: dict[str, Any] = {"words": {}, "option_rows": []}
"""The template file defines all macros; these names belong to the others."""


def default_options(payload: dict[str, Any]) -> tuple[int, ...]:
    wanted = {payload["recommended"], payload["vocab"]} | ({32_000} if payload["vocab"] > 32_000 else set())
    if payload["inherited"]:
        wanted.add(payload["inherited"])
    return tuple(sorted(wanted))


def render_html(data: ReportData, *, scripts: bool = True) -> str:
    """The whole report. The same data gives the same text. Without ``scripts`` it is for paper."""
    payload = explorer_payload(
        data.table, data.recommendation, data.verdict, data.size, inherited=data.inputs.locked_size,
        stand_in=data.inputs.counts.meta.tokenizer if data.inputs.stand_in else None,
    )
    svg = chart_svg(payload["chart"], columns=2 if scripts else 4)
    code = web_file("explorer.js") + web_file("report.js")
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"
                      for part in (code, vega_bundle()))
    context = explorer_context(payload, svg, option_sizes(data.inputs, data.size, data.recommendation.size))
    left = [] if data.left_out is None else data.left_out.to_dicts()
    base = payload["baseline"]
    return environment().get_template("report.html.j2").render(
        **context, data=data, d=data.decision, code=code if scripts else "", script_hashes=hashes,
        css=web_file("explorer.css"), page_css=web_file("report.css"), payload_json=script_json(payload),
        vega_packed=_packed_vega(),
        decision_packed=packed(decision_json(data.decision)), left=left, base=base,
        row=next(r for r in payload["rows"] if r["draft_vocab"] == data.size),
        base_row=next(r for r in payload["rows"] if r["draft_vocab"] == base),
        domains=list(data.inputs.counts.domains), columns=COLUMNS, percent=text.percent,
        commands=commands(data.inputs, data.decision), versions=versions(),
    )


@functools.cache
def versions() -> dict[str, str]:
    """What computed and drew it."""
    import importlib.metadata
    import platform

    names = ("altair", "numpy", "polars", "vl-convert-python")
    return {"Python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}
