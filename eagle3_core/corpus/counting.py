"""Counting: documents in, ``TokenCounts`` out, the same on any number of processes.

An engine cuts files into batches of records and stretches of tables and has them
counted by workers (``work.py``). Counts are sums, folds depend on the document
alone, so the result does not depend on order, batch size, processes or machine.

Each finished input file is kept in ``.<out>.parts`` until the whole run is
done; ``resume`` continues from there.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from eagle3_core import __version__
from eagle3_core.corpus.counts import FOLDS, CountsMeta, InputFile, TokenCounts, TokenKind
from eagle3_core.corpus.engine import Engine, LocalEngine, Placed
from eagle3_core.corpus.part import Part, is_part_of, load_part, open_parts, save_part
from eagle3_core.corpus.readers import expand
from eagle3_core.corpus.remote import Source, size_of
from eagle3_core.corpus.tokenizer import Tokenizer
from eagle3_core.corpus.work import Job
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import canonical_json

EngineName = Literal["local", "ray"]


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
    placed = [Placed(index, file, domain_of(file, domains)) for index, file in enumerate(files)]
    job = Job(tokenizer, vocab, tokens, domain_field)
    parts = None if out is None else out.parent / f".{out.name}.parts"
    identity = canonical_json([tokenizer.sha256, vocab, tokens, domain_field, dict(domains or {}), fmt])
    if parts is not None:
        open_parts(parts, identity, resume)
    kept = {item.index: path for item in placed
            if parts is not None and resume and is_part_of(path := _part_path(parts, item), item.file)}
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
                    save_part(sha256, part, _part_path(parts, item), item.file)
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


def _part_path(parts: Path, item: Placed) -> Path:
    return parts / f"{item.index:06d}.json"


def make_engine(name: EngineName, job: Job, processes: int | None, ray_address: str | None) -> Engine:
    """Raises Eagle3Error for a name that is none."""
    if name == "ray":
        from eagle3_core.corpus.ray_engine import RayEngine

        return RayEngine(job, processes, ray_address)
    if name != "local":
        raise Eagle3Error("--engine", found=repr(name), expected="local or ray")
    return LocalEngine(job, min(processes or os.cpu_count() or 1, 64))


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
