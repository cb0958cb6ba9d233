"""A drafter of a few thousand numbers with real files, sound in every respect, to be broken one way at a time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

V, D, H, HEADS, KV, HD, WIDE = 1280, 128, 16, 2, 1, 8, 24
EOS = 1270
IDS = np.arange(0, V, 10)
"""0, 10, ... 1270, the end of turn: ascending, no prefix, no rounding."""
LAYERS = 36
"""Qwen3-8B's depth: default feature layers are outputs 1, 17, 32, which are states 2, 18, 33."""


@dataclass
class Small:
    config: dict[str, Any]
    tensors: dict[str, np.ndarray]
    files: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        if self.config:
            (folder / "config.json").write_text(json.dumps(self.config))
        if self.tensors:
            save_file({k: np.ascontiguousarray(v) for k, v in self.tensors.items()}, folder / "model.safetensors")
        for name, text in self.files.items():
            (folder / name).write_text(text)
        return folder


def small(layout: str = "sglang") -> Small:
    """A checkpoint as ``layout``'s readers want it."""
    prefix = "layers.0." if layout in ("speculators", "modelopt") else "midlayer."
    shapes = {
        "fc.weight": (H, 3 * H), "norm.weight": (H,), "lm_head.weight": (len(IDS), H), "embed_tokens.weight": (V, H),
        f"{prefix}hidden_norm.weight": (H,), f"{prefix}input_layernorm.weight": (H,),
        f"{prefix}post_attention_layernorm.weight": (H,), f"{prefix}self_attn.q_proj.weight": (HEADS * HD, 2 * H),
        f"{prefix}self_attn.k_proj.weight": (KV * HD, 2 * H), f"{prefix}self_attn.v_proj.weight": (KV * HD, 2 * H),
        f"{prefix}self_attn.o_proj.weight": (H, HEADS * HD), f"{prefix}mlp.gate_proj.weight": (WIDE, H),
        f"{prefix}mlp.up_proj.weight": (WIDE, H), f"{prefix}mlp.down_proj.weight": (H, WIDE),
    }
    tensors: dict[str, np.ndarray] = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    tensors["d2t"] = IDS - np.arange(len(IDS))
    tensors["t2d"] = np.isin(np.arange(V), IDS)
    decoder: dict[str, Any] = {
        "model_type": "llama", "hidden_size": H, "intermediate_size": WIDE, "num_attention_heads": HEADS,
        "num_key_value_heads": KV, "head_dim": HD, "num_hidden_layers": 1, "vocab_size": V,
        "tie_word_embeddings": False, "eos_token_id": EOS,
    }
    kinds = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(IDS)}
    if layout == "speculators":
        config = {
            "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "draft_vocab_size": len(IDS),
            "eagle_aux_hidden_state_layer_ids": [2, 18, 33], "transformer_layer_config": decoder,
            "speculators_config": {"proposal_methods": [{"speculative_tokens": 3}],
                                   "verifier": {"name_or_path": "some/target"}},
        }
    elif layout == "vllm":
        config = {**kinds, **decoder, "eagle_aux_hidden_state_layer_ids": [2, 18, 33]}
    elif layout == "eagle":
        config = {**decoder, "architectures": ["LlamaForCausalLM"], "draft_vocab_size": len(IDS)}
    else:
        config = {**kinds, **decoder, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]}}
    if layout == "modelopt":
        del tensors["t2d"], tensors["embed_tokens.weight"]
    return Small(config, tensors)
