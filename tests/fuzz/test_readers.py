"""Mutated files of every kind: one line or a sound value, within two seconds and a gigabyte, and no code is run.

``make fuzz`` runs a thousand of each kind; the ordinary suite a few of each (``EAGLE3_FUZZ`` sets how many a kind).
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import resource
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save

from eagle3_core.acceptance.model import assumed_alpha
from eagle3_core.acceptance.record import AcceptancePoint, AcceptanceRecord, read_acceptance
from eagle3_core.corpus.counts import read_counts
from eagle3_core.corpus.id_tables import blocks, spans_of
from eagle3_core.corpus.readers import read_records
from eagle3_core.cost.hardware import devices, resolve_latency
from eagle3_core.cost.profile import read_profile
from eagle3_core.decide.conclude import decide
from eagle3_core.decide.record import decision_json, read_decision
from eagle3_core.decide.tradeoff import TradeoffInputs
from eagle3_core.errors import Eagle3Error
from eagle3_core.inspect.read import inspect_path
from eagle3_core.specs.presets import resolve_target
from eagle3_core.specs.target import target_from_config
from eagle3_core.vocab.formats import read_mapping
from eagle3_core.vocab.formats.writers import FORMATS, mapping_files, token_freq_bytes
from eagle3_core.vocab.mapping import VocabMapping, mapping_from_ids

EACH = int(os.environ.get("EAGLE3_FUZZ", "25"))
SECONDS, BYTES = 2.0, 1 << 30
IDS = mapping_from_ids(np.array([1, 4, 5, 9, 30, 31, 60]), 64)


def sound_mapping(mapping: VocabMapping) -> None:
    ids = mapping.target_ids
    assert len(set(ids.tolist())) == len(ids)
    assert not len(ids) or (ids.min() >= 0 and ids.max() < mapping.vocab_size)


def _mapping(path: Path) -> None:
    sound_mapping(read_mapping(path, vocab_size=64))


def _records(path: Path) -> None:
    for record in read_records(path):
        assert record is not None


def _checkpoint() -> bytes:
    return save({"fc.weight": np.zeros((8, 24), np.float32), "lm_head.weight": np.zeros((7, 8), np.float32),
                 "midlayer.self_attn.q_proj.weight": np.zeros((8, 16), np.float32), "d2t": IDS.d2t.copy(),
                 "t2d": IDS.t2d.copy()})


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _gguf() -> bytes:
    import gguf

    with tempfile.TemporaryDirectory() as folder:
        writer = gguf.GGUFWriter(f"{folder}/a.gguf", "eagle3")
        writer.add_uint32("eagle3.vocab_size", 64)
        writer.add_tensor("d2t", IDS.target_ids.copy())
        writer.add_tensor("fc.weight", np.zeros((8, 24), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return Path(f"{folder}/a.gguf").read_bytes()


def _arrow(opened: Callable[..., Any]) -> bytes:
    table = pa.table({"input_ids": [[1, 2, 3], [4]], "loss_mask": [[0, 1, 1], [1]]})
    sink = io.BytesIO()
    with opened(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"input_ids": [[1, 2, 3], [4]], "loss_mask": [[0, 1, 1], [1]]}), sink)
    return sink.getvalue()


def _torch(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _blocks(path: Path) -> None:
    for span in spans_of(path) or ():
        for block in blocks(path, span):
            assert block is not None


def _acceptance() -> bytes:
    alpha = {"alpha": [0.6, 0.5], "alpha_low": [0.5, 0.4], "alpha_high": [0.7, 0.6]}
    return _json(AcceptanceRecord(
        tool_version="0", created="2026-01-01T00:00:00+00:00", target="tiny", drafter="d", vocab_size=64,
        trained_draft_vocab=64, source="a test", method="one_pass", points=tuple(
            AcceptancePoint.model_validate({"draft_vocab": size, "tau": 1.9, "tau_low": 1.7, "tau_high": 2.1, **alpha})
            for size in (32, 64))).model_dump(mode="json"))


def _decision(samples: Path) -> bytes:
    inputs = TradeoffInputs(resolve_target("smollm2-135m"), read_counts(samples / "smollm2.counts.parquet"),
                            devices()["h200"], assumed_alpha(0.7), k=3)
    return decision_json(decide(inputs, 16_384, created="2026-01-01T00:00:00+00:00")).encode()


CONFIG = {"hidden_size": 64, "vocab_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
          "intermediate_size": 128}
SHARDS = {"model.safetensors.index.json": _json({"weight_map": {
    "fc.weight": "a.safetensors", "lm_head.weight": "b.safetensors", "d2t": "b.safetensors", "t2d": "b.safetensors"}}),
    "a.safetensors": save({"fc.weight": np.zeros((8, 24), np.float32)}),
    "b.safetensors": save({"lm_head.weight": np.zeros((7, 8), np.float32), "d2t": IDS.d2t.copy(),
                           "t2d": IDS.t2d.copy()})}


@dataclass(frozen=True)
class Seed:
    """``files`` by name; the first is the one that is mutated and read."""

    files: Callable[[Path], dict[str, bytes]]
    read: Callable[[Path], object]


def _one(name: str, data: Callable[[Path], bytes], read: Callable[[Path], object]) -> Seed:
    return Seed(lambda samples: {name: data(samples)}, read)


def _first(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {name: files[name], **files}


SEEDS: dict[str, Seed] = {
    **{f"{fmt}:{name}": Seed(lambda _, files=mapping_files(fmt, IDS), name=name: _first(files, name), _mapping)
       for fmt in FORMATS for name in mapping_files(fmt, IDS)},
    "a.gguf": _one("a.gguf", lambda _: _gguf(), _mapping),
    "inspected.gguf": _one("a.gguf", lambda _: _gguf(), inspect_path),
    "index": Seed(lambda _: SHARDS, _mapping),
    "shard": Seed(lambda _: _first(SHARDS, "b.safetensors"), lambda path: _mapping(path.parent)),
    "inspected index": Seed(lambda _: SHARDS, inspect_path),
    "model.safetensors": _one("model.safetensors", lambda _: _checkpoint(), inspect_path),
    "pytorch_model.bin": _one("pytorch_model.bin", lambda _: _torch(
        {"fc.weight": torch.zeros(8, 24), "lm_head.weight": torch.zeros(7, 8),
         "d2t": torch.from_numpy(IDS.d2t.copy())}), inspect_path),
    "counts": _one("a.counts.parquet", lambda samples: (samples / "smollm2.counts.parquet").read_bytes(), read_counts),
    "latency": _one("a.latency.json", lambda samples: (samples / "qwen3-8b.cpu.latency.json").read_bytes(),
                    read_profile),
    "device": _one(
        "device.toml",
        lambda _: b'name = "m"\nbandwidth_tbps = 2.0\nefficiency = 0.5\noverhead_us = 1\nbf16_tflops = 1\n',
        lambda path: resolve_latency(str(path))),
    "acceptance": _one("a.acceptance.json", lambda _: _acceptance(), read_acceptance),
    "decision": _one("decision.json", _decision, read_decision),
    "config": _one("config.json", lambda _: _json(CONFIG), target_from_config),
    "chats": _one("chats.jsonl", lambda _: b'{"messages": [{"role": "user", "content": "hi"}]}\n{"text": "a"}\n',
                  _records),
    "chats.gz": _one("chats.jsonl.gz", lambda _: gzip.compress(b'{"text": "a"}\n' * 9), _records),
    "ids.npy": _one("ids.npy", lambda _: mapping_files("speculators", IDS)["d2t-7.npy"], _records),
    "blocks.npy": _one("ids.npy", lambda _: mapping_files("speculators", IDS)["d2t-7.npy"], _blocks),
    "token_freq.pt": _one("token_freq.pt", lambda _: token_freq_bytes(np.array([0, 5, 0, 2])), _records),
    "dump.ckpt": _one("dump.ckpt", lambda _: _torch({"input_ids": torch.arange(4), "loss_mask": torch.ones(4)}),
                      _records),
    "hs_0.safetensors": _one("hs_0.safetensors", lambda _: save({"token_ids": np.arange(4)}), _records),
    "stream.arrow": _one("a.arrow", lambda _: _arrow(pa.ipc.new_stream), _blocks),
    "file.arrow": _one("a.arrow", lambda _: _arrow(pa.ipc.new_file), _blocks),
    "rows.arrow": _one("a.arrow", lambda _: _arrow(pa.ipc.new_stream), _records),
    "rows.parquet": _one("a.parquet", lambda _: _parquet(), _records),
    "blocks.parquet": _one("a.parquet", lambda _: _parquet(), _blocks),
}


@pytest.mark.parametrize("kind", SEEDS)
def test_the_file_is_read_before_it_is_damaged(kind: str, tmp_path: Path, samples: Path) -> None:
    files = SEEDS[kind].files(samples)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    SEEDS[kind].read(tmp_path / next(iter(files)))


def check_line(error: Eagle3Error) -> None:
    assert str(error).isprintable()


def mutate(data: bytes, source: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 8))):
        at = source.randrange(len(out)) if out else 0
        kind = source.randrange(7)
        if kind == 0 and out:
            out[at] ^= 1 << source.randrange(8)
        elif kind == 1 and out:
            out[at] = source.choice((0, 0xFF, 0x7F, 0x80, source.randrange(256)))
        elif kind == 2:
            del out[at:]
        elif kind == 3:
            del out[at : at + source.randrange(1, 64)]
        elif kind == 4:
            out[at:at] = bytes(source.randrange(256) for _ in range(source.randrange(1, 16)))
        elif kind == 5:
            out[at:at] = out[at : at + 64]
        else:
            out[at : at + 8] = source.choice((0, 2**60, 2**63 - 1, 10**9)).to_bytes(8, "little")
        if not out:
            break
    return bytes(out)


@pytest.mark.parametrize("kind", SEEDS)
def test_a_damaged_file_is_a_line_or_a_sound_value(kind: str, tmp_path: Path, samples: Path) -> None:
    seed, source = SEEDS[kind], random.Random(kind)
    files, read = seed.files(samples), seed.read
    for name, held in files.items():
        (tmp_path / name).write_bytes(held)
    path = tmp_path / next(iter(files))
    data = files[path.name]
    for number in range(EACH):
        path.write_bytes(mutate(data, source))
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        try:
            read(path)
        except Eagle3Error as error:
            check_line(error)
        except Exception as error:
            kept = Path(os.environ.get("EAGLE3_FUZZ_KEEP", tmp_path)) / f"crash-{number}-{path.name}"
            kept.write_bytes(path.read_bytes())
            raise AssertionError(f"{kind} number {number}: {type(error).__name__}: {error}; kept as {kept}") from error
        assert time.process_time() - start < SECONDS, (kind, number)
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < BYTES, (kind, number)


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch ran",))


@pytest.mark.parametrize("name", ["vocab_mapping.pt", "d2t.pt", "pytorch_model.bin", "dump.ckpt"])
def test_a_pickle_runs_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"d2t": _Bomb()}, name)
    (tmp_path / f"bare-{name}").write_bytes(pickle.dumps(_Bomb()))
    for path in (Path(name), Path(f"bare-{name}")):
        for read in (_mapping, inspect_path, _records):
            try:
                read(path)
            except Eagle3Error as error:
                check_line(error)
    assert not (tmp_path / "ran").exists()


def test_a_zip_bomb_and_an_absurd_header_are_refused(tmp_path: Path) -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * (1 << 28))
        archive.writestr("archive/version", "3")
    (tmp_path / "vocab_mapping.pt").write_bytes(bomb.getvalue())
    huge = json.dumps({"d2t": {"dtype": "I64", "shape": [2**57], "data_offsets": [0, 2**60]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(huge).to_bytes(8, "little") + huge)
    (tmp_path / "claims.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")
    for name in ("vocab_mapping.pt", "model.safetensors", "claims.safetensors"):
        for read in (_mapping, inspect_path):
            with pytest.raises(Eagle3Error) as error:
                read(tmp_path / name)
            assert "\n" not in str(error.value)


def test_shards_outside_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_bytes(_checkpoint())
    inside = tmp_path / "checkpoint"
    inside.mkdir()
    for target in ("../secret.safetensors", str(tmp_path / "secret.safetensors")):
        (inside / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"d2t": target}}))
        for read in (_mapping, inspect_path):
            with pytest.raises(Eagle3Error):
                read(inside)
    (inside / "model.safetensors.index.json").unlink()
    (inside / "model.safetensors").symlink_to(tmp_path / "secret.safetensors")
    for read in (_mapping, inspect_path):
        with pytest.raises(Eagle3Error, match="link out of its folder"):
            read(inside)
