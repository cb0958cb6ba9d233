"""Every mapping file, out and in: the same mapping comes back, and damage is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from eagle3_core.errors import Eagle3Error
from eagle3_core.vocab.formats import mapping_files, read_mapping
from eagle3_core.vocab.formats.writers import FORMATS, RANKED, token_freq_bytes, write_mapping
from eagle3_core.vocab.mapping import VocabMapping, mapping_from_d2t, mapping_from_ids

RELAXED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def mappings(draw, ranked: bool = False) -> VocabMapping:
    vocab = draw(st.integers(2, 400))
    ids = draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=vocab, unique=True))
    return VocabMapping(np.array(ids, dtype=np.int64), vocab) if ranked else mapping_from_ids(np.array(ids), vocab)


@pytest.mark.parametrize("fmt", FORMATS)
@RELAXED
@given(data=st.data())
def test_what_is_written_reads_back_in_its_order(tmp_path: Path, fmt: str, data: st.DataObject) -> None:
    mapping = data.draw(mappings(ranked=fmt in RANKED))
    folder = tmp_path / str(data.draw(st.integers(0, 1 << 60)))
    (file, *_) = write_mapping(fmt, mapping, folder)
    assert read_mapping(file, vocab_size=mapping.vocab_size) == mapping


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_bytes_depend_on_the_mapping_alone(fmt: str) -> None:
    mapping = mapping_from_ids(np.array([5, 1, 9]), 12)
    assert mapping_files(fmt, mapping) == mapping_files(fmt, mapping)


@pytest.mark.parametrize("fmt", sorted(set(FORMATS) - set(RANKED) - {"safetensors"}))
def test_an_order_that_a_trainer_would_misread_is_refused(fmt: str) -> None:
    with pytest.raises(Eagle3Error, match="ascending"):
        mapping_files(fmt, VocabMapping(np.array([7, 3, 1]), 10))


@RELAXED
@given(mapping=mappings(ranked=True))
def test_offsets_and_mask_say_the_same(mapping: VocabMapping) -> None:
    assert mapping_from_d2t(mapping.d2t, mapping.vocab_size) == mapping
    np.testing.assert_array_equal(np.flatnonzero(mapping.t2d), np.sort(mapping.target_ids))
    assert mapping.t2d.sum() == mapping.draft_vocab_size
    ascending, rows = mapping.ascending()
    np.testing.assert_array_equal(mapping.target_ids[rows], ascending.target_ids)
    assert ascending.is_ascending


@pytest.mark.parametrize("prefix", ["", "model.", "drafter.eagle."])
def test_the_pair_is_found_inside_a_checkpoint_single_and_sharded(tmp_path: Path, prefix: str) -> None:
    mapping = mapping_from_ids(np.array([2, 3, 8]), 10)
    pair = {f"{prefix}d2t": mapping.d2t.copy(), f"{prefix}t2d": mapping.t2d.copy()}
    other = {"lm_head.weight": np.zeros((3, 4), dtype=np.float32)}
    save_file(pair | other, tmp_path / "model.safetensors")
    assert read_mapping(tmp_path / "model.safetensors") == mapping
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    save_file(other, sharded / "model-00001-of-00002.safetensors")
    save_file(pair, sharded / "model-00002-of-00002.safetensors")
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors",
                            **dict.fromkeys(pair, "model-00002-of-00002.safetensors")}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_mapping(sharded) == mapping


def test_token_frequencies_are_a_plain_dict_that_loads_without_code(tmp_path: Path) -> None:
    (tmp_path / "token_freq.pt").write_bytes(token_freq_bytes(np.array([0, 5, 0, 2])))
    assert torch.load(tmp_path / "token_freq.pt", weights_only=True) == {1: 5, 3: 2}


PAIR = {"d2t": torch.tensor([1, 2]), "t2d": torch.tensor([False, True, False, True])}
DAMAGE = {
    "float offsets": PAIR | {"d2t": PAIR["d2t"].float()},
    "out of range": PAIR | {"d2t": torch.tensor([1, 9])},
    "mapped twice": PAIR | {"d2t": torch.tensor([1, 0])},
    "disagree": PAIR | {"t2d": torch.tensor([True, True, False, False])},
    "too many in the mask": PAIR | {"t2d": torch.tensor([True, True, False, True])},
    "two dimensions": PAIR | {"d2t": PAIR["d2t"][None]},
    "no mapping": {"weight": torch.zeros(2)},
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_wrong_pair_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "vocab_mapping.pt"
    torch.save(DAMAGE[name], path)
    with pytest.raises(Eagle3Error) as error:
        read_mapping(path)
    assert "\n" not in str(error.value)
    assert "vocab_mapping.pt" in str(error.value)
