"""Coverage that is held out: rank on nine folds, measure on the tenth, for each fold in turn.

"98.3 % at 32,000" was the share of the very tokens the list was made from.
Here every token is measured once, by a ranking that never saw its document.

Columns of ``coverage_table`` (shares in [0, 1]):

    draft_vocab          D
    coverage             held-out share of all tokens inside the draft vocabulary
    coverage_low, _high  smallest and largest fold
    coverage_in_sample   the same tokens ranked and measured, what trainers print
    worst_domain         domain with the smallest held-out coverage, and
    worst_coverage       that coverage
    unseen_mass          held-out share of tokens whose id never occurred in the ranking part
    good_turing          its estimate from the counts alone: ids seen once / tokens (Good 1953)
    mean_run             tokens between two misses on average, C / (1 - C)
    forced_cost          in-sample coverage given up at this D for the forced tokens
    padding              draft ids filled with tokens never seen
    coverage:<domain>    held-out coverage of each domain
    coverage_evidence    "measured", or "modelled" where another tokenizer's counts stand in
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from eagle3_core.corpus.counts import FOLDS, TokenCounts
from eagle3_core.corpus.text import show_token
from eagle3_core.errors import Eagle3Error
from eagle3_core.vocab.ranking import Ranking, rank, rank_counts

DOMAIN_PREFIX = "coverage:"


def coverage_table(
    counts: TokenCounts,
    sizes: Sequence[int],
    *,
    strategy: str = "pooled",
    force: bool = True,
    weights: Mapping[str, float] | None = None,
    extra_forced: Sequence[int] = (),
    vocab_size: int | None = None,
) -> pl.DataFrame:
    """One row per size; columns in the module's docstring.

    ``vocab_size`` other than the counts' own means that these counts stand in for
    a target whose tokenizer is not at hand: the result is marked ``modelled``.
    Raises Eagle3Error when there is nothing to measure.
    """
    if counts.tokens == 0:
        raise Eagle3Error("counts hold no tokens", expected="at least one counted document")
    options = {"force": force, "weights": weights, "extra_forced": extra_forced}
    at = np.minimum(np.asarray(sizes, dtype=np.int64), counts.vocab_size)
    by_domain = counts.by_domain
    hits = np.zeros((FOLDS, len(counts.domains), len(at)))
    held = np.zeros((FOLDS, len(counts.domains)))
    unseen = 0
    for fold in range(FOLDS):
        part = counts.counts[:, fold]
        held[fold] = part.sum(axis=1)
        if not held[fold].any():
            continue
        rest = by_domain - part
        ranking = rank_counts(rest, counts, strategy, **options)
        hits[fold] = _cumulative(part, ranking, at)
        unseen += int(part.sum(axis=0)[rest.sum(axis=0) == 0].sum())
    full = rank(counts, strategy, **options)
    in_sample = _cumulative(by_domain, full, at).sum(axis=0) / counts.tokens
    free = rank(counts, strategy, force=False, weights=weights) if force or extra_forced else full
    without = _cumulative(by_domain, free, at).sum(axis=0) / counts.tokens
    used = held.sum(axis=1) > 0
    fold_coverage = hits[used].sum(axis=1) / held[used].sum(axis=1, keepdims=True)
    coverage = hits.sum(axis=(0, 1)) / counts.tokens
    domain_tokens = held.sum(axis=0)
    with np.errstate(invalid="ignore"):
        by_name = np.where(domain_tokens[:, None] > 0, hits.sum(axis=0) / domain_tokens[:, None], np.nan)
    worst = np.nanargmin(by_name, axis=0)
    stand_in = vocab_size is not None and vocab_size != counts.vocab_size
    with np.errstate(divide="ignore"):
        mean_run = np.where(coverage < 1, coverage / (1 - coverage), np.inf)
    columns: dict[str, object] = {
        "draft_vocab": np.asarray(sizes, dtype=np.int64),
        "coverage": coverage,
        "coverage_low": fold_coverage.min(axis=0),
        "coverage_high": fold_coverage.max(axis=0),
        "coverage_in_sample": in_sample,
        "worst_domain": [counts.domains[i] for i in worst],
        "worst_coverage": by_name[worst, np.arange(len(at))],
        "unseen_mass": np.full(len(at), unseen / counts.tokens),
        "good_turing": np.full(len(at), float((counts.total == 1).sum()) / counts.tokens),
        "mean_run": mean_run,
        "forced_cost": without - in_sample,
        "padding": np.array([full.padding(int(size)) for size in at], dtype=np.int64),
    }
    columns |= {DOMAIN_PREFIX + name: by_name[i] for i, name in enumerate(counts.domains)}
    frame = pl.DataFrame(columns)
    return frame.with_columns(pl.lit("modelled" if stand_in else "measured").alias("coverage_evidence"))


def _cumulative(part: np.ndarray, ranking: Ranking, at: np.ndarray) -> np.ndarray:
    """Tokens of ``part`` [domains, V] among the first D ids, for each D: float64 [domains, sizes]."""
    order = ranking.order[: int(at.max())]
    edges = np.concatenate([[0], np.unique(at)])
    gathered = part[:, order]
    # A size grid is short beside V: sum between neighbouring sizes, then accumulate.
    steps = np.add.reduceat(gathered, edges[:-1], axis=1)
    totals = np.cumsum(steps, axis=1, dtype=np.float64)
    return totals[:, np.searchsorted(edges[1:], at)]


def left_out(counts: TokenCounts, ranking: Ranking, draft_vocab: int, limit: int = 200) -> pl.DataFrame:
    """The most frequent tokens outside the draft vocabulary.

    Columns: rank (1 = best of all V), token_id, text (safe to show), role, count,
    share (of all tokens) and ``share:<domain>``.
    """
    position = np.arange(draft_vocab, len(ranking.order))
    ids = ranking.order[draft_vocab:]
    count = counts.total[ids]
    # Under a balanced ranking the left-out are not in count order; readers look for the costliest.
    top = np.argsort(-count, kind="stable")[:limit]
    top = top[count[top] > 0]
    ids, position, count = ids[top], position[top], count[top]
    tokens = counts.token.gather(pl.Series(ids)) if len(ids) else counts.token.head(0)
    roles = counts.role.gather(pl.Series(ids)) if len(ids) else counts.role.head(0)
    columns: dict[str, object] = {
        "rank": position + 1,
        "token_id": ids,
        "text": [show_token(token) for token in tokens.to_list()],
        "role": roles,
        "count": count,
        "share": count / max(counts.tokens, 1),
    }
    for index, domain in enumerate(counts.domains):
        tokens_here = max(int(counts.by_domain[index].sum()), 1)
        columns[f"share:{domain}"] = counts.by_domain[index, ids] / tokens_here
    return pl.DataFrame(columns, schema_overrides={"text": pl.String, "role": pl.String})


def cross_domain(counts: TokenCounts, draft_vocab: int, *, force: bool = True) -> pl.DataFrame:
    """Held-out coverage of each domain (columns) under a list ranked on one domain alone (``ranked_on``) at one D."""
    rows = []
    at = np.array([min(draft_vocab, counts.vocab_size)])
    for source, name in enumerate(counts.domains):
        hits = np.zeros(len(counts.domains))
        for fold in range(FOLDS):
            only = np.zeros_like(counts.by_domain)
            only[source] = counts.by_domain[source] - counts.counts[source, fold]
            ranking = rank_counts(only, counts, "pooled", force=force)
            hits += _cumulative(counts.counts[:, fold], ranking, at)[:, 0]
        tokens = np.maximum(counts.by_domain.sum(axis=1), 1)
        rows.append({"ranked_on": name, **dict(zip(counts.domains, (hits / tokens).tolist(), strict=True))})
    return pl.DataFrame(rows)
