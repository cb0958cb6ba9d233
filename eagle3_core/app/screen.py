"""From state to what the screen shows, cached for all visitors: the same state is computed once."""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_core.app.opened import no_decision, opened_line, with_record
from eagle3_core.app.sources import (
    Baseline,
    Catalogue,
    find,
    get_acceptance,
    get_baseline,
    get_counts,
    get_latency,
    get_target,
)
from eagle3_core.app.state import AppState, to_query
from eagle3_core.cost.hardware import Gpu
from eagle3_core.decide.conclude import constraints_of, full_table, recommended_for
from eagle3_core.decide.inherited import inherited_row
from eagle3_core.decide.recommend import recommend
from eagle3_core.decide.tradeoff import TradeoffInputs, tradeoff
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import sha256_file
from eagle3_core.report.data import chart_spec, payload_of, table_rows
from eagle3_core.report.html import chart_svg
from eagle3_core.specs.drafter import MIN_DRAFT_VOCAB

PUBLISHED = {
    "kimi-k2.5": "for this target: 98.3 % at 32,000, the share of the training corpus's own tokens. "
                 "It is a point of another kind than the held-out curve here.",
}


@dataclass(frozen=True, eq=False)
class Screen:
    """``payload`` feeds the explorer; ``notices`` say what was changed to make the state fit."""

    inputs: TradeoffInputs
    payload: dict[str, Any]
    size: int
    notices: tuple[str, ...]
    files: dict[str, Path]
    """The artifact files in use, by kind."""

    def payload_json(self) -> str:
        return json.dumps(self.payload, allow_nan=False, separators=(",", ":"))

    def hashes(self) -> dict[str, str]:
        """SHA-256 of each, as the command line records them."""
        return {kind: sha256_file(path) for kind, path in self.files.items()}


class _Key:
    """Catalogues are compared by what they hold."""

    def __init__(self, state: AppState, c: Catalogue) -> None:
        self.state, self.catalogue = state, c
        self._id = (state, *(tuple(sorted(getattr(c, f.name).items())) for f in dataclasses.fields(c)))

    def __hash__(self) -> int:
        return hash(self._id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._id == other._id


def screen_of(state: AppState, c: Catalogue) -> Screen:
    """Raises Eagle3Error when the state cannot be computed at all."""
    fitting, replaced = usable(state, c)
    screen = _screen(_Key(fitting, c))
    return dataclasses.replace(screen, notices=(*replaced, *screen.notices)) if replaced else screen


def usable(state: AppState, c: Catalogue) -> tuple[AppState, list[str]]:
    """The state with every name that leads nowhere replaced by the default, and a notice for each."""
    default, notices = AppState(), []
    readers = {"target": get_target, "counts": get_counts, "latency": get_latency,
               "acceptance": lambda c, name: get_acceptance(c, name, state.alpha)}
    for field, read in readers.items():
        try:
            read(c, getattr(state, field))
        except Eagle3Error as error:
            instead = getattr(default, field)
            notices.append(f"{error}; {instead or f'alpha {state.alpha:g}'} is shown")
            state = dataclasses.replace(state, **{field: instead})
    if state.decision and (why := no_decision(state.decision)):
        notices.append(why)
        state = dataclasses.replace(state, decision="")
    if state.baseline:
        try:
            get_baseline(state.baseline, get_target(c, state.target).vocab_size)
        except Eagle3Error as error:
            notices.append(f"{error}; nothing inherited is shown")
            state = dataclasses.replace(state, baseline="")
    latency, target = get_latency(c, state.latency), get_target(c, state.target)
    if not isinstance(latency, Gpu) and (latency.drafter.hidden_size != target.hidden_size
                                         or latency.drafter.vocab_size != target.vocab_size):
        notices.append(f"the latency profile is of {latency.target}, not of {target.name}; "
                       f"{default.latency} is shown")
        state = dataclasses.replace(state, latency=default.latency)
    return state, notices


@functools.lru_cache(maxsize=128)
def _screen(key: _Key) -> Screen:
    state, c = key.state, key.catalogue
    inputs, notices = build(state, c)
    vocab = inputs.target.vocab_size
    size = state.d
    if size is not None and not min(MIN_DRAFT_VOCAB, vocab) <= size <= vocab:
        notices.append(f"D = {size:,} is outside 64 to {vocab:,}; the recommendation is shown")
        size = None
    if inputs.locked_size is not None and size is None:
        size = inputs.locked_size
    if size is None:
        size = recommended_for(inputs)[1].size
    inherited = get_baseline(state.baseline, vocab) if state.baseline else None
    also = [] if inherited is None else [inherited.size]
    if state.vs is not None and min(MIN_DRAFT_VOCAB, vocab) <= state.vs <= vocab:
        also.append(state.vs)
    payload = payload_of(inputs, size, with_chart=False, also=also)
    if inherited is not None:
        payload |= _inherited(inputs, inherited, notices)
    payload["query"] = to_query(state.without_size())
    payload["published"] = PUBLISHED.get(inputs.target.name)
    files = {kind: find(kind, c, getattr(state, kind)) for kind in ("counts", "latency", "acceptance")}
    return Screen(inputs, payload, size, tuple(notices), {kind: path for kind, path in files.items() if path})


def build(state: AppState, c: Catalogue) -> tuple[TradeoffInputs, list[str]]:
    """Inputs of a state. What contradicts the chosen profile or target gives way, and is said."""
    notices: list[str] = []
    target, counts = get_target(c, state.target), get_counts(c, state.counts)
    latency = get_latency(c, state.latency)
    dtype, draft_tp = state.dtype, state.draft_tp
    if not isinstance(latency, Gpu):
        if latency.drafter.hidden_size != target.hidden_size or latency.drafter.vocab_size != target.vocab_size:
            raise Eagle3Error(f"the latency profile is of {latency.target}, not of {target.name}",
                              fix="choose its own profile, or a modelled device")
        if latency.dtype != dtype:
            notices.append(f"{latency.dtype} is used: the profile was measured in it")
            dtype = latency.dtype
        if latency.draft_tp != draft_tp:
            notices.append(f"draft TP {latency.draft_tp} is used: the profile was measured with it")
            draft_tp = latency.draft_tp
    elif target.num_heads % draft_tp:
        notices.append(f"draft TP {draft_tp} does not divide {target.num_heads} heads; 1 is used")
        draft_tp = 1
    locked = state.locked
    if locked is not None and not min(MIN_DRAFT_VOCAB, target.vocab_size) <= locked <= target.vocab_size:
        notices.append(f"a checkpoint of D = {locked:,} cannot belong to this target; from scratch is shown")
        locked = None
    inputs = TradeoffInputs(
        target=target, counts=counts, latency=latency,
        acceptance=get_acceptance(c, state.acceptance, state.alpha), strategy=state.ranking, k=state.k,
        draft_tp=draft_tp, target_tp=state.target_tp, batch=state.batch, dtype=dtype, engine=state.engine,
        decode_ms=1e3 / state.decode_tps if state.decode_tps else None, locked_size=locked,
    )
    if state.decision:
        notices.append(opened_line(state.decision))
        try:
            inputs = with_record(inputs, state.decision)
        except Eagle3Error as error:
            notices.append(f"{error}; the decision's other inputs are not used")
    return inputs, notices


def _inherited(inputs: TradeoffInputs, found: Baseline, notices: list[str]) -> dict[str, Any]:
    """What the explorer compares with: the inherited size, and the row of its own mapping where that is known."""
    row = None
    if found.mapping is not None:
        try:
            row = table_rows(inherited_row(inputs, found.mapping))[0]
        except Eagle3Error as error:
            notices.append(f"{error}; the best tokens of its size are compared instead")
    return {"baseline": found.size, "inherited": found.size, "baselineRow": row, "baselineName": found.name}


@functools.lru_cache(maxsize=64)
def _chart(key: _Key) -> dict[str, Any]:
    screen = _screen(key)
    inputs = screen.inputs
    inherited = screen.payload["inherited"]
    table = full_table(inputs, screen.size, also=(inherited,) if inherited else ())
    recommendation = recommend(table, tolerance=inputs.tolerance, constraints=constraints_of(inputs))
    return chart_spec(table, recommendation, screen.size, inherited)


def chart_of(state: AppState, c: Catalogue) -> dict[str, Any]:
    """The pictures of a state, as Vega-Lite; they take longer than the figures."""
    return _chart(_Key(usable(state, c)[0], c))


@functools.lru_cache(maxsize=64)
def _chart_json(key: _Key, query: str) -> str:
    return json.dumps({"query": query, "spec": _chart(key)}, allow_nan=False, separators=(",", ":"))


def chart_json(state: AppState, c: Catalogue, query: str) -> str:
    """The same for the page, marked with the query it belongs to."""
    return _chart_json(_Key(usable(state, c)[0], c), query)


@functools.lru_cache(maxsize=64)
def _first_svg(key: _Key) -> str:
    svg = chart_svg(_chart(key), columns=4)
    _DRAWN.add(key)
    return svg


_DRAWN: set[_Key] = set()


def first_svg(state: AppState, c: Catalogue, *, wait: bool = True) -> str:
    """The pictures of a state as one SVG; without ``wait`` only if they are drawn already."""
    key = _Key(usable(state, c)[0], c)
    return _first_svg(key) if wait or key in _DRAWN else ""


def row_of(inputs: TradeoffInputs, payload: dict[str, Any], size: int) -> dict[str, Any] | None:
    """The table's row of a size that the payload does not hold, as the page wants it."""
    if any(row["draft_vocab"] == size for row in payload["rows"]):
        return None
    if not min(MIN_DRAFT_VOCAB, inputs.target.vocab_size) <= size <= inputs.target.vocab_size:
        return None
    return table_rows(tradeoff(inputs, (size,)))[0]
