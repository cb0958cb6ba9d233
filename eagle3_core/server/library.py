"""The artifacts a visitor may choose: bundled samples, files under the ``--data`` folders, uploads.

An artifact has a name and no visible path. Uploads lie in a private folder under
their content's hash, so a link to one works for whoever was given it and cannot be
guessed; nothing of them is listed to others. A file's kind is told from its
content, and it is read in full before it is accepted.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eagle3_core.acceptance.model import AcceptanceSource, acceptance_from_record, resolve_acceptance
from eagle3_core.acceptance.record import read_acceptance
from eagle3_core.corpus.counts import CountsMeta, TokenCounts, read_counts
from eagle3_core.cost.hardware import Gpu, devices, load_device_toml
from eagle3_core.cost.profile import LatencyProfile, read_profile
from eagle3_core.decide.record import Decision, read_decision
from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.resources import samples_folder
from eagle3_core.server.state import shown
from eagle3_core.specs.presets import presets
from eagle3_core.specs.target import TargetSpec, target_from_config

Kind = Literal["counts", "latency", "acceptance", "target", "decision"]
SUFFIXES: dict[str, Kind] = {
    ".counts.parquet": "counts", ".latency.json": "latency", ".latency.toml": "latency",
    ".acceptance.json": "acceptance", "decision.json": "decision", "config.json": "target",
}
UPLOAD_LIMIT = 200 << 20
UPLOADS_HELD = 4 << 30
LISTED = 500
DEPTH = 5


@dataclass(frozen=True)
class Artifact:
    name: str
    kind: Kind
    path: Path
    label: str


class Library:
    """Read-only apart from ``upload``; shared by all visitors of a server."""

    def __init__(self, folders: Sequence[Path] = (), samples: Path | None = None) -> None:
        self.samples = samples if samples is not None else samples_folder()
        self.folders = tuple(Path(f).resolve() for f in folders)
        self._uploads: dict[str, Artifact] = {}
        self._lock = threading.Lock()
        self._store: Path | None = None

    def listed(self, kind: Kind) -> list[Artifact]:
        """Bundled and ``--data`` files of a kind, bundled ones first."""
        found = [a for a in self._bundled() if a.kind == kind]
        for folder in self.folders:
            found += [a for a in _scan(folder) if a.kind == kind]
        return found[:LISTED]

    def find(self, name: str, kind: Kind) -> Artifact:
        """Raises Eagle3Error when there is none of that name and kind."""
        upload = self._uploads.get(name)
        if upload is not None and upload.kind == kind:
            return upload
        known = {a.name: a for a in self.listed(kind)}
        if name in known:
            return known[name]
        gone = name.startswith("upload-")
        raise Eagle3Error(f"no {kind} of this name", found=repr(shown(name)),
                          fix="the upload is gone: load the file again" if gone else suggest(name, known))

    def label(self, name: str) -> str:
        return self._uploads[name].label if name in self._uploads else name

    def _bundled(self) -> list[Artifact]:
        out = []
        for path in sorted(self.samples.glob("*")) if self.samples.is_dir() else []:
            kind = kind_of(path.name)
            if kind in ("counts", "latency", "acceptance"):
                name = _stem(path.name)
                out.append(Artifact(name, kind, path, name))
        return out

    def upload(self, file_name: str, data: bytes) -> Artifact:
        """Keep an uploaded file after reading it. Raises Eagle3Error naming the file as the visitor knows it."""
        base = shown(Path(file_name.replace("\\", "/")).name or "file", 80)
        if len(data) > UPLOAD_LIMIT:
            raise Eagle3Error("file too large", where=base, found=f"{len(data):,} bytes",
                              expected=f"at most {UPLOAD_LIMIT:,}")
        kind, suffix = sniff(base, data)
        name = "upload-" + hashlib.sha256(data).hexdigest()[:24]
        with self._lock:
            if name in self._uploads:
                return self._uploads[name]
            if self._store is None:
                self._store = Path(tempfile.mkdtemp(prefix="eagle3-uploads-"))
                atexit.register(shutil.rmtree, self._store, ignore_errors=True)
            held = sum(a.path.stat().st_size for a in self._uploads.values())
            if held + len(data) > UPLOADS_HELD:
                raise Eagle3Error("the server holds too many uploads", where=base, fix="restart it")
            path = self._store / (name + suffix)
            path.write_bytes(data)
            path.chmod(0o600)
            artifact = Artifact(name, kind, path, base)
            try:
                with named(artifact):
                    {"counts": _counts, "latency": _latency, "acceptance": _acceptance, "target": _target,
                     "decision": _decision}[kind](*_stamp(path))
            except Eagle3Error:
                path.unlink(missing_ok=True)
                raise
            self._uploads[name] = artifact
        return artifact

    def counts(self, name: str) -> TokenCounts:
        return self._read(name, "counts", _counts)

    def counts_meta(self, name: str) -> CountsMeta:
        return self._read(name, "counts", _meta)

    def latency(self, name: str) -> LatencyProfile | Gpu:
        return devices()[name] if name in devices() else self._read(name, "latency", _latency)

    def acceptance(self, text: str) -> AcceptanceSource:
        if text[:1].isdigit() or text[:1] == ".":
            return resolve_acceptance(text)
        return self._read(text, "acceptance", _acceptance)

    def target(self, name: str) -> TargetSpec:
        return presets()[name] if name in presets() else self._read(name, "target", _target)

    def decision(self, name: str) -> Decision:
        return self._read(name, "decision", _decision)

    def _read(self, name: str, kind: Kind, reader):
        artifact = self.find(name, kind)
        with named(artifact):
            return reader(*_stamp(artifact.path))

    def hashes(self, **names: str) -> dict[str, str]:
        """SHA-256 of the artifact files behind the names, for the decision record."""
        out = {}
        for kind, name in names.items():
            try:
                out[kind] = _sha256(*_stamp(self.find(name, kind).path))  # type: ignore[arg-type]
            except Eagle3Error:
                continue
        return out


class named:
    """Errors of a file speak of its name, never of where it lies."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, Eagle3Error):
            raise Eagle3Error(error.what, where=self.artifact.label, found=error.found, expected=error.expected,
                              fix=error.fix) from None


def kind_of(file_name: str) -> Kind | None:
    return next((kind for suffix, kind in SUFFIXES.items() if file_name.endswith(suffix)), None)


def _stem(file_name: str) -> str:
    return next(file_name.removesuffix(s) for s in SUFFIXES if file_name.endswith(s))


def _scan(folder: Path) -> list[Artifact]:
    """Artifacts below a folder, no link followed out of it."""
    out: list[Artifact] = []
    for root, folders, files in os.walk(folder):
        here = Path(root)
        depth = len(here.relative_to(folder).parts)
        folders[:] = sorted(f for f in folders if not f.startswith(".")) if depth < DEPTH else []
        for file in sorted(files):
            path = here / file
            kind = kind_of(file)
            if kind is None or not path.resolve().is_relative_to(folder) or not file.isprintable():
                continue
            name = f"{folder.name}/{path.relative_to(folder).as_posix()}"
            if name.isprintable():
                out.append(Artifact(name, kind, path, shown(name, 80)))
            if len(out) >= LISTED:
                return out
    return out


def sniff(file_name: str, data: bytes) -> tuple[Kind, str]:
    """Kind and suffix from the content; the name only helps to word the refusal."""
    if data[:4] == b"PAR1":
        return "counts", ".counts.parquet"
    if file_name.endswith(".toml"):
        return "latency", ".latency.toml"
    expected = "counts (.parquet), latency, acceptance or decision (.json), device (.toml) or a model's config.json"
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        text = "an empty file" if not data else "neither parquet nor JSON"
        raise Eagle3Error("cannot be used", where=file_name, found=text, expected=expected) from None
    keys = set(value) if isinstance(value, dict) else set()
    if {"device", "drafter", "points"} <= keys:
        return "latency", ".latency.json"
    if {"method", "points"} <= keys:
        return "acceptance", ".acceptance.json"
    if {"choice", "setting"} <= keys:
        return "decision", ".decision.json"
    if keys & {"hidden_size", "text_config", "llm_config", "language_config"}:
        return "target", ".config.json"
    raise Eagle3Error("cannot be used", where=file_name, found="JSON of another kind", expected=expected)


def _stamp(path: Path) -> tuple[Path, int, int]:
    """A cache key that changes with the file. Raises Eagle3Error when it has gone."""
    try:
        stat = path.stat()
    except OSError as error:
        raise Eagle3Error("cannot be read", where=path.name, found=error.strerror) from None
    return path, stat.st_mtime_ns, stat.st_size


@functools.lru_cache(maxsize=6)
def _counts(path: Path, mtime: int, size: int) -> TokenCounts:
    return read_counts(path)


@functools.lru_cache(maxsize=256)
def _meta(path: Path, mtime: int, size: int) -> CountsMeta:
    import polars as pl
    from pydantic import ValidationError

    try:
        return CountsMeta.model_validate_json(pl.read_parquet_metadata(path)["eagle3"])
    except (pl.exceptions.PolarsError, OSError, KeyError, ValidationError):
        raise Eagle3Error("is not a counts file", where=path.name) from None


@functools.lru_cache(maxsize=64)
def _latency(path: Path, mtime: int, size: int) -> LatencyProfile | Gpu:
    return load_device_toml(path) if path.suffix == ".toml" else read_profile(path)


@functools.lru_cache(maxsize=64)
def _acceptance(path: Path, mtime: int, size: int) -> AcceptanceSource:
    return acceptance_from_record(read_acceptance(path))


@functools.lru_cache(maxsize=64)
def _target(path: Path, mtime: int, size: int) -> TargetSpec:
    return target_from_config(path)


@functools.lru_cache(maxsize=64)
def _decision(path: Path, mtime: int, size: int) -> Decision:
    return read_decision(path)


@functools.lru_cache(maxsize=64)
def _sha256(path: Path, mtime: int, size: int) -> str:
    from eagle3_core.files import sha256_file

    return sha256_file(path)


@functools.cache
def library() -> Library:
    """The server's library; ``EAGLE3_DATA`` holds the folders that ``eagle3 app --data`` was given."""
    folders = [Path(f) for f in os.environ.get("EAGLE3_DATA", "").split(os.pathsep) if f]
    return Library(folders)
