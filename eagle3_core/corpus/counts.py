"""TokenCounts: how often each target token occurs, by domain and document fold.

Held in memory as one int64 array ``counts[domains, folds, V]``; stored as one
parquet file with one row per target token id (V rows), so that any dataframe
tool reads it:

    token_id  u32          0..V-1
    token     binary       the token's bytes; empty for a padding row
    role      str          "", "eos", "end_of_turn", "special", "chat_control",
                           "tool_call", "byte_fallback", "added" or "padding"
    <domain>  array[u64; FOLDS]   occurrences in each fold, one column per domain
                           named ``count:<domain>``

and a ``CountsMeta`` as JSON in the file's key-value metadata under ``eagle3``.
A fold is chosen by a stable hash of the document's text, so duplicates fall in
one fold and nothing depends on order, batch, processes or machine.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import atomic_path, reason

FOLDS = 10
FORMAT_VERSION = 1
COUNT_PREFIX = "count:"
TokenKind = Literal["assistant", "all", "prompt"]


class InputFile(BaseModel):
    """One counted file. ``name`` is its base name; no path of the machine is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    bytes: int
    sha256: str


class CountsMeta(BaseModel):
    """What made a counts file and what it may be mixed with."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format_version: int = FORMAT_VERSION
    tool_version: str
    created: str
    tokenizer: str
    """Human name of the tokenizer, e.g. ``qwen3``."""
    tokenizer_sha256: str
    """Identity of the tokenizer: SHA-256 over its id -> bytes table and its pre-tokenization rule."""
    vocab_size: int
    tokenizer_size: int
    """Ids the tokenizer really has; rows from here to V are padding."""
    tokens: TokenKind
    domains: tuple[str, ...]
    documents: tuple[tuple[int, ...], ...]
    """Documents counted, [domains][folds]."""
    inputs: tuple[InputFile, ...] = ()
    rejected: int = 0
    notes: tuple[str, ...] = ()
    """Whatever was assumed, skipped or fell back while counting, in plain words."""


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """Counts by domain, fold and target id.

    counts: int64 [domains, FOLDS, V]; token: bytes per id [V]; role: str per id [V].
    """

    counts: np.ndarray
    token: pl.Series
    role: pl.Series
    meta: CountsMeta

    @property
    def vocab_size(self) -> int:
        return self.meta.vocab_size

    @property
    def domains(self) -> tuple[str, ...]:
        return self.meta.domains

    @functools.cached_property
    def by_domain(self) -> np.ndarray:
        """int64 [domains, V]."""
        return self.counts.sum(axis=1)

    @functools.cached_property
    def total(self) -> np.ndarray:
        """int64 [V]."""
        return self.by_domain.sum(axis=0)

    @functools.cached_property
    def tokens(self) -> int:
        return int(self.total.sum())

    @functools.cached_property
    def by_fold(self) -> np.ndarray:
        """int64 [FOLDS, V]."""
        return self.counts.sum(axis=0)

    @functools.cached_property
    def entries(self) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]:
        """Per fold the counts above zero: (domain index, token id, count). A fold holds few of the ids."""
        out = []
        for fold in range(FOLDS):
            domain, token_id = np.nonzero(self.counts[:, fold])
            out.append((domain, token_id, self.counts[domain, fold, token_id].astype(np.float64)))
        return tuple(out)

    def ids_with_role(self, *roles: str) -> np.ndarray:
        """int64 ids, ascending."""
        return self.role.is_in(list(roles)).arg_true().to_numpy().astype(np.int64)


def write_counts(counts: TokenCounts, path: str | Path) -> None:
    columns: dict[str, object] = {
        "token_id": pl.Series(np.arange(counts.vocab_size, dtype=np.uint32)),
        "token": counts.token,
        "role": counts.role,
    }
    for index, domain in enumerate(counts.domains):
        by_id = np.ascontiguousarray(counts.counts[index].T.astype(np.uint64))
        columns[COUNT_PREFIX + domain] = pl.Series(by_id, dtype=pl.Array(pl.UInt64, FOLDS))
    with atomic_path(path) as temporary:
        pl.DataFrame(columns).write_parquet(
            temporary, compression="zstd", compression_level=15,
            metadata={"eagle3": counts.meta.model_dump_json()},
        )


def read_counts(path: str | Path) -> TokenCounts:
    """Read a counts file. Raises Eagle3Error naming the file and the field when it is not one."""
    path = Path(path)
    if not path.is_file():
        raise Eagle3Error("is a folder" if path.is_dir() else "no such file", where=path,
                          expected="a *.counts.parquet made by eagle3 count")
    try:
        metadata = pl.read_parquet_metadata(path)
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise Eagle3Error("is not a readable parquet file", where=path, found=_first_line(error),
                          expected="a *.counts.parquet made by eagle3 count") from None
    if "eagle3" not in metadata:
        raise Eagle3Error("has no eagle3 metadata", where=path, expected="a *.counts.parquet made by eagle3 count")
    try:
        meta = CountsMeta.model_validate(json.loads(metadata["eagle3"]))
    except (ValidationError, json.JSONDecodeError) as error:
        raise Eagle3Error("metadata", where=path, found=_first_line(error)) from None
    if meta.format_version > FORMAT_VERSION:
        raise Eagle3Error("was made by a newer version", where=path, found=f"format {meta.format_version}",
                          expected=f"at most {FORMAT_VERSION}")
    expected = ["token_id", "token", "role", *(COUNT_PREFIX + d for d in meta.domains)]
    if frame.columns != expected:
        raise Eagle3Error("columns", where=path, found=frame.columns, expected=expected)
    if frame.height != meta.vocab_size or not np.array_equal(
        frame["token_id"].to_numpy(), np.arange(meta.vocab_size)
    ):
        raise Eagle3Error("rows", where=path, found=f"{frame.height:,}", expected=f"ids 0..{meta.vocab_size - 1:,}")
    counts = np.empty((len(meta.domains), FOLDS, meta.vocab_size), dtype=np.int64)
    for index, domain in enumerate(meta.domains):
        column = frame[COUNT_PREFIX + domain]
        if column.dtype != pl.Array(pl.UInt64, FOLDS):
            raise Eagle3Error(f"column {COUNT_PREFIX}{domain}", where=path, found=column.dtype,
                              expected=f"Array(UInt64, {FOLDS})")
        if column.null_count():
            raise Eagle3Error(f"column {COUNT_PREFIX}{domain}", where=path, found="null values")
        counts[index] = column.to_numpy().T
    if counts.size and int(counts.min()) < 0:
        raise Eagle3Error("a count exceeds 2^63", where=path)
    return TokenCounts(counts=counts, token=frame["token"], role=frame["role"], meta=meta)


def _first_line(error: Exception) -> str:
    return reason(error)


def merge_counts(parts: Sequence[TokenCounts]) -> TokenCounts:
    """Add counts of one tokenizer. Domains of the same name add up, others stand side by side.

    Raises Eagle3Error when tokenizers, V or the kind of tokens differ.
    """
    first = parts[0].meta
    for part in parts[1:]:
        for name in ("tokenizer_sha256", "vocab_size", "tokens"):
            mine, theirs = getattr(first, name), getattr(part.meta, name)
            if mine != theirs:
                raise Eagle3Error(f"counts of different {name.replace('_', ' ')} cannot be merged",
                                  found=theirs, expected=mine)
    domains = tuple(dict.fromkeys(d for part in parts for d in part.domains))
    counts = np.zeros((len(domains), FOLDS, first.vocab_size), dtype=np.int64)
    documents = np.zeros((len(domains), FOLDS), dtype=np.int64)
    for part in parts:
        for index, domain in enumerate(part.domains):
            counts[domains.index(domain)] += part.counts[index]
            documents[domains.index(domain)] += np.asarray(part.meta.documents[index])
    meta = first.model_copy(update={
        "domains": domains,
        "documents": tuple(tuple(int(x) for x in row) for row in documents),
        "inputs": tuple(f for part in parts for f in part.meta.inputs),
        "rejected": sum(part.meta.rejected for part in parts),
        "notes": tuple(dict.fromkeys(n for part in parts for n in part.meta.notes)),
    })
    return TokenCounts(counts=counts, token=parts[0].token, role=parts[0].role, meta=meta)
