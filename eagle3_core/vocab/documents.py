"""How many documents a list serves badly: held-out coverage of each sampled document by itself.

A mean of 96 % can hide documents, or users, far below it. Each document is
measured under the ranking of the nine folds it is not in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from eagle3_core.corpus.counts import FOLDS, TokenCounts
from eagle3_core.corpus.documents import Documents
from eagle3_core.errors import Eagle3Error
from eagle3_core.vocab.ranking import make_plan, rank_counts

LEVELS = (0.95, 0.90)


def document_coverage(counts: TokenCounts, documents: Documents, sizes: Sequence[int], **ranking: Any) -> np.ndarray:
    """Held-out coverage of every document at every size, float64 [documents, sizes].

    ``ranking`` as for ``coverage_table``. Raises Eagle3Error when the sample is another tokenizer's.
    """
    if documents.meta.tokenizer_sha256 != counts.meta.tokenizer_sha256 or \
            documents.meta.vocab_size != counts.vocab_size:
        raise Eagle3Error("documents are of another tokenizer than the counts", found=documents.meta.tokenizer,
                          expected=counts.meta.tokenizer)
    plan = make_plan(counts, **ranking)
    edges = np.asarray(sizes, dtype=np.int64)
    out = np.empty((documents.frame.height, len(edges)))
    fold_of = documents.frame["fold"].to_numpy()
    position = np.empty(counts.vocab_size, dtype=np.int64)
    for fold in range(FOLDS):
        mine = np.flatnonzero(fold_of == fold)
        if not len(mine):
            continue
        position[rank_counts(counts.by_domain - counts.counts[:, fold], plan).order] = np.arange(counts.vocab_size)
        rows = documents.frame[mine]
        lengths = rows["id"].list.len().to_numpy()
        ids = rows["id"].explode().to_numpy()
        weight = rows["count"].explode().to_numpy().astype(np.float64)
        owner = np.repeat(np.arange(len(mine)), lengths)
        tokens = np.bincount(owner, weights=weight, minlength=len(mine))
        for column, size in enumerate(edges):
            inside = np.bincount(owner, weights=weight * (position[ids] < size), minlength=len(mine))
            out[mine, column] = inside / tokens
    return out


def documents_below(counts: TokenCounts, documents: Documents, sizes: Sequence[int], **ranking: Any) -> pl.DataFrame:
    """One row per size and domain (and ``all domains``, each document counting once).

    Columns: draft_vocab, domain, documents, below_95, below_90 (shares of documents), median, p10 (coverage).
    """
    coverage = document_coverage(counts, documents, sizes, **ranking)
    domain = documents.frame["domain"].to_numpy()
    groups = [*sorted(set(domain)), "all domains"]
    rows = []
    for column, size in enumerate(sizes):
        for name in groups:
            values = coverage[:, column] if name == "all domains" else coverage[domain == name, column]
            rows.append({
                "draft_vocab": size, "domain": name, "documents": len(values),
                **{f"below_{round(level * 100)}": float((values < level).mean()) for level in LEVELS},
                "median": float(np.median(values)), "p10": float(np.quantile(values, 0.1)),
            })
    return pl.DataFrame(rows)
