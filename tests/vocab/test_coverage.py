"""Held-out coverage against a loop over tokens, one by one."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import make_counts, random_counts

from eagle3_core.corpus.counts import FOLDS, TokenCounts
from eagle3_core.corpus.text import show_token
from eagle3_core.errors import Eagle3Error
from eagle3_core.vocab.coverage import coverage_table, covered, cross_domain, domain_table, left_out
from eagle3_core.vocab.ranking import rank


def _reference(counts: TokenCounts, size: int) -> dict[str, float]:
    """The definition, in plain Python: pooled ranking, nothing forced."""
    hit = total = unseen = 0
    by_domain = dict.fromkeys(counts.domains, 0)
    folds = []
    for fold in range(FOLDS):
        rest = [sum(int(counts.counts[d, f, v]) for d in range(len(counts.domains)) for f in range(FOLDS) if f != fold)
                for v in range(counts.vocab_size)]
        inside = set(sorted(range(counts.vocab_size), key=lambda v: (-rest[v], v))[:size])
        hit_here = total_here = 0
        for d, name in enumerate(counts.domains):
            for v in range(counts.vocab_size):
                n = int(counts.counts[d, fold, v])
                total_here += n
                unseen += n if rest[v] == 0 else 0
                if v in inside:
                    hit_here += n
                    by_domain[name] += n
        hit, total = hit + hit_here, total + total_here
        if total_here:
            folds.append(hit_here / total_here)
    out = {"coverage": hit / total, "coverage_low": min(folds), "coverage_high": max(folds),
           "unseen_mass": unseen / total}
    for d, name in enumerate(counts.domains):
        out[f"coverage:{name}"] = by_domain[name] / int(counts.counts[d].sum())
    return out


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.sampled_from([64, 70, 90]))
def test_the_table_equals_a_loop_over_every_token(seed: int, domains: int, size: int) -> None:
    counts = random_counts(seed, domains=domains, vocab=90, tokens=40)
    row = coverage_table(counts, [size], force=False).row(0, named=True)
    for name, value in _reference(counts, size).items():
        assert row[name] == pytest.approx(value, abs=1e-12), name
    assert row["worst_coverage"] == min(row[f"coverage:{name}"] for name in counts.domains)
    assert row["coverage_low"] <= row["coverage"] <= row["coverage_high"]


@pytest.mark.parametrize("strategy", ["pooled", "balanced", "worst", "robust"])
def test_coverage_grows_with_the_size_and_ends_at_one(strategy: str) -> None:
    counts = random_counts(2, vocab=200, tokens=300)
    table = coverage_table(counts, [64, 100, 128, 199, 200], strategy=strategy)
    assert table["coverage"].is_sorted()
    assert table["coverage"][-1] == 1
    assert math.isinf(table["mean_run"][-1])


def test_sizes_may_come_in_any_order_and_repeat() -> None:
    counts = random_counts(4, vocab=100)
    table = coverage_table(counts, [90, 64, 90])
    assert table["draft_vocab"].to_list() == [90, 64, 90]
    assert table["coverage"][0] == table["coverage"][2] > table["coverage"][1]


def test_in_sample_coverage_is_never_below_held_out() -> None:
    for seed in range(8):
        table = coverage_table(random_counts(seed, vocab=150, tokens=60), [64, 96, 128], force=False)
        assert (table["coverage_in_sample"] >= table["coverage"]).all()


def test_what_forcing_costs_is_the_coverage_of_the_tokens_it_displaces() -> None:
    counts = make_counts([[50, 30, 10, 10, 0]], roles=["", "", "", "", "eos"])
    table = coverage_table(counts, [2, 3, 5])
    assert table["forced_cost"].to_list() == pytest.approx([0.3, 0.1, 0.0])
    assert table["padding"].to_list() == [0, 0, 0]


def test_good_turing_is_the_share_of_tokens_seen_once() -> None:
    counts = make_counts([[7, 1, 1, 1, 0]])
    assert coverage_table(counts, [3])["good_turing"][0] == pytest.approx(0.3)


def test_good_turing_comes_near_the_unseen_mass_it_estimates() -> None:
    counts = random_counts(9, domains=1, vocab=4_000, tokens=800)
    row = coverage_table(counts, [64]).row(0, named=True)
    assert row["good_turing"] == pytest.approx(row["unseen_mass"], rel=0.15)


def test_counts_of_another_vocabulary_are_marked_modelled() -> None:
    counts = random_counts(1)
    assert coverage_table(counts, [60])["coverage_evidence"].to_list() == ["measured"]
    assert coverage_table(counts, [60, 5_000], vocab_size=6_000)["coverage_evidence"].to_list() == ["modelled"] * 2


def test_empty_counts_are_refused() -> None:
    with pytest.raises(Eagle3Error, match="hold no tokens"):
        coverage_table(make_counts([[0, 0]]), [2])


def test_the_table_of_domains_agrees_with_the_table_of_sizes() -> None:
    counts = random_counts(7, domains=2, vocab=120)
    row = coverage_table(counts, [80]).row(0, named=True)
    by_name = {r["domain"]: r for r in domain_table(counts, 80).iter_rows(named=True)}
    assert by_name["all domains"]["coverage"] == pytest.approx(row["coverage"])
    assert by_name["all domains"]["in_sample"] == pytest.approx(row["coverage_in_sample"])
    assert by_name["all domains"]["unseen_mass"] == pytest.approx(row["unseen_mass"])
    assert by_name["d1"]["coverage"] == pytest.approx(row["coverage:d1"])
    assert by_name["d0"]["mean_run"] == pytest.approx(row["coverage:d0"] / (1 - row["coverage:d0"]))


def test_a_domain_without_tokens_has_no_coverage_and_is_never_the_worst() -> None:
    counts = make_counts([[9, 8, 7], [0, 0, 0]])
    row = coverage_table(counts, [2]).row(0, named=True)
    assert math.isnan(row["coverage:d1"])
    assert row["worst_domain"] == "d0"
    assert domain_table(counts, 2)["domain"].to_list() == ["d0", "all domains"]


def test_the_cross_domain_matrix_ranks_on_the_row_and_measures_the_column() -> None:
    counts = make_counts([[60, 40, 0, 0], [0, 0, 90, 10]], domains=["en", "zh"])
    matrix = cross_domain(counts, 2)
    assert matrix["ranked_on"].to_list() == ["en", "zh"]
    assert matrix["en"].to_list() == [1.0, 0.0]
    assert matrix["zh"].to_list() == [0.0, 1.0]


def test_covered_measures_any_ranking_on_any_counts() -> None:
    ranking = rank(make_counts([[1, 5, 3]]))
    assert covered(np.array([[10, 20, 30], [1, 0, 0]]), ranking, [1, 2, 3]).tolist() == [[20, 50, 60], [0, 0, 1]]


def test_left_out_tokens_are_the_most_frequent_outside_the_list() -> None:
    counts = make_counts([[50, 0, 20, 30, 5], [0, 1, 0, 0, 0]], token=[b"a", b"b", b"<b>", b"\xff", b"e"])
    frame = left_out(counts, rank(counts), 2)
    assert frame["token_id"].to_list() == [2, 4, 1]
    assert frame["rank"].to_list() == [3, 4, 5]
    assert frame["share"].to_list() == pytest.approx([20 / 106, 5 / 106, 1 / 106])
    assert frame["share:d1"].to_list() == [0, 0, 1]
    assert left_out(counts, rank(counts), 5).is_empty()
    assert left_out(counts, rank(counts), 5).schema["text"] == pl.String


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_token_is_shown_in_printable_characters_of_bounded_length(token: bytes) -> None:
    shown = show_token(token)
    assert shown
    assert shown.isprintable()
    assert len(shown) <= 49


@pytest.mark.parametrize(("token", "shown"), [
    (b" the", "\u2423the"), (b"\n\t", "\\n\\t"), (b"", "(empty)"), (b"\xe4\xbd", "\\xe4\\xbd"),
    ("\u202eabc".encode(), "\\u202eabc"), ("\u200b".encode(), "\\u200b"), ("e\u0301".encode(), "e\\u0301"),
    (b"\x1b[31m", "\\x1b[31m"), ("你好".encode(), "你好"), (b"<script>", "<script>"),
    ("\U000e0041".encode(), "\\U000e0041"),
])
def test_controls_marks_and_broken_text_are_escaped(token: bytes, shown: str) -> None:
    assert show_token(token) == shown
