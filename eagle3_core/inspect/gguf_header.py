"""GGUF's header, versions 2 and 3, little-endian: key-values and tensor places. Long arrays are stepped over."""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any

from eagle3_core.errors import Eagle3Error
from eagle3_core.inspect.headers import Header, TensorInfo

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
KEPT = 64
"""Arrays up to this length are kept as lists; of a longer one (a tokenizer's) only the length."""
_TORCH = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64", "I8": "int8", "I16": "int16",
          "I32": "int32", "I64": "int64"}


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.end = data, 0, len(data)

    def skip(self, size: int) -> int:
        here = self.at
        if size > self.end - here:
            raise ValueError(f"{size:,} bytes claimed at {here:,} of {self.end:,}")
        self.at += size
        return here

    def scalar(self, form: str) -> Any:
        return struct.unpack_from(form, self.data, self.skip(struct.calcsize(form)))[0]

    def text(self) -> str:
        size = self.scalar("<Q")
        here = self.skip(size)
        if size > 1 << 16:
            return f"<{size:,} bytes>"
        return self.data[here : here + size].decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth:
            raise ValueError(f"value of kind {kind}")
        inner, count = self.scalar("<I"), self.scalar("<Q")
        if inner in _SCALARS:
            width = struct.calcsize(_SCALARS[inner])
            here = self.skip(count * width)
            if count > KEPT:
                return f"<{count:,} values>"
            return [struct.unpack_from(_SCALARS[inner], self.data, here + i * width)[0] for i in range(count)]
        if inner != _STRING or count > (self.end - self.at) // 8:
            raise ValueError(f"array of {count:,} values of kind {inner}")
        if count <= KEPT:
            return [self.text() for _ in range(count)]
        for _ in range(count):
            self.skip(self.scalar("<Q"))
        return f"<{count:,} values>"


def read_gguf(path: Path) -> Header:
    """Raises Eagle3Error for another version or a header that its file cannot hold."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Cursor(data), path)
    except (ValueError, OSError, struct.error, UnicodeError, OverflowError) as error:
        raise Eagle3Error("is not a readable GGUF", where=path, found=str(error)[:100]) from None


def _read(cursor: _Cursor, path: Path) -> Header:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    cursor.skip(4)
    version, tensors, pairs = cursor.scalar("<I"), cursor.scalar("<Q"), cursor.scalar("<Q")
    if version not in (2, 3):
        raise ValueError(f"version {version}")
    if tensors > cursor.end // 24 or pairs > cursor.end // 12:
        raise ValueError(f"{tensors:,} tensors and {pairs:,} values claimed in {cursor.end:,} bytes")
    values = {}
    for _ in range(pairs):
        name = cursor.text()
        values[name] = cursor.value(cursor.scalar("<I"))
    entries = []
    for _ in range(tensors):
        name, dims = cursor.text(), cursor.scalar("<I")
        if dims > 8:
            raise ValueError(f"tensor of {dims} dimensions")
        shape = tuple(cursor.scalar("<Q") for _ in range(dims))[::-1]
        entries.append((name, shape, cursor.scalar("<I"), cursor.scalar("<Q")))
    align = values.get("general.alignment", 32)
    if not isinstance(align, int) or not 0 < align <= 1 << 16:
        raise ValueError(f"alignment {align}")
    start = -(-cursor.at // align) * align
    found = {}
    for name, shape, kind, offset in entries:
        dtype = GGMLQuantizationType(kind)
        block, width = GGML_QUANT_SIZES[dtype]
        nbytes = math.prod(shape) // block * width
        if offset + nbytes > cursor.end - start or name in found:
            raise ValueError(f"tensor {name[:60]} lies outside the file or comes twice")
        found[name] = TensorInfo(name, _TORCH.get(dtype.name, dtype.name), shape, path, start + offset, nbytes)
    return Header(path, "gguf", (path,), found, values)
