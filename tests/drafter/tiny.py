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
