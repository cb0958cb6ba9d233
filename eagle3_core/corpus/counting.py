"""Counting: documents in, ``TokenCounts`` out, the same on any number of processes.

Records are read in the parent and counted in workers in batches of about a
megabyte. A worker counts distinct pre-tokens per domain and fold and encodes
each once (``pieces.py``), or encodes whole texts where that is not exact. Counts
are sums, folds depend on the document alone, so the result does not depend on
order, batch size, processes or machine.

Each finished input file is kept in ``.<out>.parts`` until the whole run is
done; ``resume`` continues from there.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import multiprocessing
import os
import shutil
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import polars as pl

from eagle3_core import __version__
from eagle3_core.corpus.chat import BadDocument, texts
from eagle3_core.corpus.counts import FOLDS, CountsMeta, InputFile, TokenCounts, TokenKind
from eagle3_core.corpus.part import Cell, Part, load_part, open_parts, save_part
from eagle3_core.corpus.pieces import PieceEncoder
from eagle3_core.corpus.readers import Document, Record, document_of, expand, read_records
from eagle3_core.corpus.remote import Source, opened, size_of
from eagle3_core.corpus.tokenizer import Tokenizer
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import canonical_json, sha256_file

BATCH_BYTES = 1 << 20
WHOLE_NOTE = "plain text and ids without a mask have no speaker: counted whole"
NO_TEMPLATE_NOTE = "the tokenizer has no chat template: message contents counted without template tokens"

EngineName = Literal["local", "ray"]


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


def count(
    inputs: Sequence[str | Path],
    tokenizer: Tokenizer,
    *,
    vocab_size: int | None = None,
    tokens: TokenKind = "assistant",
    fmt: str | None = None,
    domains: Mapping[str, str] | None = None,
    domain_field: str | None = None,
    processes: int | None = None,
    max_bad: float = 0.01,
    out: Path | None = None,
    resume: bool = False,
    engine: EngineName = "local",
    ray_address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TokenCounts:
    """Count the tokens of files, folders, globs and URLs.

    ``vocab_size`` is the target's V; a longer tokenizer is an error, padding rows
    beyond it are kept. ``domains`` maps a name to a glob over file names;
    ``domain_field`` takes the name from each record; else all is ``all``.
    ``engine`` "ray" counts on a Ray cluster, with the same result. ``progress`` is
    told bytes done and in all. Bad lines go to ``<out>.rejected.jsonl``; a share
    above ``max_bad`` raises Eagle3Error.
    """
    vocab = tokenizer.size if vocab_size is None else vocab_size
    if tokenizer.size > vocab:
        raise Eagle3Error("tokenizer is longer than the target's vocabulary", where=tokenizer.name,
                          found=f"{tokenizer.size:,} ids", expected=f"at most V = {vocab:,}")
    files = expand(inputs)
    placed = [Placed(index, file, domain_of(file, domains), sha256_file(file) if isinstance(file, Path) else None)
              for index, file in enumerate(files)]
    job = Job(tokenizer, vocab, tokens, domain_field)
    parts = None if out is None else out.parent / f".{out.name}.parts"
    identity = canonical_json([tokenizer.sha256, vocab, tokens, domain_field, dict(domains or {}), fmt])
    if parts is not None:
        open_parts(parts, identity, resume)
    kept = {item.index: path for item in placed if parts is not None and (path := parts / item.part_name).exists()}
    total_bytes = sum(map(size_of, files))
    whole, sources, done = Part(), [], 0
    with make_engine(engine, job, processes, ray_address) as run:
        counted = run.parts([item for item in placed if item.index not in kept], fmt)
        for item in placed:
            if item.index in kept:
                sha256, part = load_part(kept[item.index])
            else:
                sha256, part = next(counted)
                if parts is not None:
                    save_part(sha256, part, parts / item.part_name)
            whole.add(part)
            sources.append(InputFile(name=item.file.name, bytes=size_of(item.file), sha256=sha256))
            done += sources[-1].bytes
            if progress is not None:
                progress(done, total_bytes)
    whole.rejected.sort(key=lambda row: (row["file"], row["line"]))
    if out is not None:
        _write_rejected(whole, out)
    _check_bad(whole, max_bad, out)
    result = _assemble(whole, job, sources)
    if parts is not None:
        shutil.rmtree(parts, ignore_errors=True)
    return result


def domain_of(file: Source, domains: Mapping[str, str] | None) -> str:
    if not domains:
        return "all"
    for name, pattern in domains.items():
        if fnmatch.fnmatch(str(file), pattern) or fnmatch.fnmatch(file.name, pattern):
            return name
    raise Eagle3Error("belongs to no --domain", where=file, expected=f"a match of {', '.join(domains.values())}")


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


@dataclass(frozen=True)
class Placed:
    """An input file, its place among all, and the domain of its records that name none."""

    index: int
    file: Source
    domain: str
    sha256: str | None
    """None for a remote file, which is hashed when it has been fetched."""

    @property
    def part_name(self) -> str:
        """Of the file's kept part: by what it holds, else by where it is and how long."""
        held = self.sha256 or hashlib.sha256(f"{self.file}\n{size_of(self.file)}".encode()).hexdigest()
        return f"{self.index:06d}-{held}.json"


class Engine(Protocol):
    """Where counting runs. ``parts`` yields (SHA-256, Part) of each file, in the order given."""

    def __enter__(self) -> Engine: ...
    def __exit__(self, *_: object) -> None: ...
    def parts(self, files: Sequence[Placed], fmt: str | None) -> Iterator[tuple[str, Part]]: ...


def make_engine(name: EngineName, job: Job, processes: int | None, ray_address: str | None) -> Engine:
    """Raises Eagle3Error for a name that is none."""
    if name == "ray":
        from eagle3_core.corpus.ray_engine import RayEngine

        return RayEngine(job, processes, ray_address)
    if name != "local":
        raise Eagle3Error("--engine", found=repr(name), expected="local or ray")
    return LocalEngine(job, min(processes or os.cpu_count() or 1, 64))


_JOB: Job | None = None
_ENCODER: PieceEncoder | None = None


def prepare_worker(job: Job) -> None:
    """Make ``job`` this process's own: a worker keeps its tables from batch to batch."""
    global _JOB, _ENCODER
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _JOB = job
    _ENCODER = None if job.tokenizer.spec is None else PieceEncoder(job.tokenizer.spec)


class LocalEngine:
    """Forked processes of this machine, or none: they share the opened tokenizer, which takes seconds to open."""

    def __init__(self, job: Job, workers: int) -> None:
        self.workers = workers if "fork" in multiprocessing.get_all_start_methods() else 1
        self.pool: ProcessPoolExecutor | None = None
        if self.workers == 1:
            prepare_worker(job)
        else:
            self.pool = ProcessPoolExecutor(self.workers, mp_context=multiprocessing.get_context("fork"),
                                            initializer=prepare_worker, initargs=(job,))

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def parts(self, files: Sequence[Placed], fmt: str | None) -> Iterator[tuple[str, Part]]:
        for item in files:
            with opened(item.file) as local:
                yield item.sha256 or sha256_file(local), self._file(local, fmt, item.domain)

    def _file(self, file: Path, fmt: str | None, domain: str) -> Part:
        result = Part()
        batches = batches_of(read_records(file, fmt))
        if self.pool is None:
            for batch in batches:
                result.add(count_records(batch, domain, file.name))
            return result
        waiting: set[Future[Part]] = set()
        for batch in batches:
            waiting.add(self.pool.submit(count_records, batch, domain, file.name))
            if len(waiting) >= 2 * self.workers:
                finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    result.add(future.result())
        for future in waiting:
            result.add(future.result())
        return result


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
    held = ids.astype("<i4").tobytes()
    return struct.pack("<QI", len(ids), zlib.crc32(held))


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


def _write_rejected(part: Part, out: Path) -> None:
    file = out.with_name(out.name + ".rejected.jsonl")
    if part.rejected:
        file.write_text("".join(json.dumps(row, ensure_ascii=True) + "\n" for row in part.rejected))
    else:
        file.unlink(missing_ok=True)


def _check_bad(part: Part, max_bad: float, out: Path | None) -> None:
    if not part.records:
        raise Eagle3Error("the data holds no records", expected="at least one document")
    share = len(part.rejected) / part.records
    if share > max_bad:
        first = part.rejected[0]
        kept = f"; all in {out.name}.rejected.jsonl" if out is not None else ""
        raise Eagle3Error(
            f"{len(part.rejected):,} of {part.records:,} records are bad, first {first['file']} line {first['line']}",
            found=first["reason"], expected=f"at most {max_bad:.1%} bad", fix=f"raise --max-bad{kept}",
        )
    if not part.documents:
        raise Eagle3Error("no record could be counted", found=part.rejected[0]["reason"])


def _assemble(part: Part, job: Job, sources: Sequence[InputFile]) -> TokenCounts:
    names = tuple(sorted({domain for domain, _ in part.documents}))
    counts = np.zeros((len(names), FOLDS, job.vocab_size), dtype=np.int64)
    documents = np.zeros((len(names), FOLDS), dtype=np.int64)
    for (domain, fold), histogram in part.counts.items():
        counts[names.index(domain), fold] += histogram
    for (domain, fold), number in part.documents.items():
        documents[names.index(domain), fold] += number
    tokenizer = job.tokenizer
    padding = job.vocab_size - tokenizer.size
    notes = part.notes | set(tokenizer.notes)
    meta = CountsMeta(
        tool_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tokenizer=tokenizer.name,
        tokenizer_sha256=tokenizer.sha256,
        vocab_size=job.vocab_size,
        tokenizer_size=tokenizer.size,
        tokens=job.tokens,
        domains=names,
        documents=tuple(tuple(int(n) for n in row) for row in documents),
        inputs=tuple(sources),
        rejected=len(part.rejected),
        notes=tuple(sorted(notes)),
    )
    return TokenCounts(
        counts=counts,
        token=pl.Series("token", [*tokenizer.token_bytes, *[b""] * padding], dtype=pl.Binary),
        role=pl.Series("role", [*tokenizer.roles, *["padding"] * padding], dtype=pl.String),
        meta=meta,
    )
