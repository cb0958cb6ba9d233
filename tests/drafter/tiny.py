"""A random Llama of a few thousand weights, and drafters for it."""

from __future__ import annotations

import dataclasses

import torch

from eagle3_core.drafter.model import Drafter
from eagle3_core.drafter.rope import Rope
from eagle3_core.specs.drafter import DrafterSpec
from eagle3_core.specs.target import TargetSpec

VOCAB = 96


def tiny_model(*, vocab: int = VOCAB, layers: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64, std=0.3):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=std, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval().to(dtype)


def tiny_target_spec(vocab: int = VOCAB, layers: int = 5) -> TargetSpec:
    return TargetSpec(name="tiny", hidden_size=32, vocab_size=vocab, num_layers=layers, num_heads=4, num_kv_heads=2,
                      head_dim=8, intermediate_size=48, max_position_embeddings=512, rope={"rope_theta": 1e4})


def tiny_spec(draft: int = 64, vocab: int = VOCAB, **flags) -> DrafterSpec:
    base = DrafterSpec(hidden_size=32, target_hidden_size=32, vocab_size=vocab, draft_vocab_size=draft, num_heads=4,
                       num_kv_heads=2, head_dim=8, intermediate_size=40)
    return dataclasses.replace(base, **flags)


def tiny_drafter(draft: int = 64, vocab: int = VOCAB, *, seed: int = 1, dtype: torch.dtype = torch.float64,
                 rope: Rope | None = None, window: int | None = None, std: float = 0.3, **flags) -> Drafter:
    drafter = Drafter(tiny_spec(draft, vocab, **flags), rope, window=window).reset(seed, std).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(vocab, generator=generator)[:draft].sort().values
    drafter.d2t.copy_(ids - torch.arange(draft))
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return drafter.eval().requires_grad_(False)


def taught_drafter(aux: torch.Tensor, ids: torch.Tensor, *, steps: int, draft: int = 64) -> Drafter:
    """A drafter that has learnt part of one text by heart, so that some of its drafts are right."""
    aux = aux.clone()  # made in inference mode
    drafter = tiny_drafter(draft).requires_grad_(True)
    row_of = torch.full((drafter.spec.vocab_size,), -100)
    row_of[drafter.target_ids] = torch.arange(draft)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=5e-3)
    for _ in range(steps):
        states = drafter.unroll(aux[None], ids[None], 3)
        loss = sum(torch.nn.functional.cross_entropy(drafter.lm_head(s[0, : len(ids) - 2 - k]), row_of[ids[2 + k :]])
                   for k, s in enumerate(states))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return drafter.requires_grad_(False)
