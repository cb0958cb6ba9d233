"""TargetSpec: the dimensions of the large model that verifies.

Read from a Hugging Face ``config.json`` (nested ``text_config`` understood) or
from a preset of ``presets.csv``. V is ``vocab_size`` of the text config, padding
rows included; it is not the length of the tokenizer.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import read_json

_REQUIRED = ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True)
class TargetSpec:
    """Dimensions of the target. ``None`` means unknown (a preset without a published figure)."""

    name: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    num_experts: int | None = None
    experts_per_token: int | None = None
    moe_intermediate_size: int | None = None
    num_shared_experts: int | None = None
    kv_lora_rank: int | None = None
    q_lora_rank: int | None = None
    tie_word_embeddings: bool = False
    model_type: str = "llama"
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32768
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_theta": 1e6})
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    attention_bias: bool = False
    dtype: str = "bfloat16"
    parameters: float | None = None
    """Parameters read per decoded token, in units (not billions), where published."""
    source: str = ""
    assumed: tuple[str, ...] = ()
    """Fields the source does not give and that were filled in; shown wherever they matter."""

    @property
    def aux_layers(self) -> tuple[int, int, int]:
        """Default feature layers, as 0-based layers whose *output* is read (SpecForge convention)."""
        n = self.num_layers
        return (min(1, n - 1), max(n // 2 - 1, 0), max(n - 4, 0))

    def with_vocab(self, vocab_size: int) -> TargetSpec:
        return dataclasses.replace(self, vocab_size=vocab_size)


def target_from_config(path: str | Path) -> TargetSpec:
    """Read a target from ``config.json`` or the folder that holds it.

    Raises Eagle3Error naming the file and the field when a dimension is
    missing, not a positive integer, or contradictory.
    """
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    config = read_json(file)
    if not isinstance(config, dict):
        raise Eagle3Error("is not a model config", where=file, found=type(config).__name__, expected="an object")
    text = config.get("text_config") or config.get("llm_config") or config.get("language_config") or config
    if not isinstance(text, dict):
        raise Eagle3Error("field text_config", where=file, found=type(text).__name__, expected="an object")
    if text is not config and "vocab_size" not in text and "vocab_size" in config:
        text = {**text, "vocab_size": config["vocab_size"]}
    return _from_dict(text, config, file)


def _from_dict(text: dict[str, Any], root: dict[str, Any], file: Path) -> TargetSpec:
    def whole(key: str, *aliases: str, default: int | None = None) -> int:
        for name in (key, *aliases):
            value = text.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise Eagle3Error(f"field {name}", where=file, found=repr(value), expected="a positive integer")
            return value
        if default is None:
            raise Eagle3Error(f"field {key} is missing", where=file, expected="a target model's config.json")
        return default

    def optional(*names: str) -> int | None:
        return next((text[n] for n in names if isinstance(text.get(n), int) and text[n] > 0), None)

    hidden, heads = whole("hidden_size"), whole("num_attention_heads", "num_heads")
    assumed: list[str] = []
    mla = optional("kv_lora_rank")
    if mla:
        # MLA has no per-head k/v width; drafters for such targets use plain heads of v_head_dim.
        head_dim = optional("v_head_dim", "head_dim") or 128
        kv_heads = heads
        assumed.append("head_dim")
    else:
        head_dim = optional("head_dim")
        if head_dim is None:
            if hidden % heads:
                raise Eagle3Error(
                    "hidden_size is not a multiple of num_attention_heads and head_dim is missing",
                    where=file, found=f"{hidden} / {heads}",
                )
            head_dim = hidden // heads
        kv_heads = whole("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise Eagle3Error("field num_key_value_heads", where=file, found=kv_heads, expected=f"a divisor of {heads}")
    moe = optional("moe_intermediate_size", "expert_ffn_hidden_size")
    intermediate = optional("intermediate_size", "ffn_hidden_size")
    if intermediate is None:
        intermediate = 4 * hidden if moe is None else 3 * hidden
        assumed.append("intermediate_size")
    rope = {
        key: text[key]
        for key in ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
        if text.get(key) is not None
    }
    eos = text.get("eos_token_id", root.get("eos_token_id"))
    eos_ids = tuple(eos) if isinstance(eos, list) else (eos,) if isinstance(eos, int) else ()
    bos = text.get("bos_token_id", root.get("bos_token_id"))
    return TargetSpec(
        name=str(root.get("_name_or_path") or file.parent.name or "target"),
        hidden_size=hidden,
        vocab_size=whole("vocab_size"),
        num_layers=whole("num_hidden_layers", "num_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate,
        num_experts=optional("n_routed_experts", "num_experts", "num_local_experts"),
        experts_per_token=optional("num_experts_per_tok", "num_experts_per_token", "moe_topk"),
        moe_intermediate_size=moe,
        num_shared_experts=optional("n_shared_experts", "num_shared_experts"),
        kv_lora_rank=mla,
        q_lora_rank=optional("q_lora_rank"),
        tie_word_embeddings=bool(text.get("tie_word_embeddings", root.get("tie_word_embeddings", False))),
        model_type=str(text.get("model_type") or root.get("model_type") or "llama"),
        rms_norm_eps=float(text.get("rms_norm_eps") or 1e-6),
        max_position_embeddings=whole("max_position_embeddings", default=32768),
        rope=rope or {"rope_theta": 1e4},
        bos_token_id=bos if isinstance(bos, int) else None,
        eos_token_ids=eos_ids,
        attention_bias=bool(text.get("attention_bias", False)),
        dtype=str(text.get("torch_dtype") or text.get("dtype") or root.get("torch_dtype") or "bfloat16"),
        source=str(file),
        assumed=tuple(assumed),
    )
