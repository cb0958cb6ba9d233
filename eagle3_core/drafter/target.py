"""A transformers target that also yields what the drafter reads: three layers' outputs and its last state.

Feature layers are 0-based layers whose output is read, default (1, n//2 - 1, n - 4).
The layers are hooked rather than asked for all hidden states, so three are kept,
not n. Logits are made here from the last state, so that extraction and one-pass
acceptance can have the state without them.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle3_core.errors import Eagle3Error

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor


@dataclass(frozen=True)
class TargetHead:
    """lm_head and what some families do after it: logits = cap * tanh(scale * (W h + b) / cap)."""

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def logits(self, last: Tensor) -> Tensor:
        """[..., Ht] after the final norm -> [..., V]."""
        import torch.nn.functional as F

        z = F.linear(last, self.weight, self.bias)
        if self.scale != 1.0:
            z = z * self.scale
        return z if self.softcap is None else (z / self.softcap).tanh() * self.softcap


@dataclass(frozen=True)
class TargetPass:
    """last [B, S, Ht] after the final norm, before_norm [B, S, Ht], aux [B, S, 3 Ht] low to high."""

    last: Tensor
    before_norm: Tensor
    aux: Tensor


class Target:
    def __init__(self, model: Any, aux_layers: Sequence[int] | None = None) -> None:
        """Raises Eagle3Error when the model's layers cannot be found or the ids lie outside."""
        self.model = model.eval().requires_grad_(False)
        config = model.config.get_text_config()
        self.decoder = model.get_decoder()
        layers = getattr(self.decoder, "layers", None)
        if layers is None or model.get_output_embeddings() is None:
            raise Eagle3Error("its layers or lm_head cannot be found", where=type(model).__name__,
                              expected="a decoder with .layers and an output embedding")
        n = len(layers)
        self.aux_layers = tuple(aux_layers) if aux_layers else (min(1, n - 1), max(n // 2 - 1, 0), max(n - 4, 0))
        if len(self.aux_layers) != 3 or any(not 0 <= layer < n for layer in self.aux_layers):
            raise Eagle3Error("feature layers", found=list(self.aux_layers), expected=f"three of 0 to {n - 1}")
        self.num_layers, self.hidden_size, self.vocab_size = n, int(config.hidden_size), int(config.vocab_size)
        head = model.get_output_embeddings()
        scale = float(getattr(config, "logit_scale", None) or 1.0) / float(
            getattr(config, "logits_scaling", None) or 1.0)
        softcap = getattr(config, "final_logit_softcapping", None)
        self.head = TargetHead(head.weight, getattr(head, "bias", None), scale, softcap)
        # transformers 5.24 renamed the argument.
        known = inspect.signature(self.decoder.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"
        self._seen: dict[int, Tensor] = {}
        for index in {*self.aux_layers, n - 1}:
            layers[index].register_forward_hook(self._keep(index))

    def _keep(self, index: int) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            self._seen[index] = output[0] if isinstance(output, tuple) else output

        return hook

    @property
    def embedding(self) -> Tensor:
        return self.model.get_input_embeddings().weight

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    def new_cache(self) -> Any:
        from transformers import DynamicCache

        # Without the config every layer keeps all positions, so that a cache can be cut back after a rejection.
        return DynamicCache()

    def forward(
        self, ids: Tensor, cache: Any = None, *, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> TargetPass:
        """ids [B, S] behind what ``cache`` holds. ``mask``: additive [B, 1, S, cache + S], or [B, S] of padding."""
        options: dict[str, Any] = {self._cache_name: cache}
        if positions is not None:
            options["position_ids"] = positions
        if mask is not None:
            options["attention_mask"] = mask
        result = self.decoder(input_ids=ids, use_cache=cache is not None, **options)
        seen, self._seen = self._seen, {}
        import torch

        aux = torch.cat([seen[layer] for layer in self.aux_layers], dim=-1)
        return TargetPass(result.last_hidden_state, seen[self.num_layers - 1], aux)

    def logits(self, last: Tensor) -> Tensor:
        return self.head.logits(last)


def keep_path(cache: Any, base: int, path: Sequence[int]) -> None:
    """Keep the first ``base`` positions and, of those after, the ones at ``path``, in that order."""
    import torch

    if list(path) == list(range(len(path))):
        # Only the form "remove so many" means the same in every release.
        extra = cache.get_seq_length() - base - len(path)
        if extra:
            cache.crop(-extra)
        return
    for layer in cache.layers:
        index = torch.tensor([base + i for i in path], device=layer.keys.device)
        layer.keys = torch.cat([layer.keys[:, :, :base], layer.keys[:, :, index]], dim=2)
        layer.values = torch.cat([layer.values[:, :, :base], layer.values[:, :, index]], dim=2)
