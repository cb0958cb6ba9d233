"""Scalars as a TensorBoard event file, without TensorBoard: what ``acceptance.events`` reads back.

A record is length uint64, masked CRC-32C of it, payload, masked CRC-32C of that
(TFRecord); the payload a protobuf Event with 1 = time, 2 = step, 5 = Summary.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78


def _table() -> list[int]:
    made = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        made.append(value)
    return made


_TABLE = _table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _block(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


class ScalarFile:
    """A new file for each process of a run, as TensorBoard expects of a restarted one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{time.time_ns() // 1_000_000}.{os.getpid()}"
        self._append(_block(3, b"brain.Event:2"))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        summary = b"".join(
            _block(1, _block(1, tag.encode()) + b"\x15" + struct.pack("<f", value)) for tag, value in values.items())
        self._append(b"\x10" + _varint(step) + _block(5, summary))

    def _append(self, event: bytes) -> None:
        payload = b"\x09" + struct.pack("<d", time.time()) + event
        length = struct.pack("<Q", len(payload))
        with self.path.open("ab") as file:
            file.write(length + _masked_crc(length) + payload + _masked_crc(payload))
