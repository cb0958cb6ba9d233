"""Reading what users have: chat and text files, id columns, and the dumps of trainers.

A reader yields raw records; what a record means is decided in one place
(``document_of``), so that a new container is one function and one line of
``READERS``. Hidden states are never loaded: dumps are opened memory-mapped and
only ids and masks are touched.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from eagle3_core.corpus.chat import BadDocument, Message, messages_of
from eagle3_core.corpus.remote import Source, find_remote, is_url, opened
from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.files import DAMAGED, reason

MAX_LINE = 512 << 20
"""Longest accepted line, bytes."""


@dataclass(frozen=True)
class Record:
    """One raw record of a file: JSON text, a ready value, or an error met while reading."""

    line: int
    value: Any = None
    raw: bytes | None = None
    error: str | None = None


@dataclass(frozen=True)
class Document:
    """What a record means: messages, or text, or ids with the mask of the assistant's tokens."""

    messages: list[Message] | None = None
    text: str | None = None
    ids: np.ndarray | None = None
    mask: np.ndarray | None = None
    tools: Any = None
    domain: str | None = None
    weights: np.ndarray | None = None
    """Counts of each id, for a ready-made histogram."""


def expand(inputs: Sequence[str | Path]) -> list[Source]:
    """Files of the given files, folders, globs and URLs, each once, in a stable order. Raises Eagle3Error when none."""
    files: dict[Source, None] = {}
    for item in inputs:
        text = str(item)
        path = Path(text)
        found: Sequence[Source]
        if is_url(text):
            found = [remote for remote in find_remote(text) if format_of(Path(remote.name))]
        elif path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p, path) and format_of(p))
            if any(format_of(p) == "arrow" for p in found):
                # speculators keeps ids and masks in the arrow rows; its hs_*.safetensors repeat them without masks.
                found = [p for p in found if format_of(p) != "speculators"]
        elif path.is_file():
            found = [path]
        else:
            found = [Path(p) for p in sorted(glob.glob(text, recursive=True)) if Path(p).is_file()]
        if not found:
            raise Eagle3Error("no such data", where=text, expected="a file, a folder or a glob that matches some")
        files.update(dict.fromkeys(found))
    return list(files)


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.relative_to(root).parts)


def _base_suffix(path: Path) -> str:
    suffixes = path.suffixes
    if suffixes and suffixes[-1].lower() in (".gz", ".zst"):
        suffixes = suffixes[:-1]
    return suffixes[-1].lower() if suffixes else ""


def format_of(path: Path, fmt: str | None = None) -> str | None:
    """The reader for a file: the one asked for, else by its name; None for no known kind."""
    if fmt is not None:
        return fmt
    suffix = _base_suffix(path)
    if suffix == ".safetensors":
        return "speculators" if path.name.startswith("hs_") else None
    return {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet", ".txt": "text",
            ".md": "text", ".arrow": "arrow", ".ckpt": "tensors", ".pt": "tensors", ".npy": "npy"}.get(suffix)


def read_records(path: Path, fmt: str | None = None) -> Iterator[Record]:
    """All records of one file. Raises Eagle3Error when the file as a whole cannot be read."""
    name = format_of(path, fmt)
    if name is None:
        raise Eagle3Error("is of no known kind", where=path, expected=f"one of {', '.join(READERS)}",
                          fix="say which with --format")
    if name not in READERS:
        raise Eagle3Error("unknown --format", found=repr(name), expected=", ".join(READERS),
                          fix=suggest(name, READERS))
    try:
        yield from READERS[name](path)
    except OSError as error:
        raise Eagle3Error("cannot be read", where=path, found=error.strerror or error) from None


def records_of(source: Source, fmt: str | None = None) -> Iterator[Record]:
    """All records of one file, here or behind a URL."""
    with opened(source) as path:
        yield from read_records(path, fmt)


def lines_between(path: Path, start: int, end: int) -> Iterator[Record]:
    """Records of the lines of a plain JSONL file that begin at bytes ``start`` to ``end``, numbered from 1."""
    with path.open("rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()
        yield from _lines(path, file, end=end, begins=start == 0)


def can_be_split(path: Path, fmt: str | None = None) -> bool:
    """Whether ``lines_between`` reads this file: plain lines, not compressed."""
    return format_of(path, fmt) == "jsonl" and path.suffix.lower() not in (".gz", ".zst")


def open_bytes(path: Path) -> BinaryIO:
    """The file's bytes, decompressed where it ends in .gz or .zst."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.suffix.lower() == ".zst":
        import zstandard

        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(path.open("rb")))  # type: ignore[arg-type]
    return path.open("rb")


def _jsonl(path: Path) -> Iterator[Record]:
    with open_bytes(path) as file:
        yield from _lines(path, file)


def _lines(path: Path, file: BinaryIO, *, end: int | None = None, begins: bool = True) -> Iterator[Record]:
    """``end``: no line that begins there or later. ``begins``: the file does, so a byte order mark may stand first."""
    number = 0
    try:
        while (end is None or file.tell() < end) and (line := file.readline(MAX_LINE)):
            number += 1
            if number == 1 and begins:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.endswith(b"\n") and len(line) == MAX_LINE:
                raise Eagle3Error(f"line {number} is too long", where=path, expected=f"at most {MAX_LINE:,} bytes")
            if line.strip():
                yield Record(number, raw=line.rstrip(b"\r\n"))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Eagle3Error(f"is cut off after line {number}", where=path, found=str(error)) from None


def _json(path: Path) -> Iterator[Record]:
    with open_bytes(path) as file:
        data = file.read()
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        # Many .json files are really one object a line.
        yield from _jsonl(path)
        return
    for number, item in enumerate(value if isinstance(value, list) else [value], start=1):
        yield Record(number, value=item)


def _text(path: Path) -> Iterator[Record]:
    with open_bytes(path) as file:
        data = file.read().removeprefix(b"\xef\xbb\xbf")
    try:
        yield Record(1, value={"text": data.decode("utf-8")})
    except UnicodeDecodeError as error:
        yield Record(1, raw=data[:200], error=f"is not UTF-8 (byte {error.start})")


@contextlib.contextmanager
def arrow_error(path: Path) -> Iterator[None]:
    """Raises Eagle3Error for what arrow and parquet raise on a damaged file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError) as error:
        raise Eagle3Error("is not a readable arrow or parquet file", where=path, found=reason(error)) from None


@contextlib.contextmanager
def arrow_batches(path: Path) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Schema and record batches of an arrow file or stream, memory-mapped."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        try:
            stream = pa.ipc.open_stream(source)
            yield stream.schema, _sound(stream)
            return
        except (pa.ArrowInvalid, OSError):
            source.seek(0)
        reader = pa.ipc.open_file(source)
        yield reader.schema, _sound(reader.get_batch(i) for i in range(reader.num_record_batches))


def _sound(batches: Iterable[Any]) -> Iterator[Any]:
    """Arrow believes a file's offsets and lengths; a wrong one ends the process when it is followed."""
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow.parquet as pq

    with arrow_error(path), pq.ParquetFile(path) as file:
        wanted = [n for n in file.schema_arrow.names if not n.startswith(("hidden", "aux"))]
        if _is_bare(file.schema_arrow):
            yield Record(1, value={"input_ids": file.read(columns=wanted).column(0).to_numpy()})
            return
        row = 0
        for batch in file.iter_batches(batch_size=256, columns=wanted):
            yield from rows_of(batch, row)
            row += batch.num_rows


def _arrow(path: Path) -> Iterator[Record]:
    with arrow_error(path), arrow_batches(path) as (schema, batches):
        if _is_bare(schema):
            held = [batch.column(0).to_numpy(zero_copy_only=False) for batch in batches]
            yield Record(1, value={"input_ids": np.concatenate(held) if held else np.zeros(0, dtype=np.int64)})
            return
        row = 0
        for batch in batches:
            keep = [n for n in batch.schema.names if not n.startswith(("hidden", "aux"))]
            yield from rows_of(batch.select(keep), row)
            row += batch.num_rows


def _is_bare(schema: Any) -> bool:
    """One column of whole numbers: one long document of ids."""
    import pyarrow as pa

    return len(schema) == 1 and pa.types.is_integer(schema.field(0).type)


def rows_of(batch: Any, offset: int) -> Iterator[Record]:
    """The rows of a record batch, numbered from ``offset + 1``."""
    names = batch.schema.names
    # Lists of numbers stay arrays: a Python object for every id would take most of the time.
    lists = {name: column for name in names if (column := list_column(batch.column(name))) is not None}
    rest = batch.select([name for name in names if name not in lists]).to_pylist() if len(lists) < len(names) else None
    for index in range(batch.num_rows):
        row = rest[index] if rest is not None else {}
        for name, (values, starts) in lists.items():
            row[name] = values[starts[index] : starts[index + 1]]
        yield Record(offset + index + 1, value=row)


def list_column(column: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Flat values and row offsets of a column of lists of whole numbers or booleans without gaps; else None."""
    import pyarrow as pa

    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)) or column.null_count:
        return None
    inner = column.type.value_type
    if not (pa.types.is_integer(inner) or pa.types.is_boolean(inner)) or column.values.null_count:
        return None
    return column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy()


def open_npy(path: Path) -> np.ndarray:
    """The array of a ``.npy`` file, memory-mapped where it is not compressed."""
    try:
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        with open_bytes(path) as file:
            return np.load(io.BytesIO(file.read()), allow_pickle=False)
    except DAMAGED as error:
        raise Eagle3Error("is not an array of numbers", where=path, found=reason(error)) from None


def _npy(path: Path) -> Iterator[Record]:
    array = open_npy(path)
    rows = array if array.ndim == 2 else [array]
    for number, row in enumerate(rows, start=1):
        yield Record(number, value={"input_ids": np.asarray(row).ravel()})


def _tensors(path: Path) -> Iterator[Record]:
    """SpecForge and ModelOpt dumps, and token_freq.pt; hidden states stay on disk."""
    import torch

    try:
        if path.suffix == ".gz":
            # A compressed dump cannot be mapped: one conversation is held whole for a moment.
            with open_bytes(path) as file:
                value = torch.load(io.BytesIO(file.read()), map_location="cpu", weights_only=True)
        else:
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except DAMAGED as error:
        raise Eagle3Error("is not a readable tensor file", where=path, found=reason(error)) from None
    if not isinstance(value, dict):
        raise Eagle3Error("is not a dump of tokens", where=path, found=type(value).__name__, expected="a dictionary")
    if value and all(isinstance(key, int) and isinstance(count, (int, np.integer)) for key, count in value.items()):
        yield Record(1, value={"token_freq": value})
        return
    record = {}
    for key in ("input_ids", "token_ids", "loss_mask", "assistant_masks"):
        if isinstance(value.get(key), torch.Tensor):
            record[key] = value[key].flatten().numpy()
    yield Record(1, value=record)


def _speculators(path: Path) -> Iterator[Record]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            ids = file.get_tensor("token_ids")
            mask = file.get_tensor("loss_mask") if "loss_mask" in file.keys() else None  # noqa: SIM118
    except (SafetensorError, OSError, KeyError) as error:
        raise Eagle3Error("is not a speculators dump", where=path, found=str(error)[:100]) from None
    record = {"input_ids": ids.ravel()}
    if mask is not None:
        record["loss_mask"] = mask.ravel()
    yield Record(1, value=record)


READERS: dict[str, Callable[[Path], Iterator[Record]]] = {
    "jsonl": _jsonl, "json": _json, "text": _text, "parquet": _parquet, "arrow": _arrow, "npy": _npy,
    "tensors": _tensors, "speculators": _speculators,
}


def document_of(record: Record, *, vocab_size: int, domain_field: str | None = None) -> Document:
    """What a record means. Raises BadDocument with the reason when it means nothing."""
    if record.error:
        raise BadDocument(record.error)
    value = record.value if record.raw is None else _parse(record.raw)
    if isinstance(value, str):
        value = {"text": value}
    if not isinstance(value, Mapping):
        raise BadDocument(f"is {type(value).__name__}, not an object")
    domain = None
    if domain_field is not None:
        domain = value.get(domain_field)
        if not isinstance(domain, str) or not domain:
            raise BadDocument(f"field {domain_field} is missing")
    if "token_freq" in value and isinstance(value["token_freq"], Mapping):
        pairs = value["token_freq"]
        ids = _ids(np.fromiter(pairs.keys(), dtype=np.int64, count=len(pairs)), vocab_size)
        weights = np.fromiter(pairs.values(), dtype=np.int64, count=len(pairs))
        if weights.size and weights.min() < 0:
            raise BadDocument("a count is negative")
        return Document(ids=ids, weights=weights, domain=domain)
    for key in ("input_ids", "token_ids"):
        if value.get(key) is not None:
            ids = _ids(value[key], vocab_size)
            mask = value.get("loss_mask", value.get("assistant_masks"))
            return Document(ids=ids, mask=None if mask is None else _mask(mask, len(ids)), domain=domain)
    messages = messages_of(value)
    if messages is not None:
        return Document(messages=messages, tools=value.get("tools"), domain=domain)
    for key in ("text", "content"):
        if isinstance(value.get(key), str):
            return Document(text=value[key], domain=domain)
    raise BadDocument(f"no messages, text or input_ids among {', '.join(map(str, list(value)[:8])) or 'no fields'}")


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadDocument(f"is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise BadDocument(f"is not JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"is not JSON ({str(error)[:60]})") from None


def _ids(value: Any, vocab_size: int) -> np.ndarray:
    try:
        ids = np.asarray(value)
    except ValueError:
        raise BadDocument("input_ids are ragged") from None
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.ndim != 1:
        raise BadDocument(f"input_ids have shape {list(ids.shape)}")
    if ids.dtype.kind == "f" and ids.size:
        if not np.isfinite(ids).all() or (ids != np.floor(ids)).any():
            raise BadDocument("input_ids hold NaN or fractions")
    elif ids.dtype.kind not in "iuf":
        raise BadDocument(f"input_ids are {ids.dtype}")
    ids = ids.astype(np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        bad = int(ids.max()) if ids.max() >= vocab_size else int(ids.min())
        raise BadDocument(f"id {bad} is outside the vocabulary of {vocab_size}")
    return ids


def _mask(value: Any, length: int) -> np.ndarray:
    mask = np.asarray(value).ravel()
    if mask.dtype.kind not in "biuf" or mask.size != length:
        raise BadDocument(f"loss_mask has {mask.size} values for {length} ids")
    return mask > 0
