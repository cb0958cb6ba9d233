"""Reading a mapping from whatever file it lies in.

A bare one-dimensional tensor is ambiguous: ModelOpt's d2t.pt holds offsets,
SGLang's token map absolute ids. The file name and validity decide; where both
readings are valid the caller must say which.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import DAMAGED, inside, read_bytes, reason
from eagle3_core.inspect.headers import find_weights, read_array, read_header
from eagle3_core.vocab.mapping import VocabMapping, mapping_from_d2t

LIMIT = 64 << 20
"""No mapping of a million ids is larger; a larger file is not one, or a bomb."""


def read_mapping(path: str | Path, fmt: str | None = None, vocab_size: int | None = None) -> VocabMapping:
    """A mapping from a file, or from a folder that holds one.

    ``fmt`` forces ``offsets`` or ``absolute`` for a bare tensor. ``vocab_size`` is
    needed where the file has no t2d. Raises Eagle3Error naming the file and field.
    """
    path = Path(path)
    if path.is_dir():
        path = _find(path)
    suffix = path.suffix
    try:
        if suffix == ".npy":
            return _from_npy(path, vocab_size)
        if suffix in (".safetensors", ".bin") or path.name.endswith(".index.json"):
            return _from_pair(_tensor_pair(path), path, vocab_size)
        if suffix in (".pt", ".pth"):
            return _from_torch(_load_torch(path), path, fmt, vocab_size)
        if suffix == ".gguf":
            return _from_gguf(path, vocab_size)
    except Eagle3Error as error:
        if error.where is None:
            error.where = path
        raise
    raise Eagle3Error("is not a mapping file", where=path, found=suffix or "no suffix",
                      expected=".pt, .npy, .safetensors or its index, or .gguf")


def _find(folder: Path) -> Path:
    for pattern in ("vocab_mapping.pt", "d2t.pt", "cache.pt", "vocab_mapping_cache.pt", "d2t-*.npy", "d2t.npy"):
        if found := _one(folder, pattern):
            return found
    weights = find_weights(folder)
    others = (inside(folder, path.name) for path in sorted(folder.glob("*.safetensors")))
    for file in ([weights] if weights else []) + [path for path in others if path != weights]:
        if any(name.split(".")[-1] == "d2t" for name in read_header(file).tensors):
            return file
    for pattern in ("vocab_mapping/*.pt", "freq_*.pt"):
        if found := _one(folder, pattern):
            return found
    raise Eagle3Error("holds no draft-vocabulary mapping", where=folder)


def _one(folder: Path, pattern: str) -> Path | None:
    found = sorted(folder.glob(pattern))
    if len(found) > 1:
        raise Eagle3Error("holds several mappings", where=folder, found=", ".join(p.name for p in found[:4]),
                          fix="name one of them")
    return inside(found[0].parent, found[0].name) if found else None


def _load_torch(path: Path) -> Any:
    """``torch.load`` with weights only, after a look at the size the archive would unpack to."""
    import torch

    data = read_bytes(path, limit=LIMIT)
    if zipfile.is_zipfile(io.BytesIO(data)):
        try:
            unpacked = sum(item.file_size for item in zipfile.ZipFile(io.BytesIO(data)).infolist())
        except DAMAGED as error:
            raise Eagle3Error("is not a readable torch file", where=path, found=reason(error)) from None
        if unpacked > 4 * LIMIT:
            raise Eagle3Error("unpacks to more than any mapping", where=path, found=f"{unpacked:,} bytes")
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except DAMAGED as error:
        raise Eagle3Error("is not a readable torch file", where=path, found=reason(error)) from None


def _from_torch(value: Any, path: Path, fmt: str | None, vocab_size: int | None) -> VocabMapping:
    import torch

    if isinstance(value, dict) and any(isinstance(key, str) and "d2t" in key for key in value):
        pair = {}
        for name in ("d2t", "t2d"):
            found = [v for k, v in value.items() if isinstance(k, str) and k.split(".")[-1] == name]
            if found:
                if not isinstance(found[0], torch.Tensor):
                    raise Eagle3Error(f"field {name}", found=type(found[0]).__name__, expected="a tensor")
                pair[name] = _numpy(found[0], name)
        return _from_pair(pair, path, vocab_size)
    if isinstance(value, dict) and "selected_token_ids" in value:
        value = value["selected_token_ids"]
        fmt = "absolute"
    if isinstance(value, list):
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            raise Eagle3Error("list", found="other values than integers", expected="absolute ids")
        value, fmt = torch.tensor(value, dtype=torch.int64), fmt or "absolute"
    if not isinstance(value, torch.Tensor):
        raise Eagle3Error("holds no mapping", found=type(value).__name__, expected="d2t, or a tensor of ids")
    return _from_bare(_numpy(value, "ids"), path, fmt, vocab_size)


def _floating(name: str, dtype: str) -> Eagle3Error:
    return Eagle3Error(f"{name} is floating point", found=dtype, expected="integers: bf16 rounds 32,001 to 32,000")


def _numpy(tensor: Any, name: str) -> np.ndarray:
    import torch

    if tensor.dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        raise _floating(name, str(tensor.dtype).removeprefix("torch."))
    if tensor.is_sparse or tensor.is_quantized:
        raise Eagle3Error(f"{name}", found="a sparse or quantised tensor", expected="a plain tensor")
    return tensor.contiguous().numpy()


def _from_bare(ids: np.ndarray, path: Path, fmt: str | None, vocab_size: int | None) -> VocabMapping:
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise Eagle3Error("ids", found=f"{ids.dtype} of shape {list(ids.shape)}", expected="integers [D]")
    offsets = ids.astype(np.int64) + np.arange(ids.size)
    top = vocab_size or int(max(offsets.max(initial=0), ids.max(initial=0))) + 1
    as_offsets = bool(ids.size == 0 or (offsets.min() >= 0 and offsets.max() < top and len(set(offsets)) == ids.size))
    as_absolute = bool(ids.size == 0 or (ids.min() >= 0 and ids.max() < top and len(set(ids.tolist())) == ids.size))
    if fmt is None:
        if path.name.startswith("d2t") or (as_offsets and not as_absolute):
            fmt = "offsets"
        elif path.name.startswith("freq") or (as_absolute and not as_offsets):
            fmt = "absolute"
        else:
            raise Eagle3Error("could be offsets or absolute ids", where=path, fix="say which with --format")
    if fmt not in ("offsets", "absolute"):
        raise Eagle3Error("--format", found=repr(fmt), expected="offsets or absolute")
    values = offsets if fmt == "offsets" else ids.astype(np.int64)
    return VocabMapping(values, vocab_size or int(values.max(initial=-1)) + 1)


def _from_pair(pair: dict[str, np.ndarray], path: Path, vocab_size: int | None) -> VocabMapping:
    if "d2t" not in pair:
        raise Eagle3Error("has t2d without d2t" if "t2d" in pair else "has no d2t", where=path, expected="both or d2t")
    mask = pair.get("t2d")
    if mask is not None:
        if mask.ndim != 1 or mask.dtype.kind not in "bui" or (mask.dtype.kind != "b" and mask.max(initial=0) > 1):
            raise Eagle3Error("t2d", found=f"{mask.dtype} of shape {list(mask.shape)}", expected="bool [V]")
        if vocab_size is not None and mask.size != vocab_size:
            raise Eagle3Error("t2d has another length than the target's vocabulary", found=mask.size,
                              expected=vocab_size)
        vocab_size = mask.size
    d2t = pair["d2t"]
    if vocab_size is None:
        if d2t.dtype.kind not in "iu" or d2t.ndim != 1:
            raise Eagle3Error("d2t", found=f"{d2t.dtype} of shape {list(d2t.shape)}", expected="int64 [D]")
        vocab_size = int((d2t.astype(np.int64) + np.arange(d2t.size)).max(initial=-1)) + 1
    mapping = mapping_from_d2t(d2t, vocab_size)
    if mask is not None and not np.array_equal(mapping.t2d, mask.astype(bool)):
        raise Eagle3Error("d2t and t2d disagree", found=f"{int(mask.astype(bool).sum())} ids in t2d",
                          expected=f"the {mapping.draft_vocab_size} that d2t maps to")
    return mapping


def _from_npy(path: Path, vocab_size: int | None) -> VocabMapping:
    pair: dict[str, np.ndarray] = {}
    other = path.with_name(path.name.replace("d2t", "t2d", 1) if "d2t" in path.name
                           else path.name.replace("t2d", "d2t", 1))
    for file in (path, other):
        if file.exists():
            pair["d2t" if "d2t" in file.name else "t2d"] = _load_npy(file)
    if len(pair) < 2:
        raise Eagle3Error("comes alone", where=path, expected=f"{other.name} beside it")
    return _from_pair(pair, path, vocab_size)


def _load_npy(path: Path) -> np.ndarray:
    data = read_bytes(path, limit=LIMIT)
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except DAMAGED as error:
        raise Eagle3Error("is not an array file", where=path, found=reason(error)) from None


def _tensor_pair(path: Path) -> dict[str, np.ndarray]:
    """d2t and t2d of a checkpoint, whichever shard each lies in and whatever prefix it has."""
    pair: dict[str, np.ndarray] = {}
    for name, info in read_header(path).tensors.items():
        last = name.split(".")[-1]
        if last not in ("d2t", "t2d"):
            continue
        if last in pair:
            raise Eagle3Error(f"holds {last} twice", found=name[:80], expected="one")
        if info.dtype.startswith(("float", "bfloat")):
            raise _floating(last, info.dtype)
        pair[last] = read_array(info)
    return pair


def _from_gguf(path: Path, vocab_size: int | None) -> VocabMapping:
    """llama.cpp keeps absolute ids under the name d2t."""
    found = [info for name, info in read_header(path).tensors.items() if name.split(".")[-1] == "d2t"]
    if not found:
        raise Eagle3Error("holds no d2t", where=path)
    if found[0].dtype.startswith(("float", "bfloat")):
        raise _floating("d2t", found[0].dtype)
    ids = read_array(found[0]).astype(np.int64).ravel()
    return VocabMapping(ids, vocab_size or int(ids.max(initial=-1)) + 1)
