"""The draft loss without its logits: head, softmax, loss and gradients in one pass over row chunks.

A plain loss holds [tokens, D] logits for every unrolled step, for drafter and
target each: 8,192 tokens at D = 163,840 in fp32 are 5.4 GB a piece. Here the
target's distribution of a chunk is made once, every step that predicts the same
target position uses it, and the gradients with respect to states and head are
made on the spot, so that two [chunk, D] buffers are all that ever exists. The
price is that backward can only scale what forward made; the loss is the last
operation of the graph, so nothing is lost.

With p the target's and q the drafter's distribution over the draft vocabulary,
z the drafter's logits and a = sum_v min(p, q) (acceptance under rejection
sampling, Leviathan et al. 2211.17192):

    soft_ce   -sum_v p log q                      dz = q - p
    kl        sum_v p log(p / q)                  dz = q - p
    hard_ce   -log q[argmax p]                    dz = q - onehot
    lk        -log a  (LK losses, 2602.23881)     dz = -q (1[q<p] - sum_u q_u 1[q_u<p_u]) / a
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

LossKind = Literal["soft_ce", "kl", "hard_ce", "lk"]
CHUNK_BYTES = 32 << 20
"""Size of one [chunk, D] fp32 buffer: large enough for full-speed matrix products, small beside the weights."""


class StepLoss(NamedTuple):
    """What one training step yields. ``total`` carries the gradient; the others are [K] sums over weighted rows.

    A hit is a row whose drafter argmax is the target's argmax over the draft
    vocabulary; acceptance is sum_v min(p, q), NaN where it was not asked for.
    A tuple, because FSDP looks for a module's output in containers it knows.
    """

    total: Tensor
    loss: Tensor
    hits: Tensor
    acceptance: Tensor
    weight: Tensor


def draft_loss(
    states: Tensor,
    head: Tensor,
    target_states: Tensor,
    target_head: Tensor,
    weights: Tensor,
    step_weights: Tensor,
    *,
    kind: LossKind = "soft_ce",
    with_acceptance: bool = False,
    chunk: int | None = None,
) -> StepLoss:
    """Sum over steps and rows of step_weights[k] * weights[k, n] * loss[k, n]; divide by what you mean by it.

    states         [K, N, H]   drafter states after the final norm, aligned by target position
    head           [D, H]      gets a gradient only where it requires one
    target_states  [N, Ht]     the target's last hidden states, after its final norm
    target_head    [D, Ht]     rows of the target's lm_head for the draft vocabulary
    weights        [K, N]      0 leaves a row out of that step
    step_weights   [K]
    """
    if chunk is None:
        chunk = max(16, CHUNK_BYTES // (4 * head.shape[0]))
    used = (weights != 0).any(dim=0)
    if not bool(used.all()):
        rows = used.nonzero().squeeze(1)
        states, target_states, weights = states[:, rows], target_states[rows], weights[:, rows]
    total, sums = _DraftLoss.apply(
        states, head, target_states, target_head, weights, step_weights, kind, with_acceptance, chunk
    )
    return StepLoss(total, sums[0], sums[1], sums[2], weights.sum(dim=1))


class _DraftLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, head, target_states, target_head, weights, step_weights, kind, with_acceptance, chunk):  # type: ignore[override]
        steps, rows, _ = states.shape
        grad_states = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        grad_head = torch.zeros_like(head, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        sums = torch.zeros(3, steps, dtype=torch.float32, device=states.device)
        if not with_acceptance and kind != "lk":
            sums[2] = torch.nan
        for start in range(0, rows, chunk):
            part = slice(start, start + chunk)
            p = torch.softmax((target_states[part] @ target_head.T).float(), dim=-1)
            target_argmax = p.argmax(dim=-1)
            for step in range(steps):
                state, weight = states[step, part], weights[step, part].float()
                z = (state @ head.T).float()
                loss, hit, acceptance, dz = _loss_and_gradient(z, p, target_argmax, kind, with_acceptance)
                sums[0, step] += torch.dot(loss, weight)
                sums[1, step] += torch.dot(hit, weight)
                if acceptance is not None:
                    sums[2, step] += torch.dot(acceptance, weight)
                dz = dz.mul_((weight * step_weights[step]).unsqueeze(1)).to(state.dtype)
                if grad_states is not None:
                    torch.mm(dz, head, out=grad_states[step, part])
                if grad_head is not None:
                    grad_head.addmm_(dz.T.float(), state.float())
        ctx.save_for_backward(grad_states, None if grad_head is None else grad_head.to(head.dtype))
        ctx.mark_non_differentiable(sums)
        return torch.dot(sums[0], step_weights.float()), sums

    @staticmethod
    def backward(ctx, grad_total, _):  # type: ignore[override]
        grad_states, grad_head = ctx.saved_tensors
        return (
            None if grad_states is None else grad_states * grad_total,
            None if grad_head is None else grad_head * grad_total,
            *(None,) * 7,
        )


def _loss_and_gradient(
    z: Tensor, p: Tensor, target_argmax: Tensor, kind: LossKind, with_acceptance: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Loss [c], hit [c], acceptance [c] and dloss/dz [c, D], which overwrites ``z``."""
    lse = torch.logsumexp(z, dim=-1)
    hit = (z.argmax(dim=-1) == target_argmax).float()
    if kind in ("soft_ce", "kl"):
        loss = lse - torch.linalg.vecdot(p, z)
        if kind == "kl":
            loss = loss - torch.special.entr(p).sum(dim=-1)
    elif kind == "hard_ce":
        loss = lse - z.gather(1, target_argmax.unsqueeze(1)).squeeze(1)
    q = z.sub_(lse.unsqueeze(1)).exp_()
    acceptance = torch.minimum(p, q).sum(dim=-1) if with_acceptance or kind == "lk" else None
    if kind == "lk":
        assert acceptance is not None
        accepted = acceptance.clamp_min(torch.finfo(torch.float32).tiny)
        loss = -accepted.log()
        below = (q < p).float()
        inside = torch.linalg.vecdot(q, below)
        return loss, hit, acceptance, q.mul_(below.sub_(inside.unsqueeze(1))).div_(-accepted.unsqueeze(1))
    if kind == "hard_ce":
        q.scatter_add_(1, target_argmax.unsqueeze(1), q.new_full((len(q), 1), -1.0))
    else:
        q.sub_(p)
    return loss, hit, acceptance, q
