"""A mapping on counted tokens: what it covers, what the best map of its size would, what it loses; and two mappings
side by side.

The mapping is fixed, so its share of these tokens is a plain measurement. The
best map of the same size is made from the tokens themselves; it is measured held
out (``vocab/coverage.py``), and in sample as the bound nothing can exceed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from eagle3_core.errors import Eagle3Error
from eagle3_core.inspect.facts import Facts, MappingFacts
from eagle3_core.specs.sizes import INHERITED

if TYPE_CHECKING:
    import polars as pl

    from eagle3_core.corpus.counts import TokenCounts


@dataclass(frozen=True, eq=False)
class MappingCoverage:
    """Shares in [0, 1], measured on the given counts."""

    draft_vocab: int
    tokens: int
    coverage: float
    best_heldout: float
    """Of a map of the same size ranked on nine folds, measured on the tenth, all ten."""
    best_in_sample: float
    by_domain: pl.DataFrame
    """Columns domain, tokens, coverage, best (in sample for that domain's share of the pooled list)."""
    worst_domain: str
    worst_coverage: float
    lost: pl.DataFrame
    """Most frequent tokens outside: token_id, text, role, count, share; dearest first."""
    forced_missing: pl.DataFrame
    """Tokens that eagle3 forces and this mapping lacks: token_id, text, role, count."""
    unseen: int
    """Ids of the mapping that never occur in the counts."""


def coverage_of(facts: Facts, counts: TokenCounts, *, limit: int = 20) -> MappingCoverage:
    """Raises Eagle3Error when there is no sound mapping, or the counts are of another vocabulary."""
    import polars as pl

    from eagle3_core.corpus.text import show_token
    from eagle3_core.vocab.coverage import coverage_table
    from eagle3_core.vocab.ranking import FORCED_ROLES, rank

    if facts.mapping is None:
        raise Eagle3Error("holds no mapping to measure", where=facts.path)
    vocab = facts.vocab_size or counts.vocab_size
    if vocab != counts.vocab_size:
        raise Eagle3Error("counts are of another vocabulary", where=facts.path,
                          found=f"V = {counts.vocab_size:,} ({counts.meta.tokenizer})", expected=f"V = {vocab:,}")
    if counts.tokens == 0:
        raise Eagle3Error("counts hold no tokens", expected="at least one counted document")
    mapping = facts.mapping.checked(vocab)
    inside = mapping.t2d
    size = mapping.draft_vocab_size
    best = np.zeros(vocab, dtype=bool)
    best[rank(counts, force=False).ids(size)] = True
    tokens = counts.by_domain.sum(axis=1)
    shares = np.maximum(tokens, 1)
    mine = (counts.by_domain * inside).sum(axis=1) / shares
    theirs = (counts.by_domain * best).sum(axis=1) / shares
    domains = pl.DataFrame({"domain": list(counts.domains), "tokens": tokens, "coverage": mine, "best": theirs})
    used = np.flatnonzero(tokens)
    worst = int(used[np.argmin(mine[used])])

    def table(ids: np.ndarray) -> pl.DataFrame:
        taken = counts.token.gather(pl.Series(ids)) if len(ids) else counts.token.head(0)
        roles = counts.role.gather(pl.Series(ids)) if len(ids) else counts.role.head(0)
        return pl.DataFrame({
            "token_id": ids.astype(np.int64), "text": [show_token(t) for t in taken.to_list()], "role": roles,
            "count": counts.total[ids], "share": counts.total[ids] / counts.tokens,
        }, schema_overrides={"text": pl.String, "role": pl.String})

    outside = np.flatnonzero(~inside & (counts.total > 0))
    outside = outside[np.argsort(-counts.total[outside], kind="stable")]
    # The dearest kinds first: an end of turn, then markup, then bytes.
    forced = np.concatenate([counts.ids_with_role(role) for role in FORCED_ROLES])
    held = coverage_table(counts, [size], force=False)["coverage"][0] if size < vocab else 1.0
    return MappingCoverage(
        draft_vocab=size, tokens=counts.tokens, coverage=float(counts.total[inside].sum() / counts.tokens),
        best_heldout=float(held), best_in_sample=float(counts.total[best].sum() / counts.tokens), by_domain=domains,
        worst_domain=counts.domains[worst], worst_coverage=float(mine[worst]), lost=table(outside[:limit]),
        forced_missing=table(forced[~inside[forced]]).drop("share"), unseen=int((counts.total[inside] == 0).sum()),
    )


@dataclass(frozen=True)
class SizeStanding:
    """Whether D is still a choice. ``inherited``: nothing beside it says that anybody chose it."""

    state: Literal["locked", "re-cut", "free"]
    inherited: bool
    why: str


def size_standing(facts: Facts) -> SizeStanding:
    size = facts.draft_vocab_size
    said = "" if size is None else f"D = {size:,}"
    inherited = not facts.decided and facts.reduced
    # The usual size asks for a word of its own: it is what nearly everyone has.
    usual = ", the size that nearly every checkpoint has" if size == INHERITED else ""
    origin = f"; inherited{usual}: no decision record lies beside it" if inherited else ""
    if "lm_head.weight" not in facts.tensors:
        return SizeStanding("free", inherited, f"{said} is free: no trained head depends on it here{origin}")
    if facts.project == "speculators":
        return SizeStanding("re-cut", inherited, f"{said} can be cut anew without training the head: its rows are the "
                            f"verifier's own, frozen{origin}")
    return SizeStanding("locked", inherited, f"{said} is locked for fine-tuning from this checkpoint, which keeps its "
                        f"rows; free for training from scratch{origin}")


@dataclass(frozen=True, eq=False)
class Moved:
    """Two mappings row by row. A head trained with the first reads the second wrongly in every moved row."""

    rows: pl.DataFrame
    """Draft rows whose token changes: row, before, after (target ids), and where the old token went (``now_at``,
    null when it is gone)."""
    same: int
    moved: int
    lost: np.ndarray
    """Target ids only in the first, ascending."""
    new: np.ndarray


def moved_rows(before: Facts, after: Facts) -> Moved:
    """Raises Eagle3Error when either has no sound mapping or their vocabularies differ."""
    import polars as pl

    sizes = {f.vocab_size for f in (before, after) if f.vocab_size is not None}
    if len(sizes) > 1:
        raise Eagle3Error("the mappings are of different vocabularies", where=after.path,
                          found=f"V = {after.vocab_size:,}", expected=f"V = {before.vocab_size:,}")
    pair = [_mapping(facts) for facts in (before, after)]
    vocab = sizes.pop() if sizes else max(int(m.ids.max(initial=0)) for m in pair if m.ids is not None) + 1
    old, new = (mapping.checked(vocab) for mapping in pair)
    both = min(old.draft_vocab_size, new.draft_vocab_size)
    place = np.full(vocab, -1, dtype=np.int64)
    place[new.target_ids] = np.arange(new.draft_vocab_size)
    rows = np.flatnonzero(old.target_ids[:both] != new.target_ids[:both])
    now_at = place[old.target_ids[rows]]
    frame = pl.DataFrame({"row": rows, "before": old.target_ids[rows], "after": new.target_ids[rows],
                          "now_at": pl.Series(now_at).replace(-1, None)})
    return Moved(frame, both - len(rows), len(rows), np.setdiff1d(old.target_ids, new.target_ids),
                 np.setdiff1d(new.target_ids, old.target_ids))


def _mapping(facts: Facts) -> MappingFacts:
    if facts.mapping is None or facts.mapping.ids is None:
        raise Eagle3Error("holds no mapping to compare", where=facts.path)
    return facts.mapping
