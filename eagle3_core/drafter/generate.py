"""Lossless speculative decoding: the drafter proposes, the target decides, the text stays the target's own.

    greedy      a draft token is kept while it is the target's argmax
    sampling    chain: kept with probability min(1, p/q), else replaced from (p - q)+
                (Leviathan et al. 2211.17192, Chen et al. 2302.01318)
                tree: children of a node are tried in turn, each as a point mass: kept with
                probability p(x), else x is struck from p (SpecInfer 2305.09781, EAGLE-2 2406.16858)

Draft trees follow EAGLE-2: every level expands the ``topk`` most probable paths,
and the ``nodes`` most probable of all proposed tokens are verified together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eagle3_core.drafter.model import DraftCache, Drafter
from eagle3_core.errors import Eagle3Error

if TYPE_CHECKING:
    from eagle3_core.drafter.target import Target


@dataclass(frozen=True)
class Tree:
    depth: int = 4
    topk: int = 4
    nodes: int = 12


@dataclass
class Generated:
    """``accepted[n]``: rounds in which n drafts were kept. Seconds cover the rounds, not the prompt."""

    ids: list[int]
    accepted: list[int]
    prompt_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    total_s: float = 0.0
    rounds: int = field(init=False)

    def __post_init__(self) -> None:
        self.rounds = sum(self.accepted)

    @property
    def tau(self) -> float:
        """Tokens a round, bonus included."""
        return 1 + sum(n * c for n, c in enumerate(self.accepted)) / max(self.rounds, 1)


def _probabilities(logits: Tensor, temperature: float) -> Tensor:
    return torch.softmax((logits if logits.dtype == torch.float64 else logits.float()) / temperature, dim=-1)


def _draw(probabilities: Tensor, generator: torch.Generator | None) -> int:
    return int(torch.multinomial(probabilities, 1, generator=generator))


@torch.inference_mode()
def generate_plain(
    target: Target, prompt: Sequence[int], *, max_new: int, temperature: float = 0.0, eos: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> Generated:
    """The target alone, one token a pass, with a cache."""
    ids = _prompt(prompt, target.device)
    cache = target.new_cache()
    start = time.perf_counter()
    out: list[int] = []
    last = target.forward(ids, cache).last[:, -1:]
    prompted = time.perf_counter()
    while True:
        logits = target.logits(last)[0, 0]
        token = int(logits.argmax()) if temperature == 0 else _draw(_probabilities(logits, temperature), generator)
        out.append(token)
        if len(out) >= max_new or token in eos:
            break
        last = target.forward(torch.tensor([[token]], device=ids.device), cache).last
    end = time.perf_counter()
    return Generated(out, [len(out)], prompted - start, 0.0, end - prompted, end - prompted)


@torch.inference_mode()
def generate(
    target: Target, drafter: Drafter, prompt: Sequence[int], *, max_new: int, k: int = 3, temperature: float = 0.0,
    tree: Tree | None = None, eos: Sequence[int] = (), generator: torch.Generator | None = None,
) -> Generated:
    """Speculative decoding of one prompt. ``tree`` replaces the chain of ``k``. Raises Eagle3Error on an empty prompt.

    The text ends at ``max_new`` tokens or after one of ``eos``, as plain decoding would.
    """
    ids = _prompt(prompt, target.device)
    started = time.perf_counter()
    cache, drafts = target.new_cache(), DraftCache()
    seen = target.forward(ids, cache)
    token = _pick(target.logits(seen.last[:, -1:])[0, 0], temperature, generator)
    out = [token]
    # The drafter reads the feature at p with the token at p + 1.
    features, tokens = seen.aux, torch.cat([ids[:, 1:], ids.new_tensor([[token]])], dim=1)
    depth = tree.depth if tree else k
    accepted = [0] * (depth + 1)
    prompted = time.perf_counter()
    draft_s = verify_s = 0.0
    while len(out) < max_new and out[-1] not in eos:
        start = time.perf_counter()
        known = drafts.length
        positions = torch.arange(known, known + tokens.shape[1], device=ids.device)[None]
        state = drafter.step(tokens, drafter.features(features), positions, drafts)[:, -1:]
        if tree is None:
            proposal = _chain(drafter, state, drafts, k, temperature, generator)
        else:
            proposal = _tree(drafter, state, drafts, tree)
        drafts.crop(known + tokens.shape[1])
        drafted = time.perf_counter()
        base = cache.get_seq_length()
        seen = _verify(target, cache, out[-1], proposal)
        path, bonus = _accept(target.logits(seen.last)[0], proposal, temperature, generator)
        _keep(cache, base, path)
        new = [proposal.tokens[i - 1] for i in path[1:]] + [bonus]
        accepted[len(new) - 1] += 1
        features, tokens = seen.aux[:, path], torch.tensor([new], device=ids.device)
        for index, item in enumerate(new):
            if item in eos:
                new = new[: index + 1]
                break
        out += new
        verify_s += time.perf_counter() - drafted
        draft_s += drafted - start
    return Generated(out[:max_new], accepted, prompted - started, draft_s, verify_s, time.perf_counter() - prompted)


@dataclass(frozen=True)
class _Proposal:
    """Draft tokens (target ids); ``parents[i]`` is the node above, 0 the last known token, i + 1 draft i.

    ``q`` [K, V] is what a chain was sampled from; None means point masses.
    """

    tokens: list[int]
    parents: list[int]
    q: Tensor | None = None

    @property
    def is_chain(self) -> bool:
        return self.parents == list(range(len(self.parents)))


def _prompt(prompt: Sequence[int], device: torch.device) -> Tensor:
    if len(prompt) == 0:
        raise Eagle3Error("the prompt is empty", expected="one token or more")
    return torch.tensor([list(prompt)], dtype=torch.int64, device=device)


def _pick(logits: Tensor, temperature: float, generator: torch.Generator | None) -> int:
    return int(logits.argmax()) if temperature == 0 else _draw(_probabilities(logits, temperature), generator)


def _chain(
    drafter: Drafter, state: Tensor, drafts: DraftCache, k: int, temperature: float,
    generator: torch.Generator | None,
) -> _Proposal:
    targets = drafter.target_ids
    tokens: list[int] = []
    rows: list[Tensor] = []
    for index in range(k):
        logits = drafter.logits(state)[0, 0]
        if temperature == 0:
            draft = int(logits.argmax())
        else:
            q = _probabilities(logits, temperature)
            draft = _draw(q, generator)
            rows.append(q.new_zeros(drafter.spec.vocab_size).scatter_(0, targets, q))
        tokens.append(int(targets[draft]))
        if index + 1 < k:
            position = torch.tensor([[drafts.length]], device=state.device)
            state = drafter.step(torch.tensor([[tokens[-1]]], device=state.device), drafter.feed_back(state), position,
                                 drafts)
    return _Proposal(tokens, list(range(k)), torch.stack(rows) if rows else None)


def _tree(drafter: Drafter, state: Tensor, drafts: DraftCache, tree: Tree) -> _Proposal:
    """Expand level by level; the cache gets one entry for every expanded node, seen by its descendants alone."""
    targets, device = drafter.target_ids, state.device
    base = drafts.length
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    frontier = [0]
    paths: dict[int, list[int]] = {0: []}
    """Node -> cache entries of itself and its ancestors, beyond ``base``."""
    total = {0: 0.0}
    states = state
    for level in range(tree.depth):
        logits = torch.log_softmax(drafter.logits(states)[0].float(), dim=-1)
        best = logits.topk(min(tree.topk, logits.shape[-1]), dim=-1)
        grown: list[tuple[float, int, int]] = []
        for row, node in enumerate(frontier):
            for value, draft in zip(best.values[row].tolist(), best.indices[row].tolist(), strict=True):
                tokens.append(int(targets[draft]))
                parents.append(node)
                scores.append(total[node] + value)
                total[len(tokens)] = scores[-1]
                grown.append((scores[-1], len(tokens), row))
        if level + 1 == tree.depth:
            break
        chosen = sorted(grown, key=lambda item: (-item[0], item[1]))[: tree.topk]
        held = drafts.length
        mask = torch.zeros(len(chosen), held + len(chosen), dtype=torch.bool, device=device)
        mask[:, :base] = True
        for index, (_, node, _row) in enumerate(chosen):
            paths[node] = [*paths[parents[node - 1]], held + index]
            mask[index, paths[node]] = True
        rows = [row for _, _, row in chosen]
        frontier = [node for _, node, _ in chosen]
        ids = torch.tensor([[tokens[node - 1] for node in frontier]], device=device)
        positions = torch.full((1, len(frontier)), base + level, device=device)
        states = drafter.step(ids, drafter.feed_back(states[:, rows]), positions, drafts, mask=mask)
    # A child is never more probable than its parent, and stands after it, so the best nodes form a tree.
    kept = sorted(sorted(range(len(tokens)), key=lambda i: (-scores[i], i))[: tree.nodes])
    place = {0: 0} | {old + 1: new + 1 for new, old in enumerate(kept)}
    return _Proposal([tokens[i] for i in kept], [place[parents[i]] for i in kept])


def _verify(target: Target, cache: Any, last: int, proposal: _Proposal) -> Any:
    ids = torch.tensor([[last, *proposal.tokens]], device=target.device)
    if proposal.is_chain:
        return target.forward(ids, cache)
    base, size = cache.get_seq_length(), ids.shape[1]
    depth = [0] * size
    seen = torch.zeros(size, base + size, dtype=torch.bool)
    seen[:, :base] = True
    seen[0, base] = True
    for node, parent in enumerate(proposal.parents, start=1):
        depth[node] = depth[parent] + 1
        seen[node] = seen[parent]
        seen[node, base + node] = True
    dtype = target.head.weight.dtype
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)
    positions = torch.tensor([depth], device=target.device) + base
    return target.forward(ids, cache, positions=positions, mask=mask[None, None].to(target.device))


def _accept(
    logits: Tensor, proposal: _Proposal, temperature: float, generator: torch.Generator | None
) -> tuple[list[int], int]:
    """Rows of the verified pass that stay (row 0, the last known token, always), and the target's next token."""
    path = [0]
    picks = logits.argmax(dim=-1).tolist() if temperature == 0 else []
    while True:
        node = path[-1]
        children = [i for i, parent in enumerate(proposal.parents, start=1) if parent == node]
        if temperature == 0:
            kept = next((i for i in children if proposal.tokens[i - 1] == picks[node]), None)
            bonus = picks[node]
        else:
            p = _probabilities(logits[node], temperature)
            kept, p = _try_children(p, children, proposal, generator)
            bonus = _draw(p, generator) if kept is None else -1
        if kept is None:
            return path, bonus
        path.append(kept)


def _try_children(
    p: Tensor, children: list[int], proposal: _Proposal, generator: torch.Generator | None
) -> tuple[int | None, Tensor]:
    """The accepted child, or None and what is left of ``p`` to draw from."""
    for child in children:
        token = proposal.tokens[child - 1]
        q = None if proposal.q is None else proposal.q[child - 1]
        chance = p[token] if q is None else p[token] / q[token]
        if float(torch.rand((), generator=generator)) < float(chance):
            return child, p
        if q is None:
            p = p.clone()
            p[token] = 0
        else:
            p = (p - q).clamp_min_(0)
        p = p / p.sum()
    return None, p


def _keep(cache: Any, base: int, path: list[int]) -> None:
    from eagle3_core.drafter.target import keep_path

    keep_path(cache, base, path)
