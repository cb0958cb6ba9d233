"""Draft config.json against what each consumer's own loader reads: Qwen3-8B's values, then every trap alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_core.errors import Eagle3Error
from eagle3_core.export.configs import CONSUMERS, draft_config, parse_consumers
from eagle3_core.export.consumer_files import consumer_files
from eagle3_core.specs.drafter import DrafterSpec, drafter_for
from eagle3_core.specs.presets import resolve_target
from eagle3_core.specs.target import TargetSpec

# The rest of Qwen/Qwen3-8B's config.json, which a preset does not hold.
QWEN = dataclasses.replace(resolve_target("qwen3-8b"), rope={"rope_theta": 1_000_000}, max_position_embeddings=40960,
                           bos_token_id=151_643, eos_token_ids=(151_645,))
FLAT = ("sglang", "vllm", "specforge", "modelopt", "eagle")
LAYER: dict[str, Any] = {
    # Qwen/Qwen3-8B config.json; the drafter's one layer has the target's shape.
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960, "initializer_range": 0.02, "vocab_size": 151_936,
    "tie_word_embeddings": False, "bos_token_id": 151_643, "eos_token_id": 151_645,
}


def drafter(size: int = 32_000, **flags: bool) -> DrafterSpec:
    return dataclasses.replace(drafter_for(QWEN, size), **flags)


@pytest.mark.parametrize("consumer", FLAT)
def test_flat_configs_have_the_values_of_the_target(consumer: str) -> None:
    config = draft_config(consumer, QWEN, drafter())
    for field, value in LAYER.items():
        assert config[field] == value, field
    assert config["rope_theta"] == 1_000_000
    assert config["rope_scaling"] is None
    assert config["draft_vocab_size"] == 32_000
    assert config["torch_dtype"] == "bfloat16"


def test_speculators_nests_the_layer_and_names_its_verifier() -> None:
    config = draft_config("speculators", QWEN, drafter(), k=4)
    layer = config["transformer_layer_config"]
    for field, value in LAYER.items():
        assert layer[field] == value, field
    assert layer["rope_parameters"] == {"rope_type": "default", "rope_theta": 1_000_000}
    assert not {"rope_theta", "rope_scaling", "draft_vocab_size"} & set(layer)
    assert config["draft_vocab_size"] == 32_000
    assert "vocab_size" not in config
    # vLLM takes K and the target from here.
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 4
    assert config["speculators_config"]["verifier"]["name_or_path"] == QWEN.name
    assert config["speculators_model_type"] == "eagle3"


ARCHITECTURES = {
    "sglang": "LlamaForCausalLMEagle3", "vllm": "LlamaForCausalLMEagle3", "specforge": "LlamaForCausalLMEagle3",
    "modelopt": "LlamaForCausalLMEagle3", "eagle": "LlamaForCausalLM", "speculators": "Eagle3DraftModel",
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_each_is_named_as_its_loader_wants(consumer: str) -> None:
    assert draft_config(consumer, QWEN, drafter())["architectures"] == [ARCHITECTURES[consumer]]


# Qwen3-8B has 36 layers: features are the outputs of layers 1, 17 and 32, which are the states 2, 18 and 33.
LAYERS = {"sglang": [1, 17, 32], "specforge": [1, 17, 32], "modelopt": [1, 17, 32], "vllm": [2, 18, 33],
          "speculators": [2, 18, 33]}


@pytest.mark.parametrize("consumer", LAYERS)
def test_feature_layers_are_in_the_consumers_own_convention(consumer: str) -> None:
    config = draft_config(consumer, QWEN, drafter())
    root, nested = config.get("eagle_aux_hidden_state_layer_ids"), config.get("eagle_config", {}).get(
        "eagle_aux_hidden_state_layer_ids")
    assert (root if consumer in ("vllm", "speculators") else nested) == LAYERS[consumer]
    # The same ids in two places could only contradict.
    assert (nested if consumer in ("vllm", "speculators") else root) is None


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_v_stays_v_whatever_d_is(consumer: str) -> None:
    for size in (1024, 151_936):
        config = draft_config(consumer, QWEN, drafter(size))
        layer = config.get("transformer_layer_config", config)
        assert layer["vocab_size"] == 151_936
        assert config["draft_vocab_size"] == size
        assert layer["tie_word_embeddings"] is False


SUPPORT = {
    "sglang": {"norm_before_fc", "fc_norm", "norm_output"},
    "vllm": {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "attention_bias"},
    "specforge": {"fc_norm"},
    "speculators": {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "attention_bias", "qk_norm"},
    "modelopt": {"attention_bias"},
    "eagle": set(),
}
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "attention_bias", "qk_norm")


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_variant_is_said_or_refused_never_dropped(consumer: str, flag: str) -> None:
    wanted = drafter(**{flag: True})
    if flag not in SUPPORT[consumer]:
        with pytest.raises(Eagle3Error, match=flag):
            draft_config(consumer, QWEN, wanted)
        return
    config = draft_config(consumer, QWEN, wanted)
    layer = config.get("transformer_layer_config", config)
    if flag == "qk_norm":
        assert layer["model_type"] == "qwen3"
    else:
        assert (layer if flag == "attention_bias" else config)[flag] is True


def test_speculators_says_every_flag_because_its_defaults_differ_by_reader() -> None:
    # CLI defaults are true for eagle3, the config class's are false, vLLM's reader takes norm_before_residual as true.
    config = draft_config("speculators", QWEN, drafter())
    assert [config[flag] for flag in FLAGS[:4]] == [False] * 4
    assert config["transformer_layer_config"]["attention_bias"] is False


@pytest.mark.parametrize("consumer", ["sglang", "vllm", "specforge", "modelopt"])
def test_a_drafter_narrower_than_its_target_says_so(consumer: str) -> None:
    narrow = dataclasses.replace(drafter(), hidden_size=2048)
    config = draft_config(consumer, QWEN, narrow)
    assert (config["hidden_size"], config["target_hidden_size"]) == (2048, 4096)
    assert "target_hidden_size" not in draft_config(consumer, QWEN, drafter())


def test_kimis_latent_attention_becomes_plain_heads() -> None:
    # The target's MLA says nothing of a Llama-style layer: V, hidden size and rope base carry over, ranks do not.
    kimi = resolve_target("kimi-k2.5")
    config = draft_config("sglang", kimi, drafter_for(kimi, 32_000))
    assert (config["vocab_size"], config["hidden_size"]) == (163_840, 7168)
    assert config["num_attention_heads"] * config["head_dim"] > 0
    assert not {"kv_lora_rank", "q_lora_rank", "qk_rope_head_dim"} & set(config)


def scaled(**rope: Any) -> TargetSpec:
    return dataclasses.replace(QWEN, rope=rope)


def test_both_spellings_of_scaled_rope_come_out_alike() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    old = draft_config("sglang", scaled(rope_theta=1e6, rope_scaling=yarn), drafter())
    new = draft_config("sglang", scaled(rope_parameters={"rope_theta": 1e6, **yarn}), drafter())
    assert (old["rope_theta"], old["rope_scaling"]) == (new["rope_theta"], new["rope_scaling"]) == (1e6, yarn)
    nested = draft_config("speculators", scaled(rope_theta=1e6, rope_scaling=yarn), drafter())
    assert nested["transformer_layer_config"]["rope_parameters"] == {"rope_theta": 1e6, **yarn}


def test_names_are_parsed_once_each_and_misspellings_get_a_hint() -> None:
    assert parse_consumers("vllm, sglang,vllm") == ("vllm", "sglang")
    assert parse_consumers("all") == CONSUMERS
    with pytest.raises(Eagle3Error, match="sglang"):
        parse_consumers("sglan")


def test_what_a_preset_does_not_say_is_not_passed_off_as_known(tmp_path: Path) -> None:
    preset = resolve_target("qwen3-8b")
    assert "CONFIG_INCOMPLETE.txt" in consumer_files("sglang", preset, drafter(), None, k=3)
    (tmp_path / "config.json").write_text(json.dumps({
        "hidden_size": 4096, "vocab_size": 151_936, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "rope_theta": 5e5,
        "max_position_embeddings": 40960, "eos_token_id": 151_645}))
    told = resolve_target(str(tmp_path / "config.json"))
    files = consumer_files("sglang", told, drafter(), None, k=3)
    assert "CONFIG_INCOMPLETE.txt" not in files
    assert json.loads(files["config.json"])["rope_theta"] == 5e5
