"""What a worker does: one batch of records, or one stretch of a table of ids, to a ``Part``.

A batch of text is counted by distinct pre-tokens per domain and fold, each encoded
once (``pieces.py``), or as whole texts where that is not exact. A table of ids is
never made into records: its rows are gathered by domain and fold and counted with
one histogram over millions of ids.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_core.corpus.chat import BadDocument, texts
from eagle3_core.corpus.counts import FOLDS, TokenKind
from eagle3_core.corpus.id_tables import Block, Span, blocks
from eagle3_core.corpus.part import Cell, Part
from eagle3_core.corpus.pieces import PieceEncoder
from eagle3_core.corpus.readers import Document, Record, document_of
from eagle3_core.corpus.tokenizer import Tokenizer

BATCH_BYTES = 1 << 20
GATHERED_IDS = 2 << 20
"""Ids of one fold held before they are counted: far more than V, so that a histogram's V additions cost little."""
WHOLE_NOTE = "plain text and ids without a mask have no speaker: counted whole"
NO_TEMPLATE_NOTE = "the tokenizer has no chat template: message contents counted without template tokens"


@dataclass(frozen=True)
class Job:
    """What a worker needs to know."""

    tokenizer: Tokenizer
    vocab_size: int
    tokens: TokenKind
    domain_field: str | None


def fold_of(identity: bytes) -> int:
    """The document's fold, from a hash of what it says."""
    return int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "big") % FOLDS


_JOB: Job | None = None
_ENCODER: PieceEncoder | None = None


def prepare_worker(job: Job) -> None:
    """Make ``job`` this process's own: a worker keeps its tables from batch to batch."""
    global _JOB, _ENCODER
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _JOB = job
    _ENCODER = None if job.tokenizer.spec is None else PieceEncoder(job.tokenizer.spec)


def prepare_child(job: Job) -> None:
    """As ``prepare_worker``, in a process of its own: Ctrl-C is its parent's to answer."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare_worker(job)


def _size_of_value(value: Any) -> int:
    """Roughly the work in a value, in bytes of text: ids are counted tens of times faster than text."""
    ids = value.get("input_ids", value.get("token_ids")) if isinstance(value, Mapping) else None
    return max(ids.nbytes // 32, 64) if isinstance(ids, np.ndarray) else 4096


def batches_of(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record.raw) if record.raw is not None else _size_of_value(record.value)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def count_records(records: Sequence[Record], domain: str, source: str) -> Part:
    """Count one batch in this process, which ``prepare_worker`` made ready."""
    assert _JOB is not None
    part = Part(records=len(records))
    pieces: dict[Cell, Counter[str]] = {}
    found: dict[Cell, Counter[int]] = {}
    columns: dict[Cell, list[np.ndarray]] = {}
    for record in records:
        try:
            document = document_of(record, vocab_size=_JOB.vocab_size, domain_field=_JOB.domain_field)
            parts, ids, identity = what_to_count(document, _JOB, part.notes)
        except BadDocument as error:
            raw = record.raw if record.raw is not None else repr(record.value).encode()
            part.rejected.append({"file": source, "line": record.line, "reason": str(error),
                                  "start": raw[:200].decode("utf-8", "backslashreplace")})
            continue
        cell = (document.domain or domain, fold_of(identity))
        part.documents[cell] += 1
        if ids is not None:
            columns.setdefault(cell, []).append(ids)
        if document.weights is not None and document.ids is not None:
            counter = found.setdefault(cell, Counter())
            counter.update(dict(zip(document.ids.tolist(), document.weights.tolist(), strict=True)))
        if parts and _ENCODER is not None:
            seen, counter = pieces.setdefault(cell, Counter()), found.setdefault(cell, Counter())
            for text in parts:
                _ENCODER.count(text, seen, counter)
        elif parts:
            columns.setdefault(cell, []).extend(np.asarray(e) for e in _JOB.tokenizer.encode(parts))
    for cell, seen in pieces.items():
        assert _ENCODER is not None
        counter = found[cell]
        for piece, repeats in seen.items():
            for token_id in _ENCODER.ids_of_piece(piece):
                counter[token_id] += repeats
    for cell in part.documents:
        part.counts[cell] = _histogram(columns.get(cell, []), found.get(cell, Counter()), _JOB.vocab_size)
    return part


def _histogram(columns: Sequence[np.ndarray], counter: Counter[int], vocab: int) -> np.ndarray:
    """int64 [V] of ids in a row and ids with their counts."""
    whole = np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
    out = np.bincount(whole, minlength=vocab)
    if counter:
        out[np.fromiter(counter.keys(), dtype=np.int64, count=len(counter))] += np.fromiter(
            counter.values(), dtype=np.int64, count=len(counter))
    return out


def _identity_of(ids: np.ndarray) -> bytes:
    """What the fold of a document of ids is hashed from: a checksum, which spreads well enough and is quick."""
    return _identity(len(ids), ids.astype("<i4").data.cast("B") if len(ids) else b"")


def _identity(length: int, held: memoryview | bytes) -> bytes:
    return struct.pack("<QI", length, zlib.crc32(held))


def what_to_count(
    document: Document, job: Job, notes: set[str]
) -> tuple[list[str], np.ndarray | None, bytes]:
    """Texts to encode, ids to count as they are, and what the fold is hashed from."""
    if document.messages is not None:
        if job.tokenizer.template is None:
            notes.add(NO_TEMPLATE_NOTE)
        identity = json.dumps(document.messages, ensure_ascii=False, sort_keys=True).encode("utf-8", "surrogatepass")
        return texts(document.messages, job.tokenizer, job.tokens, document.tools), None, identity
    if document.text is not None:
        if job.tokens != "all":
            notes.add(WHOLE_NOTE)
        return [document.text] if document.text else [], None, document.text.encode("utf-8", "surrogatepass")
    assert document.ids is not None
    identity = _identity_of(document.ids)
    if document.weights is not None:
        return [], None, identity
    if document.mask is None or job.tokens == "all":
        if job.tokens != "all":
            notes.add(WHOLE_NOTE)
        return [], document.ids, identity
    return [], document.ids[document.mask if job.tokens == "assistant" else ~document.mask], identity


def count_table(path: Path, span: Span, fmt: str | None, domain: str, source: str) -> Part:
    """Count a stretch of a table of ids. What its columns cannot say is counted record by record."""
    assert _JOB is not None
    part = Part()
    gathered = [Gathered(_JOB.vocab_size) for _ in range(FOLDS)]
    for block in blocks(path, span, fmt):
        if not isinstance(block, Block):
            part.add(count_records(block, domain, source))
        elif not block.inside(_JOB.vocab_size):
            part.add(count_records(block.records(), domain, source))
        else:
            part.records += len(block.offsets) - 1
            _gather(block, _JOB.tokens, gathered, part.notes)
    for fold, rows in enumerate(gathered):
        if rows.documents:
            part.add(Part({(domain, fold): rows.total()}, Counter({(domain, fold): rows.documents})))
    return part


class Gathered:
    """Rows of one fold, counted whenever there are many."""

    def __init__(self, vocab_size: int) -> None:
        self.documents = 0
        self._counts = np.zeros(vocab_size, dtype=np.int64)
        self._ids: list[np.ndarray] = []
        self._masks: list[np.ndarray] = []
        self._held = 0

    def add(self, ids: np.ndarray, mask: np.ndarray | None) -> None:
        self.documents += 1
        self._ids.append(ids)
        if mask is not None:
            self._masks.append(mask)
        self._held += len(ids)

    def settle(self) -> None:
        """Count what is held; the arrays that rows point into may go after this."""
        if self._held:
            ids = np.concatenate(self._ids)
            if self._masks:
                ids = ids[np.concatenate(self._masks)]
            self._counts += np.bincount(ids.astype(np.int64, copy=False), minlength=len(self._counts))
        self._ids, self._masks, self._held = [], [], 0

    @property
    def full(self) -> bool:
        return self._held >= GATHERED_IDS

    def total(self) -> np.ndarray:
        self.settle()
        return self._counts


def _gather(block: Block, tokens: TokenKind, gathered: Sequence[Gathered], notes: set[str]) -> None:
    mask = None
    if tokens != "all":
        if block.mask is None:
            notes.add(WHOLE_NOTE)
        else:
            mask = block.mask if tokens == "assistant" else ~block.mask
    held = np.ascontiguousarray(block.ids, dtype="<i4").data.cast("B") if len(block.ids) else memoryview(b"")
    offsets = block.offsets.tolist()
    for start, end in pairwise(offsets):
        rows = gathered[fold_of(_identity(end - start, held[4 * start : 4 * end]))]
        rows.add(block.ids[start:end], None if mask is None else mask[start:end])
        if rows.full:
            rows.settle()
