"""DrafterSpec: the dimensions of an EAGLE-3 drafter, and where they come from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.target import TargetSpec

MIN_DRAFT_VOCAB = 64
"""Engines pad the head to multiples of 64 rows, so nothing below one such block is a choice."""


@dataclass(frozen=True)
class DrafterSpec:
    """One EAGLE-3 drafter: fc over three target features, one layer reading [embedding; hidden], norm, lm_head.

    The norm flags carry vLLM's and speculators' meaning: ``norm_output`` feeds
    the post-norm state into the next step.
    """

    hidden_size: int
    target_hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    rms_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_draft_vocab(self.draft_vocab_size, self.vocab_size)

    def with_draft_vocab(self, draft_vocab_size: int) -> DrafterSpec:
        return dataclasses.replace(self, draft_vocab_size=draft_vocab_size)


def check_draft_vocab(draft_vocab: int, vocab_size: int, *, where: str | None = None) -> None:
    """Raises Eagle3Error unless 64 <= D <= V (tiny test targets with V < 64 may use D = V)."""
    if draft_vocab > vocab_size:
        raise Eagle3Error("draft vocabulary exceeds the target's", where=where,
                          found=f"D = {draft_vocab:,}", expected=f"at most V = {vocab_size:,}")
    if draft_vocab < min(MIN_DRAFT_VOCAB, vocab_size):
        raise Eagle3Error("draft vocabulary is too small", where=where,
                          found=f"D = {draft_vocab:,}", expected=f"at least {MIN_DRAFT_VOCAB}")


def drafter_for(target: TargetSpec, draft_vocab_size: int | None = None) -> DrafterSpec:
    """The drafter that trainers build for ``target`` by default: same width, heads and MLP. ``None`` means D = V."""
    return DrafterSpec(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size if draft_vocab_size is None else draft_vocab_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        intermediate_size=target.intermediate_size,
        rms_norm_eps=target.rms_norm_eps,
    )
