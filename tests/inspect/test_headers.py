"""Headers read without tensors, held to what the writers' own libraries wrote; hostile ones refused in one line."""

from __future__ import annotations

import json
import pickle
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from eagle3_core.errors import Eagle3Error
from eagle3_core.inspect.headers import read_array, read_header

STATE = {
    "d2t": torch.tensor([1, 2, 5]), "fc.weight": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
    "t2d": torch.tensor([False, True, True]), "empty": torch.zeros(0, 3),
}


def write_raw(path: Path, header: object, data: bytes = b"") -> Path:
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def same(found: np.ndarray, tensor: torch.Tensor) -> bool:
    return np.array_equal(found, tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy())


@pytest.mark.parametrize("write", [
    lambda p: save_file(STATE, p / "model.safetensors"),
    lambda p: torch.save(STATE, p / "pytorch_model.bin"),
    lambda p: torch.save(OrderedDict(STATE), p / "pytorch_model.bin"),
])
def test_tensors_have_the_shapes_dtypes_and_values_that_were_written(tmp_path, write):
    write(tmp_path)
    header = read_header(tmp_path)
    for name, tensor in STATE.items():
        info = header.tensors[name]
        assert (info.shape, info.dtype) == (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        assert same(read_array(info), tensor)
    assert sorted(header.tensors) == sorted(STATE)


def test_shards_are_one_checkpoint(tmp_path):
    save_file({"d2t": STATE["d2t"]}, tmp_path / "model-1.safetensors")
    save_file({"fc.weight": STATE["fc.weight"]}, tmp_path / "model-2.safetensors")
    names = {"d2t": "model-1.safetensors", "fc.weight": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    header = read_header(tmp_path)
    assert {t.name: t.file.name for t in header.tensors.values()} == names
    assert [f.name for f in header.files] == ["model-1.safetensors", "model-2.safetensors"]


def test_a_training_state_gives_its_tensors_and_its_plain_values(tmp_path):
    state = {"draft_state_dict": OrderedDict(STATE), "global_step": 700, "shared": torch.ones(4, 6).T,
             "slice": torch.arange(10)[4:7], "parameter": torch.nn.Parameter(torch.ones(2)), "path": Path("somewhere")}
    torch.save(state, tmp_path / "training_state.pt")
    header = read_header(tmp_path / "training_state.pt")
    assert header.values["global_step"] == 700
    assert header.tensors["shared"].offset is None
    assert header.tensors["shared"].shape == (6, 4)
    assert read_array(header.tensors["slice"]).tolist() == [4, 5, 6]
    assert header.tensors["parameter"].dtype == "float32"


def test_a_gguf_gives_its_values_and_tensors(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "d.gguf", "eagle3")
    writer.add_array("tokens", ["x" * n for n in range(100)])
    writer.add_array("layers", [1, 2, 3])
    writer.add_tensor("d2t", np.array([1, 3, 7], dtype=np.int64))
    writer.add_tensor("fc.weight", np.ones((2, 32), np.float32))
    writer.add_tensor("q", np.zeros((2, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(tmp_path / "d.gguf")
    assert header.values["general.architecture"] == "eagle3"
    assert header.values["layers"] == [1, 2, 3]
    assert header.tensors["fc.weight"].shape == (2, 32)
    assert (header.tensors["q"].dtype, header.tensors["q"].shape) == ("Q8_0", (2, 32))
    assert read_array(header.tensors["d2t"]).tolist() == [1, 3, 7]


def test_a_five_gigabyte_checkpoint_costs_its_header_alone(tmp_path):
    size = 5 << 30
    path = write_raw(tmp_path / "model.safetensors",
                     {"lm_head.weight": {"dtype": "BF16", "shape": [size // 8192, 4096], "data_offsets": [0, size]}})
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size + size)
    tracemalloc.start()
    header = read_header(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert header.tensors["lm_head.weight"].size == size // 2
    assert peak < 1 << 20


def entry(shape=(2,), offsets=(0, 8), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(("header", "data", "said"), [
    ({"a": entry(offsets=(0, 1 << 60), shape=(1 << 58,))}, b"", "badly described"),
    ({"a": entry(offsets=(0, 1 << 59), shape=(1 << 57,))}, b"", "outside its file"),
    ({"a": entry(offsets=(0, 4))}, bytes(4), "outside its file"),
    ({"a": entry(shape=(-2,))}, bytes(8), "badly described"),
    ({"a": entry(shape=(True, 2))}, bytes(8), "badly described"),
    ({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12), "overlaps"),
    ({"a": entry()}, bytes(12), "bytes after"),
    ({"a": 3}, b"", "badly described"),
    ([1], b"", "not a safetensors file"),
])
def test_a_safetensors_header_that_lies_is_refused(tmp_path, header, data, said):
    path = write_raw(tmp_path / "model.safetensors", header, data)
    with pytest.raises(Eagle3Error, match=said) as caught:
        read_header(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [
    b"", b"\x01", b"\xff" * 8, (1 << 60).to_bytes(8, "little") + b"{}", (4).to_bytes(8, "little") + b"{{{{",
    (10).to_bytes(8, "little") + b"[" * 10, (30).to_bytes(8, "little") + b'{"a": 1, "a": 2}'.ljust(30),
])
def test_bytes_that_are_no_safetensors_are_refused(tmp_path, data):
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(Eagle3Error):
        read_header(tmp_path)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "", "link.safetensors",
                                  "loop.safetensors"])
def test_a_shard_outside_the_folder_is_refused(tmp_path, name):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file({"d2t": STATE["d2t"]}, tmp_path / "outside.safetensors")
    (folder / "link.safetensors").symlink_to(tmp_path / "outside.safetensors")
    (folder / "loop.safetensors").symlink_to(folder / "loop.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"d2t": name}}))
    with pytest.raises(Eagle3Error):
        read_header(folder)


def test_links_into_the_hub_cache_of_the_same_model_are_followed(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    save_file({"d2t": STATE["d2t"]}, blobs / "1234")
    (snapshot / "model.safetensors").symlink_to("../../blobs/1234")
    assert list(read_header(snapshot).tensors) == ["d2t"]


def torch_zip(path: Path, pkl: bytes, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pkl)
        for name, data in members.items():
            archive.writestr(f"archive/data/{name}", data)
    return path


class Attack:
    def __reduce__(self):
        import os

        return os.system, ("touch owned",)


def test_nothing_in_a_pickle_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = torch_zip(tmp_path / "a.pt", pickle.dumps({"x": Attack(), "step": 3}))
    assert read_header(path).values["step"] == 3
    assert not (tmp_path / "owned").exists()


def test_a_zip_bomb_is_refused_unopened(tmp_path):
    path = torch_zip(tmp_path / "a.pt", b"0" * (80 << 20))
    with pytest.raises(Eagle3Error, match="unpacks to more"):
        read_header(path)


NESTED = b"\x80\x02}q\x00" + b")" + b"2\x86" * 60 + b"K\x01s."
"""{t: 1} with t = (t', t'), sixty levels deep: its hash would take 2^60 steps."""
MEMO = b"\x80\x02}r\xff\xff\xff\x7f."
"""A memo entry at index 2^31 - 1, for which C's unpickler makes room."""


@pytest.mark.parametrize("pkl", [
    NESTED, b"\x80\x02" + b"(" * 1000, b"", b".", b"garbage", b"\x80\x04\x95" + b"\xff" * 8,
    b"\x80\x02\x8a\x04\x01\x02\x03\x04Q.", b"\x80\x02X\xff\xff\xff\xffabc.",
])
def test_a_hostile_pickle_is_one_line(tmp_path, pkl):
    with pytest.raises(Eagle3Error) as caught:
        read_header(torch_zip(tmp_path / "a.pt", pkl))
    assert "\n" not in str(caught.value)


def test_a_far_memo_entry_takes_no_memory(tmp_path):
    assert read_header(torch_zip(tmp_path / "a.pt", MEMO)).tensors == {}


def test_a_tensor_larger_than_its_storage_is_refused(tmp_path):
    torch.save({"d2t": torch.arange(4)}, tmp_path / "good.pt")
    with zipfile.ZipFile(tmp_path / "good.pt") as archive:
        root = archive.namelist()[0].split("/")[0]
        pkl = archive.read(f"{root}/data.pkl")
    assert b"K\x04\x85" in pkl  # the shape (4,)
    path = torch_zip(tmp_path / "bad.pt", pkl.replace(b"K\x04\x85", b"K\xff\x85"), **{"0": bytes(32)})
    with pytest.raises(Eagle3Error, match="larger than its storage"):
        read_header(path)


@pytest.mark.parametrize("data", [b"GGUF", b"GGUF" + b"\xff" * 20, b"GGUF\x03\0\0\0" + bytes(8) + b"\xff" * 8,
                                  b"GGUF\x03\0\0\0" + (1 << 60).to_bytes(8, "little") + bytes(64)])
def test_a_gguf_that_claims_more_than_it_has_is_refused(tmp_path, data):
    (tmp_path / "a.gguf").write_bytes(data)
    with pytest.raises(Eagle3Error, match="GGUF"):
        read_header(tmp_path / "a.gguf")


def test_a_missing_path_and_a_plain_text_are_one_line(tmp_path):
    (tmp_path / "notes.txt").write_text("hello, this is text")
    for path in (tmp_path / "none.safetensors", tmp_path / "notes.txt", tmp_path):
        with pytest.raises(Eagle3Error):
            read_header(path)


def test_big_tensors_are_not_read_as_mappings(tmp_path):
    save_file({"w": torch.zeros(20 << 20)}, tmp_path / "model.safetensors")
    with pytest.raises(Eagle3Error, match="too large"):
        read_array(read_header(tmp_path).tensors["w"])
