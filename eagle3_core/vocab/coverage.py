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
    mean_run             mean run of covered tokens between two misses, C / (1 - C)
    forced_cost          in-sample coverage given up at this D for the forced tokens
    padding              draft ids filled with tokens never seen
    coverage:<domain>    held-out coverage of each domain
    coverage_evidence    "measured", or "modelled" where another tokenizer's counts stand in
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from eagle3_core.corpus.counts import FOLDS, TokenCounts
from eagle3_core.corpus.text import show_token
from eagle3_core.errors import Eagle3Error
from eagle3_core.vocab.ranking import STRATEGIES, Plan, Ranking, compact_plan, make_plan, rank_counts, without_forcing

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
    pad_from: TokenCounts | None = None,
) -> pl.DataFrame:
    """One row per size; columns in the module's docstring.

    ``vocab_size`` other than the counts' own means that these counts stand in for
    a target whose tokenizer is not at hand: the result is marked ``modelled``.
    Raises Eagle3Error when there is nothing to measure.
    """
    if counts.tokens == 0:
        raise Eagle3Error("counts hold no tokens", expected="at least one counted document")
    at = np.minimum(np.asarray(sizes, dtype=np.int64), counts.vocab_size)
    plan = make_plan(counts, strategy, force=force, weights=weights, extra_forced=extra_forced, pad_from=pad_from)
    held = held_out(counts, plan, at)
    part = compact(counts, plan)
    full, in_sample = _in_sample(part, part.plan(plan), at)
    without = _in_sample(part, without_forcing(part.plan(plan)), at)[1] if len(full.forced) else in_sample
    used = held.tokens.sum(axis=1) > 0
    fold_coverage = held.hits[used].sum(axis=1) / held.tokens[used].sum(axis=1, keepdims=True)
    coverage = held.hits.sum(axis=(0, 1)) / counts.tokens
    domain_tokens = held.tokens.sum(axis=0)
    with np.errstate(invalid="ignore"):
        by_name = np.where(domain_tokens[:, None] > 0, held.hits.sum(axis=0) / domain_tokens[:, None], np.nan)
    worst = np.nanargmin(by_name, axis=0)
    stand_in = vocab_size is not None and vocab_size != counts.vocab_size
    columns: dict[str, object] = {
        "draft_vocab": np.asarray(sizes, dtype=np.int64),
        "coverage": coverage,
        "coverage_low": fold_coverage.min(axis=0),
        "coverage_high": fold_coverage.max(axis=0),
        "coverage_in_sample": in_sample,
        "worst_domain": [counts.domains[i] for i in worst],
        "worst_coverage": by_name[worst, np.arange(len(at))],
        "unseen_mass": np.full(len(at), held.unseen.sum() / counts.tokens),
        "good_turing": np.full(len(at), float((counts.total == 1).sum()) / counts.tokens),
        "mean_run": mean_run(coverage),
        "forced_cost": without - in_sample,
        "padding": np.array([full.padding(int(size)) for size in at], dtype=np.int64),
    }
    columns |= {DOMAIN_PREFIX + name: by_name[i] for i, name in enumerate(counts.domains)}
    frame = pl.DataFrame(columns)
    return frame.with_columns(pl.lit("modelled" if stand_in else "measured").alias("coverage_evidence"))


def mean_run(coverage: np.ndarray) -> np.ndarray:
    """Covered tokens for each miss, C / (1 - C): the mean run between two misses."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(coverage < 1, coverage / (1 - coverage), np.inf)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """hits: float64 [FOLDS, domains, sizes]; tokens: float64 [FOLDS, domains]; unseen: float64 [domains]."""

    hits: np.ndarray
    tokens: np.ndarray
    unseen: np.ndarray


@dataclass(frozen=True, eq=False)
class Compact:
    """Counts of the ids that occur or are forced, renumbered: half of a large vocabulary never does.

    live: int64 [L] their target ids; before: int64 [L], see ``compact_plan``; entries: as ``TokenCounts.entries``
    with the new numbers; by_fold: int64 [FOLDS, L].
    """

    live: np.ndarray
    before: np.ndarray
    padding: np.ndarray
    forced: np.ndarray
    forced_seen: np.ndarray
    total: np.ndarray
    by_domain: np.ndarray
    by_fold: np.ndarray
    entries: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]

    def plan(self, plan: Plan) -> Plan:
        return replace(plan, padding=self.padding, forced=self.forced, forced_seen=self.forced_seen)


_COMPACT: weakref.WeakKeyDictionary[TokenCounts, tuple[np.ndarray, bytes, Compact]] = weakref.WeakKeyDictionary()
"""The last compact form of each counts file: it depends on what is forced and how padding is ordered, no more."""


def compact(counts: TokenCounts, plan: Plan) -> Compact:
    key = plan.forced.tobytes() + b"|" + plan.forced_seen.tobytes()
    kept = _COMPACT.get(counts)
    if kept is not None and kept[0] is plan.padding and kept[1] == key:
        return kept[2]
    keep = counts.total > 0
    keep[plan.forced] = True
    keep[plan.forced_seen] = True
    live = np.flatnonzero(keep)
    place = np.zeros(counts.vocab_size, dtype=np.int32)
    place[live] = np.arange(len(live), dtype=np.int32)
    small, before = compact_plan(plan, live)
    entries = tuple((domain, place[token_id], count) for domain, token_id, count in counts.entries)
    made = Compact(live, before, small.padding, small.forced, small.forced_seen, counts.total[live],
                   counts.by_domain[:, live], counts.by_fold[:, live], entries)
    _COMPACT[counts] = (plan.padding, key, made)
    return made


def _in_sample(part: Compact, plan: Plan, at: np.ndarray) -> tuple[Ranking, np.ndarray]:
    """The ranking on all folds, and the share of its own tokens that it covers at each size."""
    ranking = rank_counts(part.by_domain, plan, part.total)
    inside = np.cumsum(part.total[ranking.order])
    return ranking, inside[np.minimum(at, len(inside)) - 1] / inside[-1]


def held_out(counts: TokenCounts, plan: Plan, at: np.ndarray) -> HeldOut:
    """Measure every fold under a ranking of the other nine."""
    part = compact(counts, plan)
    small = part.plan(plan)
    domains, size = len(counts.domains), len(part.live)
    edges, where = np.unique(at, return_inverse=True)
    steps = np.zeros(counts.vocab_size + 1, dtype=np.int32)
    steps[edges] = 1
    bucket_at = np.cumsum(steps[:-1], dtype=np.int32)
    width = len(edges) + 1
    pooled = plan.mix is None and plan.stages is None

    def measure(fold: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens by domain and size bucket, and by domain of ids that the other folds never saw."""
        domain, here, count = part.entries[fold]
        total = part.total - part.by_fold[fold]
        rest = part.by_domain if pooled else part.by_domain - counts.counts[:, fold][:, part.live]
        ranking = rank_counts(rest, small, total)
        bucket = np.empty(size, dtype=np.int32)
        bucket[ranking.order] = bucket_at[:size]
        # Ids without a count here stand among those that never have one.
        late = ranking.order[ranking.seen :]
        bucket[late] = bucket_at[ranking.seen + np.arange(len(late)) + part.before[late]]
        sums = np.bincount(domain * width + bucket[here], weights=count, minlength=domains * width)
        new = np.flatnonzero((total == 0)[here])
        return sums.reshape(domains, width), np.bincount(domain[new], weights=count[new], minlength=domains)

    hits = np.zeros((FOLDS, domains, len(at)))
    tokens = np.zeros((FOLDS, domains))
    unseen = np.zeros(domains)
    used = [fold for fold in range(FOLDS) if len(part.entries[fold][1])]
    # Most of it is sorting, for which numpy lets go of the interpreter.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        for fold, (sums, new) in zip(used, pool.map(measure, used), strict=True):
            tokens[fold] = sums.sum(axis=1)
            hits[fold] = np.cumsum(sums[:, :-1], axis=1)[:, where]
            unseen += new
    return HeldOut(hits, tokens, unseen)


def covered(part: np.ndarray, ranking: Ranking, sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """Tokens of ``part`` [..., V] among the first D ids, for each D: float64 [..., sizes]."""
    at = np.asarray(sizes, dtype=np.int64)
    return np.cumsum(part[..., ranking.order], axis=-1, dtype=np.float64)[..., at - 1]


def domain_table(
    counts: TokenCounts, draft_vocab: int, *, strategy: str = "pooled", force: bool = True,
    weights: Mapping[str, float] | None = None, extra_forced: Sequence[int] = (), pad_from: TokenCounts | None = None,
) -> pl.DataFrame:
    """Everything about one size, one row a domain and one for all of them together (``all domains``).

    Columns: domain, tokens, in_sample, coverage, low, high (held out, range over folds), unseen_mass,
    good_turing, mean_run.
    """
    plan = make_plan(counts, strategy, force=force, weights=weights, extra_forced=extra_forced, pad_from=pad_from)
    at = np.array([min(draft_vocab, counts.vocab_size)])
    held = held_out(counts, plan, at)
    full = rank_counts(counts.by_domain, plan, counts.total)
    inside = covered(counts.by_domain, full, at)[:, 0]
    rows = []
    everything = slice(None)
    for name, which in [*((n, slice(i, i + 1)) for i, n in enumerate(counts.domains)), ("all domains", everything)]:
        tokens = held.tokens[:, which].sum(axis=1)
        if not tokens.any():
            continue
        by_fold = held.hits[tokens > 0][:, which, 0].sum(axis=1) / tokens[tokens > 0]
        coverage = held.hits[:, which, 0].sum() / tokens.sum()
        rows.append({
            "domain": name, "tokens": int(tokens.sum()), "in_sample": inside[which].sum() / tokens.sum(),
            "coverage": coverage, "low": by_fold.min(), "high": by_fold.max(),
            "unseen_mass": held.unseen[which].sum() / tokens.sum(),
            "good_turing": float((counts.by_domain[which].sum(axis=0) == 1).sum()) / tokens.sum(),
            "mean_run": float(mean_run(np.array(coverage))),
        })
    return pl.DataFrame(rows)


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
    at = [min(draft_vocab, counts.vocab_size)]
    plan = make_plan(counts, "pooled", force=force)
    tokens = np.maximum(counts.by_domain.sum(axis=1), 1)
    for source, name in enumerate(counts.domains):
        hits = np.zeros(len(counts.domains))
        for fold in range(FOLDS):
            only = counts.by_domain[source : source + 1] - counts.counts[source : source + 1, fold]
            chosen = np.zeros(counts.vocab_size, dtype=bool)
            chosen[rank_counts(only, plan).ids(at[0])] = True
            domain, token_id, count = counts.entries[fold]
            hits += np.bincount(domain, weights=count * chosen[token_id], minlength=len(hits))
        rows.append({"ranked_on": name, **dict(zip(counts.domains, (hits / tokens).tolist(), strict=True))})
    return pl.DataFrame(rows)


def compare_rankings(
    counts: TokenCounts, draft_vocab: int, *, force: bool = True, weights: Mapping[str, float] | None = None
) -> pl.DataFrame:
    """What each strategy gains and loses: one row a strategy at one D, held out.

    Columns: strategy, coverage, worst_domain, worst_coverage, ``coverage:<domain>`` and ``gain:<domain>``
    (against ``pooled``). ``weights`` adds the user's own.
    """
    frames = []
    for strategy in STRATEGIES:
        if strategy == "weights" and weights is None:
            continue
        table = coverage_table(counts, [draft_vocab], strategy=strategy, force=force,
                               weights=weights if strategy == "weights" else None)
        names = [DOMAIN_PREFIX + name for name in counts.domains]
        frames.append(table.select(pl.lit(strategy).alias("strategy"), "coverage", "worst_domain", "worst_coverage",
                                   *names))
    whole = pl.concat(frames)
    return whole.with_columns(
        (pl.col(DOMAIN_PREFIX + name) - whole[DOMAIN_PREFIX + name][0]).alias(f"gain:{name}")
        for name in counts.domains
    )
