"""What the cells of ``apps/choose_vocab.py`` call: layout helpers over the core, nothing that can be wrong.

Data never enters markdown or raw HTML here: it goes through marimo's own
escaping elements, or through the report's templates, which escape.
"""

from __future__ import annotations

import dataclasses
import html
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import marimo as mo

from eagle3_core.app.opened import opened_state, side_by_side
from eagle3_core.app.pages import view_markup
from eagle3_core.app.screen import Screen, chart_json, row_of, screen_of, usable
from eagle3_core.app.sources import (
    MAX_UPLOAD,
    WORDS,
    Catalogue,
    add_upload,
    catalogue,
    get_counts,
    get_latency,
    get_target,
)
from eagle3_core.app.state import AppState, parse_query
from eagle3_core.app.widget import SERVED, Explorer, explorer
from eagle3_core.cost.hardware import Gpu
from eagle3_core.cost.roofline import ENGINES
from eagle3_core.decide.conclude import constraints_of, decide, evidence_of, full_table, ranking_of
from eagle3_core.decide.confidence import confidence, confidence_text
from eagle3_core.decide.questions import answers, answers_text
from eagle3_core.decide.sensitivity import sensitivity
from eagle3_core.errors import Eagle3Error
from eagle3_core.report.html import render_list, render_options, render_table, web_file
from eagle3_core.specs.parameters import DTYPE_BYTES
from eagle3_core.vocab.coverage import left_out

__all__ = ["ENGINES", "MAX_UPLOAD", "catalogue", "explorer"]
DTYPES = tuple(DTYPE_BYTES)
LOG = logging.getLogger("eagle3")


GLOSSARY = {
    "Target": "The large model that verifies what the drafter proposes.",
    "Token counts": "How often each token occurs, by domain: your own, made by eagle3 count.",
    "Latency": "What a draft step takes: a profile measured by eagle3 measure latency, or a GPU's roofline model.",
    "Acceptance": "How often drafts are accepted: measured at every size, or one alpha assumed.",
    "alpha at full vocabulary": "The chance that a draft token is accepted, given that those before it were.",
    "Draft length K": "Tokens the drafter proposes in a row before the target verifies them in one pass.",
    "Target tokens/s (0: modelled)": "The target's plain decoding speed for one sequence; 1 / T_decode.",
    "Draft TP": "Tensor parallel degree of the drafter: devices that share its lm_head.",
    "Target TP": "Tensor parallel degree of the target.",
    "Batch": "Sequences decoded together.",
    "dtype": "Number format of the drafter's weights.",
    "Engine": "The server: it decides padding, launch gaps and what an unsharded head costs.",
    "Ranking": "How the tokens of all domains are put into one order; the first D make the draft vocabulary.",
    "Drafter": "From scratch any size is free; fine-tuning keeps the checkpoint's rows, and so its size.",
    "Checkpoint's D": "Rows of the lm_head that fine-tuning starts from.",
}
"""Name of an input -> what it means, shown on hover."""


def label(name: str) -> str:
    return f'<span title="{html.escape(GLOSSARY[name])}">{html.escape(name, quote=False)}</span>'


def names(listed: Iterable[str], current: str) -> list[str]:
    """The listed names, and the one in use where it came with a link."""
    known_names = list(listed)
    return known_names if not current or current in known_names else [current, *known_names]


def first_state(query: dict[str, Any]) -> tuple[AppState, tuple[str, ...]]:
    """What a link asks for, made to fit, and what had to give way."""
    asked, unreadable = parse_query(query)
    fitting, replaced = usable(asked, catalogue())
    return fitting, (*unreadable, *replaced)


def powers(limit: int, also: int) -> dict[str, int]:
    """1, 2, 4 ... up to ``limit``, and the value in use."""
    values = {1 << i for i in range(limit.bit_length()) if 1 << i <= limit} | {also}
    return {str(value): value for value in sorted(values)}


def snapped(alpha: float) -> float:
    """The slider's nearest step; the exact value of a link stays in the state until the slider is moved."""
    return round(min(max(round(alpha / 0.05) * 0.05, 0.05), 0.95), 2)


def for_target(name: str, state: AppState, c: Catalogue) -> dict[str, Any]:
    """What changes with the target: counts and profile that fit it, the size starts from the recommendation."""
    target = get_target(c, name)
    values: dict[str, Any] = {"target": name, "d": None, "locked": None, "decode_tps": None}
    fitting = [n for n in sorted(c.counts) if get_counts(c, n).vocab_size == target.vocab_size]
    if fitting and state.counts not in fitting:
        values["counts"] = fitting[0]
    elif not fitting:
        # The nearest vocabulary stands in, and the screen says so.
        values["counts"] = min(sorted(c.counts), key=lambda n: abs(get_counts(c, n).vocab_size - target.vocab_size))
    latency = get_latency(c, state.latency)
    if not isinstance(latency, Gpu) and latency.drafter.hidden_size != target.hidden_size:
        values |= {"latency": "h200", "dtype": "bfloat16"}
    return values


def for_latency(name: str, c: Catalogue) -> dict[str, Any]:
    source = get_latency(c, name)
    if isinstance(source, Gpu):
        return {"latency": name}
    return {"latency": name, "dtype": source.dtype, "draft_tp": source.draft_tp}


def receive(files: Sequence[Any], c: Catalogue, state: AppState) -> tuple[Catalogue, AppState, tuple[str, str]]:
    """Add uploads; a good one is chosen at once, a bad one leaves everything as it was."""
    taken: list[str] = []
    missing: tuple[str, ...] = ()
    for file in files:
        try:
            c, kind, name = add_upload(c, file.name, file.contents, get_target(c, state.target).vocab_size)
            if kind == "decision":
                state, missing = opened_state(name, c)
            elif kind == "baseline":
                state = dataclasses.replace(state, baseline=name)
            elif kind == "targets":
                state = dataclasses.replace(state, **for_target(name, dataclasses.replace(state, target=name), c))
            elif kind == "latency":
                state = dataclasses.replace(state, **for_latency(name, c))
            else:
                state = dataclasses.replace(state, **{kind: name})
        except Eagle3Error as error:
            return c, state, ("warn", str(error))
        taken.append(WORDS[kind])
    words = [f"Loaded: {', '.join(taken)}.", *(f"{line[0].upper()}{line[1:]}." for line in missing)]
    return c, state, ("warn" if missing else "info", " ".join(words))


def notice(kind: str, text: str) -> Any:
    return mo.callout(mo.plain_text(text), kind=kind)  # type: ignore[arg-type]


def said(text: str) -> Any:
    """A line of prose. It may hold names from files, so it is escaped and never read as markdown."""
    return mo.Html(f'<p class="e3-said">{html.escape(text)}</p>')


UNEXPECTED = "This could not be computed; the server's log has the details. Change an input, or reload the page."


def try_screen(state: AppState, c: Catalogue) -> tuple[Screen | None, str | None]:
    """The screen, or what is wrong in one line. Whatever is not bad input is logged once with its traceback."""
    try:
        return screen_of(state, c), None
    except Eagle3Error as error:
        return None, str(error)
    except Exception:
        LOG.exception("the screen could not be computed")
        return None, UNEXPECTED


def tab_of(name: str, screen: Screen, size: int, pin: int = 0, decision: str = "") -> Any:
    """A tab's content, or a notice in its place: a fault in one never takes the page down."""
    try:
        if name == "Options":
            return options_tab(screen, size, pin)
        return decision_tab(screen, size, decision) if name == "Decision" else TABS[name](screen, size)
    except Eagle3Error as error:
        return notice("warn", str(error))
    except Exception:
        LOG.exception("the tab %s could not be shown", name)
        return notice("warn", UNEXPECTED)


def feed(widget: Explorer, screen: Screen | None, notices: Sequence[str] = ()) -> None:
    """Send a new screen to the page; without one the old figures stay, marked as out of date."""
    if screen is None:
        widget.stale = True
        return
    widget.show(screen.payload_json(), view_markup(screen, notices), screen.payload["recommended"],
                lambda size: row_of(screen.inputs, screen.payload, size))


def draw(widget: Explorer, screen: Screen | None, state: AppState, c: Catalogue) -> None:
    """Send the pictures, after the figures."""
    if screen is not None:
        widget.chart = chart_json(state, c, screen.payload["query"])


def on_restore(widget: Explorer, set_state: Callable[[AppState], None]) -> None:
    """Go where the page asks to: to an example, or back in the browser's history."""

    def restore(change: dict[str, Any]) -> None:
        query = str(change["new"]).partition("|")[2]
        set_state(first_state(dict(parse_qsl(query[:8192])))[0])

    widget.observe(restore, names="restore")


def with_size(state: AppState, widget: Explorer) -> AppState:
    """The state with the size on the slider, so that it stays when another input changes."""
    chosen = widget.size if widget.size and widget.size != widget.recommended else None
    return dataclasses.replace(state, d=chosen)


def size_of(widget: Explorer, screen: Screen) -> int:
    """The size on the slider, kept inside the target's vocabulary."""
    size = widget.size or screen.size
    vocab = screen.inputs.target.vocab_size
    return min(max(size, min(64, vocab)), vocab)


def options_tab(screen: Screen, size: int, pin: int = 0) -> Any:
    compare = pin if 0 < pin <= screen.payload["vocab"] else None
    extra = [row_of(screen.inputs, screen.payload, at) for at in {size, compare} if at]
    rows: list[dict[str, Any]] = [*screen.payload["rows"], *(row for row in extra if row)]
    rows.sort(key=lambda row: row["draft_vocab"])
    payload = screen.payload | {"rows": rows, "size": size}
    return mo.Html(_styled(render_options(payload, compare=compare)))


def _styled(markup: str) -> str:
    """Markup of the report's templates, which escape everything they are given."""
    # Our server's pages hold the styles already; they would outweigh the table, at every move.
    style = "" if os.environ.get(SERVED) else f"<style>{web_file('explorer.css')}</style>"
    return f"{style}<div class='e3'>{markup}</div>"


def _small_share(value: float) -> str:
    return f"{value:.5%}" if value else "0"


def left_out_tab(screen: Screen, size: int) -> Any:
    if screen.inputs.stand_in:
        return notice("info", "The counts are another tokenizer's, so the target's left-out tokens are not known.")
    frame = left_out(screen.inputs.counts, ranking_of(screen.inputs), size, 500)
    if frame.is_empty():
        return notice("info", "Nothing that was counted is left out at this size.")
    share = [name for name in frame.columns if name.startswith("share")]
    frame = frame.rename({"token_id": "token id", "text": "token", "share": "of all", **{
        name: f"of {name.removeprefix('share:')}" for name in share if name != "share"}})
    return mo.vstack([
        said(f"The most frequent tokens that D = {size:,} leaves out: each can never be drafted."),
        mo.ui.table(
            frame, selection=None, page_size=15, show_column_summaries=False, show_data_types=False,
            show_download=True, format_mapping={
                "count": "{:,.0f}", "rank": "{:,.0f}", "token id": "{:.0f}",
                **{name: _small_share for name in frame.columns if name.startswith("of ")}},
        ),
    ])


def sensitivity_tab(screen: Screen, size: int) -> Any:
    inputs = screen.inputs
    frame = sensitivity(inputs, size, constraints_of(inputs))
    table = full_table(inputs, size)
    sure = confidence(table, size, k=inputs.k, tolerance=inputs.tolerance)
    return mo.vstack([
        mo.Html(_styled(render_list((confidence_text(sure, inputs.tolerance), *answers_text(answers(inputs, table)))))),
        said(f"One input changed at a time; the last column is what D = {size:,} gives up there."),
        mo.ui.table(
            frame.rename({"low": "range from", "high": "to", "cost_of_size": f"{size:,} gives up"}),
            selection=None, pagination=False, show_column_summaries=False, show_data_types=False,
            show_search=False, show_download=False,
            format_mapping={"recommended": "{:,.0f}", "range from": "{:,.0f}", "to": "{:,.0f}", "speedup": "{:.2f}x",
                            f"{size:,} gives up": "{:.1%}"},
        ),
    ])


def evidence_tab(screen: Screen, size: int) -> Any:
    del size
    rows = [i.model_dump(include={"name", "value", "evidence", "source"}) for i in evidence_of(screen.inputs, {})]
    meta = screen.inputs.counts.meta
    notes = [said(note) for note in meta.notes]
    return mo.vstack([mo.Html(_styled(render_table(rows, label="Evidence"))), *notes])


def stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def export_tab(screen: Screen, size: int) -> Any:
    """Downloads of exactly what is on screen, made when asked for, by the functions behind the CLI."""
    from eagle3_core.export.bundle import bundle_name, make_bundle, zip_bytes
    from eagle3_core.report.data import report_data
    from eagle3_core.report.html import render_html

    inputs, root = screen.inputs, bundle_name(screen.inputs.target.name, size)

    def bundle() -> bytes:
        return zip_bytes(make_bundle(inputs, size, created=stamp(), hashes=screen.hashes()), root)

    def report() -> bytes:
        return render_html(report_data(inputs, decide(inputs, size, created=stamp(), hashes=screen.hashes()))).encode()

    lines: list[Any] = [
        mo.hstack([
            mo.download(_told(bundle), filename=f"{root}.zip", mimetype="application/zip",
                        label="Export bundle (.zip)"),
            mo.download(_told(report), filename=f"{root}.html", mimetype="text/html", label="Report (.html)"),
        ], justify="start", gap=0.5, wrap=True),
        said(
            f"For D = {size:,}: draft config.json, mapping files, launch commands, decision.json, DECISION.md and the "
            "report, for SGLang, vLLM, SpecForge, speculators, ModelOpt and EAGLE."),
    ]
    if os.environ.get(SERVED):
        query = html.escape(f"{screen.payload['query']}&d={size}")
        lines.append(mo.Html(f'<p class="e3-said"><a href="/runs/?{query}" target="_top">Train a drafter of this '
                             "size</a>: cost first, then a run that goes on without the page.</p>"))
    if inputs.stand_in:
        lines.append(notice("warn", "Without the target's own counts the bundle holds configs and commands but no "
                                    "mapping: another tokenizer's ids mean nothing here."))
    return mo.vstack(lines)


def decision_tab(screen: Screen, size: int, name: str = "") -> Any:
    """The opened decision beside the screen."""
    if not name:
        return notice("info", "No decision is open. Drop a decision.json on the left: every input it records "
                              "comes back, and this tab shows what has changed since.")
    rows, lines = side_by_side(name, screen.inputs, size, created=stamp(), hashes=screen.hashes())
    heading = f"Changed since ({len(lines)}):" if lines else "Nothing has changed since."
    return mo.vstack([mo.Html(_styled(render_table(rows))), said(heading), mo.Html(_styled(render_list(lines)))])


def _told(make: Callable[[], bytes]) -> Callable[[], bytes]:
    """A download that fails is logged with its traceback; the page gets the reason as text."""

    def made() -> bytes:
        try:
            return make()
        except Eagle3Error as error:
            return f"{error}\n".encode()

    return made


TABS: dict[str, Callable[[Screen, int], Any]] = {
    "Options": options_tab, "Left-out tokens": left_out_tab, "Sensitivity": sensitivity_tab, "Export": export_tab,
    "Evidence": evidence_tab, "Decision": decision_tab,
}
