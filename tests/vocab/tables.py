"""Small TokenCounts written down by hand or drawn at random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from eagle3_core.corpus.counts import FOLDS, CountsMeta, TokenCounts


def make_counts(
    table: np.ndarray | Sequence, *, roles: Sequence[str] | None = None, token: Sequence[bytes] | None = None,
    domains: Sequence[str] | None = None, sha: str = "0" * 64,
) -> TokenCounts:
    """``table``: [domains, FOLDS, V], or [domains, V] spread evenly over folds, first folds first."""
    array = np.asarray(table, dtype=np.int64)
    if array.ndim == 2:
        spread = np.repeat(array[:, None] // FOLDS, FOLDS, axis=1)
        extra = array - spread.sum(axis=1)
        array = spread + (np.arange(FOLDS)[None, :, None] < extra[:, None])
    n, _, vocab = array.shape
    names = tuple(domains or [f"d{i}" for i in range(n)])
    meta = CountsMeta(
        tool_version="test", created="2026-01-01T00:00:00+00:00", tokenizer="tiny", tokenizer_sha256=sha,
        vocab_size=vocab, tokenizer_size=vocab, tokens="all", domains=names,
        documents=tuple((1,) * FOLDS for _ in names),
    )
    return TokenCounts(array, pl.Series("token", list(token or [f"t{i}".encode() for i in range(vocab)]), pl.Binary),
                       pl.Series("role", list(roles or [""] * vocab), pl.String), meta)


def random_counts(seed: int, *, domains: int = 3, vocab: int = 60, tokens: int = 400) -> TokenCounts:
    """Zipf-like shares, another order of ids in each domain."""
    rng = np.random.default_rng(seed)
    table = np.zeros((domains, FOLDS, vocab), dtype=np.int64)
    for d in range(domains):
        share = 1 / (1 + rng.permutation(vocab)) ** 1.1
        for fold in range(FOLDS):
            table[d, fold] = rng.multinomial(tokens, share / share.sum())
    return make_counts(table)
