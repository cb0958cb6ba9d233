"""Drafter checkpoints of EAGLE, SpecForge, speculators, ModelOpt and TorchSpec, read by their key names; ours written.

    layer prefix   midlayer. (EAGLE, SpecForge, AngelSlim) or layers.0. (speculators, ModelOpt), maybe after model.
    fc norms       input_norm.weight [3 Ht]; fc_norm.{0,1,2}.weight, or aux_norm_{low,mid,high}.weight
    mapping        d2t int64 [D] as offsets; absent for a full vocabulary
    embedding      often left out: it is the target's. ModelOpt may leave out lm_head too

Feature layers are kept as 0-based layers whose *output* is read: SpecForge's and
SGLang's ids, which stand in ``eagle_config``. vLLM's and speculators' ids stand
at the root, or beside ``transformer_layer_config``, and count states: one higher.

``norm_output`` is read in the engines' sense, "feed the post-norm state back".
SpecForge writes the same name for "norm before lm_head", which is always done
here; pass ``trained_by="specforge"`` to read it so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from eagle3_core.drafter.rope import Rope, rope_of
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import DAMAGED, atomic_path, canonical_json, read_json, reason, write_text
from eagle3_core.specs.drafter import DrafterSpec
from eagle3_core.specs.target import TargetSpec
from eagle3_core.vocab.mapping import VocabMapping, mapping_from_d2t

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3_core.drafter.model import Drafter

_IGNORED = ("verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq", "t2d")
_LEGACY = {"aux_norm_low.weight": "fc_norm.0.weight", "aux_norm_mid.weight": "fc_norm.1.weight",
           "aux_norm_high.weight": "fc_norm.2.weight", "draft_id_to_target_id": "d2t"}


class Shaped(Protocol):
    """A tensor, or what a header says of one."""

    @property
    def shape(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class LoadedDrafter:
    """``aux_layers``: 0-based layers whose output is read; None where the checkpoint does not say (the default)."""

    drafter: Drafter
    mapping: VocabMapping
    aux_layers: tuple[int, int, int] | None
    source: str
    notes: tuple[str, ...] = ()


def read_drafter(
    folder: str | Path, *, embedding: Tensor | None = None, head: Tensor | None = None,
    trained_by: str | None = None, dtype: str | None = None,
) -> LoadedDrafter:
    """Load a checkpoint folder for evaluation.

    ``embedding`` [V, H] and ``head`` [V, H] are the target's, used where the
    checkpoint has none. Raises Eagle3Error naming the tensor or field at fault.
    """
    import torch

    from eagle3_core.drafter.model import Drafter

    folder = Path(folder)
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise Eagle3Error("is not a drafter's config", where=folder / "config.json", found=type(config).__name__)
    state = {canonical_key(key): value for key, value in read_state(folder).items()}
    state = {k: v for k, v in state.items() if not k.endswith(_IGNORED)}
    if "fc.weight" not in state:
        raise Eagle3Error("has no tensor fc.weight", where=folder, found=", ".join(sorted(state)[:6]),
                          expected="an EAGLE-3 drafter", fix="inspect it with eagle3 inspect")
    spec, rope, window = spec_of(config, state, folder, trained_by=trained_by)
    notes = []
    d2t = state.pop("d2t", None)
    if d2t is None and spec.draft_vocab_size < spec.vocab_size:
        raise Eagle3Error("has no d2t though its head is smaller than the vocabulary", where=folder,
                          found=f"D = {spec.draft_vocab_size:,}, V = {spec.vocab_size:,}",
                          fix="add the mapping with eagle3 convert")
    offsets = np.zeros(spec.draft_vocab_size, dtype=np.int64) if d2t is None else d2t.cpu().numpy()
    if len(offsets) != spec.draft_vocab_size:
        raise Eagle3Error("d2t and lm_head differ in length", where=folder, found=len(offsets),
                          expected=spec.draft_vocab_size)
    mapping = mapping_from_d2t(offsets, spec.vocab_size)
    if "embed_tokens.weight" not in state:
        state["embed_tokens.weight"] = _borrowed(embedding, (spec.vocab_size, spec.hidden_size), "embedding", folder)
        notes.append("embedding taken from the target")
    if "lm_head.weight" not in state:
        rows = _borrowed(head, (spec.vocab_size, spec.hidden_size), "lm_head", folder)
        state["lm_head.weight"] = rows[torch.from_numpy(mapping.target_ids.copy())]
        notes.append("lm_head rows taken from the target")
    with torch.device("meta"):
        drafter = Drafter(spec, rope, window=window)
    wanted = getattr(torch, dtype) if dtype else state["fc.weight"].dtype
    state = {k: v.to(wanted) for k, v in state.items()} | {"d2t": torch.from_numpy(mapping.d2t.copy())}
    _check_state(drafter, state, folder)
    drafter.load_state_dict(state, assign=True)
    return LoadedDrafter(drafter.eval().requires_grad_(False), mapping, aux_layers_of(config, folder), str(folder),
                         tuple(notes))


def canonical_key(key: str) -> str:
    """EAGLE's name of a drafter's tensor, whichever project wrote it."""
    key = key.removeprefix("module.").removeprefix("model.")
    for prefix in ("layers.0.", "eagle_module.layers.0."):
        if key.startswith(prefix):
            key = "midlayer." + key[len(prefix) :]
    # ModelOpt keeps the two input norms beside the layer in some releases.
    key = {"hidden_norm.weight": "midlayer.hidden_norm.weight"}.get(key, key)
    return _LEGACY.get(key, key)


def read_state(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder: safetensors, its shards, or a torch file (weights only). Raises Eagle3Error."""

    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        if bad := [name for name in names if Path(name).name != name]:
            raise Eagle3Error("weight_map points outside its folder", where=index, found=repr(bad[0]))
    if all((folder / name).is_file() for name in names):
        state: dict[str, Tensor] = {}
        for name in names:
            try:
                state |= load_file(folder / name)
            except (SafetensorError, OSError) as error:
                raise Eagle3Error("is not a safetensors file", where=folder / name, found=error) from None
        return state
    for name in ("pytorch_model.bin", "training_state.pt"):
        if (folder / name).is_file():
            try:
                value = torch.load(folder / name, map_location="cpu", weights_only=True)
            except DAMAGED as error:
                raise Eagle3Error("is not a readable tensor file", where=folder / name, found=reason(error)) from None
            value = value.get("draft_state_dict", value) if isinstance(value, dict) else {}
            return {k: v for k, v in value.items() if isinstance(v, torch.Tensor)}
    raise Eagle3Error("has no weights", where=folder, expected="model.safetensors, its shards, or pytorch_model.bin")


def read_spec(path: str | Path) -> DrafterSpec:
    """Dimensions of a drafter from headers alone: no weight is loaded. Raises Eagle3Error for what is no drafter."""
    from eagle3_core.inspect.headers import read_header

    path = Path(path)
    folder = path if path.is_dir() else path.parent
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise Eagle3Error("is not a drafter's config", where=folder / "config.json", found=type(config).__name__)
    shapes: dict[str, Shaped] = {canonical_key(name): info for name, info in read_header(path).tensors.items()}
    return spec_of(config, shapes, folder)[0]


def spec_of(
    config: dict[str, Any], state: Mapping[str, Shaped], folder: Path, *, trained_by: str | None = None
) -> tuple[DrafterSpec, Rope, int | None]:
    """Dimensions from the tensors, the rest from config.json; and the attention window, where there is one."""
    layer = config.get("transformer_layer_config")
    speculators = isinstance(layer, dict)
    layer = layer if isinstance(layer, dict) else config
    nested = config.get("eagle_config")
    eagle = nested if isinstance(nested, dict) else {}

    def tensor(name: str) -> Shaped:
        if name not in state:
            raise Eagle3Error(f"has no tensor {name}", where=folder, expected="an EAGLE-3 drafter")
        return state[name]

    def whole(key: str, default: int | None = None) -> int:
        value = layer.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise Eagle3Error(f"field {key}", where=folder / "config.json", found=repr(value),
                              expected="a positive integer")
        return value

    def flag(name: str, default: bool = False) -> bool:
        value = config.get(name, eagle.get(name, default))
        return bool(default if value is None else value)

    hidden, wide = tensor("fc.weight").shape
    q = tensor("midlayer.self_attn.q_proj.weight")
    if q.shape[1] != 2 * hidden:
        raise Eagle3Error("q_proj reads another width than [embedding; hidden]", where=folder, found=q.shape[1],
                          expected=2 * hidden)
    if wide % 3:
        raise Eagle3Error("fc.weight", where=folder, found=[hidden, wide], expected="[H, 3 Ht]")
    heads = whole("num_attention_heads")
    head_dim = q.shape[0] // heads
    vocab = whole("vocab_size")
    draft = config.get("draft_vocab_size") or vocab
    if "lm_head.weight" in state:
        found = state["lm_head.weight"].shape[0]
        if found != draft:
            raise Eagle3Error("lm_head has another number of rows than draft_vocab_size", where=folder, found=found,
                              expected=draft)
    norm_output = flag("norm_output")
    if trained_by == "specforge" and not speculators:
        if config.get("norm_output") is False:
            raise Eagle3Error("norm_output is false in SpecForge's sense", where=folder / "config.json",
                              expected="a drafter whose head reads the normed state")
        norm_output = False
    spec = DrafterSpec(
        hidden_size=hidden, target_hidden_size=wide // 3, vocab_size=vocab, draft_vocab_size=int(draft),
        num_heads=heads, num_kv_heads=tensor("midlayer.self_attn.k_proj.weight").shape[0] // head_dim,
        head_dim=head_dim, intermediate_size=tensor("midlayer.mlp.gate_proj.weight").shape[0],
        norm_before_residual=flag("norm_before_residual"),
        norm_before_fc="input_norm.weight" in state, fc_norm="fc_norm.0.weight" in state, norm_output=norm_output,
        qk_norm="midlayer.self_attn.q_norm.weight" in state,
        attention_bias="midlayer.self_attn.q_proj.bias" in state,
        rms_norm_eps=float(layer.get("rms_norm_eps") or 1e-6),
    )
    for name, seen in (("norm_before_fc", spec.norm_before_fc), ("fc_norm", spec.fc_norm)):
        if flag(name) and not seen:
            raise Eagle3Error(f"{name} is set but its tensor is missing", where=folder)
    rope = rope_of(layer, whole("max_position_embeddings", 2048), where=folder / "config.json")
    kinds = layer.get("layer_types")
    sliding = kinds[0] == "sliding_attention" if isinstance(kinds, list) and kinds else bool(
        layer.get("use_sliding_window"))
    window = layer.get("sliding_window") if sliding else None
    return spec, rope, window if isinstance(window, int) else None


def aux_layers_of(config: dict[str, Any], folder: Path) -> tuple[int, int, int] | None:
    """0-based layers whose output is read, whichever convention the config uses."""
    nested = config.get("eagle_config")
    eagle = nested if isinstance(nested, dict) else {}
    ids, shift = config.get("eagle_aux_hidden_state_layer_ids"), 1
    if ids is None:
        ids, shift = eagle.get("eagle_aux_hidden_state_layer_ids"), 0  # type: ignore[union-attr]
    if ids is None:
        return None
    # speculators lists the last layer too, for the verifier's own state.
    if not isinstance(ids, list) or len(ids) < 3 or any(not isinstance(i, int) or i < shift for i in ids):
        raise Eagle3Error("field eagle_aux_hidden_state_layer_ids", where=folder / "config.json", found=ids,
                          expected="three layer ids")
    low, mid, high = (i - shift for i in ids[:3])
    return low, mid, high


def _borrowed(tensor: Tensor | None, shape: tuple[int, int], name: str, folder: Path) -> Tensor:
    if tensor is None:
        raise Eagle3Error(f"has no {name}", where=folder, fix="give its target, whose own is used")
    if tuple(tensor.shape) != shape:
        raise Eagle3Error(f"the target's {name} does not fit", where=folder, found=tuple(tensor.shape), expected=shape)
    return tensor.detach()


def _check_state(drafter: Drafter, state: dict[str, Tensor], folder: Path) -> None:
    wanted = drafter.state_dict()
    if missing := sorted(set(wanted) - set(state)):
        raise Eagle3Error(f"has no tensor {missing[0]}", where=folder, expected="an EAGLE-3 drafter")
    if extra := sorted(set(state) - set(wanted)):
        raise Eagle3Error(f"has an unknown tensor {extra[0]}", where=folder,
                          fix="it belongs to another kind of drafter; see eagle3 inspect")
    for name, tensor in state.items():
        if tensor.shape != wanted[name].shape:
            raise Eagle3Error(f"tensor {name}", where=folder, found=list(tensor.shape),
                              expected=list(wanted[name].shape))


def write_drafter(
    folder: str | Path, drafter: Drafter, target: TargetSpec, *, aux_layers: tuple[int, int, int] | None = None,
    dtype: str | None = None, with_embedding: bool = False, k: int = 3,
) -> Path:
    """Write model.safetensors and config.json, EAGLE's key names, as vLLM and SGLang load them.

    With q/k norm it is speculators' layout: vLLM's plain config has no word for it.
    The embedding is left out unless asked for or of another width than the
    target's. d2t and t2d are left out at D = V, where vLLM refuses them.
    """
    import torch
    from safetensors.torch import save_file

    from eagle3_core.export.configs import draft_config

    folder = Path(folder)
    spec = drafter.spec
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in drafter.state_dict().items()}
    draft_vocab = state["lm_head.weight"].shape[0]
    if dtype:
        state = {k: v if k == "d2t" else v.to(getattr(torch, dtype)) for k, v in state.items()}
    if not with_embedding and spec.hidden_size == spec.target_hidden_size:
        del state["embed_tokens.weight"]
    mapping = mapping_from_d2t(state["d2t"].numpy(), spec.vocab_size)
    if draft_vocab == spec.vocab_size:
        if not mapping.is_identity:
            raise Eagle3Error("a full-size head is not in the order of target ids", where=folder)
        del state["d2t"]
    else:
        state["t2d"] = torch.from_numpy(mapping.t2d.copy())
    config = draft_config("speculators" if spec.qk_norm else "vllm", target, spec, k=k)
    if spec.qk_norm:
        state = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in state.items()}
    config["draft_vocab_size"] = draft_vocab
    config["torch_dtype"] = str(state["fc.weight"].dtype).removeprefix("torch.")
    layers = aux_layers or target.aux_layers
    config["eagle_aux_hidden_state_layer_ids"] = [layer + 1 for layer in layers]
    if drafter.window is not None:
        layer = config.get("transformer_layer_config", config)
        layer |= {"sliding_window": drafter.window, "use_sliding_window": True}
        if spec.qk_norm:
            layer["layer_types"] = ["sliding_attention"]
    with atomic_path(folder / "model.safetensors") as part:
        save_file(state, part, metadata={"format": "pt"})
    write_text(folder / "config.json", canonical_json(config))
    return folder
