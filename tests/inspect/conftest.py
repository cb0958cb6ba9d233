"""Makes ``small.py`` importable, and counts of its vocabulary."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from small import V

from eagle3_core.corpus.counts import FOLDS, CountsMeta, TokenCounts


@pytest.fixture
def small_counts():
    """``small_counts(seen=ids, weights=..., roles={id: role})``: counts of V ids in one or more domains."""

    def make(seen=(), *, times=10, roles=None, domains=("chat",), by_domain=None) -> TokenCounts:
        counts = np.zeros((len(domains), FOLDS, V), dtype=np.int64)
        if by_domain is not None:
            for index, table in enumerate(by_domain):
                for token_id, count in table.items():
                    counts[index, :, token_id] = count
        else:
            counts[0][:, np.asarray(seen)] = times
        names = [""] * V
        for token_id, role in (roles or {}).items():
            names[token_id] = role
        meta = CountsMeta(tool_version="0", created="2026-01-01T00:00:00+00:00", tokenizer="small",
                          tokenizer_sha256="0" * 64, vocab_size=V, tokenizer_size=V, tokens="assistant",
                          domains=tuple(domains), documents=tuple((10,) * FOLDS for _ in domains))
        token = pl.Series("token", [f"t{i}".encode() for i in range(V)], dtype=pl.Binary)
        return TokenCounts(counts, token, pl.Series("role", names), meta)

    return make
