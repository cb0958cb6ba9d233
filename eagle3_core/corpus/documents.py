"""A sample of documents as bags of token ids (``*.documents.parquet``), for figures that need whole documents.

Counts cannot say how many documents fall below a coverage: that needs each
document by itself. The sample holds, for each domain, the documents with the
smallest hashes of their text, so it does not depend on order or machine, and
the samples of two corpora merge into the sample of both. One row a document:

    domain  string
    fold    u8            as in the counts file
    hash    binary        16 bytes, of the document's text
    id      list[u32]     its distinct token ids, ascending
    count   list[u32]     how often each occurs
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from eagle3_core import __version__
from eagle3_core.corpus.chat import BadDocument
from eagle3_core.corpus.counting import domain_of
from eagle3_core.corpus.counts import FOLDS, TokenKind
from eagle3_core.corpus.readers import document_of, expand, records_of
from eagle3_core.corpus.remote import size_of
from eagle3_core.corpus.tokenizer import Tokenizer
from eagle3_core.corpus.work import Job, fold_of, what_to_count
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import atomic_path, reason

FORMAT_VERSION = 1
PER_DOMAIN = 500
_SCHEMA = {"domain": pl.String, "fold": pl.UInt8, "hash": pl.Binary, "id": pl.List(pl.UInt32),
           "count": pl.List(pl.UInt32)}


class DocumentsMeta(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    format_version: int = FORMAT_VERSION
    tool_version: str
    tokenizer: str
    tokenizer_sha256: str
    vocab_size: int
    tokens: TokenKind
    documents: dict[str, int]
    """Documents the sample was drawn from, by domain; empty ones are left out."""


@dataclass(frozen=True, eq=False)
class Documents:
    frame: pl.DataFrame
    meta: DocumentsMeta


def sample_documents(
    inputs: Sequence[str | Path], tokenizer: Tokenizer, *, vocab_size: int | None = None,
    tokens: TokenKind = "assistant", fmt: str | None = None, domains: Mapping[str, str] | None = None,
    domain_field: str | None = None, per_domain: int = PER_DOMAIN, progress: Callable[[int, int], None] | None = None,
) -> Documents:
    """The sample of the documents that ``count`` counts with the same arguments; bad records are passed over.

    Only documents that enter the sample are encoded.
    """
    vocab = tokenizer.size if vocab_size is None else vocab_size
    job = Job(tokenizer, vocab, tokens, domain_field)
    files = expand(inputs)
    total, done = sum(map(size_of, files)), 0
    # Per domain a heap whose root is the largest hash kept.
    kept: dict[str, list[tuple[int, int, np.ndarray, np.ndarray]]] = {}
    seen: dict[str, int] = {}
    hashes: set[tuple[str, int]] = set()
    notes: set[str] = set()
    for file in files:
        for record in records_of(file, fmt):
            try:
                document = document_of(record, vocab_size=vocab, domain_field=domain_field)
                texts, ids, identity = what_to_count(document, job, notes)
            except BadDocument:
                continue
            if document.weights is not None or not (texts or ids is not None):
                continue
            domain = document.domain or domain_of(file, domains)
            seen[domain] = seen.get(domain, 0) + 1
            number = int.from_bytes(hashlib.blake2b(identity, digest_size=16, person=b"eagle3-sample").digest(), "big")
            heap = kept.setdefault(domain, [])
            if (domain, number) in hashes or (len(heap) >= per_domain and number >= -heap[0][0]):
                continue
            encoded = np.concatenate([np.asarray(part) for part in tokenizer.encode(texts)]) if ids is None else ids
            if not len(encoded):
                continue
            values, repeats = np.unique(encoded, return_counts=True)
            hashes.add((domain, number))
            entry = (-number, fold_of(identity), values, repeats)
            if len(heap) < per_domain:
                heapq.heappush(heap, entry)
            else:
                hashes.discard((domain, -heapq.heapreplace(heap, entry)[0]))
        done += size_of(file)
        if progress is not None:
            progress(done, total)
    rows = [
        {"domain": domain, "fold": fold, "hash": (-negative).to_bytes(16, "big"), "id": ids.tolist(),
         "count": repeats.tolist()}
        for domain in sorted(kept)
        for negative, fold, ids, repeats in sorted(kept[domain], key=lambda entry: -entry[0])
    ]
    if not rows:
        raise Eagle3Error("the data holds no documents to sample", expected="at least one that is not empty")
    meta = DocumentsMeta(tool_version=__version__, tokenizer=tokenizer.name, tokenizer_sha256=tokenizer.sha256,
                         vocab_size=vocab, tokens=tokens, documents=dict(sorted(seen.items())))
    return Documents(pl.DataFrame(rows, schema=_SCHEMA), meta)


def write_documents(documents: Documents, path: str | Path) -> None:
    with atomic_path(path) as temporary:
        documents.frame.write_parquet(temporary, compression="zstd",
                                      metadata={"eagle3_documents": documents.meta.model_dump_json()})


def read_documents(path: str | Path) -> Documents:
    """Raises Eagle3Error naming the file when it is not a sample of documents."""
    path, expected = Path(path), "a *.documents.parquet made by eagle3 count --documents"
    if not path.is_file():
        raise Eagle3Error("no such file", where=path, expected=expected)
    try:
        text = pl.read_parquet_metadata(path).get("eagle3_documents")
        frame = pl.read_parquet(path)
        meta = DocumentsMeta.model_validate(json.loads(text)) if text else None
    except (pl.exceptions.PolarsError, OSError, ValueError, ValidationError) as error:
        raise Eagle3Error("is not a sample of documents", where=path, found=reason(error),
                          expected=expected) from None
    if meta is None or dict(frame.schema) != _SCHEMA:
        raise Eagle3Error("is not a sample of documents", where=path, expected=expected)
    largest = frame["id"].list.max().max()
    lengths_differ = (frame["id"].list.len() != frame["count"].list.len()).any()
    if frame.is_empty() or frame["fold"].max() >= FOLDS or lengths_differ or (largest or 0) >= meta.vocab_size:  # type: ignore[operator]
        raise Eagle3Error("holds rows that do not fit together", where=path, expected=expected)
    return Documents(frame, meta)
