"""An opened ``decision.json``: back to the inputs it was made from, and what has changed since.

Its settings become the state. Counts, a measured profile and measured acceptance
are files: they are found by their hash among those at hand, and what is missing
is said. Inputs that have no control of their own (forced ids, weights, limits)
come back with the record through ``restore_inputs``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3_core.app.sources import Catalogue, get_counts, get_decision, uploads
from eagle3_core.app.state import AppState
from eagle3_core.cost.hardware import devices
from eagle3_core.decide.conclude import decide
from eagle3_core.decide.record import Decision
from eagle3_core.decide.restore import changes, restore_inputs, target_of
from eagle3_core.decide.tradeoff import TradeoffInputs
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import sha256_file
from eagle3_core.report import text
from eagle3_core.specs.presets import presets


def opened_state(name: str, c: Catalogue) -> tuple[AppState, tuple[str, ...]]:
    """The state of the decision called ``name``, and a line for each source that is not at hand."""
    decision = get_decision(name)
    s, sources, missing = decision.setting, decision.sources, []
    given = {item.name: item.sha256 for item in decision.inputs}
    default = AppState()
    counts = _by_hash("counts", c.counts, given.get("token counts")) or _same_tokenizer(c, s.tokenizer_sha256)
    if counts is None:
        missing.append("its token counts")
    latency = sources.device if sources.device in devices() else _by_hash("latency", c.latency, given.get("draft step"))
    if latency is None:
        missing.append("its latency profile")
    acceptance = _by_hash("acceptance", c.acceptance, given.get("acceptance"))
    plain = len(sources.alpha) == 1 and sources.reference_size is None and sources.acceptance_evidence == "assumed"
    preset = presets().get(s.target)
    known = preset is not None and dataclasses.replace(target_of(decision), source=preset.source) == preset
    state = AppState(
        target=s.target if known else name, counts=counts or default.counts, latency=latency or default.latency,
        acceptance=acceptance or ("" if plain else name), alpha=sources.alpha[0], k=s.k, draft_tp=s.draft_tp,
        target_tp=s.target_tp, batch=s.batch, dtype=s.dtype, engine=s.engine, ranking=sources.ranking,
        decode_tps=1e3 / sources.decode_ms if sources.decode_ms else None, locked=sources.locked_size,
        d=decision.choice.draft_vocab, decision=name,
    )
    return state, tuple(f"{what} is not loaded: drop the file to compare on it" for what in missing)


def _by_hash(kind: str, listed: Mapping[str, Path], wanted: str | None) -> str | None:
    if wanted is None:
        return None
    found = {**uploads(kind), **listed}
    return next((name for name, path in sorted(found.items()) if path.is_file() and sha256_file(path) == wanted), None)


def _same_tokenizer(c: Catalogue, sha256: str) -> str | None:
    return next((n for n in sorted(c.counts) if get_counts(c, n).meta.tokenizer_sha256 == sha256), None)


def with_record(inputs: TradeoffInputs, name: str) -> TradeoffInputs:
    """``inputs`` with everything of the opened decision that the screen has no control for.

    Raises Eagle3Error when the counts are another tokenizer's.
    """
    decision = get_decision(name)
    record = restore_inputs(decision, inputs.counts, latency=inputs.latency, acceptance=inputs.acceptance)
    shown = ("target", "strategy", "k", "draft_tp", "target_tp", "batch", "dtype", "engine", "locked_size")
    # The control shows tokens a second; the same figure must come back to the last digit.
    same = inputs.decode_ms and record.decode_ms and math.isclose(inputs.decode_ms, record.decode_ms, rel_tol=1e-9)
    decode = record.decode_ms if same else inputs.decode_ms
    return dataclasses.replace(record, decode_ms=decode, **{field: getattr(inputs, field) for field in shown})


def opened_line(name: str) -> str:
    decision = get_decision(name)
    return (f"Decision of {decision.created[:10]}: D = {decision.choice.draft_vocab:,} for {decision.setting.target}. "
            "The tab Decision has it beside what is on screen.")


def side_by_side(
    name: str, inputs: TradeoffInputs, size: int, *, created: str, hashes: dict[str, str]
) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """Rows (figure, decided, on screen) and the lines of what changed between the opened decision and the screen."""
    old = get_decision(name)
    new = decide(inputs, size, created=created, hashes=hashes)
    before, now = _figures(old), _figures(new)
    return [{"figure": key, "decided": before[key], "on screen": now[key]} for key in now], changes(old, new)


def _figures(decision: Decision) -> dict[str, str]:
    c, row = decision.choice, decision.row(decision.choice.draft_vocab)
    return {
        "draft vocabulary": f"{c.draft_vocab:,}", "recommended": f"{c.recommended:,}",
        "equivalent": f"{c.equivalent_low:,} to {c.equivalent_high:,}",
        "coverage, held out": text.percent(row["coverage"]),
        "worst domain": f"{row['worst_domain']} {text.percent(row['worst_coverage'])}",
        "lm_head": text.count(row["lm_head_params"]), "draft step": text.milliseconds(row["step_ms"]),
        "tau": f"{row['tau']:.2f}", "projected speedup": _band(row),
        "made": decision.created[:19].replace("T", " "),
    }


def _band(row: dict[str, Any]) -> str:
    low, high = row["speedup_low"], row["speedup_high"]
    shown = text.times(row["speedup"], low, high)
    digits = 1 if high - low >= 0.1 else 2
    return f"{shown}, {low:.{digits}f} to {high:.{digits}f}"


def no_decision(name: str) -> str | None:
    """Why the decision of a link cannot be shown, or None."""
    try:
        get_decision(name)
    except Eagle3Error as error:
        return str(error)
    return None
