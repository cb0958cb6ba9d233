"""The four pictures over one shared log axis, made once for the app and the report.

Every mark that depends on the chosen size reads one Vega parameter, ``size``;
moving it redraws nothing else. A click picks the nearest row's size and is
reported by the parameters ``pick1`` to ``pick4``. A size between two rows of the table is
interpolated inside the chart: each data row carries its successor.

One accent colour means the chosen D everywhere. The equivalent range is a
shaded band, baselines are thin grey rules, modelled curves are dashed. Colours
are Okabe and Ito's, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import altair as alt
import polars as pl
from altair.utils.schemapi import debug_mode

from eagle3_core.decide.recommend import Recommendation
from eagle3_core.specs.sizes import INHERITED
from eagle3_core.vocab.coverage import DOMAIN_PREFIX

Layout = Literal["row", "grid", "column"]
ACCENT = "#D55E00"
OKABE_ITO = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C7AE6")
PARTS = (("layer_ms", "layer", "#8fa3b8"), ("lm_head_ms", "lm_head", "#0072B2"), ("sampling_ms", "sampling", "#56B4E9"),
         ("collective_ms", "collectives", "#CC79A7"), ("launch_ms", "launches", "#E69F00"))


@dataclass(frozen=True)
class Theme:
    text: str
    faint: str
    rule: str
    band: str
    strong: str


THEMES = {
    "light": Theme(text="#1c2733", faint="#5c6b7a", rule="#d8dee5", band="#fbe3d3", strong="#1c2733"),
    "dark": Theme(text="#e6ebf0", faint="#9fb0c0", rule="#2f3b47", band="#4a3222", strong="#e6ebf0"),
}


def axis_ticks(low: int, high: int) -> list[int]:
    """1k, 4k, 16k, 32,000, 64k and V, as far as they fit without touching."""
    ticks = [t for t in (1_024, 4_096, 16_384, 65_536) if low <= t < high / 3]
    return [*ticks, high]


TICK_LABEL = "datum.value >= 1000 ? (datum.value % 1024 == 0 ? format(datum.value / 1024, ',.0f') + 'k' : " \
             "format(datum.value / 1000, ',.0f') + 'k') : format(datum.value, ',')"


def _rows(
    table: pl.DataFrame, columns: Sequence[tuple[str, str]], *, successor: bool = True
) -> list[dict[str, Any]]:
    """Long rows: series, d, y and, for a line the marker follows, the next point of the series (d2, y2)."""
    sizes = table["draft_vocab"].to_list()
    out = []
    for name, series in columns:
        values = table[name].to_list()
        for index, (size, value) in enumerate(zip(sizes, values, strict=True)):
            last = index + 1 == len(sizes)
            row = {"series": series, "d": size, "y": value}
            if successor:
                row |= {"d2": 1e12 if last else sizes[index + 1], "y2": value if last else values[index + 1]}
            out.append(row)
    return out


AT_SIZE = "datum.d <= size && size < datum.d2"
INTERPOLATED = "datum.y + (datum.y2 - datum.y) * (datum.d2 > 1e11 ? 0 : (log(size) - log(datum.d)) / " \
               "(log(datum.d2) - log(datum.d)))"


def tradeoff_chart(
    table: pl.DataFrame,
    *,
    size: int,
    recommendation: Recommendation,
    theme: Literal["light", "dark"] = "light",
    layout: Layout = "grid",
    width: int = 330,
    height: int = 170,
    inherited: int | None = None,
) -> alt.ConcatChart:
    """Coverage, parameters, draft step and speedup over D, with one marker.

    ``inherited`` is the locked or carried-over size, ruled beside 32,000 and V.
    """
    # Altair checks every mark as it is made; checking the whole once, in ``to_dict``, takes half the time.
    with debug_mode(False):
        return _tradeoff_chart(_Panels(table, recommendation, THEMES[theme], width, height, inherited), size, theme,
                               layout)


def _tradeoff_chart(panels: _Panels, size: int, theme: Literal["light", "dark"], layout: Layout) -> alt.ConcatChart:
    charts = [panels.coverage(), panels.parameters(), panels.step(), panels.speedup()]
    columns = {"row": 4, "grid": 2, "column": 1}[layout]
    chart = alt.concat(*charts, columns=columns, spacing=18)
    # Assigned rather than chained: each chained call copies the whole chart.
    chart.resolve = alt.Resolve(scale=alt.ScaleResolveMap(x="shared", y="independent", color="independent"))
    held = chart.params if isinstance(chart.params, list) else []
    chart.params = [*held, alt.param(name="size", value=size).param]  # pyright: ignore[reportAttributeAccessIssue]
    chart.config = alt.Config(
        background="transparent", font="system-ui, -apple-system, Segoe UI, Roboto, sans-serif", padding=2,
        view=alt.ViewConfig(stroke=None),
        axis=alt.AxisConfig(grid=False, domainColor=THEMES[theme].rule, tickColor=THEMES[theme].rule,
                            labelColor=THEMES[theme].faint, labelFontSize=11, titleFontSize=11),
        axisY=alt.AxisConfig(grid=True, gridColor=THEMES[theme].rule, gridOpacity=0.6, domain=False, ticks=False,
                             tickCount=4),
        title=alt.TitleConfig(color=THEMES[theme].text, fontSize=13, fontWeight=600, anchor="start", offset=8,
                              subtitleColor=THEMES[theme].faint, subtitleFontSize=11),
    )
    chart.datasets = {name: _Held(rows) for name, rows in panels.datasets.items()}
    return chart


class _Held:
    """Rows that Altair passes on as they are: it would copy each one several times."""

    _schema: ClassVar[dict[str, Any]] = {"type": "array"}

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def to_dict(self, *_: object, **__: object) -> list[dict[str, Any]]:
        return self.rows


class _Panels:
    def __init__(self, table: pl.DataFrame, recommendation: Recommendation, theme: Theme, width: int, height: int,
                 inherited: int | None) -> None:
        self.table, self.recommendation, self.theme = table, recommendation, theme
        self.size = {"width": width, "height": height}
        self.low, self.high = int(table["draft_vocab"].min()), int(table["draft_vocab"].max())  # type: ignore[arg-type]
        self.inherited = inherited
        self.datasets: dict[str, list[dict[str, Any]]] = {}
        self.panel = 0
        self.x = alt.X("d:Q", title=None, scale=alt.Scale(type="log", domain=[self.low, self.high], nice=False),
                       axis=alt.Axis(values=axis_ticks(self.low, self.high), labelExpr=TICK_LABEL, labelFlush=True,
                                    labelOverlap=False))

    def _data(self, rows: list[dict[str, Any]]) -> alt.NamedData:
        """Rows by name: Altair copies a chart at every step, inline rows with it, which takes seconds."""
        name = next((known for known, held in self.datasets.items() if held is rows), f"d{len(self.datasets)}")
        self.datasets[name] = rows
        return alt.NamedData(name=name)

    def coverage(self) -> alt.LayerChart:
        names = [c for c in self.table.columns if c.startswith(DOMAIN_PREFIX)]
        labels = [name.removeprefix(DOMAIN_PREFIX)[:24] for name in names]
        colours = [OKABE_ITO[i % len(OKABE_ITO)] for i in range(len(names))]
        data = self.table.with_columns(
            (pl.col(name) * 100) for name in [*names, "coverage", "coverage_low", "coverage_high"])
        modelled = self.table["coverage_evidence"][0] != "measured"
        floor = max(0.0, float(min(data[name].min() for name in names)) - 4)  # type: ignore[type-var]
        y = self._y(floor, 100, "~f", suffix="%")
        lines = _rows(data, list(zip(names, labels, strict=True)), successor=False)
        pooled = _rows(data, [("coverage", "all tokens")])
        color = alt.Color("series:N", scale=alt.Scale(domain=labels, range=colours), legend=None)
        domain_lines = alt.Chart(self._data(lines)).mark_line(strokeWidth=1.5, clip=True).encode(
            self.x, alt.Y("y:Q", **y), color)
        # Lines meet at V, so they are named at the left, where they are apart.
        starts = [row for row in lines if row["d"] == self.low] if len(names) > 1 else []
        naming = alt.Chart(self._data(_spread(starts, (100 - floor) * 14 / self.size["height"]))).mark_text(
            align="left", dx=4, dy=-5, fontSize=11, clip=True).encode(self.x, alt.Y("y:Q", **y), color, text="series:N")
        main = alt.Chart(self._data(pooled)).mark_line(
            strokeWidth=3, color=self.theme.strong, strokeDash=[6, 3] if modelled else [1, 0]).encode(
            self.x, alt.Y("y:Q", **y))
        return self._panel([domain_lines, main, naming], pooled, y, "Coverage, held out",
                           f"{self._mark('coverage_evidence')}; bold: all tokens", "format(VALUE, '.1f') + ' %'",
                           left_dy=26, left_from=self.high / 4.5)

    def parameters(self) -> alt.LayerChart:
        data = self.table.with_columns((pl.col("lm_head_params") / 1e6), (pl.col("trainable_params") / 1e6))
        top = float(data["trainable_params"].max())  # type: ignore[arg-type]
        y = self._y(0, top * 1.05, "~s" if top < 1000 else ",.0f", suffix="M")
        head = _rows(data, [("lm_head_params", "lm_head")])
        whole = _rows(data, [("trainable_params", "trainable")], successor=False)
        layers = [
            alt.Chart(self._data(whole)).mark_line(strokeWidth=1.5, color=self.theme.faint).encode(
                self.x, alt.Y("y:Q", **y)),
            alt.Chart(self._data(head)).mark_line(strokeWidth=3, color=self.theme.strong).encode(
                self.x, alt.Y("y:Q", **y)),
            alt.Chart(self._data([whole[0], head[0]])).mark_text(
                align="left", dx=4, dy=-7, fontSize=11, color=self.theme.faint).encode(
                self.x, alt.Y("y:Q", **y), text="series:N"),
        ]
        return self._panel(layers, head, y, "Parameters", "derived; bold: lm_head", "format(VALUE, ',.0f') + ' M'")

    def step(self) -> alt.LayerChart:
        parts = [(column, name, colour) for column, name, colour in PARTS
                 if float(self.table[column].max()) > 0.01 * float(self.table["step_ms"].max())]  # type: ignore[arg-type]
        top = float(self.table["step_high_ms"].max()) * 1.02  # type: ignore[arg-type]
        y = self._y(0, top, "~g")
        base = self.table.select("draft_vocab", *(column for column, _, _ in parts))
        bands, below = [], pl.Series([0.0] * len(base))
        for column, name, _ in parts:
            above = below + base[column]
            bands += [{"series": name, "d": d, "y": a, "y0": b}
                      for d, a, b in zip(base["draft_vocab"], above, below, strict=True)]
            below = above
        color = alt.Color("series:N", scale=alt.Scale(domain=[p[1] for p in parts], range=[p[2] for p in parts]),
                          legend=None)
        modelled = self.table["latency_evidence"][0] != "measured"
        total = _rows(self.table, [("step_ms", "step")])
        ends = [row | {"y": (row["y"] + row["y0"]) / 2} for row in bands if row["d"] == self.high]
        ends = [row for row in ends if self._part_height(row, bands) * self.size["height"] / top > 12]
        layers = [
            alt.Chart(self._data(bands)).mark_area(opacity=0.35, clip=True).encode(
                self.x, alt.Y("y:Q", **y), alt.Y2("y0:Q"), color),
            alt.Chart(self._data(total)).mark_line(
                strokeWidth=3, color=self.theme.strong, strokeDash=[6, 3] if modelled else [1, 0]).encode(
                self.x, alt.Y("y:Q", **y)),
            alt.Chart(self._data(ends)).mark_text(align="right", dx=-6, fontSize=11, color=self.theme.text).encode(
                self.x, alt.Y("y:Q", **y), text="series:N"),
        ]
        if not modelled:
            dots = [row for row in total if not self._interpolated(row["d"])]
            layers.append(alt.Chart(self._data(dots)).mark_point(
                size=22, filled=True, color=self.theme.strong).encode(self.x, alt.Y("y:Q", **y)))
        return self._panel(layers, total, y, "Draft step, ms", self._mark("latency_evidence"),
                           "format(VALUE, '.3~g') + ' ms'")

    def _part_height(self, row: dict[str, Any], bands: list[dict[str, Any]]) -> float:
        return next(b["y"] - b["y0"] for b in bands if b["series"] == row["series"] and b["d"] == row["d"])

    def _interpolated(self, size: int) -> bool:
        return bool(self.table.row(by_predicate=pl.col("draft_vocab") == size, named=True)["interpolated"])

    def speedup(self) -> alt.LayerChart:
        low = float(self.table["speedup_low"].min())  # type: ignore[arg-type]
        high = float(self.table["speedup_high"].max())  # type: ignore[arg-type]
        pad = (high - low) * 0.08 or 0.1
        y = self._y(max(0, low - pad), high + pad, ".1f" if high - low > 0.5 else ".2f", suffix="x")
        band = [{"d": d, "y": a, "y0": b} for d, a, b in zip(
            self.table["draft_vocab"], self.table["speedup_high"], self.table["speedup_low"], strict=True)]
        main = _rows(self.table, [("speedup", "speedup")])
        r = self.recommendation
        layers: list[alt.Chart] = [
            alt.Chart(self._data([{"d": r.low_size, "d2": r.high_size}])).mark_rect(
                color=self.theme.band, opacity=0.9).encode(self.x, alt.X2("d2:Q")),
            alt.Chart(self._data(band)).mark_area(opacity=0.18, color=self.theme.strong, clip=True).encode(
                self.x, alt.Y("y:Q", **y), alt.Y2("y0:Q")),
            alt.Chart(self._data(main)).mark_line(
                strokeWidth=3, color=self.theme.strong, strokeDash=[6, 3]).encode(self.x, alt.Y("y:Q", **y)),
        ]
        if low - pad < 1 < high + pad:
            none = alt.Chart(self._data([{"y": 1.0, "t": "no drafter"}]))
            layers += [
                none.mark_rule(color=self.theme.faint, strokeDash=[2, 2]).encode(alt.Y("y:Q", **y)),
                none.mark_text(align="right", dx=-2, dy=-6, fontSize=11, color=self.theme.faint).encode(
                    alt.Y("y:Q", **y), x=alt.value("width"), text="t:N"),
            ]
        return self._panel(layers, main, y, "Projected speedup",
                           f"{self._mark('speedup_evidence')}; shaded: within {r.tolerance:.0%} of the best",
                           "format(VALUE, '.2f') + 'x'")

    def _mark(self, column: str) -> str:
        marks = self.table[column].unique(maintain_order=True).to_list()
        return " and ".join(marks[:2])

    def _y(self, low: float, high: float, fmt: str, suffix: str = "") -> dict[str, Any]:
        return {
            "title": None, "scale": alt.Scale(domain=[low, high], nice=False, zero=False),
            "axis": alt.Axis(labelExpr=f"format(datum.value, '{fmt}') + '{suffix}'"),
        }

    def _panel(self, layers: list[alt.Chart], main: list[dict[str, Any]], y: dict[str, Any], title: str, subtitle: str,
               label: str, left_dy: int = -11, left_from: float = 0) -> alt.LayerChart:
        """Baselines below, the panel's own layers, then the marker of the chosen size."""
        baselines = [{"d": INHERITED, "t": "32,000"}] if self.low < INHERITED < self.high else []
        if self.inherited and self.inherited not in (INHERITED, self.high):
            if max(self.inherited, INHERITED) < 2.5 * min(self.inherited, INHERITED):
                baselines = [line | {"t": ""} for line in baselines]  # the two names would touch
            baselines.append({"d": self.inherited, "t": "inherited"})
        under = alt.Chart(self._data(baselines)).mark_rule(color=self.theme.faint, opacity=0.45).encode(self.x)
        names = alt.Chart(self._data(baselines)).mark_text(
            align="center", baseline="bottom", y=-2, fontSize=10, color=self.theme.faint).encode(self.x, text="t:N")
        point = alt.Chart(self._data(main)).transform_filter(AT_SIZE).transform_calculate(
            at="size", v=INTERPOLATED, label=label.replace("VALUE", f"({INTERPOLATED})"))
        x_at = self.x.copy(deep=True)
        x_at.shorthand = "at:Q"
        y_at = alt.Y("v:Q", **y)
        flip = f"size > {left_from or (self.low * self.high**2) ** (1 / 3):.0f}"
        # Curves rise: below the marker is free on its right, above it on its left.
        text: dict[str, Any] = {"fontSize": 12, "fontWeight": 700, "color": ACCENT}
        marker = [
            point.mark_rule(color=ACCENT, strokeWidth=1.5).encode(x_at),
            point.mark_point(filled=True, size=70, color=ACCENT, opacity=1).encode(x_at, y_at),
            point.transform_filter(f"!({flip})").mark_text(align="left", dx=8, dy=10, **text).encode(
                x_at, y_at, text="label:N"),
            point.transform_filter(flip).mark_text(align="right", dx=-8, dy=left_dy, **text).encode(
                x_at, y_at, text="label:N"),
        ]
        self.panel += 1
        pick = alt.selection_point(name=f"pick{self.panel}", on="click", nearest=True, fields=["d"], empty=False)
        clickable = alt.Chart(self._data(main)).mark_point(opacity=0, size=1).encode(
            self.x, alt.Y("y:Q", **y)).add_params(pick)
        figure = alt.layer(under, names, *layers, *marker, clickable).properties(
            **self.size, title=alt.TitleParams(title, subtitle=subtitle))
        return cast(alt.LayerChart, figure)


def _spread(rows: list[dict[str, Any]], gap: float) -> list[dict[str, Any]]:
    """Move labels apart so that none is nearer than ``gap`` to the one below."""
    out, floor = [], -1e9
    for row in sorted(rows, key=lambda r: r["y"]):
        y = max(row["y"], floor + gap)
        out.append(row | {"y": y})
        floor = y
    return out
