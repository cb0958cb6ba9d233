"""The device at hand: what it is, how fast it reads memory, and whether others are using it."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from eagle3_core.cost.profile import Device
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import reason

if TYPE_CHECKING:
    import torch

BANDWIDTH_BUFFER = 256 << 20
ASSUMED_CACHE = 32 << 20


def pick_device(name: str) -> torch.device:
    """``auto``: CUDA, then MPS, then CPU. Raises Eagle3Error when the one named is not here."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise Eagle3Error("--device is not usable here", found=repr(name),
                          expected=f"cpu, cuda or mps ({reason(error)[:60]})") from None
    return device


def describe(device: torch.device) -> Device:
    import torch

    software = f"torch {torch.__version__}, Python {platform.python_version()}"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Device(name=properties.name, kind="cuda", memory_bytes=properties.total_memory,
                      cache_bytes=getattr(properties, "L2_cache_size", None), clock_mhz=_gpu_clock(device),
                      software=f"{software}, CUDA {torch.version.cuda}")
    if device.type == "mps":
        return Device(name=platform.processor() or "Apple GPU", kind="mps",
                      memory_bytes=psutil.virtual_memory().total, software=software)
    frequency = psutil.cpu_freq()
    return Device(name=_cpu_name(), kind="cpu", threads=torch.get_num_threads(),
                  memory_bytes=psutil.virtual_memory().total, cache_bytes=_cpu_cache(),
                  clock_mhz=round(frequency.current) if frequency and frequency.current else None, software=software)


def _gpu_clock(device: torch.device) -> float | None:
    import torch

    try:
        return float(torch.cuda.clock_rate(device))
    except (RuntimeError, ImportError, ModuleNotFoundError):
        return None  # needs the pynvml package; a profile without a clock says so by its absence


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    name = platform.processor() or platform.machine()
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    return f"{name}, {os.cpu_count()} cores"


def _cpu_cache() -> int | None:
    """Bytes of the last-level cache, where the system says."""
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:])
        if unit and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * unit)
    return max(sizes, default=None)


def free_bytes(device: torch.device) -> int:
    """Memory that can be taken now, a fifth kept back."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0] * 0.8)
    return int(psutil.virtual_memory().available * 0.8)


def synchronize(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def read_bandwidth(device: torch.device, seconds: float = 1.0) -> float:
    """Best rate of reading a buffer far larger than the cache, or of copying it, GB/s (1e9 bytes)."""
    import torch

    source = torch.ones(BANDWIDTH_BUFFER // 4, device=device)
    target = torch.empty_like(source)
    best = 0.0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or best == 0.0:
        for call, moved in ((source.sum, BANDWIDTH_BUFFER), (lambda: target.copy_(source), 2 * BANDWIDTH_BUFFER)):
            synchronize(device)
            start = time.perf_counter()
            call()
            synchronize(device)
            best = max(best, moved / (time.perf_counter() - start) / 1e9)
    return best


class Neighbours:
    """CPU time that others take while we measure: in use beside this process, in cores."""

    def __init__(self) -> None:
        self._start = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float]:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        own = psutil.Process().cpu_times()
        return time.perf_counter(), sum(times[:8]) - idle, own.user + own.system

    def cores_taken(self) -> float:
        wall, busy, own = (now - then for now, then in zip(self._read(), self._start, strict=True))
        return max(busy - own, 0.0) / max(wall, 1e-9)
