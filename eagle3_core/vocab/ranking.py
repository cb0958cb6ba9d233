"""Which tokens come first: one order of all target ids, whose prefixes are the maps of every size.

Forced tokens stand first at every size: an end-of-turn token that cannot be
drafted costs an acceptance at every turn, and the 256 single-byte tokens keep
any text writable. No public trainer forces them (SpecForge, speculators,
ModelOpt, AngelSlim, TorchSpec); FR-Spec's script and vLLM's draft_token_map add
EOS. Then come the counted tokens by score, ties by id (``(-score, id)``, as
speculators); then those never seen, lowest id first within byte-pair merge
order, which in a byte-level BPE is roughly frequency order. They are padding
and are counted as such, never passed off as chosen.

Strategies, with f_d(v) the share of token v in domain d (ranking folds only):

    pooled      sum over domains of counts
    balanced    mean over domains of f_d
    weights     weighted mean of f_d, weights given by the user
    worst       maximise min over domains of coverage, by multiplicative weights (below)
    robust      mean over domains of f_d, then worst's weights mixed in half and half

``worst`` solves max_S min_d sum_{v in S} f_d(v), |S| = D. Its linear relaxation
equals min over domain weights w of the best D tokens by sum_d w_d f_d(v), so
weights moved towards the worst covered domain (Hedge, Freund and Schapire 1997)
find it; the integral loss is at most one token a domain. A ranking must serve
all sizes, so the weights are found at one size (``worst_at``, default 32,000)
and the order they give is used for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from eagle3_core.corpus.counts import TokenCounts
from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.specs.sizes import INHERITED
from eagle3_core.vocab.mapping import VocabMapping, mapping_from_ids

Strategy = Literal["pooled", "balanced", "weights", "worst", "robust"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)
FORCED_ROLES = ("eos", "end_of_turn", "chat_control", "tool_call", "byte_fallback")
"""Roles forced whether they occur or not. ``special`` and ``added`` tokens are forced where they occur."""
OCCURRING_ROLES = ("special", "added")
_ROUNDS = 200


@dataclass(frozen=True, eq=False)
class Ranking:
    """``order``: int64 [V], best first. The first ``len(forced)`` are forced, from ``seen`` on they are padding."""

    order: np.ndarray
    forced: np.ndarray
    seen: int
    strategy: str
    weights: tuple[float, ...]
    """Weight of each domain's shares in the score, in the order of ``counts.domains``; empty for pooled counts."""

    def ids(self, draft_vocab: int) -> np.ndarray:
        return self.order[:draft_vocab]

    def padding(self, draft_vocab: int) -> int:
        """How many of the first D tokens were never seen nor forced."""
        return max(0, draft_vocab - self.seen)


def mapping_at(ranking: Ranking, draft_vocab: int) -> VocabMapping:
    """The ascending mapping of the best D tokens."""
    return mapping_from_ids(ranking.ids(draft_vocab), len(ranking.order))


def rank(
    counts: TokenCounts,
    strategy: str = "pooled",
    *,
    force: bool = True,
    extra_forced: Sequence[int] = (),
    weights: Mapping[str, float] | None = None,
    folds: Sequence[int] | None = None,
    worst_at: int = INHERITED,
) -> Ranking:
    """Rank all V ids on the given folds (default all).

    Raises Eagle3Error for an unknown strategy, domain or id.
    """
    by_domain = counts.by_domain if folds is None else counts.counts[:, list(folds)].sum(axis=1)
    return rank_counts(by_domain, counts, strategy, force=force, extra_forced=extra_forced, weights=weights,
                       worst_at=worst_at)


def rank_counts(
    by_domain: np.ndarray,
    counts: TokenCounts,
    strategy: str,
    *,
    force: bool = True,
    extra_forced: Sequence[int] = (),
    weights: Mapping[str, float] | None = None,
    worst_at: int = INHERITED,
) -> Ranking:
    """As ``rank`` on ``by_domain``, int64 [domains, V]; roles and names are read from ``counts``."""
    total = by_domain.sum(axis=0)
    forced = forced_ids(counts, total, force=force, extra=extra_forced)
    mix = _domain_weights(by_domain, counts.domains, strategy, weights, forced, worst_at)
    score = total if mix is None else quantise(mix @ _shares(by_domain))
    order, seen = _order(score, total, forced)
    return Ranking(order, forced, seen, strategy, () if mix is None else tuple(float(x) for x in mix))


_ID_BITS = 20
"""Room for target ids of up to 2^20 beside the score in one int64 sort key."""
_SCORE_BITS = 42


def quantise(score: np.ndarray) -> np.ndarray:
    """Shares in [0, 1] as integers, so that order and ties are the same on every machine."""
    return np.rint(np.asarray(score, dtype=np.float64) * float(1 << _SCORE_BITS)).astype(np.int64)


def _order(score: np.ndarray, total: np.ndarray, forced: np.ndarray) -> tuple[np.ndarray, int]:
    """All ids: forced, then by (-score, id), then the unseen by id; and how many are forced or seen.

    Sorting one packed key is several times faster than an argsort, and stable by construction.
    """
    vocab = len(score)
    if vocab > 1 << _ID_BITS or int(score.max(initial=0)) >= 1 << (63 - _ID_BITS):
        raise Eagle3Error("vocabulary or counts too large to rank", found=f"{vocab:,} ids, {int(score.max()):,}")
    first = np.zeros(vocab, dtype=bool)
    first[forced] = True
    live = np.flatnonzero((total > 0) & ~first)
    keys = (-score[live] << _ID_BITS) | live
    keys.sort()
    live = keys & ((1 << _ID_BITS) - 1)
    unseen = np.flatnonzero((total == 0) & ~first)
    order = np.concatenate([forced, live, unseen]).astype(np.int64, copy=False)
    order.setflags(write=False)
    return order, len(forced) + len(live)


def forced_ids(
    counts: TokenCounts, total: np.ndarray, *, force: bool = True, extra: Sequence[int] = ()
) -> np.ndarray:
    """Forced ids, int64, most frequent first and ties by id."""
    chosen = np.zeros(counts.vocab_size, dtype=bool)
    if force:
        chosen[counts.ids_with_role(*FORCED_ROLES)] = True
        occurring = counts.ids_with_role(*OCCURRING_ROLES)
        chosen[occurring[total[occurring] > 0]] = True
    for token_id in extra:
        if not 0 <= token_id < counts.vocab_size:
            raise Eagle3Error("forced id", found=token_id, expected=f"0 to {counts.vocab_size - 1}")
        chosen[token_id] = True
    ids = np.flatnonzero(chosen)
    return ids[np.argsort(-total[ids], kind="stable")].astype(np.int64)


def _shares(by_domain: np.ndarray) -> np.ndarray:
    """float64 [domains, V]; a domain without tokens has no say."""
    totals = by_domain.sum(axis=1, keepdims=True)
    return by_domain / np.maximum(totals, 1)


def _domain_weights(
    by_domain: np.ndarray, domains: Sequence[str], strategy: str, weights: Mapping[str, float] | None,
    forced: np.ndarray, worst_at: int,
) -> np.ndarray | None:
    """Weights of the shares, [domains], or None for plain pooled counts."""
    if strategy not in STRATEGIES:
        raise Eagle3Error("unknown ranking", found=repr(strategy), expected=", ".join(STRATEGIES),
                          fix=suggest(strategy, STRATEGIES))
    if (strategy == "weights") != (weights is not None):
        raise Eagle3Error("ranking 'weights' and --weights go together", found=strategy)
    uniform = np.full(len(domains), 1 / len(domains))
    if strategy == "pooled":
        return None
    if strategy == "balanced":
        return uniform
    if weights is not None:
        unknown = set(weights) - set(domains)
        if unknown or any(not w >= 0 for w in weights.values()) or sum(weights.values()) <= 0:
            raise Eagle3Error("domain weights", found=dict(weights), expected=f"numbers >= 0 for {', '.join(domains)}")
        mix = np.array([weights.get(domain, 0.0) for domain in domains])
        return mix / mix.sum()
    worst = worst_domain_weights(_shares(by_domain), worst_at, forced)
    return worst if strategy == "worst" else (worst + uniform) / 2


def worst_domain_weights(shares: np.ndarray, draft_vocab: int, forced: np.ndarray) -> np.ndarray:
    """Domain weights whose best D tokens have (nearly) the largest possible smallest coverage.

    shares: float64 [domains, V]. Hedge over domains; of all rounds the weights
    with the best smallest coverage are returned, so more rounds never hurt.
    """
    domains = shares.shape[0]
    log_weights = np.zeros(domains)
    best, best_value = np.full(domains, 1 / domains), -1.0
    size = min(draft_vocab, shares.shape[1])
    free = size - len(forced)
    candidates = shares.copy()
    base = shares[:, forced].sum(axis=1)
    candidates[:, forced] = -1.0
    # Only tokens near the top of some domain can ever be chosen.
    live = np.flatnonzero(shares.sum(axis=0) > 0)
    live = live[~np.isin(live, forced)]
    if free <= 0 or free >= len(live):
        return best
    pool = shares[:, live]
    for step in range(_ROUNDS):
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        score = weights @ pool
        chosen = np.argpartition(-score, free - 1)[:free]
        coverage = base + pool[:, chosen].sum(axis=1)
        value = float(coverage.min())
        if value > best_value:
            best, best_value = weights, value
        spread = float(coverage.max() - coverage.min()) or 1.0
        log_weights += (coverage.max() - coverage) / spread * (2.0 / np.sqrt(step + 1))
        log_weights = np.maximum(log_weights - log_weights.max(), -30.0)
    return best
