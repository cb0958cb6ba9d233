"""The three tensors of the target that training needs, read from its safetensors without loading the rest.

    embedding  [V, Ht]   input embedding, frozen
    head       [V, Ht]   lm_head, or the embedding where the target ties them
    norm       [Ht]      final norm, for dumps that hold the state before it
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import read_json
from eagle3_core.specs.target import TargetSpec, target_from_config

if TYPE_CHECKING:
    from torch import Tensor

EMBEDDING_KEYS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight",
                  "language_model.model.embed_tokens.weight", "transformer.wte.weight", "embed_tokens.weight")
HEAD_KEYS = ("lm_head.weight", "language_model.lm_head.weight", "output.weight")
NORM_KEYS = ("model.norm.weight", "model.language_model.norm.weight", "language_model.model.norm.weight",
             "transformer.ln_f.weight", "norm.weight")


@dataclass(frozen=True)
class TargetWeights:
    spec: TargetSpec
    embedding: Tensor
    head: Tensor
    norm: Tensor
    tied: bool


def read_target_weights(folder: str | Path) -> TargetWeights:
    """Raises Eagle3Error naming the tensor that is missing and the keys that were tried."""
    folder = Path(folder)
    spec = target_from_config(folder)
    files = _locate(folder)

    def read(keys: tuple[str, ...]) -> Tensor | None:
        from safetensors import SafetensorError, safe_open

        for key in keys:
            if key in files:
                try:
                    with safe_open(files[key], framework="pt") as handle:
                        return handle.get_tensor(key)
                except (SafetensorError, OSError) as error:
                    raise Eagle3Error(f"tensor {key}", where=files[key], found=error) from None
        return None

    embedding, head, norm = read(EMBEDDING_KEYS), read(HEAD_KEYS), read(NORM_KEYS)
    for name, tensor, keys in (("embedding", embedding, EMBEDDING_KEYS), ("final norm", norm, NORM_KEYS)):
        if tensor is None:
            raise Eagle3Error(f"has no {name}", where=folder, expected=f"one of {', '.join(keys)}")
    assert embedding is not None
    assert norm is not None
    tied = head is None
    if head is None:
        if not spec.tie_word_embeddings:
            raise Eagle3Error("has no lm_head though its config does not tie it to the embedding", where=folder,
                              expected=f"one of {', '.join(HEAD_KEYS)}")
        head = embedding
    want = (spec.vocab_size, spec.hidden_size)
    for name, tensor in (("embedding", embedding), ("lm_head", head)):
        if tuple(tensor.shape) != want:
            raise Eagle3Error(f"{name} has another shape than the config says", where=folder,
                              found=tuple(tensor.shape), expected=want)
    return TargetWeights(spec, embedding, head, norm, tied)


def _locate(folder: Path) -> dict[str, Path]:
    """Tensor name -> file, from the index or the single file. An index may not point out of its folder."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = read_json(index).get("weight_map", {})
        for name in set(weight_map.values()):
            if Path(name).name != name:
                raise Eagle3Error("weight_map points outside its folder", where=index, found=repr(name))
        return {key: folder / name for key, name in weight_map.items()}
    single = folder / "model.safetensors"
    if not single.is_file():
        raise Eagle3Error("has no weights", where=folder, expected="model.safetensors or its index")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(single, framework="pt") as handle:
            return dict.fromkeys(handle.keys(), single)
    except (SafetensorError, OSError) as error:
        raise Eagle3Error("is not a safetensors file", where=single, found=error) from None
