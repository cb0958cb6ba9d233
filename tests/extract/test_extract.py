from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from drafter_tiny import VOCAB, tiny_model

from eagle3_core.acceptance.measure import _is_dump
from eagle3_core.cli.extract import parse_layers, size_text
from eagle3_core.drafter.target import Target
from eagle3_core.errors import Eagle3Error
from eagle3_core.extract.documents import Encoded
from eagle3_core.extract.dump import domains_of
from eagle3_core.extract.run import Generation, answer, bytes_per_token, check_room, extract, plan
from eagle3_core.training.features import open_features


@pytest.fixture(scope="module")
def target():
    return Target(tiny_model(dtype=torch.float32), aux_layers=(0, 2, 3))


def _documents(count=5, seed=0):
    generator = np.random.default_rng(seed)
    made = []
    for i in range(count):
        length = int(generator.integers(6, 14))
        made.append(Encoded(f"d{i}", generator.integers(0, VOCAB, length), np.arange(length) >= 3, "ab"[i % 2]))
    return made


@pytest.mark.parametrize(("fmt", "compress"), [("specforge", False), ("specforge", True), ("speculators", False)])
def test_a_dump_reads_back_as_what_the_target_computed(tmp_path, target, fmt, compress):
    documents = _documents()
    extract(target, documents, tmp_path, fmt=fmt, dtype="float32", compress=compress)
    features = open_features([tmp_path])
    assert _is_dump(tmp_path)
    assert domains_of([tmp_path], features.files) == ["a", "b", "a", "b", "a"]
    for document, read in zip(documents, features, strict=True):
        with torch.inference_mode():
            states = target.model(torch.from_numpy(document.ids)[None], output_hidden_states=True)
        np.testing.assert_array_equal(read.ids.numpy(), document.ids)
        np.testing.assert_array_equal(read.mask.numpy(), document.mask)
        expected = torch.cat([states.hidden_states[layer + 1][0] for layer in (0, 2, 3)], dim=-1)
        torch.testing.assert_close(read.aux, expected)
        last = read.last if read.post_norm else target.model.model.norm(read.last)
        torch.testing.assert_close(target.logits(last), states.logits[0], atol=1e-4, rtol=1e-4)


def test_the_arrow_rows_open_in_datasets(tmp_path, target):
    datasets = pytest.importorskip("datasets")
    documents = _documents(3)
    extract(target, documents, tmp_path, fmt="speculators")
    rows = datasets.load_from_disk(str(tmp_path))
    assert rows["seq_len"][:] == [len(d.ids) for d in documents]
    assert rows[1]["loss_mask"] == documents[1].mask.astype(int).tolist()


class _Killed(Exception):
    pass


def test_a_killed_run_continues_and_ends_with_the_same_bytes(tmp_path, target):
    documents = _documents(6)
    extract(target, documents, tmp_path / "whole", dtype="float32")

    def stop(done, total):
        if done > total / 2:
            raise _Killed

    with pytest.raises(_Killed):
        extract(target, documents, tmp_path / "cut", dtype="float32", progress=stop)
    with open(tmp_path / "cut" / "progress.jsonl", "a") as log:
        log.write('{"index": 5, "fi')
    written = extract(target, documents, tmp_path / "cut", dtype="float32")
    assert 0 < written < 6
    assert extract(target, documents, tmp_path / "cut", dtype="float32") == 0
    for file in (tmp_path / "whole").rglob("*"):
        if file.is_file() and file.name != "progress.jsonl":
            assert (tmp_path / "cut" / file.relative_to(tmp_path / "whole")).read_bytes() == file.read_bytes(), file


def test_another_extraction_in_the_folder_is_refused(tmp_path, target):
    extract(target, _documents(), tmp_path / "a")
    with pytest.raises(Eagle3Error, match="documents sha256"):
        extract(target, _documents(seed=1), tmp_path / "a")
    with pytest.raises(Eagle3Error, match="dtype"):
        extract(target, _documents(), tmp_path / "a", dtype="float32")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("mine")
    with pytest.raises(Eagle3Error, match="not empty"):
        extract(target, _documents(), tmp_path / "b")


@pytest.mark.parametrize("fmt", ["specforge", "speculators"])
def test_the_predicted_size_is_what_is_written(tmp_path, target, fmt):
    documents = [Encoded("d", np.random.default_rng(0).integers(0, VOCAB, 300), np.ones(300, dtype=bool))] * 3
    planned = plan(documents, 32, tmp_path, fmt=fmt, dtype="float32")
    extract(target, documents, tmp_path / "out", fmt=fmt, dtype="float32")
    pattern = "**/*.ckpt" if fmt == "specforge" else "*.safetensors"
    written = sum(f.stat().st_size for f in (tmp_path / "out").glob(pattern))
    assert planned.bytes == pytest.approx(written, rel=0.03)


def test_924_gb_are_named_and_refused_before_anything_is_written(tmp_path):
    """28,180,000 tokens of a 4096-wide target in bf16: 28.18e6 x 32,784 bytes = 924 GB (interop: 32.8 kB a token)."""
    assert bytes_per_token(4096, "specforge", "bfloat16") == 32_784
    ids = np.zeros(28_180_000, dtype=np.int8)
    planned = plan([Encoded("d", ids, ids)], 4096, tmp_path, fmt="specforge", dtype="bfloat16")
    assert size_text(planned.bytes) == "924 GB"
    if planned.free < 924e9:
        with pytest.raises(Eagle3Error, match="disk is too small"):
            check_room(planned, tmp_path)
    assert shutil.disk_usage(tmp_path).free == pytest.approx(planned.free, rel=0.5)


def test_generated_answers_are_the_targets_own_greedy_text(tmp_path, target):
    prompts = [Encoded(f"p{i}", np.array(p), np.zeros(len(p), dtype=bool))
               for i, p in enumerate([[5, 9, 2], [1, 2], [8, 8, 8, 8, 30]])]
    extract(target, prompts, tmp_path, dtype="float32", generation=Generation(max_new=7, batch=2))
    for prompt, read in zip(prompts, open_features([tmp_path]), strict=True):
        ids = torch.from_numpy(prompt.ids)[None]
        made = target.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=7, do_sample=False,
                                     pad_token_id=0)
        assert read.ids.tolist() == made[0].tolist()
        assert read.mask.tolist() == [False] * len(prompt.ids) + [True] * 7


def test_answers_end_with_the_end_token(target):
    prompt = np.array([5, 9, 2])
    text = answer(target, [prompt], Generation(max_new=8), (), seed=0)[0].tolist()
    ended = answer(target, [prompt], Generation(max_new=8), (text[3],), seed=0)[0].tolist()
    assert ended == text[: text.index(text[3]) + 1]


def test_sampled_answers_are_the_same_for_one_seed(target):
    prompt = np.array([5, 9, 2])
    first, again, other = (answer(target, [prompt], Generation(8, 1.0), (), seed=s)[0].tolist() for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_progress_lines_are_json(tmp_path, target):
    extract(target, _documents(2), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == [0, 1]
    assert lines[0]["spans"] == [[3, lines[0]["tokens"]]]


@pytest.mark.parametrize("text", ["1,2", "3,2,1", "a,b,c", "-1,2,3"])
def test_layers_that_are_not_three_ascending_ids_are_refused(text):
    with pytest.raises(Eagle3Error, match="aux-layers"):
        parse_layers(text)
