"""Parameter, byte and memory arithmetic of an EAGLE-3 drafter. Everything here is ``derived``.

trainable = 2H*h*(n_q + 2 n_kv) + n_q*h*H + 3*H*I + 3*H_t*H + D*H + 4H
(the q/k/v projections read the 2H-wide [embedding; hidden] vector; Kimi-K2.5's
published drafter at D = 32,000 has 1,190,948,864 of them).
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.specs.drafter import DrafterSpec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}


def dtype_bytes(dtype: str) -> int:
    """Bytes of one weight. Raises Eagle3Error for an unknown dtype name."""
    if dtype not in DTYPE_BYTES:
        raise Eagle3Error("unknown dtype", found=repr(dtype), expected=", ".join(DTYPE_BYTES),
                          fix=suggest(dtype, DTYPE_BYTES))
    return DTYPE_BYTES[dtype]


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters by part, in units."""

    attention: int
    mlp: int
    fc: int
    norms: int
    lm_head: int
    embedding: int
    """The frozen copy of the target's embedding, V * H_t."""
    verifier_head: int
    """The target's lm_head sliced to the D draft rows, held frozen during training, D * H_t."""

    @property
    def trainable(self) -> int:
        return self.attention + self.mlp + self.fc + self.norms + self.lm_head

    @property
    def total(self) -> int:
        return self.trainable + self.embedding + self.verifier_head


def count_parameters(spec: DrafterSpec) -> ParameterCounts:
    h, q, kv = spec.head_dim, spec.num_heads, spec.num_kv_heads
    hidden, target_hidden = spec.hidden_size, spec.target_hidden_size
    attention = 2 * hidden * h * (q + 2 * kv) + q * h * hidden
    if spec.attention_bias:
        attention += h * (q + 2 * kv)
    norms = 4 * hidden
    norms += 3 * target_hidden if spec.norm_before_fc or spec.fc_norm else 0
    norms += 2 * h if spec.qk_norm else 0
    return ParameterCounts(
        attention=attention,
        mlp=3 * hidden * spec.intermediate_size,
        fc=3 * target_hidden * hidden,
        norms=norms,
        lm_head=spec.draft_vocab_size * hidden,
        embedding=spec.vocab_size * target_hidden,
        verifier_head=spec.draft_vocab_size * target_hidden,
    )


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes held while training, activations left out."""

    weights: int
    """Trainable weights in the compute dtype, plus the frozen embedding and verifier head."""
    masters: int
    """fp32 master copies (zero when computing in fp32)."""
    gradients: int
    optimizer: int
    """AdamW's two fp32 moments."""

    @property
    def total(self) -> int:
        return self.weights + self.masters + self.gradients + self.optimizer


def training_memory(counts: ParameterCounts, dtype: str = "bfloat16") -> TrainingMemory:
    """Weights and optimizer state of AdamW with fp32 masters, in bytes."""
    width = dtype_bytes(dtype)
    return TrainingMemory(
        weights=counts.total * width,
        masters=0 if width == 4 else counts.trainable * 4,
        gradients=counts.trainable * width,
        optimizer=counts.trainable * 8,
    )


def hidden_state_bytes(tokens: int, target_hidden_size: int, dtype: str = "bfloat16") -> int:
    """Bytes of a hidden-state dump: three feature layers and the last one, 4 * H_t values a token."""
    return tokens * 4 * target_hidden_size * dtype_bytes(dtype)
