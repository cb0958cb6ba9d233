"""Writing a mapping in each project's own file format. Bytes depend on the mapping alone.

    specforge    vocab_mapping.pt          torch dict {"d2t": int64 [D], "t2d": bool [V]}
    eagle        cache.pt                  the same dict (SafeAILab/EAGLE reads it from the working directory)
    angelslim    vocab_mapping_cache.pt    the same dict
    speculators  d2t-<D>.npy, t2d-<D>.npy  int64 offsets, bool (0.9; earlier versions without the size)
    modelopt     d2t.pt                    bare int64 [D] offsets in frequency order, no t2d
    sglang-map   freq_<D>.pt               absolute ids, for EAGLE-2 and NEXTN; EAGLE-3 ignores it
    safetensors  mapping.safetensors       tensors d2t and t2d, as inside a draft checkpoint

SpecForge and its kin slice target logits by the mask and so need ascending ids;
such a writer refuses another order. ModelOpt's and the token map's order is the
ranking's, so give them the ranked mapping.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.files import write_bytes
from eagle3_core.vocab.mapping import VocabMapping

Files = dict[str, bytes]


def _torch_bytes(value: object) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _npy_bytes(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _ascending(mapping: VocabMapping, name: str) -> VocabMapping:
    if not mapping.is_ascending:
        raise Eagle3Error(f"{name} needs draft ids in ascending target order", found="another order",
                          fix="sort the mapping and permute the lm_head rows with it")
    return mapping


def _dict(mapping: VocabMapping, name: str) -> bytes:
    import torch

    _ascending(mapping, name)
    return _torch_bytes({"d2t": torch.from_numpy(mapping.d2t.copy()), "t2d": torch.from_numpy(mapping.t2d.copy())})


def _speculators(mapping: VocabMapping) -> Files:
    _ascending(mapping, "speculators")
    size = mapping.draft_vocab_size
    return {f"d2t-{size}.npy": _npy_bytes(mapping.d2t), f"t2d-{size}.npy": _npy_bytes(mapping.t2d)}


def _speculators_old(mapping: VocabMapping) -> Files:
    _ascending(mapping, "speculators")
    return {"d2t.npy": _npy_bytes(mapping.d2t), "t2d.npy": _npy_bytes(mapping.t2d)}


def _modelopt(mapping: VocabMapping) -> Files:
    import torch

    return {"d2t.pt": _torch_bytes(torch.from_numpy(mapping.d2t.copy()))}


def _sglang_map(mapping: VocabMapping) -> Files:
    import torch

    return {f"freq_{mapping.draft_vocab_size}.pt": _torch_bytes(torch.from_numpy(mapping.target_ids.copy()))}


def _safetensors(mapping: VocabMapping) -> Files:
    from safetensors.numpy import save

    return {"mapping.safetensors": save({"d2t": np.ascontiguousarray(mapping.d2t), "t2d": mapping.t2d})}


FORMATS: dict[str, Callable[[VocabMapping], Files]] = {
    "specforge": lambda m: {"vocab_mapping.pt": _dict(m, "SpecForge")},
    "eagle": lambda m: {"cache.pt": _dict(m, "EAGLE")},
    "angelslim": lambda m: {"vocab_mapping_cache.pt": _dict(m, "AngelSlim")},
    "speculators": _speculators,
    "speculators-0.7": _speculators_old,
    "modelopt": _modelopt,
    "sglang-map": _sglang_map,
    "safetensors": _safetensors,
}
RANKED = ("modelopt", "sglang-map")
"""Formats whose order of draft ids is the ranking's own."""


def mapping_files(fmt: str, mapping: VocabMapping) -> Files:
    """File name -> bytes. Raises Eagle3Error for an unknown format or an order the format cannot carry."""
    if fmt not in FORMATS:
        raise Eagle3Error("unknown mapping format", found=repr(fmt), expected=", ".join(FORMATS),
                          fix=suggest(fmt, FORMATS))
    return FORMATS[fmt](mapping)


def write_mapping(fmt: str, mapping: VocabMapping, folder: str | Path, *, force: bool = True) -> list[Path]:
    """Write the format's files into ``folder`` and return their paths."""
    paths = []
    for name, data in mapping_files(fmt, mapping).items():
        write_bytes(Path(folder) / name, data, force=force)
        paths.append(Path(folder) / name)
    return paths


def token_freq_bytes(counts: np.ndarray) -> bytes:
    """speculators' ``token_freq.pt``: a plain dict of ids with a count above 0."""
    ids = np.flatnonzero(counts)
    return _torch_bytes(dict(zip(ids.tolist(), counts[ids].tolist(), strict=True)))
