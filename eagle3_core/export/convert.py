"""A drafter checkpoint in another consumer's layout, tensor by tensor.

    layer keys   midlayer. (EAGLE, SpecForge, SGLang, vLLM) or layers.0. (speculators, ModelOpt)
    head rows    ascending target ids for all but ModelOpt, which keeps the order given
    d2t, t2d     at D < V always; at D = V kept for SGLang, SpecForge and EAGLE, left out for those that refuse them
    embedding    as it is, or left out: engines share the target's

A smaller head is cut from a larger one by absolute target id: row i of the new head is
the old row of the same token. Weights are copied in chunks, so the peak of memory does
not depend on the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eagle3_core.drafter.checkpoint import aux_layers_of, canonical_key, spec_of
from eagle3_core.errors import Eagle3Error
from eagle3_core.export.configs import check_consumer, draft_config
from eagle3_core.export.consumer_files import FULL_KEEPS_D2T
from eagle3_core.files import atomic_path, canonical_json, read_json, write_text
from eagle3_core.inspect.headers import Header, TensorInfo, read_array, read_header
from eagle3_core.specs.target import TargetSpec
from eagle3_core.vocab.formats import read_mapping
from eagle3_core.vocab.mapping import VocabMapping, mapping_from_d2t

LAYERS_ZERO = ("speculators", "modelopt")
KEEPS_ORDER = ("modelopt",)
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
CHUNK = 8 << 20
_TYPES = {"bool": "BOOL", "int64": "I64", "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64",
          "int32": "I32", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "uint8": "U8", "int8": "I8"}
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")


@dataclass(frozen=True)
class Converted:
    """``rows[i]``: the old head's row that became row i; None where the head was copied as it is."""

    folder: Path
    consumer: str
    draft_vocab: int
    from_vocab: int
    rows: np.ndarray | None
    renamed: int
    dropped: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Item:
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    data: Callable[[], Iterator[bytes]]


def convert(
    source: str | Path, consumer: str, out: str | Path, *, mapping: VocabMapping | None = None,
    target: TargetSpec | None = None, embedding: Literal["auto", "keep", "drop"] = "auto", force: bool = False,
) -> Converted:
    """Write ``model.safetensors`` and ``config.json`` into ``out``.

    ``mapping`` asks for other rows or another order: its tokens must all be in the
    checkpoint's own list. ``target`` fills the config's fields of the target; without
    it they come from the checkpoint's config. Raises Eagle3Error before anything is written.
    """
    check_consumer(consumer)
    source, out = Path(source), Path(out)
    folder = source if source.is_dir() else source.parent
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise Eagle3Error("is not a drafter's config", where=folder / "config.json", found=type(config).__name__)
    header = read_header(source)
    tensors = _named(header)
    own = _own_mapping(tensors, config, folder)
    wanted = _ordered(own if mapping is None else mapping, consumer)
    rows = _rows(own, wanted, folder)
    spec, _, _ = spec_of(config, tensors, folder)
    spec = spec.with_draft_vocab(wanted.draft_vocab_size)
    target = target or _target_of(config, spec, tensors)
    notes = _layer_notes(consumer, config, folder, target)
    written = _config(consumer, config, folder, target, spec, tensors)
    items, dropped = _items(tensors, wanted, rows, consumer, embedding, spec.hidden_size != spec.target_hidden_size)
    for name in ("model.safetensors", "config.json"):
        if (out / name).exists() and not force:
            raise Eagle3Error("already exists", where=out / name, fix="pass --force to replace it")
    _write(out / "model.safetensors", items, force=force)
    write_text(out / "config.json", canonical_json(written), force=force)
    names = {t.name for t in tensors.values()}
    return Converted(out, consumer, wanted.draft_vocab_size, own.draft_vocab_size, rows,
                     sum(item.name not in names for item in items), dropped, notes)


def _named(header: Header) -> dict[str, TensorInfo]:
    """Canonical name -> tensor. Raises Eagle3Error for data that cannot be copied as it lies."""
    tensors = {canonical_key(name): info for name, info in header.tensors.items()}
    if "fc.weight" not in tensors or HEAD not in tensors:
        missing = "fc.weight" if "fc.weight" not in tensors else HEAD
        raise Eagle3Error(f"has no tensor {missing}", where=header.path, expected="an EAGLE-3 drafter with its head")
    for info in tensors.values():
        if info.offset is None or info.dtype not in _TYPES:
            raise Eagle3Error(f"tensor {info.name[:80]} cannot be copied", where=info.file, found=info.dtype)
    return tensors


def _own_mapping(tensors: dict[str, TensorInfo], config: dict[str, Any], folder: Path) -> VocabMapping:
    layer = config.get("transformer_layer_config")
    vocab = (layer if isinstance(layer, dict) else config).get("vocab_size")
    if isinstance(vocab, bool) or not isinstance(vocab, int) or vocab < 1:
        raise Eagle3Error("field vocab_size", where=folder / "config.json", found=repr(vocab),
                          expected="the target's V")
    size = tensors[HEAD].shape[0]
    if "d2t" in tensors:
        mapping = mapping_from_d2t(read_array(tensors["d2t"]), vocab)
        if mapping.draft_vocab_size != size:
            raise Eagle3Error("d2t and lm_head differ in length", where=folder, found=mapping.draft_vocab_size,
                              expected=size)
        return mapping
    if size == vocab:
        return VocabMapping(np.arange(vocab, dtype=np.int64), vocab)
    names = ("vocab_mapping.pt", "d2t.pt", f"d2t-{size}.npy", "d2t.npy")
    beside = [path for name in names if (path := folder / name).is_file()]
    if not beside:
        raise Eagle3Error("has no d2t though its head is smaller than the vocabulary", where=folder,
                          found=f"{size:,} rows, V = {vocab:,}", fix="put its mapping file beside it")
    return read_mapping(beside[0], vocab_size=vocab)


def _ordered(mapping: VocabMapping, consumer: str) -> VocabMapping:
    return mapping if consumer in KEEPS_ORDER else mapping.ascending()[0]


def _rows(own: VocabMapping, wanted: VocabMapping, folder: Path) -> np.ndarray | None:
    """The old row of each new one. Raises Eagle3Error for a token that the checkpoint has no row for."""
    if wanted.vocab_size != own.vocab_size:
        raise Eagle3Error("the mapping is for another target", where=folder, found=f"V = {wanted.vocab_size:,}",
                          expected=f"V = {own.vocab_size:,}")
    row_of = np.full(own.vocab_size, -1, dtype=np.int64)
    row_of[own.target_ids] = np.arange(own.draft_vocab_size)
    rows = row_of[wanted.target_ids]
    if (rows < 0).any():
        raise Eagle3Error("the checkpoint has no row for some tokens of the mapping", where=folder,
                          found=f"{int((rows < 0).sum()):,} missing, first id {int(wanted.target_ids[rows < 0][0])}",
                          fix="train it with them: eagle3 train --checkpoint ... --remap")
    same = len(rows) == own.draft_vocab_size and np.array_equal(rows, np.arange(len(rows)))
    return None if same else rows


def _target_of(config: dict[str, Any], spec: Any, tensors: dict[str, TensorInfo]) -> TargetSpec:
    """What a draft config says of its target; layers are not among it, so feature layers come from the config."""
    nested = config.get("transformer_layer_config")
    layer = nested if isinstance(nested, dict) else config
    eos = layer.get("eos_token_id")
    told = config.get("speculators_config")
    verifier = told.get("verifier") if isinstance(told, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return TargetSpec(
        name=str(name or config.get("_name_or_path") or "target"), hidden_size=spec.target_hidden_size,
        vocab_size=spec.vocab_size, num_layers=1, num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim, intermediate_size=spec.intermediate_size,
        max_position_embeddings=int(layer.get("max_position_embeddings") or 2048),
        rope={key: layer[key] for key in _ROPE if layer.get(key) is not None},
        bos_token_id=layer.get("bos_token_id"), eos_token_ids=(eos,) if isinstance(eos, int) else tuple(eos or ()),
        dtype=tensors["fc.weight"].dtype,
    )


def _config(
    consumer: str, config: dict[str, Any], folder: Path, target: TargetSpec, spec: Any, tensors: dict[str, TensorInfo]
) -> dict[str, Any]:
    written = draft_config(consumer, target, spec)
    written["torch_dtype"] = tensors["fc.weight"].dtype
    layers = aux_layers_of(config, folder)
    if layers is None and target.num_layers == 1:
        # Neither the checkpoint nor a target says which: the consumer's own default then, as before.
        written.pop("eagle_aux_hidden_state_layer_ids", None)
        written.get("eagle_config", {}).pop("eagle_aux_hidden_state_layer_ids", None)
    elif layers is not None:
        if "eagle_aux_hidden_state_layer_ids" in written:
            written["eagle_aux_hidden_state_layer_ids"] = [layer + 1 for layer in layers]
        elif "eagle_config" in written:
            written["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(layers)
    return written


def _layer_notes(consumer: str, config: dict[str, Any], folder: Path, target: TargetSpec) -> tuple[str, ...]:
    """What EAGLE's config cannot say. Raises Eagle3Error where its code would read other layers than were trained."""
    layers = aux_layers_of(config, folder)
    if consumer != "eagle" or layers is None:
        return ()
    shown = ", ".join(map(str, layers))
    if target.num_layers == 1:
        return (f"feature layers {shown} are not written: EAGLE reads the outputs of 1, N/2 - 1 and N - 4; "
                "give --target to have them compared",)
    if layers != target.aux_layers:
        raise Eagle3Error("EAGLE reads other feature layers, fixed in its code", where=folder, found=shown,
                          expected=", ".join(map(str, target.aux_layers)),
                          fix="serve it with sglang or vllm")
    return ()


def _items(
    tensors: dict[str, TensorInfo], wanted: VocabMapping, rows: np.ndarray | None, consumer: str, embedding: str,
    own_embedding: bool,
) -> tuple[list[_Item], tuple[str, ...]]:
    items, dropped = [], []
    for name, info in sorted(tensors.items()):
        if name in ("d2t", "t2d") or (name == EMBEDDING and embedding == "drop"):
            dropped.append(info.name)
            continue
        key = "layers.0." + name.removeprefix("midlayer.") if consumer in LAYERS_ZERO and name.startswith("midlayer.") \
            else name
        if name == HEAD and rows is not None:
            shape = (len(rows), *info.shape[1:])
            width = info.nbytes // info.shape[0]
            items.append(_Item(key, info.dtype, shape, width * len(rows), _gathered(info, rows, width)))
        else:
            items.append(_Item(key, info.dtype, info.shape, info.nbytes, _copied(info)))
    if embedding == "keep" and EMBEDDING not in tensors:
        raise Eagle3Error("has no embedding to keep", fix="leave --embedding at auto: engines share the target's")
    if embedding == "drop" and own_embedding:
        raise Eagle3Error("the embedding is not the target's and must stay", fix="leave --embedding at auto")
    if wanted.draft_vocab_size < wanted.vocab_size or consumer in FULL_KEEPS_D2T:
        for name, dtype, array in (("d2t", "int64", wanted.d2t), ("t2d", "bool", wanted.t2d)):
            if name == "t2d" and consumer == "modelopt":
                continue
            items.append(_Item(name, dtype, array.shape, array.nbytes, _given(array)))
    kept = {"d2t", "t2d"} & {item.name for item in items}
    return items, tuple(name for name in dropped if canonical_key(name) not in kept)


def _copied(info: TensorInfo) -> Callable[[], Iterator[bytes]]:
    def chunks() -> Iterator[bytes]:
        with info.file.open("rb") as file:
            file.seek(info.offset or 0)
            left = info.nbytes
            while left:
                data = file.read(min(left, CHUNK))
                if not data:
                    raise Eagle3Error("is cut short", where=info.file, found=f"{left:,} bytes missing")
                left -= len(data)
                yield data

    return chunks


def _gathered(info: TensorInfo, rows: np.ndarray, width: int) -> Callable[[], Iterator[bytes]]:
    def chunks() -> Iterator[bytes]:
        step = max(CHUNK // width, 1)
        with info.file.open("rb") as file:
            for at in range(0, len(rows), step):
                out = bytearray()
                for row in rows[at : at + step].tolist():
                    file.seek((info.offset or 0) + row * width)
                    out += file.read(width)
                yield bytes(out)

    return chunks


def _given(array: np.ndarray) -> Callable[[], Iterator[bytes]]:
    return lambda: iter([np.ascontiguousarray(array).tobytes()])


def _write(path: Path, items: list[_Item], *, force: bool) -> None:
    """safetensors by hand: the library's writer wants every tensor in memory at once."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for item in items:
        header[item.name] = {"dtype": _TYPES[item.dtype], "shape": list(item.shape),
                             "data_offsets": [at, at + item.nbytes]}
        at += item.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_path(path, force=force) as part, part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for item in items:
            for chunk in item.data():
                file.write(chunk)
