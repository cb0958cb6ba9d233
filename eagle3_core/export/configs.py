"""The draft model's ``config.json``, field by field as each consumer reads it.

Read from the consumers' own loaders: SpecForge a6b6b023, SGLang 0.5.23, vLLM
0.32.0, speculators 0.9.0, ModelOpt 0.47.0, EAGLE cb7e0841. Two things differ
silently between them:

* Feature layers. SpecForge, SGLang and ModelOpt name the 0-based layer whose
  output is read; vLLM and speculators count states, one higher. The same ids in
  the other convention read features one layer off (vllm-project/vllm#43671).
* ``norm_output``. SGLang, vLLM and speculators mean "feed the post-norm state
  back"; SpecForge means "apply the final norm before lm_head".
"""

from __future__ import annotations

from typing import Any

from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.specs.drafter import DrafterSpec
from eagle3_core.specs.target import TargetSpec

CONSUMERS = ("sglang", "vllm", "specforge", "speculators", "modelopt", "eagle")


def check_consumer(name: str) -> str:
    if name not in CONSUMERS:
        raise Eagle3Error("--for", found=repr(name), expected=", ".join(CONSUMERS), fix=suggest(name, CONSUMERS))
    return name


def parse_consumers(text: str) -> tuple[str, ...]:
    """``--for sglang,vllm`` -> names, each once, in the order given; ``all`` is every one."""
    if text.strip() == "all":
        return CONSUMERS
    return tuple(dict.fromkeys(check_consumer(part.strip()) for part in text.split(",") if part.strip()))


def draft_config(consumer: str, target: TargetSpec, drafter: DrafterSpec, *, k: int = 3) -> dict[str, Any]:
    """The consumer's config.json as a dictionary. Raises Eagle3Error for a variant the consumer cannot run."""
    check_consumer(consumer)
    _check_supported(consumer, drafter)
    if consumer == "speculators":
        return _speculators(target, drafter, k)
    config = _llama(target, drafter)
    config["draft_vocab_size"] = drafter.draft_vocab_size
    config["torch_dtype"] = target.dtype
    if consumer == "eagle":
        return {"architectures": ["LlamaForCausalLM"], **config}
    config = {"architectures": ["LlamaForCausalLMEagle3"], **config}
    aux = list(target.aux_layers)
    eagle = {"use_aux_hidden_state": True}
    if consumer == "vllm":
        # Counted as states: index k is the state after k layers.
        config["eagle_aux_hidden_state_layer_ids"] = [layer + 1 for layer in aux]
    else:
        eagle["eagle_aux_hidden_state_layer_ids"] = aux  # type: ignore[assignment]
    config["eagle_config"] = eagle
    if drafter.target_hidden_size != drafter.hidden_size:
        config["target_hidden_size"] = drafter.target_hidden_size
    for flag in ("norm_before_fc", "fc_norm"):
        if getattr(drafter, flag):
            config[flag] = True
    if consumer == "vllm" and drafter.norm_before_residual:
        config["norm_before_residual"] = True
    if consumer in ("sglang", "vllm") and drafter.norm_output:
        config["norm_output"] = True
    return config


def _check_supported(consumer: str, drafter: DrafterSpec) -> None:
    unsupported = {
        "sglang": ("norm_before_residual", "qk_norm", "attention_bias"),
        "specforge": ("norm_before_residual", "norm_before_fc", "qk_norm", "attention_bias", "norm_output"),
        "eagle": ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "qk_norm", "attention_bias"),
        "modelopt": ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "qk_norm"),
        "vllm": ("qk_norm",),
    }.get(consumer, ())
    for flag in unsupported:
        if getattr(drafter, flag):
            # vLLM takes q/k norm from the layer type that a speculators config names; it serves that folder.
            other = "speculators, which vLLM serves" if flag == "qk_norm" else "vllm or speculators"
            raise Eagle3Error(f"{consumer} cannot run a drafter with {flag}", fix=f"export it for {other}")


def _llama(target: TargetSpec, drafter: DrafterSpec) -> dict[str, Any]:
    """The decoder fields all consumers share. ``vocab_size`` is V, never D."""
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": drafter.hidden_size,
        "intermediate_size": drafter.intermediate_size,
        "num_attention_heads": drafter.num_heads,
        "num_key_value_heads": drafter.num_kv_heads,
        "head_dim": drafter.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": drafter.rms_norm_eps,
        "max_position_embeddings": target.max_position_embeddings,
        "initializer_range": 0.02,
        "vocab_size": target.vocab_size,
        # A tied head would be the full embedding again.
        "tie_word_embeddings": False,
        **_rope(target),
    }
    if drafter.attention_bias:
        config["attention_bias"] = True
    if target.bos_token_id is not None:
        config["bos_token_id"] = target.bos_token_id
    if target.eos_token_ids:
        config["eos_token_id"] = target.eos_token_ids[0]
    return config


def _rope(target: TargetSpec) -> dict[str, Any]:
    rope = dict(target.rope)
    parameters = rope.pop("rope_parameters", None)
    if isinstance(parameters, dict):
        rope.setdefault("rope_theta", parameters.get("rope_theta", 10000.0))
        scaling = {k: v for k, v in parameters.items() if k not in ("rope_theta", "partial_rotary_factor")}
        if scaling.get("rope_type", "default") != "default":
            rope.setdefault("rope_scaling", scaling)
    rope.setdefault("rope_scaling", None)
    return rope


def _speculators(target: TargetSpec, drafter: DrafterSpec, k: int) -> dict[str, Any]:
    layer = _llama(target, drafter)
    rope = {"rope_type": "default", "rope_theta": layer.pop("rope_theta", 10000.0)}
    scaling = layer.pop("rope_scaling", None)
    layer["rope_parameters"] = rope | scaling if isinstance(scaling, dict) else rope
    layer.setdefault("attention_bias", False)
    if drafter.qk_norm:
        # The layer's class decides about q/k norm, not a flag.
        layer |= {"model_type": "qwen3", "layer_types": ["full_attention"]}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": drafter.draft_vocab_size,
        "norm_before_residual": drafter.norm_before_residual,
        "norm_before_fc": drafter.norm_before_fc,
        "fc_norm": drafter.fc_norm,
        "norm_output": drafter.norm_output,
        "eagle_aux_hidden_state_layer_ids": [layer_id + 1 for layer_id in target.aux_layers],
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "torch_dtype": target.dtype,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": k}],
            "verifier": {"name_or_path": target.name, "architectures": []},
        },
    }
