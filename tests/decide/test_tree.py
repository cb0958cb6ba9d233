"""The tree's expected length against enumeration and simulation of what verification does."""

from __future__ import annotations

import numpy as np
import pytest

from eagle3_core.decide.projection import acceptance_length
from eagle3_core.decide.tree import Tree, rank_probabilities, tree_length, verified_nodes
from eagle3_core.errors import Eagle3Error


def test_a_tree_of_one_candidate_is_the_chain() -> None:
    alpha = np.array([[0.8, 0.7, 0.6], [0.2, 0.9, 0.5]])
    np.testing.assert_allclose(tree_length(alpha, Tree(1, 3, 4)), acceptance_length(alpha))


def test_ranks_share_what_is_left_and_never_more() -> None:
    ranks = rank_probabilities(0.7, 4, share=0.5)
    np.testing.assert_allclose(ranks, [0.7, 0.15, 0.075, 0.0375])
    assert rank_probabilities(0.0, 64).sum() < 1


def test_a_worked_tree() -> None:
    """alpha .6 and .5, share .5: level 1 has .6 and .2; below .6 lie .3 and .15, below .2 lie .1 and .05.

    Four nodes: .6, .3, .2, .15; tau = 1 + 1.25.
    """
    alpha = np.array([0.6, 0.5])
    assert verified_nodes(alpha, Tree(2, 2, 5), 0.5) == [(0,), (0, 0), (1,), (0, 1)]
    assert tree_length(alpha, Tree(2, 2, 5), 0.5) == pytest.approx(2.25)


@pytest.mark.parametrize("tree", [Tree(2, 3, 6), Tree(4, 5, 16), Tree(8, 2, 30)])
def test_the_verified_nodes_are_a_tree(tree: Tree) -> None:
    nodes = set(verified_nodes(np.full(tree.steps, 0.45), tree))
    assert len(nodes) == tree.draft_tokens - 1
    assert all(len(node) == 1 or node[:-1] in nodes for node in nodes)


def test_the_expected_length_is_what_verification_of_random_texts_emits() -> None:
    """At every node the target's token is the child of a rank drawn from the rank model, or none of them."""
    tree, alpha = Tree(3, 4, 10), np.array([0.7, 0.6, 0.55, 0.5])
    nodes = set(verified_nodes(alpha, tree))
    random = np.random.default_rng(1)
    ranks = [rank_probabilities(float(a), tree.topk) for a in alpha]
    draws = np.stack([random.choice(tree.topk + 1, size=40_000, p=[*r, 1 - r.sum()]) for r in ranks], axis=1)
    emitted = np.ones(len(draws))
    for index, row in enumerate(draws.tolist()):
        path: tuple[int, ...] = ()
        while len(path) < tree.steps and (*path, row[len(path)]) in nodes:
            path = (*path, row[len(path)])
        emitted[index] += len(path)
    error = 4 * emitted.std() / np.sqrt(len(emitted))
    assert tree_length(alpha, tree) == pytest.approx(emitted.mean(), abs=error)


def test_more_tokens_never_accept_less() -> None:
    alpha = np.full(5, 0.6)
    lengths = [float(tree_length(alpha, Tree(4, 5, n))) for n in (6, 8, 16, 32)]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize(
    ("topk", "steps", "tokens"), [(1, 5, 8), (0, 5, 6), (2, 0, 4), (2, 2, 9), (65, 2, 4), (2, 3, 1)])
def test_shapes_that_cannot_be_drafted_are_refused(topk: int, steps: int, tokens: int) -> None:
    with pytest.raises(Eagle3Error):
        Tree(topk, steps, tokens)
