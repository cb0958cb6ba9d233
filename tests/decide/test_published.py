"""The projection reproduces tables that others measured; ``python -m tests.benchmarks.published`` prints them all."""

from __future__ import annotations

import pytest

from eagle3_core.acceptance.model import DEPTH_ODDS
from tests.benchmarks.published import compare


@pytest.mark.parametrize(("group", "optimum"), [("frspec-a800", 32_768), ("frspec-3090", 16_384)])
def test_fr_specs_throughput_and_optimum_come_out(group: str, optimum: int) -> None:
    table, predicted, measured = compare.fr_spec(group)
    assert table["error"].abs().max() <= 0.015
    assert predicted == measured == optimum


def test_speed_benchs_six_points_come_out() -> None:
    table = compare.speed_bench()
    assert len(table) == 6
    assert table["error"].abs().max() <= 0.02


def test_the_head_only_rule_gives_slim_specs_gains() -> None:
    assert compare.slim_spec()["error"].abs().max() <= 0.025


def test_leviathans_table_comes_out_to_its_last_digit() -> None:
    table = compare.leviathan()
    assert (table["predicted"].round(2) == table["measured"]).all()


def test_one_alpha_promises_too_much_at_longer_chains_and_falling_odds_do_not() -> None:
    table = compare.chains()
    assert len(table) == 87
    flat, falling = compare.carried(table, 1.0), compare.carried(table, DEPTH_ODDS)
    assert flat.filter(chain=5)["error"].mean() == pytest.approx(0.028, abs=0.001)
    assert flat.filter(chain=7)["error"].mean() == pytest.approx(0.055, abs=0.001)
    assert abs(falling["error"].mean()) < 0.005  # type: ignore[arg-type]


def test_on_targets_left_out_of_the_fit_the_mean_error_stays_under_one_and_a_half_percent() -> None:
    assert compare.left_out(compare.chains())["error"].abs().mean() < 0.015  # type: ignore[operator]
