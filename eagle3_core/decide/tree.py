"""Draft trees as SGLang and EAGLE-2 build them, and the length they accept under a stated rank model.

``topk`` candidates a node, ``steps`` levels, ``draft_tokens`` tokens verified, the
last known token included: every level expands the ``topk`` nodes of highest path
probability, and the best ``draft_tokens - 1`` nodes of all levels are verified
(EAGLE-2, 2406.16858; SGLang's ``speculative_num_draft_tokens``).

Rank model: at depth k the target's token is the drafter's first candidate with
probability alpha_k; of what is left, a share ``RANK_SHARE`` is the second, the same
share of the rest the third, and so on. The drafter's confidences are taken to be
these probabilities, so that the tree is the best of its size and

    tau = 1 + sum over verified nodes of the product of probabilities on their path

since exactly one path is right. It is an upper estimate: in SpecBundle's trees of
6 and 8 tokens real drafters, less sure than they are right, spend tokens on
siblings and accept 12 to 16 % less than a chain of the same budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eagle3_core.errors import Eagle3Error

RANK_SHARE = 0.3
"""Assumed. A second candidate is right 0.3 * (1 - alpha) of the time."""
MAX_TOPK, MAX_STEPS, MAX_TOKENS = 64, 32, 1024


@dataclass(frozen=True)
class Tree:
    """Shape of a draft tree, named as SGLang's flags. ``topk`` 1 is a chain of ``steps``."""

    topk: int
    steps: int
    draft_tokens: int

    def __post_init__(self) -> None:
        for name, value, limit in (("topk", self.topk, MAX_TOPK), ("steps", self.steps, MAX_STEPS),
                                   ("draft tokens", self.draft_tokens - 1, MAX_TOKENS)):
            if not 1 <= value <= limit:
                raise Eagle3Error(f"tree {name}", found=value, expected=f"1 to {limit}")
        candidates = self.topk + (self.steps - 1) * self.topk**2
        if self.draft_tokens - 1 > candidates:
            raise Eagle3Error("tree draft tokens", found=self.draft_tokens,
                              expected=f"at most {candidates + 1} with topk {self.topk} and {self.steps} steps")
        if self.topk == 1 and self.draft_tokens != self.steps + 1:
            raise Eagle3Error("a chain verifies its steps and the last known token", found=self.draft_tokens,
                              expected=f"{self.steps + 1} draft tokens")


def rank_probabilities(alpha: float, topk: int, share: float = RANK_SHARE) -> np.ndarray:
    """[topk]: P(the target's token is the drafter's candidate of each rank)."""
    rest = (1.0 - alpha) * share * (1.0 - share) ** np.arange(topk - 1)
    return np.concatenate([[alpha], rest])


def verified_nodes(alpha: np.ndarray, tree: Tree, share: float = RANK_SHARE) -> list[tuple[int, ...]]:
    """Paths (ranks from the root, 0-based) of the nodes that are verified. ``alpha``: float [steps]."""
    frontier: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    nodes: list[tuple[float, tuple[int, ...]]] = []
    for depth in range(tree.steps):
        ranks = rank_probabilities(float(alpha[depth]), tree.topk, share)
        grown = [(value * float(p), (*path, rank)) for value, path in frontier for rank, p in enumerate(ranks)]
        grown.sort(key=lambda node: (-node[0], node[1]))
        nodes += grown
        frontier = grown[: tree.topk]
    # A stable order: a parent comes before its equally probable child, so the kept nodes are a tree.
    nodes.sort(key=lambda node: (-node[0], len(node[1]), node[1]))
    return [path for _, path in nodes[: tree.draft_tokens - 1]]


def tree_length(alpha: np.ndarray, tree: Tree, share: float = RANK_SHARE) -> np.ndarray:
    """tau of a tree. ``alpha``: float [..., steps], conditional acceptance of the first candidate by depth."""
    alpha = np.asarray(alpha, dtype=np.float64)
    flat = alpha.reshape(-1, alpha.shape[-1])
    out = np.empty(len(flat))
    for index, row in enumerate(flat):
        ranks = [rank_probabilities(float(a), tree.topk, share) for a in row]
        out[index] = 1.0 + sum(
            np.prod([ranks[depth][rank] for depth, rank in enumerate(path)])
            for path in verified_nodes(row, tree, share)
        )
    return out.reshape(alpha.shape[:-1])
