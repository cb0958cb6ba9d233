"""Monte Carlo confidence and the inverse questions, held to tables made again at the answers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from eagle3_core.acceptance.model import assumed_alpha
from eagle3_core.corpus.counts import read_counts
from eagle3_core.cost.hardware import devices
from eagle3_core.decide.conclude import constraints_of, full_table, recommended_for
from eagle3_core.decide.confidence import confidence, confidence_text, draw_speedups
from eagle3_core.decide.projection import harmonic_mix
from eagle3_core.decide.questions import answers, within_cost
from eagle3_core.decide.recommend import recommend, verdict
from eagle3_core.decide.tradeoff import TradeoffInputs, tradeoff
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.presets import presets


@pytest.fixture(scope="module")
def inputs(samples: Path) -> TradeoffInputs:
    counts = read_counts(samples / "qwen3.counts.parquet")
    return TradeoffInputs(presets()["qwen3-8b"], counts, devices()["h200"], assumed_alpha(0.8))


@pytest.fixture(scope="module")
def table(inputs: TradeoffInputs) -> pl.DataFrame:
    return full_table(inputs, 32_000)


def test_the_same_inputs_give_the_same_confidence(table: pl.DataFrame) -> None:
    assert confidence(table, 32_000, k=5) == confidence(table, 32_000, k=5)
    assert confidence(table, 32_000, k=5) != confidence(table, 32_000, k=5, seed=1)


def test_the_draws_lie_around_the_table(table: pl.DataFrame) -> None:
    drawn = draw_speedups(table, k=5, draws=4000)
    assert drawn.shape == (4000, len(table))
    np.testing.assert_allclose(np.median(drawn, axis=0), table["speedup"], rtol=0.05)
    assert (np.std(drawn, axis=0) > 0.01).all()


def test_a_size_far_off_never_stays_and_says_what_it_costs(table: pl.DataFrame) -> None:
    found = confidence(table, 1024, k=5)
    assert found.stays < 0.01
    lost = -float(table.filter(pl.col("draft_vocab") == 1024)["vs_best"][0])
    assert found.cost_when_not == pytest.approx(lost, abs=0.1)
    assert "in the others" in confidence_text(found)


def test_with_nothing_unknown_the_best_size_is_certain(table: pl.DataFrame) -> None:
    best = int(table["draft_vocab"][table["speedup"].arg_max()])  # type: ignore[index]
    known = table.with_columns(
        acceptance_evidence=pl.lit("measured"), latency_evidence=pl.lit("measured"),
        step_low_ms=pl.col("step_ms"), step_high_ms=pl.col("step_ms"))
    assert confidence(known, best, k=5).stays > 0.99


def test_sizes_within_a_cost_are_those_of_the_table(table: pl.DataFrame) -> None:
    small, large = within_cost(table, 0.05)
    best = table["speedup"].max()
    inside = [d for d, s in zip(table["draft_vocab"], table["speedup"], strict=True) if s >= 0.95 * best]  # type: ignore[operator]
    assert (small, large) == (min(inside), max(inside))


def test_at_the_alpha_of_the_answer_both_sizes_are_level(inputs: TradeoffInputs) -> None:
    kimi = dataclasses.replace(inputs, target=presets()["kimi-k2.5"], draft_tp=8, target_tp=8, decode_ms=11.1)
    found = answers(kimi, tradeoff(kimi))
    assert found.alpha_level is not None
    level = tradeoff(dataclasses.replace(kimi, acceptance=assumed_alpha(found.alpha_level)), (32_000, 163_840))
    assert level["speedup"][0] == pytest.approx(level["speedup"][1], rel=1e-6)
    above = tradeoff(dataclasses.replace(kimi, acceptance=assumed_alpha(found.alpha_level + 0.05)), (32_000, 163_840))
    assert above["speedup"][0] < above["speedup"][1]


def test_at_the_coverage_of_the_answer_both_sizes_are_level(inputs: TradeoffInputs) -> None:
    found = answers(inputs, tradeoff(inputs))
    assert found.coverage_level is not None
    small, full = tradeoff(inputs, (32_000, 151_936)).iter_rows(named=True)
    tau = 1 + np.cumprod(np.full(5, 0.8 * found.coverage_level**0.7)).sum()
    assert tau / small["round_ms"] == pytest.approx(full["tau"] / full["round_ms"], rel=1e-6)


def test_a_mix_is_harmonic_over_its_domains(inputs: TradeoffInputs) -> None:
    mixed = tradeoff(dataclasses.replace(inputs, mix={"code": 0.7, "zh": 0.3}), (32_000,))["tau"][0]
    alone = [tradeoff(dataclasses.replace(inputs, mix={name: 1.0}), (32_000,))["tau"][0] for name in ("code", "zh")]
    assert mixed == pytest.approx(harmonic_mix(alone, [0.7, 0.3]))
    assert alone[1] < mixed < alone[0]


def test_a_mix_of_unknown_domains_is_refused(inputs: TradeoffInputs) -> None:
    with pytest.raises(Eagle3Error, match="unknown domain in the task mix, found law"):
        dataclasses.replace(inputs, mix={"law": 1.0})


def test_a_tree_verifies_more_tokens_and_accepts_more(inputs: TradeoffInputs) -> None:
    chain = tradeoff(inputs, (32_000,)).row(0, named=True)
    tree = tradeoff(dataclasses.replace(inputs, topk=4, draft_tokens=16), (32_000,)).row(0, named=True)
    assert tree["tau"] > chain["tau"]
    assert tree["verify_ms"] >= chain["verify_ms"]
    assert tree["step_ms"] >= chain["step_ms"]


def test_limits_bind_and_the_strictest_is_named(inputs: TradeoffInputs) -> None:
    free = recommended_for(inputs)[1].size
    worst = dataclasses.replace(inputs, min_worst_coverage=0.97)
    table, result = recommended_for(worst)
    assert result.size > free
    assert table.filter(pl.col("draft_vocab") == result.size)["worst_coverage"][0] >= 0.97
    small = dataclasses.replace(inputs, max_lm_head_bytes=100_000_000)
    assert recommended_for(small)[1].size * 4096 * 2 <= 100_000_000
    with pytest.raises(Eagle3Error, match="lm_head within 1,000 bytes"):
        recommended_for(dataclasses.replace(inputs, max_lm_head_bytes=1_000))


def test_sharded_drafters_get_sizes_no_engine_pads(inputs: TradeoffInputs) -> None:
    sharded = dataclasses.replace(inputs, draft_tp=8)
    assert constraints_of(sharded).multiple_of == 512
    size = recommended_for(sharded)[1].size
    assert size % 512 == 0 or size == 151_936


def test_when_it_hardly_matters_the_verdict_says_so(inputs: TradeoffInputs) -> None:
    """A target of 200 ms a token drowns every head, and at alpha 0.05 lost tokens cost next to nothing."""
    slow = dataclasses.replace(inputs, decode_ms=200.0, acceptance=assumed_alpha(0.05))
    table = tradeoff(slow)
    result = recommend(table)
    assert result.hardly_matters
    if not result.slower_than_none:
        assert "hardly matters" in verdict(result, table)
