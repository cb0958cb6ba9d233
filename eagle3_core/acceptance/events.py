"""Scalars of a TensorBoard event file, without TensorBoard.

The file is a run of TFRecords: length uint64, its CRC, the payload, its CRC.
A payload is a protobuf Event: 2 = step, 5 = Summary{1 = Value{1 = tag,
2 = simple_value float, 8 = TensorProto{4 = content bytes, 5 = float_val}}}.
A record cut short at the end is what a running writer leaves, and is dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import read_bytes


def is_event_file(path: Path) -> bool:
    return "tfevents" in path.name


def read_scalars(path: str | Path) -> dict[str, float]:
    """The last value of every scalar. Raises Eagle3Error when the file is not made of records."""
    found = read_series(path)
    if not found:
        raise Eagle3Error("holds no scalars", where=path, expected="a TensorBoard event file with scalars")
    return {tag: values[max(values)] for tag, values in found.items()}


def read_series(path: str | Path) -> dict[str, dict[int, float]]:
    """Every scalar by step; of a repeated step the last value counts. Raises Eagle3Error as ``read_scalars`` does."""
    data = read_bytes(path, limit=4 << 30)
    found: dict[str, dict[int, float]] = {}
    try:
        for record in _records(data):
            step = 0
            for number, value in _fields(record):
                if number == 2 and isinstance(value, int):
                    step = value
                elif number == 5 and isinstance(value, bytes):
                    for tag, scalar in _values(value):
                        found.setdefault(tag, {})[step] = scalar
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise Eagle3Error("is not a TensorBoard event file", where=path, found=str(error)[:80]) from None
    return found


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + length
        if end + 4 > len(data):
            if at == 0:
                raise ValueError("the first record is longer than the file")
            return
        yield data[at + 12 : end]
        at = end + 4


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Protobuf wire format: varint, 64 bit, length-delimited, 32 bit."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            yield number, data[at : at + width]
            at += width
        elif kind == 2:
            length, at = _varint(data, at)
            yield number, data[at : at + length]
            at += length
        else:
            raise ValueError(f"wire type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _values(summary: bytes) -> Iterator[tuple[str, float]]:
    for number, value in _fields(summary):
        if number != 1 or not isinstance(value, bytes):
            continue
        tag, scalar = "", None
        for inner, content in _fields(value):
            if inner == 1 and isinstance(content, bytes):
                tag = content.decode()
            elif inner == 2 and isinstance(content, bytes):
                (scalar,) = struct.unpack("<f", content)
            elif inner == 8 and isinstance(content, bytes):
                scalar = _tensor(content)
        if tag and scalar is not None:
            yield tag, float(scalar)


def _tensor(proto: bytes) -> float | None:
    """A float scalar tensor; anything else is not a metric."""
    kind = None
    for number, value in _fields(proto):
        if number == 1:
            kind = value
        elif kind == 1 and number in (4, 5) and isinstance(value, bytes) and len(value) == 4:
            return float(struct.unpack("<f", value)[0])
    return None
