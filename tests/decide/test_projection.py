"""Closed forms, published arithmetic and simulation of the projection."""

from __future__ import annotations

import numpy as np
import pytest

from eagle3_core.decide.projection import acceptance_length, break_even_alpha, harmonic_mix, round_time, speedup


@pytest.mark.parametrize("alpha", [0.0, 0.15, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_one_alpha_gives_the_geometric_series(alpha: float, k: int) -> None:
    """Leviathan et al. 2211.17192, equation 1: (1 - alpha^(K+1)) / (1 - alpha)."""
    assert acceptance_length(np.full(k, alpha)) == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))


def test_fifteen_percent_emits_1_18_tokens_a_round() -> None:
    assert acceptance_length(np.full(5, 0.15)) == pytest.approx(1.17645, abs=1e-5)


def test_positions_multiply_along_the_chain() -> None:
    assert acceptance_length(np.array([0.8, 0.5, 0.25])) == pytest.approx(1 + 0.8 + 0.8 * 0.5 + 0.8 * 0.5 * 0.25)


@pytest.mark.parametrize(("alpha", "k", "c"), [(0.6, 2, 0.0), (0.8, 5, 0.05), (0.9, 7, 0.02), (0.75, 3, 0.1)])
def test_with_verification_as_cheap_as_decoding_the_speedup_is_leviathans(alpha: float, k: int, c: float) -> None:
    """Theorem 3.8: (1 - alpha^(K+1)) / ((1 - alpha)(K c + 1))."""
    decode = 20.0
    round_ms = round_time(np.array([c * decode]), k=k, verify_ms=decode)
    found = speedup(acceptance_length(np.full((1, k), alpha)), round_ms, decode)
    assert found == pytest.approx((1 - alpha ** (k + 1)) / ((1 - alpha) * (k * c + 1)))


def test_the_expected_length_is_what_chains_drawn_at_random_emit() -> None:
    alpha = np.array([0.81, 0.7, 0.62, 0.5])
    random = np.random.default_rng(0)
    accepted = np.cumprod(random.random((200_000, 4)) < alpha, axis=1).sum(axis=1)
    emitted = 1 + accepted
    error = 4 * emitted.std() / np.sqrt(len(emitted))
    assert acceptance_length(alpha) == pytest.approx(emitted.mean(), abs=error)


@pytest.mark.parametrize("k", [1, 5, 16])
def test_at_the_break_even_alpha_the_speedup_is_one(k: int) -> None:
    round_ms = np.array([12.0, 20.0, 10.0 * k])
    alpha = break_even_alpha(round_ms, 10.0, k)
    np.testing.assert_allclose(speedup(acceptance_length(np.repeat(alpha[:, None], k, axis=1)), round_ms, 10.0), 1,
                               atol=1e-4)


def test_a_round_as_cheap_as_a_step_breaks_even_without_acceptance_and_a_hopeless_one_never() -> None:
    alpha = break_even_alpha(np.array([10.0, 61.0]), 10.0, 5)
    assert alpha[0] == 0
    assert np.isnan(alpha[1])


def test_a_mix_is_the_time_weighted_mean_of_its_tasks() -> None:
    """900 tokens at tau 3 take 300 rounds, 100 at tau 2 take 50: 1,000 tokens in 350 rounds."""
    assert harmonic_mix([3.0, 2.0], [0.9, 0.1]) == pytest.approx(1000 / 350)
