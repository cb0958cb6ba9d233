"""Reading and writing files at the edge: whole or not at all, with one-line errors."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle3_core.errors import Eagle3Error

DAMAGED = (
    RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, OverflowError, EOFError,
    OSError, ImportError, MemoryError, SyntaxError, pickle.UnpicklingError, struct.error, tokenize.TokenError,
    zipfile.BadZipFile, zlib.error,
)
"""What the zip, gzip, pickle, numpy and torch layers raise on a damaged file; all mean the same to a user."""


def reason(error: BaseException) -> str:
    """The first line of an error of another library, for one of ours."""
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


@contextlib.contextmanager
def atomic_path(path: str | Path, *, force: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it over ``path`` when the block succeeds.

    Raises Eagle3Error when the folder cannot be written, or when ``path``
    exists and ``force`` is false. Nothing is left behind on failure.
    """
    path = Path(path)
    if path.exists() and not force:
        raise Eagle3Error("already exists", where=path, fix="pass --force to replace it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise Eagle3Error("cannot be written", where=path, found=error.strerror) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mode = 0o666 & ~_umask()
        temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        raise Eagle3Error("cannot be written", where=path, found=error.strerror or error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_bytes(path: str | Path, data: bytes, *, force: bool = True) -> None:
    with atomic_path(path, force=force) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str, *, force: bool = True) -> None:
    write_bytes(path, text.encode(), force=force)


def canonical_json(value: Any) -> str:
    """The one spelling of JSON this project writes: sorted keys, two spaces, no NaN, final newline."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def inside(folder: Path, name: str) -> Path:
    """``folder/name`` where it stays in the folder. Raises Eagle3Error for a path or a link out of it.

    The hub's cache keeps ``snapshots/<revision>/`` as links into ``blobs/`` beside it; those are followed.
    """
    if not name or Path(name).name != name or "\\" in name or "\0" in name:
        raise Eagle3Error("names a file outside its folder", where=folder, found=repr(name[:80]))
    path = folder / name
    try:
        real, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:
        raise Eagle3Error("cannot be followed", where=path, found=str(error)[:80]) from None
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else None
    if not real.is_relative_to(root) and not (blobs is not None and real.is_relative_to(blobs)):
        raise Eagle3Error("is a link out of its folder", where=path)
    return path


def read_bytes(path: str | Path, *, limit: int | None = None) -> bytes:
    """Raises Eagle3Error when the file is missing, a folder, unreadable, or over ``limit`` bytes."""
    path = Path(path)
    try:
        if path.is_dir():
            raise Eagle3Error("is a folder", where=path, expected="a file")
        size = path.stat().st_size
        if limit is not None and size > limit:
            raise Eagle3Error("file too large", where=path, found=f"{size:,} bytes", expected=f"at most {limit:,}")
        return path.read_bytes()
    except FileNotFoundError:
        raise Eagle3Error("no such file", where=path) from None
    except OSError as error:
        raise Eagle3Error("cannot be read", where=path, found=error.strerror) from error


def read_json(path: str | Path, *, limit: int = 256 << 20) -> Any:
    """Parse a JSON file. Raises Eagle3Error naming the line of the first fault."""
    data = read_bytes(path, limit=limit)
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise Eagle3Error("is not UTF-8 text", where=path, found=f"byte {error.start}", expected="JSON") from None
    except json.JSONDecodeError as error:
        raise Eagle3Error(f"is not JSON (line {error.lineno})", where=path, found=error.msg) from None
    except (ValueError, RecursionError) as error:
        raise Eagle3Error("is not JSON", where=path, found=error) from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"the constant {name}")


def sha256_file(path: str | Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
