"""One packed row to its loss: unrolled draft steps aligned by target position, then the fused loss.

Step k at text position p is judged by the target at t = p + 1 + k. Shifting its
states by 1 + k puts every step's prediction of one target distribution at the
same index, so that the distribution is made once for all of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagle3_core.drafter.model import Drafter
from eagle3_core.training.config import LossConfig
from eagle3_core.training.data import Packed
from eagle3_core.training.loss import StepLoss, draft_loss

ARGMAX_BYTES = 32 << 20


class Objective(nn.Module):
    """The drafter together with the target's rows of its draft vocabulary, so that DDP and FSDP wrap one module."""

    target_rows: Tensor
    step_weights: Tensor

    def __init__(self, drafter: Drafter, target_head: Tensor, loss: LossConfig, *, dtype: torch.dtype = torch.float32,
                 recompute: bool = False) -> None:
        super().__init__()
        self.drafter, self.loss, self.dtype, self.recompute = drafter, loss, dtype, recompute
        ids = drafter.target_ids
        whole = len(ids) == len(target_head) and bool((drafter.d2t == 0).all())
        # Not in the checkpoint: they are the target's.
        self.register_buffer("target_rows", target_head if whole else target_head[ids].clone(), persistent=False)
        self.register_buffer("step_weights", torch.tensor([loss.step_weight**k for k in range(loss.steps)]),
                             persistent=False)

    def forward(self, row: Packed, with_acceptance: bool = False) -> StepLoss:
        return draft_loss(*self.inputs(row), kind=self.loss.kind, with_acceptance=with_acceptance)

    def inputs(self, row: Packed) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The tensors that ``draft_loss`` takes, in its order; states [K, S, H] by target position."""
        steps = self.loss.steps

        def unroll(aux: Tensor) -> list[Tensor]:
            return self.drafter.unroll(aux, row.ids, steps, positions=row.positions, documents=row.documents)

        with torch.autocast(row.aux.device.type, self.dtype, enabled=self.dtype != torch.float32):
            if self.recompute and torch.is_grad_enabled():
                from torch.utils.checkpoint import checkpoint

                normed = checkpoint(unroll, row.aux, use_reentrant=False)
            else:
                normed = unroll(row.aux)
        length = row.ids.shape[1]
        states = torch.stack([F.pad(state[0], (0, 0, k + 1, 0))[:length] for k, state in enumerate(normed)])
        cast = (t.to(self.dtype) for t in (states, self.drafter.lm_head.weight, row.last, self.target_rows))
        return (*cast, row.weights, self.step_weights)  # type: ignore[return-value]


def target_argmax(last: Tensor, head: Tensor) -> Tensor:
    """int64 [N]: the target's own next token, its [N, V] logits made a few rows at a time."""
    chunk = max(16, ARGMAX_BYTES // (4 * len(head)))
    with torch.no_grad():
        return torch.cat([(part @ head.T).argmax(dim=-1) for part in last.split(chunk)])
