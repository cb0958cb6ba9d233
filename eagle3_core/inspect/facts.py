"""What a path holds, as plain facts: dimensions, parts, dtype, mapping, aux layers, and who wrote it.

Nothing here judges; ``rules.py`` does. Values that the files do not state are
None, never filled in. Tensor names are EAGLE's (``drafter/checkpoint.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from eagle3_core.errors import Eagle3Error
from eagle3_core.inspect.headers import TensorInfo
from eagle3_core.specs.target import TargetSpec
from eagle3_core.vocab.mapping import VocabMapping

Kind = Literal["checkpoint", "mapping", "files", "run", "token counts"]
Standing = Literal["trainable", "frozen", "shared with the target"]
NAMES = {"specforge": "SpecForge", "eagle": "EAGLE", "modelopt": "ModelOpt", "vllm": "vLLM", "angelslim": "AngelSlim",
         "sglang-map": "SGLang's token map", "eagle3": "eagle3 train", "speculators": "speculators",
         "llama.cpp": "llama.cpp"}


@dataclass(frozen=True)
class Part:
    """Parameters of one part. ``stored`` is in bytes; 0 where the part is taken from the target when loaded."""

    name: str
    parameters: int
    stored: int
    standing: Standing


@dataclass(frozen=True, eq=False)
class MappingFacts:
    """A mapping as it is stored, whatever is wrong with it.

    d2t: [D] in the file's own dtype, offsets or absolute ids by ``form``; t2d: bool [V]; either may be missing.
    """

    source: str
    form: Literal["offsets", "absolute"]
    d2t: np.ndarray | None
    d2t_dtype: str = ""
    t2d: np.ndarray | None = None

    @functools.cached_property
    def ids(self) -> np.ndarray | None:
        """int64 [D] target ids, unchecked; None without whole numbers to make them from."""
        if self.d2t is None or self.d2t.ndim != 1 or self.d2t.dtype.kind not in "iu":
            return None
        values = self.d2t.astype(np.int64)
        return values + np.arange(values.size) if self.form == "offsets" else values

    @functools.cached_property
    def distinct(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The ids, ascending and each once, and how often each is mapped."""
        return None if self.ids is None else np.unique(self.ids, return_counts=True)

    def checked(self, vocab_size: int) -> VocabMapping:
        """Raises Eagle3Error for anything that is no mapping of ``vocab_size`` target ids."""
        if self.ids is None:
            raise Eagle3Error("has no whole-number d2t", where=self.source, fix="see the lint of eagle3 inspect")
        try:
            return VocabMapping(self.ids, vocab_size)
        except Eagle3Error as error:
            error.where = error.where or self.source
            raise


@dataclass(frozen=True)
class AuxLayers:
    """Feature layers as the config states them. At ``root`` ids count states, in ``eagle_config`` layer outputs,
    where the config keeps to its own convention."""

    ids: tuple[int, ...]
    place: Literal["root", "eagle_config"]


@dataclass(frozen=True)
class Serving:
    """Settings of a launch, from scripts beside the checkpoint or from the caller. None: not stated."""

    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    num_speculative_tokens: int | None = None
    rejection_sampling: bool = False
    source: str = ""


@dataclass(frozen=True)
class Run:
    """A training run's folder: whose, its checkpoints by name, oldest first, and the one inspected."""

    project: str
    checkpoints: tuple[str, ...]
    inspected: str | None


@dataclass(frozen=True, eq=False)
class Facts:
    """``project`` wrote it, as its layout says; "" where that cannot be told. Sizes in rows and columns."""

    path: str
    kind: Kind
    what: str
    project: str = ""
    container: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    has_config: bool = False
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    """EAGLE's name -> the name in the file."""
    mapping: MappingFacts | None = None
    target: TargetSpec | None = None
    run: Run | None = None
    serving: tuple[Serving, ...] = ()
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    decided: bool = False
    """A decision record lies beside it: the size was chosen, not inherited."""

    @property
    def layer(self) -> Mapping[str, Any]:
        """The decoder's fields: nested in speculators' config, at the root in all others."""
        nested = self.config.get("transformer_layer_config")
        return nested if isinstance(nested, dict) else self.config

    @property
    def speculators(self) -> bool:
        return isinstance(self.config.get("transformer_layer_config"), dict)

    @property
    def eagle_config(self) -> Mapping[str, Any]:
        nested = self.config.get("eagle_config")
        return nested if isinstance(nested, dict) else {}

    def flag(self, name: str) -> bool:
        return bool(self.config.get(name, self.eagle_config.get(name)))

    def whole(self, name: str) -> int | None:
        """A positive whole number of the decoder's fields, None when absent or something else."""
        return _whole(self.layer.get(name))

    def rows(self, name: str) -> int | None:
        info = self.tensors.get(name)
        return info.shape[0] if info is not None and info.shape else None

    def columns(self, name: str) -> int | None:
        info = self.tensors.get(name)
        return info.shape[1] if info is not None and len(info.shape) == 2 else None

    @property
    def head_rows(self) -> int | None:
        return self.rows("lm_head.weight")

    @property
    def stated_vocab(self) -> int | None:
        return self.whole("vocab_size")

    @property
    def stated_draft_vocab(self) -> int | None:
        return _whole(self.config.get("draft_vocab_size"))

    @property
    def seen_vocab(self) -> int | None:
        """V by what cannot be a slip of the pen: the mask, the embedding, the target."""
        if self.mapping is not None and self.mapping.t2d is not None:
            return int(self.mapping.t2d.size)
        if (rows := self.rows("embed_tokens.weight")) is not None:
            return rows
        return self.target.vocab_size if self.target else None

    @property
    def vocab_size(self) -> int | None:
        return self.seen_vocab or self.stated_vocab

    @property
    def draft_vocab_size(self) -> int | None:
        if self.mapping is not None and self.mapping.d2t is not None and self.mapping.d2t.ndim == 1:
            return int(self.mapping.d2t.size)
        return self.head_rows or self.stated_draft_vocab or (self.stated_vocab if self.has_config else None)

    @property
    def reduced(self) -> bool:
        """D < V, as far as both are known."""
        vocab, draft = self.vocab_size, self.draft_vocab_size
        return vocab is not None and draft is not None and draft < vocab

    @property
    def hidden_size(self) -> int | None:
        return self.rows("fc.weight") or self.whole("hidden_size")

    @property
    def target_hidden_size(self) -> int | None:
        wide = self.columns("fc.weight")
        if wide is not None:
            return wide // 3
        return _whole(self.config.get("target_hidden_size")) or self.whole("hidden_size")

    @property
    def head_dim(self) -> int | None:
        rows, heads = self.rows("midlayer.self_attn.q_proj.weight"), self.whole("num_attention_heads")
        return rows // heads if rows and heads else self.whole("head_dim")

    @property
    def dtype(self) -> str | None:
        """Of most weights, mapping tensors aside."""
        sizes: dict[str, int] = {}
        for name, info in self.tensors.items():
            if name not in ("d2t", "t2d"):
                sizes[info.dtype] = sizes.get(info.dtype, 0) + info.size
        if sizes:
            return max(sizes, key=lambda name: sizes[name])
        value = self.config.get("torch_dtype") or self.config.get("dtype")
        return value if isinstance(value, str) else None

    @property
    def aux_layers(self) -> AuxLayers | None:
        for place, holder in (("root", self.config), ("eagle_config", self.eagle_config)):
            ids = holder.get("eagle_aux_hidden_state_layer_ids")
            if isinstance(ids, list) and ids and all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
                return AuxLayers(tuple(ids), "root" if place == "root" else "eagle_config")
        return None

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        return parts_of(self)

    def parameters(self, standing: Standing) -> int:
        return sum(part.parameters for part in self.parts if part.standing == standing)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31 else None


_PARTS = (
    ("attention", "midlayer.self_attn."), ("mlp", "midlayer.mlp."), ("fc", "fc.weight"), ("lm_head", "lm_head."),
    ("embedding", "embed_tokens."),
)


def parts_of(facts: Facts) -> tuple[Part, ...]:
    """Parameters by part, those taken from the target at loading time included.

    The embedding is a copy of the target's in every project. The head is trained, but for speculators, which
    holds the verifier's rows frozen.
    """
    if not facts.tensors:
        return ()
    counts: dict[str, list[int]] = {}
    for name, info in facts.tensors.items():
        if name in ("d2t", "t2d") or name.startswith("verifier_") or name.endswith("inv_freq"):
            continue
        part = next((p for p, start in _PARTS if name.startswith(start)), "norms" if "norm" in name else "other")
        entry = counts.setdefault(part, [0, 0])
        entry[0] += info.size
        entry[1] += info.nbytes
    out = []
    for name in ("attention", "mlp", "fc", "norms", "other", "lm_head", "embedding"):
        standing: Standing = "trainable"
        if name == "lm_head" and facts.project == "speculators":
            standing = "frozen"
        if name == "embedding":
            standing = "trainable" if facts.flag("embed_requires_grad") else "shared with the target"
        if name in counts:
            out.append(Part(name, counts[name][0], counts[name][1], standing))
    vocab, width = facts.vocab_size, facts.target_hidden_size
    if "embedding" not in counts and vocab and width and "fc.weight" in facts.tensors:
        out.append(Part("embedding", vocab * width, 0, "shared with the target"))
    if "lm_head" not in counts and vocab and width and "fc.weight" in facts.tensors:
        out.append(Part("lm_head", (facts.draft_vocab_size or vocab) * width, 0, "shared with the target"))
    return tuple(out)
