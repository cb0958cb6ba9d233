"""Opening a decision: what comes back, what is missing, what has changed since."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl

import numpy as np
import pytest

from eagle3_core.app import notebook
from eagle3_core.app.opened import opened_state, side_by_side
from eagle3_core.app.screen import screen_of
from eagle3_core.app.sources import MAX_UPLOAD, add_upload, catalogue
from eagle3_core.app.state import EXAMPLES, AppState, parse_query, to_query
from eagle3_core.decide.conclude import decide
from eagle3_core.decide.record import decision_json

STAMP = "2026-01-01T00:00:00+00:00"


def recorded(state: AppState, size: int, **more) -> bytes:
    shown = screen_of(state, catalogue())
    inputs = dataclasses.replace(shown.inputs, **more)
    return decision_json(decide(inputs, size, created=STAMP, hashes=shown.hashes())).encode()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_input_of_an_example_comes_back(name):
    state = dataclasses.replace(EXAMPLES[name], ranking="balanced", engine="vllm", batch=4, decode_tps=91.7)
    before = screen_of(state, catalogue()).inputs
    c, kind, label = add_upload(catalogue(), "decision.json", recorded(state, 8_192))
    assert kind == "decision"
    restored, missing = opened_state(label, c)
    assert missing == ()
    assert restored.d == 8_192
    assert dataclasses.replace(restored, decision="", decode_tps=91.7) == dataclasses.replace(state, d=8_192)
    after = screen_of(restored, c).inputs
    for field in dataclasses.fields(before):
        assert getattr(after, field.name) == getattr(before, field.name), field.name
    # A link carries it into another window of the same server.
    assert parse_query(dict(parse_qsl(to_query(restored)))) == (restored, ())


def test_inputs_without_a_control_come_back_with_the_record():
    hidden = {"verify_ms": 20.0, "overhead_ms": 0.25, "extra_forced": (5, 6), "tolerance": 0.02, "context": 4096}
    c, _, label = add_upload(catalogue(), "decision.json", recorded(AppState(), 32_000, **hidden))
    state, _ = opened_state(label, c)
    inputs = screen_of(state, c).inputs
    assert {name: getattr(inputs, name) for name in hidden} == hidden
    rows, changed = side_by_side(label, inputs, 32_000, created=STAMP, hashes=screen_of(state, c).hashes())
    assert changed == ()
    assert all(row["decided"] == row["on screen"] for row in rows)


def test_what_changed_since_is_said_and_shown_side_by_side():
    c, _, label = add_upload(catalogue(), "decision.json", recorded(AppState(), 32_000))
    state = dataclasses.replace(opened_state(label, c)[0], k=3)
    shown = screen_of(state, c)
    rows, changed = side_by_side(label, shown.inputs, 8_192, created=STAMP, hashes=shown.hashes())
    assert "k: 5 to 3" in changed
    assert "draft vocabulary: 32,000 to 8,192" in changed
    assert {"figure": "draft vocabulary", "decided": "32,000", "on screen": "8,192"} in rows
    # lm_head of Qwen3-8B: D times 4,096.
    assert {"figure": "lm_head", "decided": "131.1M", "on screen": "33.6M"} in rows


def test_sources_that_are_not_at_hand_are_named():
    value = json.loads(recorded(EXAMPLES["SmolLM2-135M"], 8_192))
    for item in value["inputs"]:
        item["sha256"] = "0" * 64
    value["setting"]["tokenizer_sha256"] = "0" * 64
    c, _, label = add_upload(catalogue(), "decision.json", json.dumps(value).encode())
    state, missing = opened_state(label, c)
    assert len(missing) == 2
    assert "token counts" in missing[0]
    assert "latency profile" in missing[1]
    assert any("not those of the decision" in line for line in screen_of(state, c).notices)


def test_a_link_to_a_decision_that_is_gone_says_so():
    shown = screen_of(AppState(decision="decision~0123456789ab"), catalogue())
    assert "load the file again" in shown.notices[0]


def test_a_mapping_that_is_dropped_becomes_the_baseline(tmp_path: Path):
    np.save(tmp_path / "d2t.npy", np.arange(24_000) * 3 - np.arange(24_000))
    c, state, said = notebook.receive(
        [SimpleNamespace(name="their_d2t.npy", contents=(tmp_path / "d2t.npy").read_bytes())], catalogue(), AppState())
    assert said == ("info", "Loaded: inherited mapping.")
    payload = screen_of(state, c).payload
    assert (payload["baseline"], payload["baselineName"]) == (24_000, "their_d2t")
    counts = screen_of(state, c).inputs.counts
    # Every third id up to 72,000.
    assert payload["baselineRow"]["coverage"] == pytest.approx(
        counts.total[np.arange(24_000) * 3].sum() / counts.tokens, rel=1e-5)


def test_an_inherited_size_alone_is_the_baseline_and_junk_is_not():
    assert screen_of(AppState(baseline="16000"), catalogue()).payload["baseline"] == 16_000
    for junk in ("7", "999999999999999", "nothing~0123"):
        shown = screen_of(AppState(baseline=junk), catalogue())
        assert shown.payload["baseline"] == 32_000
        assert "nothing inherited is shown" in shown.notices[0]


def test_an_upload_above_the_limit_is_refused_by_its_size():
    class Large(bytes):
        def __len__(self) -> int:
            return MAX_UPLOAD + 1

    c = catalogue()
    _, state, (kind, said) = notebook.receive([SimpleNamespace(name="big.counts.parquet", contents=Large())], c,
                                              AppState())
    assert kind == "warn"
    assert "too large" in said
    assert state == AppState()


def test_what_is_no_bad_input_becomes_a_notice_and_one_traceback_in_the_log(monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(notebook, "screen_of", broken)
    with caplog.at_level(logging.ERROR):
        assert notebook.try_screen(AppState(), catalogue()) == (None, notebook.UNEXPECTED)
    assert [bool(record.exc_info) for record in caplog.records] == [True]
