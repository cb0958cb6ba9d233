"""The fused loss against the plain formula in float64 under autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eagle3_core.training.loss import draft_loss

KINDS = ("soft_ce", "kl", "hard_ce", "lk")


def plain(states: Tensor, head: Tensor, target: Tensor, target_head: Tensor, kind: str) -> Tensor:
    """[K, N] losses, spelled as in the module's docstring."""
    p = torch.softmax(target @ target_head.T, -1)
    logq = torch.log_softmax(states @ head.T, -1)
    if kind == "soft_ce":
        return -(p * logq).sum(-1)
    if kind == "kl":
        return (p * (p.log() - logq)).sum(-1)
    if kind == "hard_ce":
        return -logq[:, torch.arange(p.shape[0]), p.argmax(-1)]
    return -torch.minimum(p, logq.exp()).sum(-1).log()


def example(seed: int = 0) -> tuple[Tensor, ...]:
    torch.manual_seed(seed)
    steps, rows, hidden, draft = 3, 37, 8, 50
    return (
        torch.randn(steps, rows, hidden, dtype=torch.float64),
        torch.randn(draft, hidden, dtype=torch.float64),
        torch.randn(rows, hidden, dtype=torch.float64),
        torch.randn(draft, hidden, dtype=torch.float64),
        torch.rand(steps, rows, dtype=torch.float64) * (torch.rand(steps, rows) > 0.3),
        torch.tensor([1.0, 0.8, 0.64], dtype=torch.float64),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [5, 1000])
def test_loss_and_gradients_match_float64_autograd(kind: str, chunk: int) -> None:
    states, head, target, target_head, weights, step_weights = example()
    states.requires_grad_()
    head.requires_grad_()
    reference = (plain(states, head, target, target_head, kind) * weights * step_weights[:, None]).sum()
    want = torch.autograd.grad(reference, (states, head))

    small = [x.detach().float().requires_grad_(x.requires_grad) for x in (states, head)]
    got = draft_loss(*small, target.float(), target_head.float(), weights.float(), step_weights.float(),
                     kind=kind, chunk=chunk)  # type: ignore[arg-type]
    assert got.total.item() == pytest.approx(reference.item(), rel=1e-5)
    for mine, theirs in zip(torch.autograd.grad(got.total, small), want, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-5)


def test_rows_without_weight_take_no_part() -> None:
    states, head, target, target_head, weights, step_weights = (x.float() for x in example())
    weights[:, 10:20] = 0
    states.requires_grad_()
    draft_loss(states, head, target, target_head, weights, step_weights).total.backward()
    assert states.grad is not None
    assert not states.grad[:, 10:20].any()
    assert states.grad[0, :10].any()


def test_hits_and_acceptance_are_weighted_sums() -> None:
    states, head, target, target_head, weights, step_weights = (x.float() for x in example(1))
    got = draft_loss(states, head, target, target_head, weights, step_weights, with_acceptance=True)
    p, q = torch.softmax(target @ target_head.T, -1), torch.softmax(states @ head.T, -1)
    hits = ((q.argmax(-1) == p.argmax(-1)) * weights).sum(1)
    torch.testing.assert_close(got.hits, hits)
    torch.testing.assert_close(got.acceptance, (torch.minimum(p, q).sum(-1) * weights).sum(1))


def test_a_frozen_head_gets_no_gradient() -> None:
    states, head, target, target_head, weights, step_weights = (x.float() for x in example())
    states.requires_grad_()
    draft_loss(states, head, target, target_head, weights, step_weights).total.backward()
    assert head.grad is None


def test_a_perfect_drafter_has_zero_kl_and_full_acceptance() -> None:
    _, head, target, _, _, _ = (x.float() for x in example())
    states, weights = target[None], torch.ones(1, len(target))
    got = draft_loss(states, head, target, head, weights, torch.ones(1), kind="kl", with_acceptance=True)
    assert got.total.item() == pytest.approx(0, abs=1e-4)
    assert got.acceptance.item() == pytest.approx(len(target), rel=1e-5)
