"""The band around coverage, what overrides it, and lengths turned into positions."""

from __future__ import annotations

import numpy as np
import pytest

from eagle3_core.acceptance.model import (
    acceptance_at,
    alphas_of_length,
    assumed_alpha,
    per_position,
    resolve_acceptance,
)
from eagle3_core.decide.projection import acceptance_length
from eagle3_core.errors import Eagle3Error

SIZES = (8_192, 32_000, 151_936)
COVERAGE = np.array([0.8, 0.95, 1.0])


def test_the_band_runs_from_every_lost_token_right_to_none() -> None:
    band = acceptance_at(assumed_alpha(0.75), SIZES, COVERAGE, 3, vocab_size=151_936)
    np.testing.assert_allclose(band.low[:, 0], [0.75 - 0.2, 0.75 - 0.05, 0.75])
    np.testing.assert_allclose(band.high[:, 0], [0.75, 0.75, 0.75])
    np.testing.assert_allclose(band.central[:, 0], 0.75 * COVERAGE**0.7)
    assert ((band.low <= 0.75 * COVERAGE[:, None]) & (0.75 * COVERAGE[:, None] <= band.high)).all()


def test_alpha_known_at_a_smaller_size_rises_with_coverage_above_it() -> None:
    band = acceptance_at(assumed_alpha(0.6, reference_size=32_000), SIZES, COVERAGE, 1, vocab_size=151_936)
    np.testing.assert_allclose(band.central[:, 0], 0.6 * (COVERAGE / 0.95) ** 0.7)
    assert band.central[2, 0] > 0.6


def test_an_assumption_is_never_more_than_an_assumption() -> None:
    band = acceptance_at(assumed_alpha(0.75), SIZES, COVERAGE, 3, vocab_size=151_936)
    assert set(band.evidence) == {"assumed"}


def test_one_assumed_alpha_holds_at_every_position() -> None:
    np.testing.assert_allclose(per_position([0.15], 5), 0.15)


def test_beyond_the_last_position_the_odds_go_on_falling() -> None:
    found = per_position([0.9, 0.8], 4, decay=0.5)
    np.testing.assert_allclose(found, [0.9, 0.8, 2 / 3, 0.5])  # odds 4, 2, 1


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize("tau", [1.0, 1.4, 1.9])
def test_positions_of_a_length_emit_that_length(tau: float, steps: int) -> None:
    found = alphas_of_length(tau, steps)
    assert acceptance_length(found) == pytest.approx(tau, abs=1e-6)
    assert (np.diff(found) <= 0).all()


def test_a_length_that_no_chain_emits_is_refused() -> None:
    with pytest.raises(Eagle3Error, match="1 to 4"):
        alphas_of_length(4.5, 3)


@pytest.mark.parametrize("text", ["1.2", "-0.1", "nan", "0.8,", "none"])
def test_what_is_no_probability_is_refused_by_name(text: str) -> None:
    with pytest.raises(Eagle3Error, match="--acceptance"):
        resolve_acceptance(text)
