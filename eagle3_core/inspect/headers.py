"""What tensors a file holds, without loading one: safetensors, their shards, torch archives, GGUF.

    safetensors   8 bytes of length, a JSON header, then the data at the offsets it names
    sharded       *.index.json with weight_map: tensor -> file of the same folder
    torch         a zip with data.pkl and one stored member for each storage
    gguf          magic, version, counts, key-values, tensor infos, then aligned data

Only the header's bytes are read, so a checkpoint of any size takes milliseconds.
Everything a header claims is checked against the size of its file before it is
believed. A pickle is read by an interpreter that imports nothing: unknown classes
become inert ``Opaque`` values, so nothing in a file can run.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import inside, read_bytes, read_json

Container = Literal["safetensors", "torch", "gguf"]
HEADER_LIMIT = 100 << 20
"""safetensors' own limit of a header."""
ARRAY_LIMIT = 64 << 20
"""No mapping of a million ids is larger."""
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
}
_SAFETENSORS = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor's place. ``offset`` is in bytes from the start of ``file``, None where its data is not one plain run.

    ``dtype`` is torch's name, or GGUF's for its quantised types.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int | None
    nbytes: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """All tensors of a file or of a folder's shards. ``values``: what a torch file holds beside its tensors, or
    GGUF's key-values, by dotted name."""

    path: Path
    container: Container
    files: tuple[Path, ...]
    tensors: dict[str, TensorInfo]
    values: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


def read_header(path: str | Path) -> Header:
    """The header of a weights file, of an ``*.index.json``, or of the weights in a folder.

    Raises Eagle3Error where there are none, or where a header contradicts its file.
    """
    path = Path(path)
    if path.is_dir():
        return read_header(weights_of(path))
    if path.name.endswith(".index.json"):
        return _sharded(path)
    start = head_bytes(path, 8)
    if start[:4] == b"GGUF":
        from eagle3_core.inspect.gguf_header import read_gguf

        return read_gguf(path)
    if path.suffix == ".safetensors":
        tensors, metadata = _safetensors(path)
        return Header(path, "safetensors", (path,), tensors, metadata=metadata)
    if start[:4] == b"PK\x03\x04" or path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        from eagle3_core.inspect.torch_header import read_torch

        return read_torch(path)
    raise Eagle3Error("is no weights file", where=path, expected=".safetensors, a torch file or .gguf")


WEIGHT_NAMES = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json",
                "pytorch_model.bin", "training_state.pt")


def weights_of(folder: Path) -> Path:
    """The file to read a folder's weights from. Raises Eagle3Error when there is none."""
    found = find_weights(folder)
    if found is None:
        raise Eagle3Error("has no weights", where=folder, expected="model.safetensors, its shards, or a torch file")
    return found


def find_weights(folder: Path) -> Path | None:
    for name in WEIGHT_NAMES:
        if (folder / name).is_file():
            return inside(folder, name)
    for pattern in ("*.index.json", "*.safetensors", "*.gguf"):
        if found := [p for p in sorted(folder.glob(pattern)) if p.is_file()]:
            return inside(folder, found[0].name)
    return None


def head_bytes(path: Path, size: int) -> bytes:
    try:
        if not path.is_file():
            read_bytes(path, limit=0)
            raise Eagle3Error("is not a plain file", where=path)
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise Eagle3Error("cannot be read", where=path, found=error.strerror) from None


def _safetensors(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    total = path.stat().st_size
    size = int.from_bytes(head_bytes(path, 8), "little") if total >= 8 else 0
    if not 2 <= size <= min(HEADER_LIMIT, total - 8):
        raise Eagle3Error("is not a safetensors file", where=path, found=f"a header of {size:,} bytes in {total:,}")
    raw = head_bytes(path, 8 + size)[8:]
    try:
        header = json.loads(raw.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Eagle3Error("is not a safetensors file", where=path, found=str(error)[:80]) from None
    if not isinstance(header, dict):
        raise Eagle3Error("is not a safetensors file", where=path, found=type(header).__name__)
    metadata = header.pop("__metadata__", {})
    tensors = {name: _checked(name, entry, path, 8 + size, total) for name, entry in header.items()}
    ends = 0
    for info in sorted(tensors.values(), key=lambda t: (t.offset or 0, t.nbytes)):
        if (info.offset or 0) != 8 + size + ends:
            raise Eagle3Error(f"tensor {info.name[:80]} overlaps another or leaves a gap", where=path)
        ends += info.nbytes
    if 8 + size + ends != total:
        raise Eagle3Error("is cut short" if 8 + size + ends > total else "has bytes after its tensors", where=path,
                          found=f"{total:,} bytes", expected=f"{8 + size + ends:,}")
    return tensors, {str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("the same name twice")
    return value


def _checked(name: str, entry: Any, path: Path, start: int, total: int) -> TensorInfo:
    def whole(values: Any, count: int | None = None) -> bool:
        return (isinstance(values, list) and (count is None or len(values) == count) and len(values) <= 16
                and all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 60 for v in values))

    if not isinstance(entry, dict) or not whole(entry.get("shape")) or not whole(entry.get("data_offsets"), 2):
        raise Eagle3Error(f"tensor {name[:80]} is badly described", where=path, found=str(entry)[:80])
    dtype = _SAFETENSORS.get(str(entry.get("dtype")), str(entry.get("dtype")).lower()[:20])
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    # Types of less than a byte (FP4, FP6) are known by their span alone.
    wanted = math.prod(shape) * ITEM_BYTES[dtype] if dtype in ITEM_BYTES else end - begin
    if end < begin or end - begin != wanted or start + end > total:
        raise Eagle3Error(f"tensor {name[:80]} lies outside its file", where=path,
                          found=f"bytes {begin:,} to {end:,}", expected=f"{wanted:,} bytes of {total - start:,}")
    return TensorInfo(name, dtype, shape, path, start + begin, end - begin)


def _sharded(index: Path) -> Header:
    value = read_json(index, limit=HEADER_LIMIT)
    names = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(names, dict) or not names or not all(isinstance(v, str) for v in names.values()):
        raise Eagle3Error("has no weight_map", where=index, expected="tensor name -> file name")
    tensors: dict[str, TensorInfo] = {}
    files = []
    container: Container = "safetensors"
    for name in sorted(set(names.values())):
        file = inside(index.parent, name)
        part = read_header(file)
        if part.container == "gguf":
            raise Eagle3Error("names a GGUF as a shard", where=index, found=repr(name[:80]))
        container = part.container
        files.append(file)
        for tensor, info in part.tensors.items():
            if tensor in tensors:
                raise Eagle3Error(f"tensor {tensor[:80]} is in two shards", where=index)
            tensors[tensor] = info
    if missing := sorted(set(names) - set(tensors)):
        raise Eagle3Error(f"tensor {missing[0][:80]} is in no shard", where=index)
    return Header(index, container, tuple(files), tensors)


def read_array(info: TensorInfo) -> np.ndarray:
    """A small tensor's values, its own shape; bf16 as the float32 of the same value.

    Raises Eagle3Error for one that is large, quantised or not stored as one run of bytes.
    """
    if info.offset is None or info.dtype not in ITEM_BYTES or info.dtype.startswith("float8"):
        raise Eagle3Error(f"tensor {info.name[:80]} cannot be read", where=info.file, found=info.dtype)
    if info.nbytes > ARRAY_LIMIT:
        raise Eagle3Error(f"tensor {info.name[:80]} is too large for a mapping", where=info.file,
                          found=f"{info.nbytes:,} bytes")
    try:
        with info.file.open("rb") as file:
            file.seek(info.offset)
            data = file.read(info.nbytes)
    except OSError as error:
        raise Eagle3Error("cannot be read", where=info.file, found=error.strerror) from None
    if len(data) != info.nbytes:
        raise Eagle3Error("is cut short", where=info.file, found=f"{len(data):,} bytes of {info.name[:80]}")
    if info.dtype == "bfloat16":
        flat = (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    elif info.dtype == "bool":
        flat = np.frombuffer(data, dtype=np.uint8) != 0
    else:
        flat = np.frombuffer(data, dtype=np.dtype(info.dtype).newbyteorder("<"))
    return flat.reshape(info.shape)
