from __future__ import annotations

import pytest
import torch
from drafter_tiny import VOCAB, tiny_drafter, tiny_model

from eagle3_core.drafter.generate import Tree, generate, generate_plain
from eagle3_core.drafter.model import cut
from eagle3_core.drafter.target import Target
from eagle3_core.errors import Eagle3Error


@pytest.fixture(scope="module")
def target():
    return Target(tiny_model())


def _own_text(target, prompt, count):
    """The target's greedy text, by full forwards without a cache."""
    ids = list(prompt)
    for _ in range(count):
        with torch.inference_mode():
            ids.append(int(target.model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


PROMPTS = [[5, 9, 2], [1], list(range(30, 60))]


@pytest.mark.parametrize("tree", [None, Tree(3, 3, 7), Tree(2, 6, 12)], ids=["chain", "tree", "wide"])
@pytest.mark.parametrize("flags", [{}, {"norm_output": True, "norm_before_residual": True, "norm_before_fc": True}],
                         ids=["plain", "variants"])
def test_greedy_text_is_the_targets_own_whatever_the_drafter(target, tree, flags):
    drafter = tiny_drafter(**flags)
    for prompt in PROMPTS:
        made = generate(target, drafter, prompt, max_new=24, k=4, tree=tree)
        assert made.ids == _own_text(target, prompt, 24)


def test_transformers_own_generate_gives_the_same_text(target):
    prompt = torch.tensor([PROMPTS[0]])
    theirs = target.model.generate(prompt, max_new_tokens=20, do_sample=False, attention_mask=torch.ones_like(prompt))
    assert generate(target, tiny_drafter(), PROMPTS[0], max_new=20).ids == theirs[0, 3:].tolist()
    assert generate_plain(target, PROMPTS[0], max_new=20).ids == theirs[0, 3:].tolist()


@pytest.mark.parametrize("tree", [None, Tree(4, 2, 8)], ids=["chain", "tree"])
def test_a_drafter_that_knows_the_text_has_every_draft_accepted(target, tree, monkeypatch):
    """Checks the bookkeeping after acceptances: features, positions, caches."""
    drafter = tiny_drafter(VOCAB)
    prompt = PROMPTS[0]
    text = [*prompt, *_own_text(target, prompt, 60)]
    calls = {}
    original = drafter.step

    def step(ids, states, positions, cache, *, mask=None):
        calls["positions"] = positions[0].tolist()
        return original(ids, states, positions, cache, mask=mask)

    def knowing(out):
        rows = torch.zeros(1, out.shape[1], VOCAB, dtype=torch.float64)
        for row, position in enumerate(calls["positions"][-out.shape[1] :]):
            rows[0, row, text[position + 2]] = 9.0
        return rows

    monkeypatch.setattr(drafter, "step", step)
    monkeypatch.setattr(drafter, "logits", knowing)
    made = generate(target, drafter, prompt, max_new=41, k=4, tree=tree)
    assert made.ids == text[3:44]
    assert made.accepted == [0, 0, 0, 0, 8]
    assert made.tau == 5.0


def test_a_smaller_head_changes_the_drafts_but_not_the_text(target):
    drafter = tiny_drafter(VOCAB)
    small = cut(drafter, torch.arange(0, VOCAB, 7))
    text = generate(target, drafter, PROMPTS[1], max_new=30).ids
    assert generate(target, small, PROMPTS[1], max_new=30).ids == text


def test_text_ends_after_an_end_token_even_inside_accepted_drafts(target):
    text = _own_text(target, PROMPTS[2], 20)
    end = text[6]
    made = generate(target, tiny_drafter(), PROMPTS[2], max_new=20, eos=[end])
    assert made.ids == text[: text.index(end) + 1]


def test_an_empty_prompt_is_refused(target):
    with pytest.raises(Eagle3Error, match="prompt is empty"):
        generate(target, tiny_drafter(), [], max_new=4)


def _exact(target, prompt, bins):
    """P(token i mod bins[i], for every i) at temperature 1, by enumerating the target."""
    contexts, joint = torch.tensor([prompt]), torch.ones(1, dtype=torch.float64)
    with torch.inference_mode():
        for _ in bins:
            p = torch.cat([target.model(part).logits[:, -1].softmax(-1) for part in contexts.split(2048)])
            joint = (joint[:, None] * p).flatten()
            grown = contexts.repeat_interleave(VOCAB, dim=0)
            contexts = torch.cat([grown, torch.arange(VOCAB).repeat(len(contexts))[:, None]], dim=1)
    drawn = contexts[:, len(prompt):] % torch.tensor(bins)
    cell = torch.zeros(len(drawn), dtype=torch.int64)
    for index, size in enumerate(bins):
        cell = cell * size + drawn[:, index]
    return torch.zeros(torch.tensor(bins).prod(), dtype=torch.float64).index_add_(0, cell, joint)


def _chi_square(target, tree, samples, seed, bins):
    drafter = tiny_drafter(std=0.15)
    generator = torch.Generator().manual_seed(seed)
    table = torch.zeros(bins, dtype=torch.float64)
    accepted = 0
    for _ in range(samples):
        made = generate(target, drafter, [5, 9, 2], max_new=len(bins), k=2, temperature=1.0, tree=tree,
                        generator=generator)
        table[tuple(token % size for token, size in zip(made.ids, bins, strict=True))] += 1
        accepted += sum(made.accepted[1:])
    expected = _exact(target, [5, 9, 2], bins) * samples
    assert float(expected.min()) > 5
    assert accepted > samples // 50, "too few acceptances to test anything"
    return float(((table.flatten() - expected) ** 2 / expected).sum())


# 99.9 % quantiles of chi-square with 23 and 63 degrees of freedom.
LIMIT_23, LIMIT_63 = 49.73, 103.44


@pytest.mark.parametrize("tree", [None, Tree(2, 3, 5)], ids=["chain", "tree"])
def test_at_temperature_one_the_text_is_distributed_as_the_targets(tree):
    target = Target(tiny_model(layers=2, std=0.15), aux_layers=(0, 0, 1))
    assert _chi_square(target, tree, 500, 0, (3, 4, 2)) < LIMIT_23


@pytest.mark.long
@pytest.mark.parametrize("tree", [None, Tree(2, 3, 5)], ids=["chain", "tree"])
def test_fifty_thousand_samples_at_temperature_one_match_the_target(tree):
    target = Target(tiny_model(layers=1, std=0.15), aux_layers=(0, 0, 0))
    assert _chi_square(target, tree, 50_000, 1, (8, 8)) < LIMIT_63


def test_feature_layers_are_outputs_of_the_named_layers():
    model = tiny_model()
    target = Target(model)
    ids = torch.tensor([[4, 8, 15]])
    with torch.inference_mode():
        states = model(ids, output_hidden_states=True).hidden_states
        seen = target.forward(ids)
    assert target.aux_layers == (1, 1, 1)
    torch.testing.assert_close(seen.aux[..., :32], states[2])
    torch.testing.assert_close(seen.last, states[-1])
    torch.testing.assert_close(target.logits(seen.last), model(ids).logits)
    with pytest.raises(Eagle3Error, match="feature layers"):
        Target(model, (0, 1, 9))
