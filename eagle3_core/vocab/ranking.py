"""Which tokens come first: one order of all target ids, whose prefixes are the maps of every size.

Forced tokens stand first at every size: an end-of-turn token that cannot be
drafted costs an acceptance at every turn, and the 256 single-byte tokens keep
any text writable. No public trainer forces them (SpecForge, speculators,
ModelOpt, AngelSlim, TorchSpec); FR-Spec's script and vLLM's draft_token_map add
EOS. Then come the counted tokens by score, ties by id (``(-score, id)``, as
speculators). Those never seen come last and count as padding: ordered by how
often another counts file saw them (``pad_from``), then by id, which in a
byte-pair vocabulary is merge order and so roughly frequency; the target's
padding rows at the very end.

Strategies, with f_d(v) the share of token v in domain d (ranking folds only):

    pooled      sum over domains of counts
    balanced    mean over domains of f_d
    weights     weighted mean of f_d, weights given by the user
    worst       the smallest coverage over domains as large as possible (``across.py``)
    robust      mean coverage over domains less its spread as large as possible
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from eagle3_core.corpus.counts import TokenCounts
from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.files import read_json
from eagle3_core.specs.sizes import INHERITED
from eagle3_core.vocab.across import Stages, find_stages, staged_scores
from eagle3_core.vocab.mapping import VocabMapping, mapping_from_ids

Strategy = Literal["pooled", "balanced", "weights", "worst", "robust"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)
FORCED_ROLES = ("eos", "end_of_turn", "chat_control", "tool_call", "byte_fallback")
"""Roles forced whether they occur or not. ``special`` and ``added`` tokens are forced where they occur."""
OCCURRING_ROLES = ("special", "added")


@dataclass(frozen=True, eq=False)
class Ranking:
    """``order``: int64 [V], best first. The first ``len(forced)`` are forced, from ``seen`` on they are padding."""

    order: np.ndarray
    forced: np.ndarray
    seen: int
    strategy: str
    weights: tuple[float, ...]
    """Weight of each domain's shares in the score, in the order of ``counts.domains``; empty for pooled counts.
    ``worst`` and ``robust`` have one set a stage; these are those at 32,000."""

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
    pad_from: TokenCounts | None = None,
) -> Ranking:
    """Rank all V ids on the given folds (default all).

    Raises Eagle3Error for an unknown strategy, domain or id.
    """
    by_domain = counts.by_domain if folds is None else counts.counts[:, list(folds)].sum(axis=1)
    plan = make_plan(counts, strategy, force=force, extra_forced=extra_forced, weights=weights, pad_from=pad_from,
                     by_domain=by_domain)
    return rank_counts(by_domain, plan)


@dataclass(frozen=True, eq=False)
class Plan:
    """How to rank, the part that is the same for every fold.

    Domain weights of ``worst`` and ``robust`` are found once, on all folds: a few
    dozen numbers for millions of tokens. The lists themselves are made fold by fold.
    """

    strategy: str
    forced: np.ndarray
    """Ids forced whether they occur or not, int64 ascending."""
    forced_seen: np.ndarray
    """Ids forced where they occur, int64 ascending."""
    mix: np.ndarray | None
    stages: Stages | None
    padding: np.ndarray
    """Sort key of every id for the case that it was not seen, int64 [V]."""


def make_plan(
    counts: TokenCounts, strategy: str = "pooled", *, force: bool = True, extra_forced: Sequence[int] = (),
    weights: Mapping[str, float] | None = None, pad_from: TokenCounts | None = None,
    by_domain: np.ndarray | None = None,
) -> Plan:
    """Raises Eagle3Error for an unknown strategy or domain, or padding counts of another tokenizer."""
    by_domain = counts.by_domain if by_domain is None else by_domain
    if counts.vocab_size > 1 << _ID_BITS or int(by_domain.max(initial=0)) >= _CAP // max(len(counts.domains), 1):
        raise Eagle3Error("vocabulary or counts too large to rank",
                          found=f"{counts.vocab_size:,} ids, {int(by_domain.max(initial=0)):,} of one token")
    plan = Plan(strategy, *_forced_always_and_seen(counts, force, extra_forced),
                _domain_mix(counts.domains, strategy, weights), None, _padding_keys(counts, pad_from))
    if strategy not in ("worst", "robust"):
        return plan
    forced = _forced(plan, by_domain.sum(axis=0))
    return replace(plan, stages=find_stages(strategy, _shares(by_domain), forced))


def compact_plan(plan: Plan, live: np.ndarray) -> tuple[Plan, np.ndarray]:
    """The plan on the ids ``live`` alone (ascending, all forced ones among them), renumbered 0..len(live)-1.

    Also, per live id, how many of the dropped ids would stand before it if it were padding.
    """
    place = (plan.padding >> _ID_BITS) - _CAP
    dropped = np.ones(len(place), dtype=np.int64)
    dropped[place[live]] = 0
    before = np.cumsum(dropped)[place[live]]
    padding = (plan.padding[live] & ~_ID_MASK) | np.arange(len(live))
    forced, seen = (np.searchsorted(live, ids) for ids in (plan.forced, plan.forced_seen))
    return replace(plan, padding=padding, forced=forced, forced_seen=seen), before


def without_forcing(plan: Plan) -> Plan:
    """The same plan with nothing forced, to see what forcing costs."""
    none = np.zeros(0, dtype=np.int64)
    return replace(plan, forced=none, forced_seen=none)


def rank_counts(by_domain: np.ndarray, plan: Plan, total: np.ndarray | None = None) -> Ranking:
    """Rank ``by_domain``, int64 [domains, V], as planned.

    ``total`` is its sum over domains, where the caller has it at hand.
    """
    if total is None:
        total = np.asarray(by_domain.sum(axis=0))
    forced = _forced(plan, total)
    if plan.stages is not None:
        scores = staged_scores(_shares(by_domain), plan.stages, forced)
        score = quantise(scores / (len(plan.stages.ends) + 1))
        at = int(np.searchsorted(plan.stages.ends, min(INHERITED, plan.stages.ends[-1])))
        used = tuple(float(x) for x in plan.stages.weights[at])
    elif plan.mix is not None:
        score = quantise(plan.mix @ _shares(by_domain))
        used = tuple(float(x) for x in plan.mix)
    else:
        score, used = total, ()
    order = _order(score, total, forced, plan.padding)
    seen = len(forced) + int(np.count_nonzero(total)) - int(np.count_nonzero(total[forced]))
    return Ranking(order, forced, seen, plan.strategy, used)


_ID_BITS = 20
"""Room for target ids of up to 2^20 beside the score in one int64 sort key."""
_ID_MASK = (1 << _ID_BITS) - 1
_CAP = 1 << 42
"""Scores and counts lie below this; forced ids sort below -_CAP, unseen ones above."""


def quantise(score: np.ndarray) -> np.ndarray:
    """Shares in [0, 1] as integers, so that order and ties are the same on every machine."""
    return np.rint(np.asarray(score, dtype=np.float64) * float(_CAP - 1)).astype(np.int64)


_PADDING: weakref.WeakKeyDictionary[TokenCounts, np.ndarray] = weakref.WeakKeyDictionary()


def _padding_keys(counts: TokenCounts, pad_from: TokenCounts | None) -> np.ndarray:
    """Keys above every counted token's, in the order padding is taken; kept where no other counts say it."""
    if pad_from is None:
        if counts not in _PADDING:
            _PADDING[counts] = _make_padding_keys(counts, None)
        return _PADDING[counts]
    return _make_padding_keys(counts, pad_from)


def _make_padding_keys(counts: TokenCounts, pad_from: TokenCounts | None) -> np.ndarray:
    vocab = counts.vocab_size
    seen_elsewhere = np.zeros(vocab, dtype=np.int64)
    if pad_from is not None:
        if pad_from.meta.tokenizer_sha256 != counts.meta.tokenizer_sha256 or pad_from.vocab_size != vocab:
            raise Eagle3Error("padding counts are of another tokenizer", found=pad_from.meta.tokenizer,
                              expected=counts.meta.tokenizer)
        seen_elsewhere = pad_from.total
    late = (counts.role == "padding").to_numpy().astype(np.int8)
    order = np.argsort(late, kind="stable")
    if pad_from is not None:
        order = order[np.argsort(-seen_elsewhere[order], kind="stable")]
    place = np.empty(vocab, dtype=np.int64)
    place[order] = np.arange(vocab)
    return ((_CAP + place) << _ID_BITS) | np.arange(vocab)


def _order(score: np.ndarray, total: np.ndarray, forced: np.ndarray, padding: np.ndarray) -> np.ndarray:
    """All ids by one packed key: forced first, then (-score, id), then the unseen.

    Sorting one packed key is several times faster than an argsort, and stable by construction.
    """
    keys = -score
    keys <<= _ID_BITS
    keys |= padding & _ID_MASK
    rest = np.flatnonzero(score <= 0)
    keys[rest] = padding[rest]
    if score is not total:
        # Seen only where the weights are zero: after the scored ones, the most frequent first.
        rest = rest[total[rest] > 0]
        keys[rest] = ((_CAP - 1 - total[rest]) << _ID_BITS) | rest
    keys[forced] = ((np.arange(len(forced)) - (_CAP + len(forced))) << _ID_BITS) | forced
    keys.sort()
    keys &= _ID_MASK
    keys.setflags(write=False)
    return keys


def _forced_always_and_seen(
    counts: TokenCounts, force: bool, extra: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    always = counts.ids_with_role(*FORCED_ROLES) if force else np.zeros(0, dtype=np.int64)
    seen = counts.ids_with_role(*OCCURRING_ROLES) if force else np.zeros(0, dtype=np.int64)
    for token_id in extra:
        if not 0 <= token_id < counts.vocab_size:
            raise Eagle3Error("forced id", found=token_id, expected=f"0 to {counts.vocab_size - 1}")
    return np.union1d(always, np.asarray(extra, dtype=np.int64)).astype(np.int64), seen


def _forced(plan: Plan, total: np.ndarray) -> np.ndarray:
    """Forced ids, int64, most frequent first and ties by id."""
    ids = np.union1d(plan.forced, plan.forced_seen[total[plan.forced_seen] > 0])
    return ids[np.argsort(-total[ids], kind="stable")]


def _shares(by_domain: np.ndarray) -> np.ndarray:
    """float64 [domains, V]; a domain without tokens has no say."""
    totals = by_domain.sum(axis=1, keepdims=True)
    return by_domain / np.maximum(totals, 1)


def _domain_mix(
    domains: Sequence[str], strategy: str, weights: Mapping[str, float] | None
) -> np.ndarray | None:
    """Fixed weights of the shares, [domains]; None for pooled counts and for staged weights."""
    if strategy not in STRATEGIES:
        raise Eagle3Error("unknown ranking", found=repr(strategy), expected=", ".join(STRATEGIES),
                          fix=suggest(strategy, STRATEGIES))
    if (strategy == "weights") != (weights is not None):
        raise Eagle3Error("ranking 'weights' and --weights go together", found=strategy)
    if strategy == "balanced":
        return np.full(len(domains), 1 / len(domains))
    if weights is None:
        return None
    unknown = set(weights) - set(domains)
    if unknown or any(not w >= 0 for w in weights.values()) or not 0 < sum(weights.values()) < float("inf"):
        raise Eagle3Error("domain weights", found=dict(weights), expected=f"numbers >= 0 for {', '.join(domains)}")
    mix = np.array([weights.get(domain, 0.0) for domain in domains])
    return mix / mix.sum()


def forced_summary(counts: TokenCounts, ranking: Ranking) -> dict[str, int]:
    """How many tokens are forced, by role ("other" for ids given by the user), and how many of them never occurred."""
    roles = counts.role.gather(ranking.forced).to_list() if len(ranking.forced) else []
    out: dict[str, int] = {}
    for role in roles:
        out[role or "other"] = out.get(role or "other", 0) + 1
    return {**dict(sorted(out.items())), "never seen": int((counts.total[ranking.forced] == 0).sum())}


def read_forced(path: str | Path, counts: TokenCounts) -> tuple[int, ...]:
    """Ids to force from a JSON list of ids or token texts (exact, as counted).

    Raises Eagle3Error naming the first entry that is neither an id of the target nor one of its tokens.
    """
    value = read_json(path)
    if not isinstance(value, list):
        raise Eagle3Error("is not a list of token ids or texts", where=path, found=type(value).__name__)
    by_token: dict[bytes, int] = {}
    if any(isinstance(item, str) for item in value):
        by_token = {token: index for index, token in reversed(list(enumerate(counts.token.to_list())))}
    out = []
    for item in value:
        found = by_token.get(item.encode("utf-8", "surrogatepass")) if isinstance(item, str) else item
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < counts.vocab_size:
            raise Eagle3Error("is no token of the target", where=path, found=repr(item)[:60],
                              expected=f"an id below {counts.vocab_size:,} or a token's exact text")
        out.append(found)
    return tuple(out)
