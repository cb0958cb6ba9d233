"""Hidden-state dumps as training documents, whichever project wrote them.

A document is what the target computed on one conversation:

    ids   int64 [S]       token ids
    mask  bool  [S]       True where the token is one the drafter will have to propose
    aux   float [S, 3Ht]  outputs of the three feature layers, low to high
    last  float [S, Ht]   last hidden state after the target's final norm (its lm_head gives the logits)

Formats, by what the file holds:

    SpecForge    *.ckpt, *.ckpt.gz   input_ids, loss_mask, aux_hidden_state [1,S,3Ht], hidden_state [1,S,Ht] (post-norm)
    ModelOpt     *.pt                input_ids, loss_mask, aux_hidden_states [S,3Ht], hidden_states [S,Ht] (post-norm)
    speculators  hs_*.safetensors    token_ids, hidden_states [S,4,Ht] whose last is *before* the final norm;
                                     the mask lies in an arrow dataset beside, row for row
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import DAMAGED, canonical_json, reason

if TYPE_CHECKING:
    from torch import Tensor

_PATTERNS = ("**/*.ckpt", "**/*.ckpt.gz", "**/*.pt", "**/hs_*.safetensors")


@dataclass(frozen=True)
class Document:
    """Shapes as in the module's docstring. ``post_norm`` is False where ``last`` still needs the final norm."""

    name: str
    ids: Tensor
    mask: Tensor
    aux: Tensor
    last: Tensor
    post_norm: bool = True


@dataclass(frozen=True)
class FeatureSet:
    """The files of a dump, in an order that does not depend on the file system."""

    files: tuple[Path, ...]
    roots: tuple[Path, ...]
    masks: tuple[Any, ...] | None = None
    """Loss masks of a speculators dump, by row."""

    def __len__(self) -> int:
        return len(self.files)

    def fingerprint(self) -> str:
        """SHA-256 over names and sizes: a resumed run refuses data that changed under it."""
        facts = [[file.name, file.stat().st_size if file.exists() else -1] for file in self.files]
        return hashlib.sha256(canonical_json(facts).encode()).hexdigest()

    def subset(self, indices: Sequence[int]) -> FeatureSet:
        masks = None if self.masks is None else tuple(self.masks[i] for i in indices)
        return FeatureSet(tuple(self.files[i] for i in indices), self.roots, masks)

    def load(self, index: int) -> Document:
        """Raises Eagle3Error naming the file and the field when it is missing or malformed."""
        return _read(self.files[index], None if self.masks is None else self.masks[index])

    def __iter__(self) -> Iterator[Document]:
        return (self.load(index) for index in range(len(self)))


def open_features(folders: Sequence[Path]) -> FeatureSet:
    """Find the dump's files below ``folders``. Raises Eagle3Error when there are none, or formats are mixed."""
    files: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise Eagle3Error("no such folder", where=folder, expected="a folder of hidden states")
        found = sorted({p for pattern in _PATTERNS for p in folder.glob(pattern)}, key=_natural)
        if not found:
            raise Eagle3Error("holds no hidden states", where=folder,
                              expected="*.ckpt, *.ckpt.gz, *.pt or hs_*.safetensors")
        files += found
    kinds = {"speculators" if file.suffix == ".safetensors" else "tensors" for file in files}
    if len(kinds) > 1:
        raise Eagle3Error("mixes speculators and other dumps", where=folders[0], fix="convert one of them")
    masks = _arrow_masks(folders, files) if kinds == {"speculators"} else None
    return FeatureSet(tuple(files), tuple(folders), masks)


def split_heldout(features: FeatureSet, share: float) -> tuple[FeatureSet, FeatureSet]:
    """(training, held-out) documents by a stable hash of their ids, so duplicates stay on one side."""
    sides = np.array([hash_share(document.ids) < share for document in features])
    if not sides.any():
        # A handful of documents may all hash to one side; validation needs at least one.
        sides[-1] = len(sides) > 1
    if sides.all():
        raise Eagle3Error("too few documents to hold some out", found=len(sides), expected="at least 2")
    train, heldout = np.flatnonzero(~sides), np.flatnonzero(sides)
    return features.subset(train.tolist()), features.subset(heldout.tolist())


def hash_share(ids: Tensor) -> float:
    """A number in [0, 1) that depends on the token ids alone."""
    digest = hashlib.sha256(ids.numpy().astype("<i8").tobytes()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _natural(path: Path) -> tuple[object, ...]:
    """data_2 before data_10."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path)))


def _arrow_masks(folders: Sequence[Path], files: Sequence[Path]) -> tuple[Any, ...]:
    import pyarrow as pa

    masks: dict[int, Any] = {}
    for folder in folders:
        offset = 0
        for shard in sorted(folder.glob("**/*.arrow"), key=_natural):
            try:
                with pa.memory_map(str(shard)) as source:
                    table = pa.ipc.open_stream(source).read_all()
            except pa.ArrowInvalid as error:
                raise Eagle3Error("is not an arrow stream", where=shard, found=reason(error)) from None
            if "loss_mask" not in table.column_names:
                raise Eagle3Error("column loss_mask is missing", where=shard, found=table.column_names)
            for row in range(table.num_rows):
                masks[offset + row] = np.asarray(table["loss_mask"][row].as_py(), dtype=bool)
            offset += table.num_rows
    if not masks:
        raise Eagle3Error("has no arrow dataset with the loss masks", where=folders[0],
                          expected="*.arrow beside hs_*.safetensors, as speculators prepare-data writes")
    result = []
    for file in files:
        number = re.search(r"hs_(\d+)\.safetensors$", file.name)
        if number is None or int(number[1]) not in masks:
            raise Eagle3Error("has no row in the arrow dataset", where=file)
        result.append(masks[int(number[1])])
    return tuple(result)


def _read(file: Path, mask: Any) -> Document:
    import torch

    if not file.exists():
        raise Eagle3Error("shard is missing", where=file, fix="restore it, or start a new run without it")
    if file.suffix == ".safetensors":
        return _read_speculators(file, mask)
    try:
        if file.suffix == ".gz":
            with gzip.open(file, "rb") as stream:
                value = torch.load(cast(BinaryIO, stream), map_location="cpu", weights_only=True)
        else:
            value = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except DAMAGED as error:
        raise Eagle3Error("is not a readable tensor file", where=file, found=reason(error)) from None
    if not isinstance(value, dict):
        raise Eagle3Error("is not a hidden-state dump", where=file, found=type(value).__name__)
    aux = _tensor(value, ("aux_hidden_state", "aux_hidden_states"), file)
    last = _tensor(value, ("hidden_state", "hidden_states"), file)
    ids = _tensor(value, ("input_ids",), file).flatten().long()
    loss_mask = _tensor(value, ("loss_mask",), file).flatten().bool()
    return _checked(Document(file.name, ids, loss_mask, aux.reshape(-1, aux.shape[-1]),
                             last.reshape(-1, last.shape[-1])), file)


def _read_speculators(file: Path, mask: Any) -> Document:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        value = load_file(file)
    except SafetensorError as error:
        raise Eagle3Error("is not a safetensors file", where=file, found=error) from None
    states = _tensor(value, ("hidden_states",), file)
    if states.ndim != 3 or states.shape[1] != 4:
        raise Eagle3Error("field hidden_states", where=file, found=list(states.shape), expected="[S, 4, Ht]")
    ids = _tensor(value, ("token_ids",), file).flatten().long()
    return _checked(Document(file.name, ids, torch.from_numpy(mask), states[:, :3].flatten(1), states[:, 3],
                             post_norm=False), file)


def _tensor(value: dict[str, Any], names: tuple[str, ...], file: Path) -> Tensor:
    import torch

    for name in names:
        if isinstance(value.get(name), torch.Tensor):
            return value[name]
    raise Eagle3Error(f"field {names[0]} is missing", where=file, found=", ".join(sorted(map(str, value)))[:120])


def _checked(document: Document, file: Path) -> Document:
    length = len(document.ids)
    for name in ("mask", "aux", "last"):
        found = len(getattr(document, name))
        if found != length:
            raise Eagle3Error(f"{name} and ids differ in length", where=file, found=found, expected=length)
    if document.aux.shape[1] != 3 * document.last.shape[1]:
        raise Eagle3Error("auxiliary width", where=file, found=document.aux.shape[1],
                          expected=f"3 x {document.last.shape[1]}")
    return document
