"""Does a decision hold on new evidence? Counts, acceptance, latency, a checkpoint and the setting, one by one."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from eagle3_core.acceptance.model import assumed_alpha
from eagle3_core.acceptance.record import AcceptancePoint, AcceptanceRecord, write_acceptance
from eagle3_core.corpus.counts import TokenCounts, read_counts
from eagle3_core.cost.hardware import devices
from eagle3_core.cost.step import step_latency
from eagle3_core.decide.audit import audit
from eagle3_core.decide.check import MIN_TOKENS, Check, Finding, check, junit
from eagle3_core.decide.conclude import constraints_of, decide
from eagle3_core.decide.recommend import recommend
from eagle3_core.decide.record import Decision, decision_json, parse_decision
from eagle3_core.decide.tradeoff import TradeoffInputs, tradeoff
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.drafter import drafter_for
from eagle3_core.specs.presets import resolve_target
from eagle3_core.vocab.formats import write_mapping
from eagle3_core.vocab.mapping import mapping_from_ids
from eagle3_core.vocab.ranking import rank

NOW = "2026-01-01T00:00:00+00:00"


@pytest.fixture(scope="module")
def counts(samples: Path) -> TokenCounts:
    return read_counts(samples / "smollm2.counts.parquet")


@pytest.fixture(scope="module")
def inputs(counts: TokenCounts) -> TradeoffInputs:
    return TradeoffInputs(resolve_target("smollm2-135m"), counts, devices()["h200"], assumed_alpha(0.7), k=3)


@pytest.fixture(scope="module")
def size(inputs: TradeoffInputs) -> int:
    return recommend(tradeoff(inputs), constraints=constraints_of(inputs)).size


@pytest.fixture(scope="module")
def decision(inputs: TradeoffInputs, size: int) -> Decision:
    return decide(inputs, size, created=NOW)


def _by_name(result: Check) -> dict[str, list[Finding]]:
    out: dict[str, list[Finding]] = {}
    for finding in result.findings:
        out.setdefault(finding.name, []).append(finding)
    return out


def _with(counts: TokenCounts, table: np.ndarray, **meta: object) -> TokenCounts:
    return TokenCounts(table, counts.token, counts.role, counts.meta.model_copy(update=meta))


def _record(draft_vocab: int, alpha: float, vocab: int = 49_152) -> AcceptanceRecord:
    point = AcceptancePoint(draft_vocab=draft_vocab, alpha=(alpha,) * 3, alpha_low=(alpha,) * 3,
                            alpha_high=(alpha,) * 3, tau=1.5, tau_low=1.5, tau_high=1.5)
    return AcceptanceRecord(tool_version="t", created=NOW, target="t", drafter="d", vocab_size=vocab, method="served",
                            points=(point,), source="server log")


def test_a_decision_holds_on_the_tokens_it_was_made_from(decision: Decision, counts: TokenCounts, size: int) -> None:
    result = check(decision, counts=counts)
    assert result.holds
    inside = counts.total[rank(counts).ids(size)].sum() / counts.tokens
    assert float(_by_name(result)["coverage"][0].found) == pytest.approx(inside, abs=5e-5)
    assert _by_name(result)["alpha"][0].status == "not checked"
    assert result.would_choose == size
    assert result.cost == pytest.approx(0.01, abs=0.01)


def test_live_tokens_outside_the_list_ask_for_a_new_decision_and_say_which_size(
    decision: Decision, counts: TokenCounts, size: int
) -> None:
    table = counts.counts.copy()
    table[:, :, rank(counts).order[size:]] *= 20
    result = check(decision, counts=_with(counts, table))
    findings = _by_name(result)
    assert not result.holds
    assert findings["coverage"][0].status == findings["worst_coverage"][0].status == "revisit"
    assert result.would_choose is not None
    assert result.would_choose > size


def test_what_would_be_chosen_now_is_what_a_new_table_recommends(
    decision: Decision, inputs: TradeoffInputs, counts: TokenCounts, size: int
) -> None:
    table = counts.counts.copy()
    table[:, :, rank(counts).order[size:]] *= 20
    live = _with(counts, table)
    result = check(decision, counts=live)
    fresh = tradeoff(dataclasses.replace(inputs, counts=live), [r["draft_vocab"] for r in decision.table])
    expected = recommend(fresh, constraints=constraints_of(inputs))
    speed = dict(zip(fresh["draft_vocab"], fresh["speedup"], strict=True))
    assert result.would_choose == expected.size
    assert result.cost == pytest.approx(1 - speed[size] / expected.best_speedup, abs=1e-4)


def test_a_domain_with_few_live_tokens_is_not_judged(decision: Decision, counts: TokenCounts) -> None:
    table = np.zeros_like(counts.counts)
    outside = rank(counts).order[-1]
    table[0, 0] = counts.counts[0, 0]
    table[1, 0, outside] = MIN_TOKENS - 1
    result = check(decision, counts=_with(counts, table))
    assert counts.domains[0] in _by_name(result)["worst_coverage"][0].found
    few = np.zeros_like(table)
    few[0, 0, outside] = 5
    assert _by_name(check(decision, counts=_with(counts, few)))["coverage"][0].status == "not checked"


def test_counts_of_another_tokenizer_are_a_reason_to_decide_again(decision: Decision, counts: TokenCounts) -> None:
    result = check(decision, counts=_with(counts, counts.counts, tokenizer_sha256="f" * 64))
    assert _by_name(result)["tokenizer"][0].status == "revisit"
    assert _by_name(result)["coverage"][0].status == "not checked"
    assert result.would_choose is None


def test_served_acceptance_is_carried_to_the_size_the_tripwire_is_about(decision: Decision, size: int) -> None:
    result = check(decision, acceptance=_record(size, 0.65))
    finding = _by_name(result)["alpha"][0]
    assert float(finding.found.split()[0]) == pytest.approx(0.65 / decision.row(size)["coverage"] ** 0.7, abs=1e-3)
    assert "modelled: from 0.650" in finding.found
    tau = float(_by_name(result)["tau"][0].found)
    assert tau == pytest.approx(1 + 0.65 + 0.65**2 + 0.65**3, abs=1e-3)


def test_a_drafter_that_stopped_paying_trips_tau(decision: Decision, size: int) -> None:
    result = check(decision, acceptance=_record(size, 0.05))
    assert _by_name(result)["tau"][0].status == "revisit"
    assert not result.holds


def test_acceptance_of_another_target_is_unusable(decision: Decision) -> None:
    with pytest.raises(Eagle3Error, match="another target"):
        check(decision, acceptance=_record(1_024, 0.5, vocab=1_024))


def test_the_draft_step_is_compared_at_the_chosen_size(decision: Decision, inputs: TradeoffInputs, size: int) -> None:
    device = devices()["l40s"]
    step = step_latency(device, drafter_for(inputs.target), [size])["step_ms"][0]
    found = _by_name(check(decision, latency=device))["step_ms"]
    assert all(float(f.found) == pytest.approx(step, rel=1e-3) for f in found)


def test_another_engine_or_k_asks_for_a_new_decision(decision: Decision) -> None:
    result = check(decision, setting={"engine": "vllm", "k": 3, "draft_tp": None})
    assert [(f.name, f.status) for f in result.findings[:2]] == [("engine", "revisit"), ("k", "holds")]
    with pytest.raises(Eagle3Error, match="unknown setting"):
        check(decision, setting={"colour": "red"})


def test_without_evidence_there_is_nothing_to_check(decision: Decision) -> None:
    with pytest.raises(Eagle3Error, match="nothing to check against"):
        check(decision, setting={"engine": None})


def test_a_checkpoint_trained_on_another_list_is_found(decision: Decision, tmp_path: Path, size: int) -> None:
    assert decision.token_set is not None
    mapping = decision.token_set.mapping(49_152)
    write_mapping("safetensors", mapping, tmp_path / "same")
    assert check(decision, checkpoint=tmp_path / "same").holds
    outside = np.setdiff1d(np.arange(49_152), mapping.target_ids)[:7]
    write_mapping("safetensors", mapping_from_ids([*mapping.target_ids[7:], *outside], 49_152), tmp_path / "other")
    result = check(decision, checkpoint=tmp_path / "other")
    assert not result.holds
    assert "7 of them not in the decision" in result.findings[-1].found


def test_a_locked_size_is_not_told_to_change(inputs: TradeoffInputs, counts: TokenCounts) -> None:
    locked = decide(dataclasses.replace(inputs, locked_size=1_024), 1_024, created=NOW)
    result = check(locked, counts=counts)
    assert result.holds
    assert result.would_choose == 1_024


@pytest.mark.parametrize("changed", [
    {"topk": 2, "draft_tokens": 6}, {"mix": {"code": 0.7, "en_chat": 0.3}}, {"max_lm_head_bytes": 20_000_000},
    {"min_worst_coverage": 0.97}], ids=str)
def test_trees_mixes_and_limits_hold_on_their_own_evidence(
    inputs: TradeoffInputs, counts: TokenCounts, changed: dict[str, object]
) -> None:
    own = dataclasses.replace(inputs, **changed)  # type: ignore[arg-type]
    table = tradeoff(own)
    best = recommend(table, constraints=constraints_of(own)).size
    decided = decide(own, best, created=NOW)
    result = check(decided, latency=devices()["h200"])
    assert result.holds
    assert result.would_choose == best
    assert result.cost == pytest.approx(0, abs=0.0101)
    assert check(decided, counts=counts).holds


def test_a_worst_domain_that_was_asked_for_is_its_tripwire(inputs: TradeoffInputs) -> None:
    asked = dataclasses.replace(inputs, min_worst_coverage=0.97)
    size = recommend(tradeoff(asked), constraints=constraints_of(asked)).size
    decided = decide(asked, size, created=NOW)
    wire = next(w for w in decided.tripwires if w.metric == "worst_coverage")
    assert wire.value == 0.97
    assert wire.condition == "coverage of the worst domain below 97.0%"


def test_the_junit_file_has_one_test_a_condition(decision: Decision, counts: TokenCounts) -> None:
    table = counts.counts.copy()
    table[:, :, rank(counts).order[1_024:]] *= 50
    result = check(decision, counts=_with(counts, table))
    suite = ElementTree.fromstring(junit(result, "decision\x07.json"))
    assert int(suite.get("tests", 0)) == len(result.findings) == len(suite)
    assert int(suite.get("failures", 0)) == sum(f.status == "revisit" for f in result.findings) > 0
    assert int(suite.get("skipped", 0)) == len(suite.findall("testcase/skipped"))


def test_an_audit_measures_the_inherited_list_and_marks_what_is_unknown(
    inputs: TradeoffInputs, counts: TokenCounts
) -> None:
    needed = counts.ids_with_role("eos", "end_of_turn")
    ids = np.setdiff1d(rank(counts, force=False).order[:4_000], needed)[:3_000]
    record = audit(inputs, mapping_from_ids(ids, 49_152), "old-drafter", created=NOW)
    assert parse_decision(json.loads(decision_json(record)), "x") == record
    assert record.choice.draft_vocab == len(ids)
    assert record.choice.reason == "inherited with old-drafter"
    covered = counts.total[ids].sum() / counts.tokens
    assert f"{covered:.2%}" in record.inputs[0].value
    assert any("lacks" in gap for gap in record.gaps)
    assert any("who chose this size" in gap for gap in record.gaps)
    assert {i.name: i.evidence for i in record.inputs}["draft vocabulary"] == "inherited"
    assert record.tripwires[0].value == pytest.approx(covered - 0.01, abs=1e-4)
    assert check(record, counts=counts).holds


def _run(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "eagle3_core.cli.main", *map(str, args)], capture_output=True,
                          text=True, check=False, timeout=120)


def test_the_command_exits_0_1_and_2(decision: Decision, counts: TokenCounts, samples: Path, tmp_path: Path) -> None:
    file = tmp_path / "decision.json"
    file.write_text(decision_json(decision))
    ok = _run("check", file, "--counts", samples / "smollm2.counts.parquet", "--json")
    assert ok.returncode == 0, ok.stderr
    assert json.loads(ok.stdout)["holds"] is True
    write_acceptance(_record(decision.choice.draft_vocab, 0.05), tmp_path / "low.acceptance.json")
    bad = _run("check", file, "--acceptance", tmp_path / "low.acceptance.json", "--junit", tmp_path / "j.xml", "--json")
    assert bad.returncode == 1, bad.stderr
    assert json.loads(bad.stdout)["holds"] is False
    assert ElementTree.parse(tmp_path / "j.xml").getroot().get("failures") != "0"
    unusable = _run("check", tmp_path / "j.xml", "--engine", "vllm")
    assert unusable.returncode == 2
    assert unusable.stderr.count("\n") == 1


def test_the_audit_command_writes_a_record_that_check_reads(
    decision: Decision, samples: Path, tmp_path: Path
) -> None:
    assert decision.token_set is not None
    write_mapping("safetensors", decision.token_set.mapping(49_152), tmp_path / "old")
    done = _run("audit", "--target", "smollm2-135m", "--checkpoint", tmp_path / "old", "--counts",
                samples / "smollm2.counts.parquet", "--out", tmp_path / "audit.json", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["draft_vocab"] == decision.choice.draft_vocab
    again = _run("check", tmp_path / "audit.json", "--checkpoint", tmp_path / "old")
    assert again.returncode == 0, again.stdout + again.stderr
