"""The same counting on a Ray cluster: ``eagle3 count --engine ray``.

Plain JSONL files are cut into byte ranges, other files counted whole. Workers open
their own files, so paths must mean the same on every node (a shared file system, or
URLs). A worker that dies is replaced and its shard counted again (``RETRIES``);
parts are summed in a tree on the cluster. Counts are sums, folds depend on the
document alone and line numbers are shifted by the lines before, so the result is
the local engine's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eagle3_core.corpus.engine import Placed, work_of
from eagle3_core.corpus.part import Part
from eagle3_core.corpus.readers import can_be_split, lines_between
from eagle3_core.corpus.remote import opened
from eagle3_core.corpus.work import Job, batches_of, count_records, prepare_worker
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import reason, sha256_file

SHARD_BYTES = 32 << 20
RETRIES = 3
FAN_IN = 8
"""Parts summed by one task of the tree."""

_READY: str | None = None


def count_shard(job: Job, token: str, item: Placed, fmt: str | None, span: tuple[int, int] | None) -> tuple[str, Part]:
    """Runs in a worker: SHA-256 ("" for a range, which only the driver knows) and the part of one shard.

    ``token`` names the job: a worker prepares its tables once a job, not once a shard.
    """
    global _READY
    if token != _READY:
        prepare_worker(job)
        _READY = token
    part = Part()
    with opened(item.file) as file:
        if span is None:
            for function, arguments in work_of(file, fmt, job, item.domain, item.file.name):
                part.add(function(*arguments))
            return sha256_file(file), part
        for batch in batches_of(lines_between(file, *span)):
            part.add(count_records(batch, item.domain, item.file.name))
        return "", _shifted(part, _lines_before(file, span[0]))


def _lines_before(file: Path, start: int) -> int:
    """Lines that begin before byte ``start`` and before the first line that a range from there on holds."""
    lines, left = 0, max(start - 1, 0)
    with file.open("rb") as stream:
        while left and (chunk := stream.read(min(left, 1 << 20))):
            lines += chunk.count(b"\n")
            left -= len(chunk)
    return lines + (start > 0)


def _shifted(part: Part, lines: int) -> Part:
    for row in part.rejected:
        row["line"] += lines
    return part


def add_parts(*parts: Part) -> Part:
    """Runs in a worker: a node of the tree."""
    whole = Part()
    for part in parts:
        whole.add(part)
    return whole


def spans_of(item: Placed, fmt: str | None, shard_bytes: int = SHARD_BYTES) -> list[tuple[int, int] | None]:
    """Byte ranges of a file that can be split, else ``[None]``: the whole."""
    if not isinstance(item.file, Path) or not can_be_split(item.file, fmt):
        return [None]
    size = item.file.stat().st_size
    if size <= shard_bytes:
        return [None]
    return [(start, min(start + shard_bytes, size)) for start in range(0, size, shard_bytes)]


class RayEngine:
    """Raises Eagle3Error where ray is not installed or its cluster cannot be reached."""

    def __init__(self, job: Job, processes: int | None, address: str | None, shard_bytes: int = SHARD_BYTES) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise Eagle3Error("--engine ray needs the package ray", fix="pip install 'eagle3-core[ray]'") from None
        self.ray, self.job, self.shard_bytes = ray, job, shard_bytes
        address = address or os.environ.get("RAY_ADDRESS")
        self.owned = not ray.is_initialized()
        if self.owned:
            local: dict[str, Any] = {} if address else {"num_cpus": processes, "include_dashboard": False}
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise Eagle3Error("the Ray cluster cannot be reached", where=address or "local",
                                  found=reason(error)) from None

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, *_: object) -> None:
        if self.owned:
            self.ray.shutdown()

    def parts(self, files: Sequence[Placed], fmt: str | None) -> Iterator[tuple[str, Part]]:
        ray = self.ray
        shard = ray.remote(max_retries=RETRIES, num_returns=2)(count_shard)
        add = ray.remote(max_retries=RETRIES)(add_parts)
        job, token = ray.put(self.job), os.urandom(8).hex()
        waiting = []
        for item in files:
            made = [shard.remote(job, token, item, fmt, span) for span in spans_of(item, fmt, self.shard_bytes)]
            hashes, parts = [pair[0] for pair in made], [pair[1] for pair in made]
            while len(parts) > 1:
                parts = [add.remote(*parts[at : at + FAN_IN]) for at in range(0, len(parts), FAN_IN)]
            waiting.append((item, hashes[0], parts[0]))
        for item, digest, part in waiting:
            try:
                yield ray.get(digest) or sha256_file(Path(str(item.file))), ray.get(part)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, Eagle3Error):
                    raise error.cause from None
                raise
            except ray.exceptions.RayError as error:
                raise Eagle3Error("a shard could not be counted", where=item.file,
                                  found=reason(error)) from None
