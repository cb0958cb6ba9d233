"""Where counting runs: the protocol of an engine, and the one that uses this machine's processes."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from eagle3_core.corpus.id_tables import spans_of
from eagle3_core.corpus.part import Part
from eagle3_core.corpus.readers import read_records
from eagle3_core.corpus.remote import Source, opened
from eagle3_core.corpus.work import Job, batches_of, count_records, count_table, prepare_child, prepare_worker
from eagle3_core.files import sha256_file


@dataclass(frozen=True)
class Placed:
    """An input file, its place among all, and the domain of its records that name none."""

    index: int
    file: Source
    domain: str


class Engine(Protocol):
    """Where counting runs. ``parts`` yields (SHA-256, Part) of each file, in the order given."""

    def __enter__(self) -> Engine: ...
    def __exit__(self, *_: object) -> None: ...
    def parts(self, files: Sequence[Placed], fmt: str | None) -> Iterator[tuple[str, Part]]: ...


Work = tuple[Callable[..., Part], tuple[Any, ...]]
"""A function of ``work.py`` and its arguments."""


def work_of(path: Path, fmt: str | None, job: Job, domain: str, name: str) -> Iterator[Work]:
    """Pieces of work that make up one file: stretches of a table of ids, else batches of records read here."""
    spans = spans_of(path, fmt) if job.domain_field is None else None
    if spans is not None:
        for span in spans:
            yield count_table, (path, span, fmt, domain, name)
        return
    for batch in batches_of(read_records(path, fmt)):
        yield count_records, (batch, domain, name)


@dataclass
class _Open:
    """A file at work: what is counted of it, and how many pieces are still out."""

    digest: Future[str]
    part: Part = field(default_factory=Part)
    out: int = 0


class LocalEngine:
    """Forked processes of this machine, or none: they share the opened tokenizer, which takes seconds to open."""

    def __init__(self, job: Job, workers: int) -> None:
        self.job = job
        self.workers = workers if "fork" in multiprocessing.get_all_start_methods() else 1
        self.pool: ProcessPoolExecutor | None = None
        if self.workers == 1:
            prepare_worker(job)
        else:
            self.pool = ProcessPoolExecutor(self.workers, mp_context=multiprocessing.get_context("fork"),
                                            initializer=prepare_child, initargs=(job,))

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def parts(self, files: Sequence[Placed], fmt: str | None) -> Iterator[tuple[str, Part]]:
        if self.pool is None:
            for item in files:
                with opened(item.file) as local:
                    part = Part()
                    for function, arguments in work_of(local, fmt, self.job, item.domain, item.file.name):
                        part.add(function(*arguments))
                    yield sha256_file(local), part
            return
        waiting: dict[Future[Part], _Open] = {}
        at_work: deque[tuple[_Open, contextlib.ExitStack]] = deque()
        with contextlib.ExitStack() as everything:
            for item in files:
                stack = everything.enter_context(contextlib.ExitStack())
                local = stack.enter_context(opened(item.file))
                current = _Open(self.pool.submit(sha256_file, local))
                at_work.append((current, stack))
                for function, arguments in work_of(local, fmt, self.job, item.domain, item.file.name):
                    waiting[self.pool.submit(function, *arguments)] = current
                    current.out += 1
                    if len(waiting) >= 2 * self.workers:
                        _collect(waiting)
                # The next file's work begins before this one's has ended, but few lie open.
                while len(at_work) > self.workers or (at_work and not at_work[0][0].out):
                    yield _finished(at_work, waiting)
            while at_work:
                yield _finished(at_work, waiting)


def _collect(waiting: dict[Future[Part], _Open]) -> None:
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        owner = waiting.pop(future)
        owner.part.add(future.result())
        owner.out -= 1


def _finished(
    at_work: deque[tuple[_Open, contextlib.ExitStack]], waiting: dict[Future[Part], _Open]
) -> tuple[str, Part]:
    """The first file's hash and part, once all of it is counted."""
    current, stack = at_work.popleft()
    while current.out:
        _collect(waiting)
    digest = current.digest.result()
    stack.close()
    return digest, current.part
