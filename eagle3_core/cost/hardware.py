"""Devices that are not here: ``hardware.csv``, one row a GPU, each figure with its source.

A user adds a device with a TOML file of the same keys:

    name = "my-gpu"
    bandwidth_tbps = 3.2      # datasheet, TB/s (1e12 bytes)
    efficiency = 0.85         # share of it that a large bf16 GEMV reaches
    overhead_us = 3.0         # fixed time of one kernel
    bf16_tflops = 900         # dense
"""

from __future__ import annotations

import csv
import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from eagle3_core.cost.profile import LatencyProfile, read_profile
from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.evidence import Evidence
from eagle3_core.files import read_bytes

_FILE = Path(__file__).with_name("hardware.csv")


@dataclass(frozen=True)
class Gpu:
    """One device of the table. Bandwidth in TB/s, times in microseconds, memory in GiB, cache in MB."""

    name: str
    label: str
    bandwidth_tbps: float
    efficiency: float
    overhead_us: float
    bf16_tflops: float
    link_gbps: float = 64.0
    memory_gib: float = 0.0
    cache_mb: float = 0.0
    all_reduce_us: float = 10.0
    """One small all-reduce inside a CUDA graph (custom kernel, at most 16k elements)."""
    all_gather_us: float = 20.0
    """One NCCL all-gather of up to 256k elements; only its bandwidth term grows beyond."""
    fit: Evidence = "assumed"
    """Whether efficiency and overhead come from measured GEMMs."""
    source: str = ""

    def stream_ms(self, nbytes: float, *, kernels: int = 1) -> float:
        """Time to read ``nbytes`` of weights in ``kernels`` launches: t0 + bytes / (eta * BW), milliseconds."""
        return kernels * self.overhead_us / 1e3 + nbytes / (self.efficiency * self.bandwidth_tbps * 1e12) * 1e3

    def compute_ms(self, flops: float) -> float:
        """Time of a compute-bound product at the efficiency seen for large bf16 GEMMs, milliseconds."""
        return flops / (0.7 * self.bf16_tflops * 1e12) * 1e3


@functools.cache
def devices() -> dict[str, Gpu]:
    """All devices of the table by name."""
    with _FILE.open(newline="") as file:
        return {row["name"]: _gpu(row, _FILE.name) for row in csv.DictReader(file)}


def _gpu(row: Mapping[str, object], where: object) -> Gpu:
    known = {field.name: field for field in fields(Gpu)}
    values: dict[str, object] = {}
    for key, value in row.items():
        if key not in known:
            raise Eagle3Error(f"unknown key {key}", where=where, fix=suggest(key, known))
        if key in ("name", "label", "fit", "source"):
            values[key] = str(value)
            continue
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise Eagle3Error(f"key {key}", where=where, found=repr(value), expected="a number") from None
        if not math.isfinite(number) or number < 0 or (number == 0 and key in _POSITIVE):
            raise Eagle3Error(f"key {key}", where=where, found=number, expected="a positive number")
        values[key] = number
    missing = [key for key in ("name", *_POSITIVE) if key not in values]
    if missing:
        raise Eagle3Error(f"key {missing[0]} is missing", where=where)
    values.setdefault("label", values["name"])
    return Gpu(**values)  # type: ignore[arg-type]


_POSITIVE = ("bandwidth_tbps", "efficiency", "overhead_us", "bf16_tflops")


def load_device_toml(path: str | Path) -> Gpu:
    """A user's own device. Raises Eagle3Error naming the file and the key."""
    try:
        values = tomllib.loads(read_bytes(path, limit=1 << 16).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Eagle3Error("is not TOML", where=path, found=error) from None
    gpu = _gpu(values, path)
    if gpu.efficiency > 1:
        raise Eagle3Error("key efficiency", where=path, found=gpu.efficiency, expected="a share between 0 and 1")
    return gpu


def resolve_latency(name_or_path: str) -> LatencyProfile | Gpu:
    """``--latency``: a device of the table, a device TOML, or a measured profile."""
    if name_or_path in devices():
        return devices()[name_or_path]
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return load_device_toml(path)
    if path.exists():
        return read_profile(path)
    raise Eagle3Error("--latency is neither a known device nor a file", found=repr(name_or_path),
                      expected=f"one of {', '.join(devices())}, or a *.latency.json",
                      fix=suggest(name_or_path.lower(), devices()))
