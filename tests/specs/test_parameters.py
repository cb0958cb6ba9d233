"""Parameter arithmetic against published figures and arithmetic that can be done by hand."""

from __future__ import annotations

from eagle3_core.specs.drafter import drafter_for
from eagle3_core.specs.parameters import count_parameters, hidden_state_bytes, training_memory
from eagle3_core.specs.presets import presets, resolve_target

KIMI = resolve_target("kimi-k2.5")


def test_kimi_parameters_match_the_published_drafter() -> None:
    # AQ-MedAI/Kimi-K25-eagle3: 1,190.9M trainable, 2,594.7M with frozen parts, lm_head 229.4M.
    at_32k = count_parameters(drafter_for(KIMI, 32_000))
    assert at_32k.lm_head == 229_376_000
    assert at_32k.trainable == 1_190_948_864
    assert at_32k.total == 2_594_729_984


def test_kimi_full_vocabulary_head_is_over_half_the_drafter() -> None:
    full = count_parameters(drafter_for(KIMI))
    assert full.lm_head == 163_840 * 7_168 == 1_174_405_120
    assert full.trainable == 2_135_977_984


def test_kimi_hidden_state_dump_is_924_gib() -> None:
    assert round(hidden_state_bytes(17_300_000, 7_168) / 2**30, 1) == 923.9


def test_training_memory_holds_masters_and_two_moments() -> None:
    counts = count_parameters(drafter_for(KIMI, 32_000))
    memory = training_memory(counts, "bfloat16")
    assert memory.optimizer == 8 * 1_190_948_864
    assert memory.masters == 4 * 1_190_948_864
    assert memory.gradients == 2 * 1_190_948_864
    assert memory.weights == 2 * 2_594_729_984
    assert training_memory(counts, "float32").masters == 0


def test_every_preset_builds_a_drafter_and_names_its_source() -> None:
    assert len(presets()) >= 25
    for target in presets().values():
        assert count_parameters(drafter_for(target)).lm_head == target.vocab_size * target.hidden_size
        assert target.source
