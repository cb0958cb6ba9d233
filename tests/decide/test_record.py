"""The decision record: written, read back, damaged, superseded, and its tripwires where they belong."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from eagle3_core.acceptance.model import assumed_alpha
from eagle3_core.corpus.counts import TokenCounts, read_counts
from eagle3_core.cost.hardware import devices
from eagle3_core.decide import record as record_module
from eagle3_core.decide.conclude import decide
from eagle3_core.decide.record import (
    Decision,
    decision_hash,
    decision_json,
    decision_markdown,
    decision_schema,
    parse_decision,
    read_decision,
)
from eagle3_core.decide.restore import restore_inputs, target_of
from eagle3_core.decide.tradeoff import TradeoffInputs, tradeoff
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.presets import resolve_target
from eagle3_core.vocab.ranking import mapping_at, rank

NOW = "2026-01-01T00:00:00+00:00"
SIZE = 16_384


@pytest.fixture(scope="module")
def counts(samples: Path) -> TokenCounts:
    return read_counts(samples / "smollm2.counts.parquet")


@pytest.fixture(scope="module")
def inputs(counts: TokenCounts) -> TradeoffInputs:
    return TradeoffInputs(resolve_target("smollm2-135m"), counts, devices()["h200"], assumed_alpha(0.7), k=3)


@pytest.fixture(scope="module")
def decision(inputs: TradeoffInputs) -> Decision:
    return decide(inputs, SIZE, created=NOW, decided_by="A. Tester", hashes={"counts": "ab" * 32})


@pytest.fixture(scope="module")
def value(decision: Decision) -> dict[str, Any]:
    return json.loads(decision_json(decision))


def test_a_record_reads_back_equal(decision: Decision, tmp_path: Path) -> None:
    file = tmp_path / "decision.json"
    file.write_text(decision_json(decision))
    assert read_decision(file) == decision


def test_the_shipped_schema_is_the_models_and_accepts_a_record(value: dict[str, Any]) -> None:
    shipped = Path(record_module.__file__).with_name("decision.schema.json").read_text()
    assert shipped == decision_schema()
    jsonschema.Draft202012Validator(json.loads(shipped)).validate(value)


def test_nothing_but_the_time_stamp_depends_on_when_it_was_made(inputs: TradeoffInputs, decision: Decision) -> None:
    again = decide(inputs, SIZE, created="later", decided_by="A. Tester", hashes={"counts": "ab" * 32})
    assert again.model_copy(update={"created": NOW}) == decision


def test_the_token_set_holds_the_chosen_ids_and_their_ranking(decision: Decision, counts: TokenCounts) -> None:
    ranking = rank(counts)
    assert decision.token_set is not None
    mapping = decision.token_set.mapping(counts.vocab_size)
    assert mapping.target_ids.tolist() == mapping_at(ranking, SIZE).target_ids.tolist()
    ranked = decision.token_set.ranked(counts.vocab_size)
    assert ranked is not None
    assert ranked.target_ids.tolist() == ranking.order[:SIZE].tolist()


def test_inputs_restored_from_a_record_give_the_same_table(decision: Decision, inputs: TradeoffInputs) -> None:
    restored = restore_inputs(decision, inputs.counts)
    assert target_of(decision) == inputs.target
    assert_frame_equal(tradeoff(restored, [1_024, SIZE, 49_152]), tradeoff(inputs, [1_024, SIZE, 49_152]))


def test_a_measured_profile_is_asked_for_by_name(decision: Decision, counts: TokenCounts) -> None:
    measured = decision.model_copy(update={"sources": decision.sources.model_copy(update={"device": None})})
    with pytest.raises(Eagle3Error, match=r"latency is a file.*--latency"):
        restore_inputs(measured, counts)


def _damaged(value: dict[str, Any], path: tuple[str, ...], new: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(value))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return copy


BOMB = base64.b64encode(zlib.compress(bytes(1 << 28), 9)).decode()


@pytest.mark.parametrize(("path", "new", "message"), [
    (("schema_version",), 99, "newer version, found schema 99"),
    (("choice", "draft_vocab"), "many", r"field choice\.draft_vocab"),
    (("choice", "draft_vocab"), 8_192, "field token_set, found 16384 ids, expected 8192"),
    (("token_set", "bitmap"), "!!", r"field token_set\.bitmap"),
    (("token_set", "bitmap"), BOMB, "too long"),
    (("table",), [], "no row for a size"),
    (("surprise",), 1, "field surprise"),
    (("tripwires", 0, "value"), float("nan"), r"field tripwires\.0\.value"),
])
def test_a_damaged_record_is_refused_in_one_line_naming_the_field(
    value: dict[str, Any], path: tuple[Any, ...], new: Any, message: str
) -> None:
    with pytest.raises(Eagle3Error, match=message) as caught:
        parse_decision(_damaged(value, path, new), "decision.json")
    assert "\n" not in str(caught.value)


def test_a_damaged_order_is_refused_when_it_is_needed(decision: Decision) -> None:
    assert decision.token_set is not None
    wrong = decision.token_set.model_copy(update={"order": base64.b64encode(zlib.compress(bytes(4 * SIZE))).decode()})
    with pytest.raises(Eagle3Error, match=r"token_set\.order"):
        wrong.ranked(decision.setting.vocab_size)


def _paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value.keys() if isinstance(value, dict) else range(min(len(value), 3)) if isinstance(value, list) else ()
    return [p for key in keys for p in [(*prefix, key), *_paths(value[key], (*prefix, key))]]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_replaced_value_breaks_reading_or_showing_a_record(data: st.DataObject, value: dict[str, Any]) -> None:
    path = data.draw(st.sampled_from(_paths(value)))
    new = data.draw(st.one_of(st.none(), st.integers(-5, 10), st.text(max_size=5), st.just([]), st.just({}),
                              st.floats(allow_nan=True)))
    try:
        found = parse_decision(_damaged(value, path, new), "decision.json")
    except Eagle3Error:
        return
    decision_markdown(found)


@pytest.mark.parametrize("text", ["", "hello", "[]", "3", "{}", '{"schema_version": 1}', "\x00", '{"a": NaN}'])
def test_text_that_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "decision.json"
    file.write_text(text)
    with pytest.raises(Eagle3Error, match=r"decision\.json"):
        read_decision(file)


def _speedups(inputs: TradeoffInputs, alpha: float, sizes: list[int]) -> dict[int, float]:
    changed = dataclasses.replace(inputs, acceptance=assumed_alpha(alpha))
    table = tradeoff(changed, sizes)
    return dict(zip(table["draft_vocab"], table["speedup"], strict=True))


def test_another_size_wins_by_more_than_the_tolerance_beyond_a_tripwire_and_not_before(
    decision: Decision, inputs: TradeoffInputs
) -> None:
    wires = [w for w in decision.tripwires if w.metric == "alpha"]
    sizes = [row["draft_vocab"] for row in decision.table]
    assert wires
    for wire in wires:
        outside = wire.value * (0.99 if wire.direction == "below" else 1.01)
        inside = wire.value * (1.03 if wire.direction == "below" else 0.97)
        for alpha, holds in ((outside, False), (inside, True)):
            speed = _speedups(inputs, alpha, sizes)
            assert (speed[SIZE] >= max(speed.values()) * 0.99) is holds


def test_the_tau_tripwire_is_where_drafting_stops_paying(decision: Decision) -> None:
    row = decision.row(SIZE)
    wire = next(w for w in decision.tripwires if w.metric == "tau")
    assert wire.value == pytest.approx(row["round_ms"] / row["decode_ms"], abs=1e-3)
    assert not wire.tripped(row["tau"])


def test_no_tripwire_is_tripped_on_the_day_of_the_decision(decision: Decision) -> None:
    row = decision.row(SIZE)
    now = {"coverage": row["coverage"], "worst_coverage": row["worst_coverage"], "tau": row["tau"],
           "alpha": decision.sources.alpha[0], "step_ms": row["step_ms"]}
    assert not [w for w in decision.tripwires if w.tripped(now[w.metric])]


def test_counts_of_another_tokenizer_leave_a_gap_instead_of_a_token_set(counts: TokenCounts) -> None:
    found = decide(TradeoffInputs(resolve_target("kimi-k2.5"), counts, devices()["h200"], assumed_alpha(0.7)), 32_000,
                   created=NOW)
    assert found.token_set is None
    assert "no mapping can be made" in found.gaps[0]
    assert {i.name: i.evidence for i in found.inputs}["token counts"] == "modelled"
    assert "## Not known" in decision_markdown(found)


def test_hostile_names_cannot_forge_markdown(inputs: TradeoffInputs) -> None:
    bad = dataclasses.replace(inputs, target=dataclasses.replace(inputs.target, name="x|<script>\n# y"))
    text = decision_markdown(decide(bad, SIZE, created=NOW, decided_by="a\n\n# forged", reason="`x` [link](http://a)"))
    assert "<script>" not in text.replace("\\<script", "")
    assert not [line for line in text.splitlines() if line.startswith("# ") and "Draft vocabulary" not in line]
    assert not re.search(r"(?<!\\)\]\(", text)


def test_no_path_of_the_machine_is_recorded(tmp_path: Path, inputs: TradeoffInputs) -> None:
    from eagle3_core.specs.target import target_from_config

    (tmp_path / "config.json").write_text(json.dumps({
        "hidden_size": 576, "vocab_size": 49_152, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1_536}))
    found = decide(dataclasses.replace(inputs, target=target_from_config(tmp_path)), SIZE, created=NOW)
    assert str(tmp_path) not in decision_json(found)
    assert parse_decision(json.loads(decision_json(found)), "x") == found


def test_a_later_decision_names_the_one_it_replaces_and_what_changed(
    inputs: TradeoffInputs, decision: Decision
) -> None:
    other = dataclasses.replace(inputs, k=5, acceptance=assumed_alpha(0.8), strategy="worst")
    later = decide(other, 24_576, created=NOW, previous=decision)
    assert later.supersedes == decision_hash(decision)
    assert "k: 3 to 5" in later.changes
    assert "ranking: pooled to worst" in later.changes
    assert "acceptance: 0.7 (assumed) to 0.8 (assumed)" in later.changes
    assert "draft vocabulary: 16,384 to 24,576" in later.changes
    assert "## Replaces" in decision_markdown(later)
    assert decide(inputs, SIZE, created=NOW, hashes={"counts": "ab" * 32}, previous=decision).changes == ()
