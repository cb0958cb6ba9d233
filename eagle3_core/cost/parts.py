"""The parts of an EAGLE-3 drafter as bare torch calls, with random weights of the right shapes.

Every part comes as a list of calls on different copies of its weights, enough
of them that no copy is still in the last-level cache when its turn comes again:
between two rounds the target's own weights pass through, so a loop over one
small buffer would under-report what serving pays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3_core.cost.weights import Weight, activations, item_bytes, make_weight
from eagle3_core.specs.drafter import DrafterSpec

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]
ROTATE_OVER = 4
"""Copies of a part's weights fill the cache this many times."""
TOP_K = 10


@dataclass
class Shapes:
    """One rank's shard of the drafter."""

    hidden: int
    target_hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int

    @classmethod
    def of(cls, spec: DrafterSpec, tp: int) -> Shapes:
        return cls(spec.hidden_size, spec.target_hidden_size, spec.num_heads // tp, max(spec.num_kv_heads // tp, 1),
                   spec.head_dim, spec.intermediate_size // tp, spec.vocab_size)

    def layer_weights(self) -> int:
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim * 2 * self.hidden
        return qkv + self.heads * self.head_dim * self.hidden + 3 * self.hidden * self.intermediate

    def fc_weights(self) -> int:
        return 3 * self.target_hidden * self.hidden


class Parts:
    """Weights made once for the largest D; a smaller head is a slice of the largest."""

    def __init__(self, shapes: Shapes, max_rows: int, *, device: torch.device, dtype: str, context: int,
                 cache_bytes: int) -> None:
        import torch

        self.shapes, self.context, self.cache_bytes = shapes, context, cache_bytes
        self.device, self.kind, self.dtype = device, dtype, activations(dtype, device)
        self.itemsize = item_bytes(dtype)
        """Bytes of a weight; keys, values and logits are activations."""
        self.activation_size = torch.empty(0, dtype=self.dtype).element_size()
        self.head = self._weight(max_rows, shapes.hidden)
        self.layers = [self._layer() for _ in range(self.copies(shapes.layer_weights() * self.itemsize))]
        self.fcs = [self._weight(shapes.hidden, 3 * shapes.target_hidden)
                    for _ in range(self.copies(shapes.fc_weights() * self.itemsize))]
        self.norm = torch.ones(shapes.hidden, dtype=self.dtype, device=device)

    def copies(self, nbytes: int) -> int:
        return min(64, max(1, math.ceil(ROTATE_OVER * self.cache_bytes / max(nbytes, 1))))

    def _weight(self, rows: int, columns: int) -> Weight:
        return make_weight(rows, columns, self.kind, self.device)

    def _layer(self) -> dict[str, Weight]:
        s = self.shapes
        return {
            "qkv": self._weight((s.heads + 2 * s.kv_heads) * s.head_dim, 2 * s.hidden),
            "o": self._weight(s.hidden, s.heads * s.head_dim),
            "gate_up": self._weight(2 * s.intermediate, s.hidden),
            "down": self._weight(s.hidden, s.intermediate),
        }

    def state(self, batch: int, columns: int | None = None) -> torch.Tensor:
        import torch

        return torch.randn(batch, columns or self.shapes.hidden, device=self.device).to(self.dtype)

    def heads(self, rows: int) -> list[Weight]:
        """Slices of the one head weight, at different offsets where several fit into it."""
        spare = len(self.head) // rows
        needed = self.copies(rows * self.shapes.hidden * self.itemsize)
        if spare >= needed:
            return [self.head.cut(i * rows, (i + 1) * rows) for i in range(needed)]
        return [self.head.cut(0, rows)] + [self._weight(rows, self.shapes.hidden) for _ in range(needed - 1)]

    def fc(self, batch: int) -> list[Call]:
        x = self.state(batch, 3 * self.shapes.target_hidden)
        return [lambda w=w: w(x) for w in self.fcs]

    def layer(self, batch: int) -> list[Call]:
        embedding, hidden = self.state(batch), self.state(batch)
        caches = self._caches(batch)
        return [lambda w=w: self._run_layer(w, embedding, hidden, caches) for w in self.layers]

    def _caches(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        s = self.shapes
        shape = (batch, s.kv_heads, self.context, s.head_dim)
        return (torch.randn(shape, device=self.device).to(self.dtype),
                torch.randn(shape, device=self.device).to(self.dtype))

    def _run_layer(self, w: dict[str, Weight], embedding: torch.Tensor, hidden: torch.Tensor,
                   caches: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """One decoder layer on one new token: [batch, H] twice -> [batch, H]. The new key joins in the last slot."""
        import torch
        import torch.nn.functional as F

        s = self.shapes
        batch = hidden.shape[0]
        keys, values = caches
        z = torch.cat([F.rms_norm(embedding, (s.hidden,), self.norm), F.rms_norm(hidden, (s.hidden,), self.norm)], -1)
        q, k, v = w["qkv"](z).split(
            [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim], dim=-1)
        keys[:, :, -1] = k.view(batch, s.kv_heads, s.head_dim)
        values[:, :, -1] = v.view(batch, s.kv_heads, s.head_dim)
        attended = F.scaled_dot_product_attention(
            q.view(batch, s.heads, 1, s.head_dim), keys, values, enable_gqa=s.heads != s.kv_heads)
        out = w["o"](attended.reshape(batch, -1)) + hidden
        gate, up = w["gate_up"](F.rms_norm(out, (s.hidden,), self.norm)).chunk(2, dim=-1)
        return out + w["down"](F.silu(gate) * up)

    def final_norm(self, batch: int) -> list[Call]:
        import torch.nn.functional as F

        x = self.state(batch)
        return [lambda: F.rms_norm(x, (self.shapes.hidden,), self.norm)]

    def lm_head(self, batch: int, rows: int) -> list[Call]:
        x = self.state(batch)
        return [lambda w=w: w(x) for w in self.heads(rows)]

    def logits(self, batch: int, rows: int) -> torch.Tensor:
        return self.state(batch, rows)

    def id_map(self, rows: int) -> torch.Tensor:
        import torch

        return torch.zeros(rows, dtype=torch.int64, device=self.device)

    def step(self, batch: int, rows: int) -> list[Call]:
        """Layer, norm, head, argmax and id mapping in a row, on rotated weights."""
        import torch.nn.functional as F

        embedding, hidden, caches, d2t = self.state(batch), self.state(batch), self._caches(batch), self.id_map(rows)
        heads = self.heads(rows)
        turns = max(len(heads), len(self.layers)) if len(heads) > 1 else 1
        # Layer and head together need rotating only when both together could stay in the cache.
        together = self.shapes.layer_weights() * self.itemsize + rows * self.shapes.hidden * self.itemsize
        turns = min(turns, self.copies(together))

        def run(layer: dict[str, Weight], head: Weight) -> torch.Tensor:
            out = self._run_layer(layer, embedding, hidden, caches)
            best = head(F.rms_norm(out, (self.shapes.hidden,), self.norm)).argmax(dim=-1)
            return best + d2t[best]

        return [lambda i=i: run(self.layers[i % len(self.layers)], heads[i % len(heads)]) for i in range(turns)]
