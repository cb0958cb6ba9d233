"""The inherited option: a mapping that came with a checkpoint, as a row of the tradeoff table.

A mapping is fixed, so its share of the counted tokens is a plain measurement: it
was not made from them. Parameters and the draft step follow from its size, as
for any other; acceptance follows from what it covers.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from eagle3_core.corpus.counts import FOLDS, TokenCounts
from eagle3_core.decide.tradeoff import TradeoffInputs, tradeoff
from eagle3_core.errors import Eagle3Error
from eagle3_core.vocab.coverage import DOMAIN_PREFIX, mean_run
from eagle3_core.vocab.mapping import VocabMapping


def inherited_coverage(counts: TokenCounts, mapping: VocabMapping) -> dict[str, object]:
    """The columns of ``coverage_table`` that a mapping changes. Raises Eagle3Error for counts of another vocabulary."""
    if mapping.vocab_size != counts.vocab_size:
        raise Eagle3Error("the mapping is of another vocabulary", found=f"V = {mapping.vocab_size:,}",
                          expected=f"V = {counts.vocab_size:,} ({counts.meta.tokenizer})")
    inside = mapping.t2d
    tokens = counts.by_domain.sum(axis=1)
    hits = (counts.by_domain * inside).sum(axis=1)
    used = np.flatnonzero(tokens)
    shares = np.divide(hits, tokens, out=np.full(len(tokens), np.nan), where=tokens > 0)
    folds = counts.by_fold.sum(axis=1)
    fold_shares = np.array([(counts.by_fold[f] * inside).sum() / folds[f] for f in range(FOLDS) if folds[f]])
    worst = used[np.argmin(shares[used])]
    share = float(hits.sum() / tokens.sum())
    return {
        "coverage": share, "coverage_low": float(fold_shares.min()), "coverage_high": float(fold_shares.max()),
        "coverage_in_sample": share, "worst_domain": counts.domains[worst], "worst_coverage": float(shares[worst]),
        "mean_run": float(mean_run(np.array(share))), "padding": int((counts.total[mapping.target_ids] == 0).sum()),
        **{DOMAIN_PREFIX + name: float(shares[i]) for i, name in enumerate(counts.domains)},
    }


def inherited_row(inputs: TradeoffInputs, mapping: VocabMapping) -> pl.DataFrame:
    """One row with the columns of ``tradeoff``; ``vs_best`` is against itself."""
    return tradeoff(inputs, (mapping.draft_vocab_size,), coverage=inherited_coverage(inputs.counts, mapping))
