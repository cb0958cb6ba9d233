from __future__ import annotations

import pytest
import torch
from drafter_tiny import tiny_drafter

from eagle3_core.drafter.model import DraftCache, cut
from eagle3_core.drafter.rope import Rope, frequencies, rope_of
from eagle3_core.errors import Eagle3Error

VARIANTS = [
    {}, {"norm_before_residual": True}, {"norm_before_fc": True}, {"fc_norm": True}, {"norm_output": True},
    {"qk_norm": True}, {"attention_bias": True},
    {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True, "qk_norm": True},
]


def _inputs(length: int, seed: int = 3):
    generator = torch.Generator().manual_seed(seed)
    aux = torch.randn(1, length, 96, generator=generator, dtype=torch.float64)
    return aux, torch.randint(0, 96, (1, length), generator=generator)


@pytest.mark.parametrize("flags", VARIANTS, ids=lambda f: "+".join(f) or "plain")
def test_unrolled_training_steps_equal_drafting_step_by_step_from_every_position(flags):
    drafter = tiny_drafter(**flags)
    aux, ids = _inputs(9)
    steps = drafter.unroll(aux, ids, 3)
    for start in range(9 - 3):
        cache = DraftCache()
        states = drafter.features(aux[:, : start + 1])
        out = drafter.step(ids[:, 1 : start + 2], states, torch.arange(start + 1)[None], cache)[:, -1:]
        torch.testing.assert_close(drafter.norm(out)[0, 0], steps[0][0, start])
        for k in (1, 2):
            token = ids[:, start + 1 + k : start + 2 + k]
            out = drafter.step(token, drafter.feed_back(out), torch.tensor([[start + k]]), cache)
            torch.testing.assert_close(drafter.norm(out)[0, 0], steps[k][0, start])


def test_a_cropped_cache_continues_as_if_the_dropped_steps_never_were():
    drafter = tiny_drafter()
    aux, ids = _inputs(8)
    states, positions = drafter.features(aux), torch.arange(8)[None]
    whole = drafter.step(ids, states, positions, DraftCache())
    cache = DraftCache()
    drafter.step(ids[:, :5], states[:, :5], positions[:, :5], cache)
    drafter.step(ids[:, 6:8], states[:, 6:8], positions[:, 5:7], cache)
    cache.crop(5)
    rest = drafter.step(ids[:, 5:], states[:, 5:], positions[:, 5:], cache)
    torch.testing.assert_close(rest, whole[:, 5:])


def test_packed_documents_do_not_see_each_other():
    drafter = tiny_drafter()
    (a, ia), (b, ib) = _inputs(6, 1), _inputs(5, 2)
    documents = torch.tensor([[0] * 6 + [1] * 5])
    positions = torch.tensor([[*range(6), *range(5)]])
    packed = drafter.unroll(torch.cat([a, b], 1), torch.cat([ia, ib], 1), 2, positions=positions, documents=documents)
    alone = drafter.unroll(b, ib, 2)
    for k in range(2):
        torch.testing.assert_close(packed[k][:, 6 : 11 - 1 - k], alone[k][:, : 5 - 1 - k])


def test_a_window_hides_what_lies_further_back():
    aux, ids = _inputs(8)
    narrow = tiny_drafter(window=3)
    changed = aux.clone()
    changed[:, 0] += 1
    first, second = narrow.unroll(aux, ids, 1)[0], narrow.unroll(changed, ids, 1)[0]
    torch.testing.assert_close(first[:, 3:], second[:, 3:])
    assert not torch.allclose(first[:, 2], second[:, 2])


def test_a_cut_head_gives_the_same_logits_for_the_tokens_it_keeps():
    drafter = tiny_drafter(96)
    aux, _ = _inputs(4)
    out = drafter.features(aux)
    small = cut(drafter, torch.tensor([40, 3, 77]))
    assert small.target_ids.tolist() == sorted(drafter.target_ids[[40, 3, 77]].tolist())
    torch.testing.assert_close(small.logits(out), drafter.logits(out)[..., [3, 40, 77]])
    with pytest.raises(Eagle3Error, match="no rows"):
        cut(drafter, torch.tensor([], dtype=torch.int64))


ROPES = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16.0, "beta_slow": 2.0,
     "truncate": False},
]


@pytest.mark.parametrize("parameters", ROPES, ids=lambda p: f"{p['rope_type']}-{p.get('factor', 1)}")
def test_rope_frequencies_are_those_of_transformers(parameters):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=512, head_dim=16,
                         rope_parameters={"rope_theta": 5e5, **parameters})
    rope = rope_of({"rope_parameters": {"rope_theta": 5e5, **parameters}}, 512)
    theirs = LlamaRotaryEmbedding(config)
    length = 700 if rope.kind == "dynamic" else 40
    positions = torch.arange(length)[None]
    cos, sin = theirs(torch.zeros(1, length, 64), positions)
    steps, scale = frequencies(rope, 16, length)
    angles = torch.arange(length).float()[:, None] * steps
    torch.testing.assert_close(torch.cat([angles, angles], -1).cos() * scale, cos[0], atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat([angles, angles], -1).sin() * scale, sin[0], atol=2e-5, rtol=1e-5)


def test_every_spelling_of_rope_reads_the_same():
    old = rope_of({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2}}, 100)
    new = rope_of({"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 2.0}}, 100)
    assert old == new == Rope(kind="linear", theta=1e6, factor=2.0, original=100)
    with pytest.raises(Eagle3Error, match="rope type"):
        rope_of({"rope_scaling": {"type": "spiral"}}, 100)


def test_partial_rotation_leaves_the_other_dimensions_alone():
    drafter = tiny_drafter(rope=Rope(partial=0.5))
    steps, _ = frequencies(drafter.rope, 8, 10)
    assert len(steps) == 2
    aux, ids = _inputs(5)
    assert drafter.unroll(aux, ids, 2)[1].shape == (1, 5, 32)
