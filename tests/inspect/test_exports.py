"""What eagle3 itself writes passes its own lint, for every consumer it writes for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from eagle3_core.export.configs import CONSUMERS
from eagle3_core.export.consumer_files import consumer_files
from eagle3_core.inspect.read import inspect_path
from eagle3_core.inspect.rules import CONSUMERS as JUDGED
from eagle3_core.inspect.rules import lint
from eagle3_core.specs.drafter import drafter_for
from eagle3_core.specs.presets import presets
from eagle3_core.vocab.mapping import VocabMapping

TARGET = dataclasses.replace(presets()["qwen3-8b"], eos_token_ids=(151645,))
RNG = np.random.default_rng(0)


def mapping(size: int, *, ranked: bool) -> VocabMapping:
    ids = np.append(RNG.permutation(151000)[: size - 1], 151645)
    return VocabMapping(ids if ranked else np.sort(ids), TARGET.vocab_size)


def export(folder, consumer: str, size: int, k: int = 3):
    chosen = mapping(size, ranked=True) if size < TARGET.vocab_size else VocabMapping(np.arange(size), size)
    files = consumer_files(consumer, TARGET, drafter_for(TARGET, size), chosen.ascending()[0], k=k, ranked=chosen)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def test_every_consumer_that_is_written_for_is_judged():
    assert set(CONSUMERS) <= set(JUDGED)


@pytest.mark.parametrize("size", [8192, 32000, TARGET.vocab_size])
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_an_export_passes_the_lint_of_the_one_it_is_for(tmp_path, consumer, size):
    facts = inspect_path(export(tmp_path, consumer, size), target=TARGET)
    assert lint(facts, consumer) == []
    assert facts.draft_vocab_size == size
    assert facts.vocab_size == TARGET.vocab_size
    assert (facts.mapping is None) == (size == TARGET.vocab_size and consumer not in ("sglang", "specforge", "eagle"))


@pytest.mark.parametrize("k", [1, 3, 7])
def test_exported_serving_lines_agree_with_k(tmp_path, k):
    facts = inspect_path(export(tmp_path, "sglang", 8192, k))
    assert [(s.steps, s.topk, s.draft_tokens) for s in facts.serving] == [(k, 1, k + 1)]
    assert lint(facts, "sglang") == []


@pytest.mark.parametrize("consumer", ["sglang", "vllm"])
def test_a_checkpoint_that_we_write_passes(tmp_path, consumer):
    import torch

    from eagle3_core.drafter.checkpoint import write_drafter
    from eagle3_core.drafter.model import Drafter
    from eagle3_core.specs.target import TargetSpec

    target = TargetSpec(name="tiny", hidden_size=32, vocab_size=640, num_layers=8, num_heads=4, num_kv_heads=2,
                        head_dim=8, intermediate_size=48)
    drafter = Drafter(drafter_for(target, 128)).reset(0)
    drafter.d2t.copy_(torch.arange(0, 640, 5) - torch.arange(128))
    write_drafter(tmp_path, drafter, target, dtype="bfloat16")
    facts = inspect_path(tmp_path, target=target)
    assert lint(facts, consumer) == []
    assert facts.parameters("trainable") == 2 * 32 * 8 * 8 + 4 * 8 * 32 + 3 * 32 * 48 + 3 * 32 * 32 + 4 * 32 + 128 * 32
