"""Reading a target's config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.presets import resolve_target
from eagle3_core.specs.sizes import parse_sizes, size_grid
from eagle3_core.specs.target import target_from_config

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "vocab_size": 151936, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
    "model_type": "qwen3", "rope_theta": 1000000, "eos_token_id": [151645, 151643],
}


def write(folder: Path, config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_config_and_its_preset_agree(tmp_path: Path) -> None:
    read, preset = target_from_config(write(tmp_path, QWEN3_8B)), resolve_target("qwen3-8b")
    for name in ("hidden_size", "vocab_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
                 "intermediate_size"):
        assert getattr(read, name) == getattr(preset, name), name
    assert read.eos_token_ids == (151645, 151643)
    # Default feature layers in the SpecForge convention for 36 layers: 1, 17, 32.
    assert read.aux_layers == (1, 17, 32)


def test_a_nested_text_config_is_the_one_that_counts(tmp_path: Path) -> None:
    nested = {"model_type": "qwen3_vl", "vocab_size": 7, "text_config": QWEN3_8B}
    assert target_from_config(write(tmp_path, nested)).vocab_size == 151936


@pytest.mark.parametrize(("change", "message"), [
    ({"vocab_size": None}, "field vocab_size is missing"),
    ({"hidden_size": "4096"}, "field hidden_size"),
    ({"num_attention_heads": True}, "field num_attention_heads"),
    ({"num_key_value_heads": 5}, "a divisor of 32"),
])
def test_a_bad_field_is_named(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(Eagle3Error, match=message):
        target_from_config(write(tmp_path, QWEN3_8B | change))


def test_text_instead_of_json_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("not\njson")
    with pytest.raises(Eagle3Error) as error:
        target_from_config(tmp_path)
    assert "config.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_mistyped_preset_gets_a_suggestion() -> None:
    with pytest.raises(Eagle3Error, match=r"did you mean kimi-k2\.5"):
        resolve_target("kimi-k2-5")


@pytest.mark.parametrize("vocab", [2_048, 32_000, 49_152, 151_936, 163_840, 262_208])
def test_the_size_grid_is_multiples_of_64_plus_v(vocab: int) -> None:
    grid = size_grid(vocab)
    assert grid[0] == 1_024
    assert grid[-1] == vocab
    assert all(size % 64 == 0 for size in grid[:-1])
    assert list(grid) == sorted(set(grid))
    if vocab > 32_000:
        assert 32_000 in grid


def test_sizes_are_parsed_or_refused() -> None:
    assert parse_sizes("full,32_000,8192,8192", 151_936) == (8_192, 32_000, 151_936)
    for bad in ("", "12.5", "-64", "32k", "63", "151937"):
        with pytest.raises(Eagle3Error):
            parse_sizes(bad, 151_936)
