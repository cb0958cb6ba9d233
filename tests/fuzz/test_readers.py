"""Mutated files of every kind: one line or a sound value, within two seconds and a gigabyte, and no code is run.

``make fuzz`` runs a thousand of each kind; the ordinary suite a few of each (``EAGLE3_FUZZ`` sets how many a kind).
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import resource
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from eagle3_core.acceptance.record import read_acceptance
from eagle3_core.corpus.counts import read_counts
from eagle3_core.corpus.readers import read_records
from eagle3_core.cost.hardware import resolve_latency
from eagle3_core.cost.profile import read_profile
from eagle3_core.decide.record import read_decision
from eagle3_core.errors import Eagle3Error
from eagle3_core.inspect.read import inspect_path
from eagle3_core.specs.target import target_from_config
from eagle3_core.vocab.formats import read_mapping
from eagle3_core.vocab.formats.writers import FORMATS, mapping_files
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


CONFIG = {"hidden_size": 64, "vocab_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
          "intermediate_size": 128}
SEEDS: dict[str, tuple[Callable[[Path], bytes], Callable[[Path], object]]] = {
    **{f"{fmt}:{name}": (lambda _, data=data: data, _mapping)
       for fmt in FORMATS for name, data in mapping_files(fmt, IDS).items()},
    "model.safetensors": (lambda _: _checkpoint(), inspect_path),
    "counts.parquet": (lambda samples: (samples / "smollm2.counts.parquet").read_bytes(), read_counts),
    "a.latency.json": (lambda samples: (samples / "qwen3-8b.cpu.latency.json").read_bytes(), read_profile),
    "device.toml": (lambda _: b'name = "m"\nbandwidth_tbps = 2.0\nefficiency = 0.5\noverhead_us = 1\nbf16_tflops = 1\n',
                    lambda path: resolve_latency(str(path))),
    "a.acceptance.json": (lambda _: _json({"format_version": 1, "points": [{"draft_vocab": 64, "alpha": [0.5]}]}),
                          read_acceptance),
    "decision.json": (lambda _: _json({"format_version": 1, "setting": {}, "table": []}), read_decision),
    "config.json": (lambda _: _json(CONFIG), target_from_config),
    "chats.jsonl": (lambda _: b'{"messages": [{"role": "user", "content": "hi"}]}\n{"text": "a"}\n', _records),
    "chats.jsonl.gz": (lambda _: __import__("gzip").compress(b'{"text": "a"}\n' * 9), _records),
    "ids.npy": (lambda _: mapping_files("speculators", IDS)["d2t-7.npy"], _records),
}


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
    make, read = SEEDS[kind]
    data, source = make(samples), random.Random(kind)
    path = tmp_path / kind.rpartition(":")[2]
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
