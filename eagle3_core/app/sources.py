"""The catalogue: which counts, latency and acceptance files can be chosen, and reading them once for all visitors.

Names are file names without their suffix; paths never reach the page. Files
come from the bundled samples, from the folders the server was given with
``--data``, and from uploads, which are checked before they are offered.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from eagle3_core.acceptance.model import AcceptanceSource, acceptance_from_record, assumed_alpha
from eagle3_core.acceptance.record import read_acceptance
from eagle3_core.corpus.counts import TokenCounts, read_counts
from eagle3_core.cost.hardware import Gpu, devices
from eagle3_core.cost.profile import LatencyProfile, read_profile
from eagle3_core.decide.record import Decision, read_decision
from eagle3_core.decide.restore import target_of
from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.files import canonical_json, read_json
from eagle3_core.resources import samples_folder
from eagle3_core.specs.drafter import MIN_DRAFT_VOCAB
from eagle3_core.specs.presets import presets
from eagle3_core.specs.target import TargetSpec, target_from_config
from eagle3_core.vocab.mapping import VocabMapping

SUFFIXES = {"counts": ".counts.parquet", "latency": ".latency.json", "acceptance": ".acceptance.json"}
MAPPINGS = (".npy", ".safetensors", ".pt")
MAX_UPLOAD = 200 << 20
DATA_VARIABLE = "EAGLE3_DATA"
"""Folders of ``eagle3 app --data``, handed to the notebooks through the environment."""


@dataclass(frozen=True)
class Catalogue:
    """Name -> path, by kind. ``targets`` holds config files beside the presets."""

    counts: dict[str, Path] = field(default_factory=dict)
    latency: dict[str, Path] = field(default_factory=dict)
    acceptance: dict[str, Path] = field(default_factory=dict)
    targets: dict[str, Path] = field(default_factory=dict)

    def latency_names(self) -> list[str]:
        return [*sorted(self.latency), *devices()]

    def target_names(self) -> list[str]:
        return [*sorted(self.targets), *presets()]


def data_folders() -> tuple[Path, ...]:
    given = os.environ.get(DATA_VARIABLE, "")
    return (samples_folder(), *(Path(p) for p in given.split(os.pathsep) if p))


def catalogue(folders: tuple[Path, ...] | None = None) -> Catalogue:
    """Everything found in the data folders, one level of sub-folders deep."""
    found: dict[str, dict[str, Path]] = {"counts": {}, "latency": {}, "acceptance": {}, "targets": {}}
    for folder in folders or data_folders():
        for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
            if not path.name.isprintable() or not path.resolve().is_relative_to(folder.resolve()):
                continue  # no link leads out of the folder
            for kind, suffix in SUFFIXES.items():
                if path.name.endswith(suffix) and path.is_file():
                    found[kind].setdefault(path.name.removesuffix(suffix), path)
            if path.name == "config.json":
                found["targets"].setdefault(path.parent.name, path)
    return Catalogue(**found)


def add_upload(
    current: Catalogue, name: str, content: bytes, vocab_size: int | None = None
) -> tuple[Catalogue, str, str]:
    """Check an uploaded file and add it: (catalogue, kind, its name).

    The kind is told by the suffix, for JSON by what it holds. A mapping file that
    does not say its V needs ``vocab_size``. Raises Eagle3Error naming the file
    when it is none of ours, too large or damaged.
    """
    base = os.path.basename(name.replace("\\", "/"))[:120] or "upload"
    if len(content) > MAX_UPLOAD:
        raise Eagle3Error("is too large", where=base, found=f"{len(content):,} bytes",
                          expected=f"at most {MAX_UPLOAD:,}")
    stored, digest = _store(content, _suffix(base))
    try:
        if base.endswith(MAPPINGS):
            return current, "baseline", add_mapping(base.rpartition(".")[0], _mapping_in(stored, vocab_size))
        kind = _kind_of(base, stored)
    except Eagle3Error as error:
        stored.unlink(missing_ok=True)
        # The stored name is ours; the user knows the file by theirs.
        error.where = base
        raise
    label = base
    for suffix in (*SUFFIXES.values(), ".json", ".parquet"):
        label = label.removesuffix(suffix)
    # The hash makes the name one that a link can carry and nobody can guess.
    label = f"{_shown(label)}~{digest[:12]}"
    _UPLOADS[kind, label] = stored
    if kind == "decision":
        return current, kind, label
    return replace(current, **{kind: {**getattr(current, kind), label: stored}}), kind, label


def _store(content: bytes, suffix: str) -> tuple[Path, str]:
    """The file in the folder of uploads, and its SHA-256."""
    digest = hashlib.sha256(content).hexdigest()
    stored = _upload_folder() / f"{digest[:24]}{suffix}"
    if not stored.exists():
        stored.write_bytes(content)
    return stored, digest


def _shown(name: str) -> str:
    """A name as the page may show it."""
    return "".join(ch if ch.isprintable() and ch != "~" else "_" for ch in name)[:60] or "upload"


def add_mapping(name: str, mapping: VocabMapping) -> str:
    """Keep an inherited mapping for all windows; the returned name goes into a link as ``baseline=``."""
    text = canonical_json({"vocab_size": mapping.vocab_size, "target_ids": mapping.target_ids.tolist()})
    stored, digest = _store(text.encode(), ".json")
    label = f"{_shown(name)}~{digest[:12]}"
    _UPLOADS["baseline", label] = stored
    return label


@dataclass(frozen=True, eq=False)
class Baseline:
    """What is inherited. ``mapping`` None: only its size is known."""

    size: int
    name: str
    mapping: VocabMapping | None = None


def get_baseline(name: str, vocab_size: int) -> Baseline:
    """From a D in digits or a name of ``add_mapping``. Raises Eagle3Error when it cannot belong to the target."""
    if name.isascii() and name.isdigit():
        size = int(name[:12])
        if not min(MIN_DRAFT_VOCAB, vocab_size) <= size <= vocab_size:
            raise Eagle3Error("an inherited size cannot belong to this target", found=f"{size:,}",
                              expected=f"at most V = {vocab_size:,}")
        return Baseline(size, "")
    path = _lookup("baseline", {}, name)
    mapping = _mapping(path)
    if mapping.vocab_size != vocab_size:
        raise Eagle3Error("the inherited mapping is of another target", found=f"V = {mapping.vocab_size:,}",
                          expected=f"V = {vocab_size:,}")
    return Baseline(mapping.draft_vocab_size, name.partition("~")[0], mapping)


@functools.lru_cache(maxsize=16)
def _mapping(path: Path) -> VocabMapping:
    value = read_json(path)
    return VocabMapping(np.array(value["target_ids"], dtype=np.int64), value["vocab_size"])


_UPLOADS: dict[tuple[str, str], Path] = {}
"""Every upload of this server by kind and name. It is never listed; a link to one restores it in another window."""


@functools.cache
def _upload_folder() -> Path:
    """A folder that only this user can read, gone with the server."""
    folder = Path(tempfile.mkdtemp(prefix="eagle3-uploads-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _suffix(name: str) -> str:
    suffix = next((s for s in (".parquet", ".json", *MAPPINGS) if name.endswith(s)), ".bin")
    # What a bare array is, only its name says.
    return f".d2t{suffix}" if suffix == ".npy" and "d2t" in name else suffix


def _mapping_in(path: Path, vocab_size: int | None) -> VocabMapping:
    from eagle3_core.inspect.read import inspect_path

    facts = inspect_path(path)
    if facts.mapping is None:
        raise Eagle3Error("holds no mapping", where=path, expected="d2t, or d2t and t2d")
    vocab = facts.vocab_size or vocab_size
    if vocab is None:
        raise Eagle3Error("does not say its target's vocabulary", where=path)
    return facts.mapping.checked(vocab)


def _kind_of(name: str, stored: Path) -> str:
    if name.endswith(".parquet"):
        read_counts(stored)
        return "counts"
    if name.endswith(".json"):
        value = read_json(stored)
        keys = set(value) if isinstance(value, dict) else set()
        if "bandwidth_gbps" in keys:
            read_profile(stored)
            return "latency"
        if "points" in keys:
            read_acceptance(stored)
            return "acceptance"
        if "token_set" in keys:
            read_decision(stored)
            return "decision"
        target_from_config(stored)
        return "targets"
    raise Eagle3Error("is of no known kind", where=name,
                      expected="counts, latency, acceptance, decision.json, config.json or d2t.npy")


@functools.lru_cache(maxsize=8)
def _counts(path: Path, stamp: float) -> TokenCounts:
    return read_counts(path)


@functools.lru_cache(maxsize=32)
def _profile(path: Path, stamp: float) -> LatencyProfile:
    return read_profile(path)


WORDS = {"counts": "token counts", "latency": "latency profile", "acceptance": "acceptance", "targets": "target",
         "baseline": "inherited mapping", "decision": "decision"}


def _lookup(kind: str, names: dict[str, Path], name: str) -> Path:
    path = names.get(name) or _UPLOADS.get((kind, name))
    if path is None or not path.is_file():
        gone = "~" in name
        raise Eagle3Error(
            f"no {WORDS[kind]} of that name", found=repr(name[:80]),
            expected=None if gone else ", ".join(sorted(names)[:8]) or "none is loaded",
            fix="the upload is gone: load the file again" if gone else suggest(name, names))
    return path


def uploads(kind: str) -> dict[str, Path]:
    """Uploads of every window; their names are not to be listed."""
    return {name: path for (of, name), path in _UPLOADS.items() if of == kind}


def find(kind: str, c: Catalogue, name: str) -> Path | None:
    """The file of that name, uploads of other windows included, or None."""
    return getattr(c, kind).get(name) or _UPLOADS.get((kind, name))


def get_counts(c: Catalogue, name: str) -> TokenCounts:
    path = _lookup("counts", c.counts, name)
    return _counts(path, path.stat().st_mtime)


def get_decision(name: str) -> Decision:
    return _decision(_lookup("decision", {}, name))


@functools.lru_cache(maxsize=16)
def _decision(path: Path) -> Decision:
    return read_decision(path)


def get_latency(c: Catalogue, name: str) -> LatencyProfile | Gpu:
    if name in devices():
        return devices()[name]
    path = _lookup("latency", c.latency, name)
    return _profile(path, path.stat().st_mtime)


def get_acceptance(c: Catalogue, name: str, alpha: float) -> AcceptanceSource:
    if not name:
        return assumed_alpha(alpha)
    if ("decision", name) in _UPLOADS:
        s = get_decision(name).sources
        return AcceptanceSource(s.alpha, s.reference_size, s.acceptance_evidence, s.acceptance_source)
    return acceptance_from_record(read_acceptance(_lookup("acceptance", c.acceptance, name)))


def get_target(c: Catalogue, name: str) -> TargetSpec:
    if name in presets():
        return presets()[name]
    if ("decision", name) in _UPLOADS:
        return target_of(get_decision(name))
    if name not in c.targets and ("targets", name) not in _UPLOADS:
        raise Eagle3Error("no target of that name", found=repr(name[:60]), fix=suggest(name.lower(), c.target_names()))
    return target_from_config(_lookup("targets", c.targets, name))
