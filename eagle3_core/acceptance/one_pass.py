"""Acceptance at every draft-vocabulary size from one forward pass.

A head cut to its first D rows (in ranking order) gives the same logits for the
rows it keeps, so one pass at the checkpoint's own size D0 holds all smaller
ones. With z the drafter's logits, p the target's distribution at temperature T
and L_D the log-sum-exp of z/T over the first D rows, at every D on the grid

    greedy      hit_D = the target's argmax is the first maximum of z over the rows below D
    sampling    a_D = sum_{v<D} min(p_v, exp(z_v/T - L_D))
                    = sum_{v<D} q_v min(p_v/q_v, exp(L_D0 - L_D)),  q the full draft distribution

so that two exponentials a row serve every size. Ties go to the lowest target id,
as in an argmax over an ascending mapping. Logits exist for a few tokens at a
time ([chunk, V]), never for all.

Chains. Step k at text position p proposes x[p+2+k] and is judged by the target
at p+1+k. Of the starts p, those whose drafts 1..k-1 were accepted *and* equal to
the text reach step k on exactly the prefix a server would have:

    alpha_k = sum_p (prod_{i<k} w_i) a_k / sum_p prod_{i<k} w_i
    greedy w = hit and x is the target's argmax;   sampling w = min(1, q(x)/p(x))

For text the target wrote itself (greedily, or sampled at T) that is the
free-running acceptance, without bias: E over x ~ p of min(1, q(x)/p(x)) is
sum min(p, q). For other text it is an estimate, and the record says so.
Teacher-forced acceptance at each depth, whatever came before, is kept beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from eagle3_core.errors import Eagle3Error

if TYPE_CHECKING:
    from eagle3_core.drafter.model import Drafter
    from eagle3_core.drafter.target import TargetHead

CHUNK_BYTES = 160 << 20
"""All [chunk, vocabulary] buffers together."""
CACHE_ROWS_BYTES = 1 << 20
"""Size of one block of the per-size reduction: it must stay in a core's cache."""


@dataclass(frozen=True)
class TextFeatures:
    """One document: ids int64 [S], mask bool [S], aux [S, 3 Ht], last [S, Ht] after the target's final norm."""

    name: str
    domain: str
    ids: Tensor
    mask: Tensor
    aux: Tensor
    last: Tensor


@dataclass(frozen=True)
class Tally:
    """Sums of one ranking and temperature, a document a row; ``domains`` names each row's domain.

    accepted, reached     [docs, sizes, K]  numerator and denominator of alpha_k
    forced, positions     [docs, sizes, K] and [docs, K]: teacher-forced acceptance and its count
    covered               [docs, sizes]     target argmax among the first D rows
    right, right_covered  [docs, sizes]     step-0 hits at D; hits of the full drafter whose token is below D
    replay_accepted, replay_reached  [docs, sizes, K]  the same as the first two, over the rounds that a server would
                          run along the text (greedy): it starts where the round before ended, not at every position
    agree                 [docs]            positions where the text is the target's argmax
    """

    ranking: str
    temperature: float
    sizes: tuple[int, ...]
    domains: tuple[str, ...]
    accepted: np.ndarray
    reached: np.ndarray
    forced: np.ndarray
    positions: np.ndarray
    covered: np.ndarray
    right: np.ndarray
    right_covered: np.ndarray
    replay_accepted: np.ndarray
    replay_reached: np.ndarray
    agree: np.ndarray


@dataclass(frozen=True, eq=False)
class RowOrder:
    """The head's rows in ranking order, cut at the sizes; within a segment by ascending target id.

    ``draft_rows`` and ``target_ids`` int64 [D0]; ``rank`` int64 [V]: place of a
    target id in the ranking, D0 where the checkpoint does not have it.
    """

    draft_rows: Tensor
    target_ids: Tensor
    rank: Tensor
    sizes: tuple[int, ...]

    @property
    def segments(self) -> list[tuple[int, int]]:
        return list(zip((0, *self.sizes[:-1]), self.sizes, strict=True))


def row_order(target_ids: Tensor, order: np.ndarray, sizes: Sequence[int]) -> RowOrder:
    """Order a checkpoint's rows by a ranking of all V ids. The sizes are ascending and end at most at D0."""
    have = len(target_ids)
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[-1] > have:
        raise Eagle3Error("sizes", found=list(sizes)[-3:], expected=f"ascending, at most the drafter's own {have:,}")
    row_of = torch.full((len(order),), -1, dtype=torch.int64)
    row_of[target_ids] = torch.arange(have)
    ranked = torch.from_numpy(np.array(order, dtype=np.int64))
    ranked = ranked[row_of[ranked] >= 0]
    kept = []
    start = 0
    for size in sizes:
        kept.append(ranked[start:size].sort().values)
        start = size
    ids = torch.cat(kept)
    rank = torch.full((len(order),), have, dtype=torch.int64)
    # Places inside a segment do not matter: sizes fall on its edges.
    rank[ids] = torch.arange(len(ids))
    return RowOrder(row_of[ids], ids, rank, tuple(sizes))


@torch.inference_mode()
def evaluate(
    documents: Iterable[TextFeatures], drafter: Drafter, head: TargetHead, orders: Mapping[str, RowOrder], *,
    temperatures: Sequence[float] = (0.0,), depth: int = 5, chunk: int | None = None,
    progress: Callable[[TextFeatures], None] | None = None,
) -> list[Tally]:
    """One forward per document; a Tally for each ranking and temperature, rankings outermost."""
    if any(t < 0 for t in temperatures) or depth < 1:
        raise Eagle3Error("temperature or depth", found=f"{list(temperatures)}, {depth}", expected=">= 0, and >= 1")
    keys = [(name, t) for name in orders for t in temperatures]
    rows: dict[tuple[str, float], list[dict[str, np.ndarray]]] = {key: [] for key in keys}
    domains: list[str] = []
    for document in documents:
        pieces = _document(document, drafter, head, orders, temperatures, depth, chunk)
        if pieces is not None:
            domains.append(document.domain)
            for key in keys:
                rows[key].append(pieces[key])
        if progress is not None:
            progress(document)
    if not domains:
        raise Eagle3Error("no position to measure", expected="documents with two assistant tokens or more in a row")
    return [
        Tally(name, t, orders[name].sizes, tuple(domains),
              **{field: np.stack([row[field] for row in rows[name, t]]) for field in rows[name, t][0]})
        for name, t in keys
    ]


def _document(
    document: TextFeatures, drafter: Drafter, head: TargetHead, orders: Mapping[str, RowOrder],
    temperatures: Sequence[float], depth: int, chunk: int | None,
) -> dict[tuple[str, float], dict[str, np.ndarray]] | None:
    length = len(document.ids)
    # Judged at j: the token after x[j], which a server drafts only once x[j] itself was generated.
    judged = torch.zeros(length, dtype=torch.bool)
    judged[:-1] = document.mask[:-1] & document.mask[1:]
    judged[0] = False
    at = judged.nonzero().squeeze(1)
    if not len(at):
        return None
    dtype = drafter.lm_head.weight.dtype
    states = drafter.unroll(document.aux[None].to(dtype), document.ids[None], depth)
    last = document.last.to(head.weight.dtype)
    following = document.ids.roll(-1)
    vocab, draft = head.weight.shape[0], drafter.lm_head.weight.shape[0]
    if chunk is None:
        chunk = max(8, CHUNK_BYTES // (4 * (vocab + 4 * draft)))
    argmax = torch.zeros(length, dtype=torch.int64)
    shape = {name: (len(order.sizes), depth, length) for name, order in orders.items()}
    accept = {(n, t): torch.zeros(shape[n]) for n in orders for t in temperatures}
    weight = {(n, t): torch.zeros(shape[n]) for n in orders for t in temperatures}
    for start in range(0, len(at), chunk):
        j = at[start : start + chunk]
        z_target = head.logits(last[j])
        best = argmax[j] = z_target.argmax(dim=-1)
        text = following[j]
        log_p: dict[tuple[str, float], Tensor] = {}
        log_p_text: dict[float, Tensor] = {}
        for t in temperatures:
            if t > 0:
                wide = z_target.float() if z_target.dtype != torch.float64 else z_target
                norm = torch.logsumexp(wide / t, dim=-1, keepdim=True)
                log_p_text[t] = (wide.gather(1, text[:, None]) / t - norm).squeeze(1)
                for name, order in orders.items():
                    log_p[name, t] = wide.index_select(1, order.target_ids).div_(t).sub_(norm)
        del z_target
        for k in range(depth):
            # Starts before the text have no state; what they get here is masked out below.
            z_all = drafter.lm_head(states[k][0, (j - k - 1).clamp_min(0)])
            for name, order in orders.items():
                z = z_all.index_select(1, order.draft_rows)
                for t in temperatures:
                    if t == 0:
                        a = _hits(z, order, best)
                        w = a * (text == best)
                    else:
                        a, w = _overlap(z, log_p[name, t], order, t, text, log_p_text[t])
                    accept[name, t][:, k, j] = a.float()
                    weight[name, t][:, k, j] = w.float()
    return {
        (name, t): _sums(accept[name, t], weight[name, t], judged, argmax, following, orders[name], depth,
                         greedy=t == 0)
        for name in orders for t in temperatures
    }


def _hits(z: Tensor, order: RowOrder, best: Tensor) -> Tensor:
    """[sizes, c]: is the target's argmax the drafter's, over the first D rows. z [c, D0] in row order."""
    end = order.sizes[-1]
    place = order.rank[best]
    inside = place < end
    value = z.gather(1, place.clamp_max(end - 1)[:, None]).squeeze(1)
    tops = torch.stack([z[:, a:b].amax(dim=1) for a, b in order.segments]).cummax(dim=0).values
    sizes = torch.tensor(order.sizes)[:, None]
    hits = (value >= tops) & (place < sizes) & inside
    # An equal logit of a lower target id wins the argmax; looked for only where it could matter.
    for row in hits.any(dim=0).nonzero().squeeze(1).tolist():
        equal = (z[row, :end] == value[row]).nonzero().squeeze(1)
        if len(equal) > 1:
            lower = equal[order.target_ids[equal] < best[row]]
            if len(lower):
                hits[:, row] &= sizes[:, 0] <= lower.min()
    return hits


def _overlap(
    z: Tensor, log_p: Tensor, order: RowOrder, temperature: float, text: Tensor, log_p_text: Tensor
) -> tuple[Tensor, Tensor]:
    """sum_v min(p, q_D), [sizes, c], and min(1, q_D(x)/p(x)) of the text's token. z, log_p [c, D0]."""
    z = z if z.dtype == torch.float64 else z.float()
    count, sizes = len(z), order.sizes
    overlap = torch.zeros(len(sizes), count, dtype=z.dtype)
    log_norm = torch.empty(count, len(sizes), dtype=z.dtype)
    rows = max(1, CACHE_ROWS_BYTES // (z.element_size() * sizes[-1]))
    scratch = torch.empty(min(rows, count), sizes[-1], dtype=z.dtype)
    for start in range(0, count, rows):
        part = slice(start, min(start + rows, count))
        q = z[part] / temperature
        top = q.amax(dim=1, keepdim=True)
        q.sub_(top)
        ratio = log_p[part] - q
        q.exp_()
        sums = torch.stack([q[:, a:b].sum(dim=1) for a, b in order.segments], dim=1).cumsum(dim=1)
        norm = sums.log()
        log_norm[part] = norm + top
        full = norm[:, -1:]
        # p/q at the full size; q underflowing to 0 makes it infinite, and the minimum below finite again.
        ratio.add_(full).exp_()
        allowed = (full - norm).exp()
        for index, size in enumerate(sizes):
            kept = torch.minimum(ratio[:, :size], allowed[:, index, None], out=scratch[: len(q), :size])
            overlap[index, part] = kept.mul_(q[:, :size]).sum(dim=1)
        overlap[:, part] /= sums[:, -1]
    place = order.rank[text]
    inside = place < sizes[-1]
    z_text = z.gather(1, place.clamp_max(sizes[-1] - 1)[:, None]) / temperature
    ratio_text = (z_text - log_norm - log_p_text[:, None]).exp().clamp_max_(1.0)
    below = place[:, None] < torch.tensor(sizes)[None]
    weight = torch.where(below & inside[:, None], ratio_text, torch.zeros_like(ratio_text))
    return overlap.clamp_max_(1.0), weight.T


def _sums(
    accept: Tensor, weight: Tensor, judged: Tensor, argmax: Tensor, following: Tensor, order: RowOrder, depth: int, *,
    greedy: bool,
) -> dict[str, np.ndarray]:
    """Per-document sums. accept and weight [sizes, K, S] are indexed by the judging position j = p + 1 + k."""
    sizes, _, length = accept.shape
    accepted, reached, forced = (torch.zeros(sizes, depth, dtype=torch.float64) for _ in range(3))
    positions = torch.zeros(depth, dtype=torch.float64)
    prefix = torch.ones(sizes, length - 1)
    run = torch.zeros(sizes, length - 1)
    alive = torch.ones(length - 1, dtype=torch.bool)
    judged_ahead = torch.zeros(length - 1, dtype=torch.int64)
    for k in range(depth):
        # Column p holds step k of the chain that starts at p.
        pad = k
        here = torch.nn.functional.pad(judged[1 + k :], (0, pad))[: length - 1]
        a = torch.nn.functional.pad(accept[:, k, 1 + k :], (0, pad))[:, : length - 1]
        w = torch.nn.functional.pad(weight[:, k, 1 + k :], (0, pad))[:, : length - 1]
        alive = alive & here
        judged_ahead += alive
        live = prefix * alive
        accepted[:, k] = (live * a).sum(dim=1, dtype=torch.float64)
        reached[:, k] = live.sum(dim=1, dtype=torch.float64)
        forced[:, k] = (a * here).sum(dim=1, dtype=torch.float64)
        positions[k] = here.sum()
        prefix = live * w
        run += prefix
    at = judged.nonzero().squeeze(1)
    best = argmax[at]
    place = order.rank[best]
    covered = place[None] < torch.tensor(order.sizes)[:, None]
    first = accept[:, 0, at]
    full = first[-1]
    replayed = np.zeros((2, sizes, depth))
    if greedy:
        replayed = _replay(run.numpy().astype(np.int64), judged_ahead.numpy(), depth)
    return {
        "accepted": accepted.numpy(), "reached": reached.numpy(), "forced": forced.numpy(),
        "positions": positions.numpy(), "covered": covered.sum(dim=1).double().numpy(),
        "right": first.sum(dim=1).double().numpy(),
        "right_covered": (full[None] * covered).sum(dim=1).double().numpy(),
        "replay_accepted": replayed[0], "replay_reached": replayed[1],
        "agree": np.asarray(float((best == following[at]).sum())),
    }


def _replay(run: np.ndarray, judged_ahead: np.ndarray, depth: int) -> np.ndarray:
    """Draft k accepted, and judged, over the rounds of a walk along the text; float64 [2, sizes, K].

    run [sizes, S - 1]: drafts accepted from each start p; n of them move the walk on by
    n + 1. judged_ahead [S - 1]: drafts from p that the text can judge, at most K; near its
    end a round is cut, and the drafts beyond count neither way. Walks begin at the first
    token of every stretch of generated text.
    """
    sizes = run.shape[0]
    next_free = np.zeros(sizes, dtype=np.int64)
    place = np.arange(depth)
    out = np.zeros((2, sizes, depth))
    for p in np.flatnonzero(judged_ahead):
        starts = (next_free <= p)[:, None]
        got = run[:, p, None]
        out[0] += starts & (got > place)
        out[1] += starts & (got >= place) & (place < judged_ahead[p])
        next_free = np.where(starts[:, 0], p + run[:, p] + 1, next_free)
    return out
