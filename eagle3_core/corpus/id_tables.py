"""Tables of ready-made ids (arrow, parquet, npy), read in stretches and as flat columns.

A trainer's dataset holds hundreds of millions of ids. Workers open the file
themselves and read the stretch they were given, so that no row travels between
processes, and a stretch comes as one flat array with row offsets, so that no row
becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_core.corpus.readers import Record, arrow_batches, arrow_error, format_of, list_column, open_npy, rows_of

Span = tuple[int, int]
"""Record batches of an arrow file, row groups of a parquet file, rows of an array: first, and one past the last."""

SPAN_IDS = 32 << 20
"""Ids a stretch, about: under a second's work."""
ID_COLUMNS, MASK_COLUMNS = ("input_ids", "token_ids"), ("loss_mask", "assistant_masks")


@dataclass(frozen=True)
class Block:
    """Rows in a run: flat ids, bool mask of the same length or None, and int64 offsets [rows + 1] that start at 0."""

    ids: np.ndarray
    mask: np.ndarray | None
    offsets: np.ndarray
    first_row: int

    def inside(self, vocab_size: int) -> bool:
        return not len(self.ids) or (int(self.ids.min()) >= 0 and int(self.ids.max()) < vocab_size)

    def records(self) -> list[Record]:
        """The same rows one by one, for their errors to be told."""
        made = []
        for number, (start, end) in enumerate(pairwise(self.offsets), start=1):
            value: dict[str, Any] = {"input_ids": self.ids[start:end]}
            if self.mask is not None:
                value["loss_mask"] = self.mask[start:end]
            made.append(Record(self.first_row + number, value=value))
        return made


def spans_of(path: Path, fmt: str | None = None) -> list[Span] | None:
    """Stretches that cover the file, or None where it is not a plain table of ids."""
    kind = format_of(path, fmt)
    if path.suffix.lower() in (".gz", ".zst"):
        return None
    if kind == "npy":
        array = open_npy(path)
        if array.dtype.kind not in "iu" or array.ndim > 2:
            return None
        return _cut([array.shape[1]] * len(array)) if array.ndim == 2 else [(0, 1)]
    if kind == "arrow":
        with arrow_error(path), arrow_batches(path) as (schema, batches):
            column = _id_column(schema)
            return None if column is None else _cut([_ids_in(batch.column(column)) for batch in batches])
    if kind == "parquet":
        import pyarrow.parquet as pq

        with arrow_error(path), pq.ParquetFile(path) as file:
            if _id_column(file.schema_arrow) is None:
                return None
            groups = (file.metadata.row_group(index) for index in range(file.num_row_groups))
            return _cut([group.total_byte_size // 4 for group in groups])
    return None


def blocks(path: Path, span: Span, fmt: str | None = None) -> Iterator[Block | list[Record]]:
    """The rows of a stretch; a batch whose columns are not plain lists comes as records."""
    start, end = span
    kind = format_of(path, fmt)
    if kind == "npy":
        array = open_npy(path)
        rows = array[start:end] if array.ndim == 2 else array[None]
        yield Block(rows.reshape(-1), None, np.arange(len(rows) + 1) * rows.shape[1], start)
        return
    if kind == "parquet":
        import pyarrow.parquet as pq

        with arrow_error(path), pq.ParquetFile(path) as file:
            row = sum(file.metadata.row_group(index).num_rows for index in range(start))
            for batch in file.iter_batches(batch_size=4096, row_groups=list(range(start, end)),
                                           columns=_wanted(file.schema_arrow.names)):
                yield _block(batch, row)
                row += batch.num_rows
        return
    with arrow_error(path), arrow_batches(path) as (_, batches):
        row = 0
        for index, batch in enumerate(batches):
            if index >= end:
                return
            if index >= start:
                yield _block(batch.select(_wanted(batch.schema.names)), row)
            row += batch.num_rows


def _cut(sizes: list[int]) -> list[Span]:
    """Runs of parts that hold ``SPAN_IDS`` or a little more."""
    spans: list[Span] = []
    start, held = 0, 0
    for index, size in enumerate(sizes):
        held += size
        if held >= SPAN_IDS or index == len(sizes) - 1:
            spans.append((start, index + 1))
            start, held = index + 1, 0
    return spans


def _wanted(names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith(("hidden", "aux"))]


def _id_column(schema: Any) -> str | None:
    """The column of lists of ids, where no other column says what a row means."""
    import pyarrow as pa

    for name in ID_COLUMNS:
        if name in schema.names:
            kind = schema.field(name).type
            lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
            return name if lists and pa.types.is_integer(kind.value_type) and "token_freq" not in schema.names else None
    return None


def _ids_in(column: Any) -> int:
    return int(column.offsets[-1].as_py()) - int(column.offsets[0].as_py()) if len(column) else 0


def _block(batch: Any, row: int) -> Block | list[Record]:
    names = batch.schema.names
    id_name = next(name for name in ID_COLUMNS if name in names)
    mask_name = next((name for name in MASK_COLUMNS if name in names), None)
    ids = list_column(batch.column(id_name))
    mask = list_column(batch.column(mask_name)) if mask_name is not None else None
    if ids is None or (mask_name is not None and mask is None):
        return list(rows_of(batch, row))
    values, offsets = _from_zero(*ids)
    chosen = None
    if mask is not None:
        masked, mask_offsets = _from_zero(*mask)
        if not np.array_equal(offsets, mask_offsets):
            return list(rows_of(batch, row))
        chosen = masked > 0
    return Block(values, chosen, offsets, row)


def _from_zero(values: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    offsets = offsets.astype(np.int64)
    return values[offsets[0] : offsets[-1]], offsets - offsets[0]
