"""The inherited option: a fixed mapping measured on counted tokens."""

from __future__ import annotations

import numpy as np
import pytest

from eagle3_core.acceptance.model import assumed_alpha
from eagle3_core.corpus.counts import read_counts
from eagle3_core.cost.hardware import devices
from eagle3_core.decide.inherited import inherited_coverage, inherited_row
from eagle3_core.decide.tradeoff import TradeoffInputs, tradeoff
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.presets import presets
from eagle3_core.vocab.mapping import VocabMapping

SIZE = 24_000


@pytest.fixture(scope="module")
def inputs(samples):
    return TradeoffInputs(presets()["qwen3-8b"], read_counts(samples / "qwen3.counts.parquet"), devices()["h200"],
                          assumed_alpha(0.8))


def test_a_mapping_covers_the_counted_tokens_of_its_ids(inputs):
    counts = inputs.counts
    got = inherited_coverage(counts, VocabMapping(np.arange(SIZE), counts.vocab_size))
    # The first 24,000 ids: a plain sum over the counts, by domain and by fold.
    inside = counts.counts[:, :, :SIZE]
    assert got["coverage"] == pytest.approx(inside.sum() / counts.counts.sum())
    shares = inside.sum(axis=(1, 2)) / counts.counts.sum(axis=(1, 2))
    assert [got[f"coverage:{name}"] for name in counts.domains] == pytest.approx(shares.tolist())
    assert got["worst_domain"] == counts.domains[int(shares.argmin())]
    folds = inside.sum(axis=(0, 2)) / counts.counts.sum(axis=(0, 2))
    assert (got["coverage_low"], got["coverage_high"]) == pytest.approx((folds.min(), folds.max()))


def test_only_coverage_and_what_follows_from_it_differ_from_the_best_list_of_that_size(inputs):
    mine = inherited_row(inputs, VocabMapping(np.arange(SIZE), inputs.target.vocab_size)).row(0, named=True)
    best = tradeoff(inputs, (SIZE,)).row(0, named=True)
    for same in ("lm_head_params", "trainable_params", "step_ms", "round_ms"):
        assert mine[same] == best[same]
    assert mine["coverage"] < best["coverage"]
    # alpha' = alpha * (C / C_ref)^0.7, with C_ref = 1 at the full vocabulary.
    assert mine["alpha"][0] == pytest.approx(0.8 * mine["coverage"] ** 0.7, rel=1e-6)
    assert mine["speedup"] < best["speedup"]


def test_a_mapping_of_another_vocabulary_is_refused(inputs):
    with pytest.raises(Eagle3Error, match="another vocabulary"):
        inherited_coverage(inputs.counts, VocabMapping(np.arange(64), 49_152))
