"""Counts of some records, and the folder that keeps them file by file until a run is done."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_core.corpus.remote import Source, size_of
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import sha256_file

Cell = tuple[str, int]
"""A domain and a fold."""


@dataclass
class Part:
    """Counts of some records: per domain and fold int64 [V]; documents; rejected lines; notes."""

    counts: dict[Cell, np.ndarray] = field(default_factory=dict)
    documents: Counter[Cell] = field(default_factory=Counter)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    records: int = 0
    notes: set[str] = field(default_factory=set)

    def add(self, other: Part) -> None:
        """``other`` must not be used after: its arrays may be taken over."""
        for cell, counts in other.counts.items():
            if cell in self.counts:
                self.counts[cell] += counts
            else:
                self.counts[cell] = counts
        self.documents.update(other.documents)
        self.rejected += other.rejected
        self.records += other.records
        self.notes |= other.notes

    def __getstate__(self) -> dict[str, Any]:
        """Between processes counts travel in the narrowest numbers that hold them, whole where many ids occur."""
        return self.__dict__ | {"counts": {cell: _packed(counts) for cell, counts in self.counts.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.counts = {cell: _unpacked(*packed) for cell, packed in state["counts"].items()}


def _packed(counts: np.ndarray) -> tuple[int, np.ndarray | None, np.ndarray]:
    narrow = np.min_scalar_type(int(counts.max(initial=0)))
    if 4 * np.count_nonzero(counts) > len(counts):
        return len(counts), None, counts.astype(narrow)
    vocab, ids, repeats = sparse(counts)
    return vocab, ids.astype(np.uint32), repeats.astype(narrow)


def _unpacked(vocab: int, ids: np.ndarray | None, repeats: np.ndarray) -> np.ndarray:
    return repeats.astype(np.int64) if ids is None else dense(vocab, ids, repeats)


def sparse(counts: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """V, the ids that occur, their counts."""
    ids = np.flatnonzero(counts)
    return len(counts), ids, counts[ids]


def dense(vocab: int, ids: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    counts = np.zeros(vocab, dtype=np.int64)
    counts[ids] = repeats
    return counts


def open_parts(parts: Path, identity: str, resume: bool) -> None:
    """A fresh folder of parts, or the earlier one when resuming the same job."""
    stamp = parts / "job.json"
    if resume and stamp.exists() and stamp.read_text() == identity:
        return
    shutil.rmtree(parts, ignore_errors=True)
    try:
        parts.mkdir(parents=True)
        stamp.write_text(identity)
    except OSError as error:
        raise Eagle3Error("cannot be written", where=parts, found=error.strerror) from None


def save_part(sha256: str, part: Part, path: Path, source: Source) -> None:
    value = {
        "sha256": sha256, "source": str(source), "bytes": size_of(source),
        "counts": [[d, f, n, ids.tolist(), repeats.tolist()]
                   for (d, f), c in part.counts.items() for n, ids, repeats in [sparse(c)]],
        "documents": [[d, f, n] for (d, f), n in part.documents.items()],
        "rejected": part.rejected, "records": part.records, "notes": sorted(part.notes),
    }
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


def is_part_of(path: Path, source: Source) -> bool:
    """Whether a kept part is this file's: by what it holds, or by URL and size where it is remote."""
    if not path.exists():
        return False
    value = json.loads(path.read_text())
    if isinstance(source, Path):
        return value["sha256"] == sha256_file(source)
    return (value["source"], value["bytes"]) == (str(source), size_of(source))


def load_part(path: Path) -> tuple[str, Part]:
    value = json.loads(path.read_text())
    return value["sha256"], Part(
        counts={(d, f): dense(n, np.array(ids, dtype=np.int64), np.array(repeats, dtype=np.int64))
                for d, f, n, ids, repeats in value["counts"]},
        documents=Counter({(d, f): n for d, f, n in value["documents"]}),
        rejected=value["rejected"], records=value["records"], notes=set(value["notes"]),
    )
