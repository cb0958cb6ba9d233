"""The arithmetic of the truth test, on runs whose answer is known."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from eagle3_core.acceptance import truth
from eagle3_core.errors import Eagle3Error

SIZES = (100, 200, 400)


def runs(round_ms: dict[int, float], drift: float = 1.0) -> pl.DataFrame:
    """Four prompts: 20 plain tokens at 10 ms, 8 rounds with 12 drafts kept, times growing by ``drift`` a prompt."""
    rows = []
    for prompt in range(4):
        slow = drift**prompt
        order = [0, *round_ms, 0]
        for turn, size in enumerate(order):
            rounds, kept = (8, 12) if size else (0, 0)
            total = slow * (8 * round_ms[size] if size else 200.0)
            rows.append((prompt, turn, size, 3 if size else 0, 20, rounds, kept, 0.0, 0.0, total, True))
    return pl.DataFrame(rows, schema=truth.RUNS_SCHEMA, orient="row")


def projected(speedups: dict[int, float]) -> pl.DataFrame:
    return pl.DataFrame({"draft_vocab": list(speedups), "k": 3, "tau": 2.5, "round_ms": 1.0, "decode_ms": 1.0,
                         "speedup": list(speedups.values())})


def test_speedup_is_tokens_a_round_over_the_paired_ratio_of_times_whatever_the_machine_does():
    # tau = 1 + 12/8 = 2.5; 20 ms a round over 10 ms a token: 2.5 / 2 = 1.25.
    table = truth.measured(truth.paired(runs({100: 20.0}, drift=1.5)))
    assert table["tau"][0] == pytest.approx(2.5)
    assert table["speedup"][0] == pytest.approx(1.25)
    assert table["low"][0] == pytest.approx(1.25)


def test_a_drafted_run_is_paired_with_the_mean_of_the_plain_runs_around_it():
    frame = runs({100: 20.0}).with_columns(
        total_ms=pl.when(pl.col("turn") == 2).then(400.0).otherwise(pl.col("total_ms")))
    # Plain before 10 ms, after 20 ms a token: mean 15, ratio 20 / 15.
    assert truth.paired(frame)["ratio"].to_list() == pytest.approx([20 / 15] * 4)


def test_errors_are_relative_to_what_was_measured():
    verdict = truth.compare(projected({100: 1.25, 200: 1.1}), truth.paired(runs({100: 20.0, 200: 25.0})))
    # Measured 1.25 and 1.0: errors 0 and 10 %.
    assert verdict.mean_error == pytest.approx(0.05)
    assert verdict.worst_error == pytest.approx(0.10)


@pytest.mark.parametrize(
    ("said", "kendall"), [((3.0, 2.0, 1.0), 1.0), ((1.0, 2.0, 3.0), -1.0), ((2.0, 3.0, 1.0), 1 / 3)])
def test_order_is_judged_by_concordant_less_discordant_pairs(said, kendall):
    pairs = truth.paired(runs({100: 20.0, 200: 25.0, 400: 40.0}))
    verdict = truth.compare(projected(dict(zip(SIZES, said, strict=True))), pairs)
    assert verdict.pairs == 3
    assert verdict.kendall == pytest.approx(kendall)


def test_sizes_that_do_not_differ_beyond_their_noise_are_not_judged():
    verdict = truth.compare(projected({100: 2.0, 200: 1.0}), truth.paired(runs({100: 20.0, 200: 20.0})))
    assert verdict.pairs == 0
    assert verdict.kendall is None


def test_runs_without_plain_decoding_around_them_are_refused():
    with pytest.raises(Eagle3Error, match="between two plain ones"):
        truth.paired(runs({100: 20.0}).filter(pl.col("turn") < 2))


def test_a_stopped_test_goes_on_with_the_next_prompt_and_never_repeats_one(tmp_path, capsys):
    from drafter_tiny import tiny_drafter, tiny_model

    from eagle3_core.drafter.generate import generate_plain
    from eagle3_core.drafter.target import Target
    from tests.benchmarks.truth import LENGTHS, PLAIN_EVERY, decode

    target = Target(tiny_model())
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    texts = [generate_plain(target, prompt, max_new=12).ids for prompt in prompts]
    drafters = {64: tiny_drafter(64), 80: tiny_drafter(80)}
    file = tmp_path / "runs.csv"

    def go(prompts: list[list[int]]) -> pl.DataFrame:
        decode(target, drafters, prompts, texts, (), SimpleNamespace(minutes=1.0, tokens=12), file)
        return pl.read_csv(file, schema=truth.RUNS_SCHEMA)

    first = go(prompts[:1])
    settings = len(drafters) * len(LENGTHS)
    # Plain before, after every third and after the last drafted run.
    assert len(first) == 1 + settings + -(-settings // PLAIN_EVERY)
    assert set(first["prompt"]) == {0}
    both = go(prompts)
    assert both.filter(pl.col("prompt") == 0).equals(first)
    assert set(both["prompt"]) == {0, 1, 2}
    assert both["same_text"].all()
    assert len(truth.paired(both)) == 3 * settings
    assert go(prompts).equals(both)
