"""The EAGLE-3 drafter in torch (Li et al. 2503.01840), every variant that trainers and engines know.

    e   = input_layernorm(embed(x[p+1]))           h0 = fc([low; mid; high] at p)
    z   = [e ; hidden_norm(h)]                     embedding first, so q, k and v are 2H wide
    a   = attention(z) + r                         r = h, or hidden_norm(h) with norm_before_residual
    out = a + mlp(post_attention_layernorm(a))     logits = lm_head(norm(out)) over D

Step k reads token x[p+1+k] and the state of step k-1: ``out``, or norm(out) with
norm_output. It proposes token x[p+2+k], which the target's own logits at
position p+1+k judge. ``norm_before_fc`` is one RMSNorm over 3 Ht, ``fc_norm``
one for each feature. Flags carry the engines' meaning (vLLM, SGLang, speculators).

Attention when drafting is causal over a cache. When training (``unroll``), step
k at p sees what it would see when drafting from p: the step-0 keys up to p and
its own earlier steps at p, one diagonal each.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagle3_core.drafter.rope import Rope, frequencies
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.drafter import DrafterSpec


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class DraftCache:
    """Keys and values of one layer, [B, kv heads, capacity, head_dim]; room doubles when it runs out."""

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add [B, kv heads, S, head_dim] and return all that is held."""
        end = self.length + keys.shape[2]
        if self._keys is None or self._values is None or end > self._keys.shape[2]:
            self._keys = self._grown(self._keys, keys, end)
            self._values = self._grown(self._values, values, end)
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def _grown(self, old: Tensor | None, like: Tensor, needed: int) -> Tensor:
        batch, heads, _, width = like.shape
        new = like.new_empty(batch, heads, max(256, 2 * needed), width)
        if old is not None:
            new[:, :, : self.length] = old[:, :, : self.length]
        return new

    def crop(self, length: int) -> None:
        """Forget everything after the first ``length`` entries."""
        self.length = min(length, self.length)


class DraftAttention(nn.Module):
    def __init__(self, spec: DrafterSpec, rope: Rope) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        wide, bias = 2 * spec.hidden_size, spec.attention_bias
        self.q_proj = nn.Linear(wide, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(wide, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(wide, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, spec.hidden_size, bias=bias)
        self.q_norm = RMSNorm(self.head_dim, spec.rms_norm_eps) if spec.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, spec.rms_norm_eps) if spec.qk_norm else None
        self.rope = rope
        self._table: tuple[Tensor, Tensor] | None = None

    def project(self, z: Tensor, positions: Tensor, longest: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated q [B, heads, S, hd] and k, plain v [B, kv heads, S, hd]. ``longest``: one more than any position."""
        batch, length, _ = z.shape
        q = self.q_proj(z).view(batch, length, self.heads, self.head_dim)
        k = self.k_proj(z).view(batch, length, self.kv_heads, self.head_dim)
        v = self.v_proj(z).view(batch, length, self.kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        cos, sin = self._rotation(positions, longest, z.dtype)
        return _rotate(q.transpose(1, 2), cos, sin), _rotate(k.transpose(1, 2), cos, sin), v.transpose(1, 2)

    def _rotation(self, positions: Tensor, longest: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        table = self._table
        if table is None or len(table[0]) < longest or table[0].dtype != dtype or table[0].device != positions.device:
            # Grown in powers of two, so that a decode loop builds it a handful of times.
            room = max(256, 1 << (longest - 1).bit_length())
            steps, scale = frequencies(self.rope, self.head_dim, longest)
            angles = torch.arange(room, dtype=torch.float32)[:, None] * steps
            angles = torch.cat([angles, angles], dim=-1)
            if self.rope.kind == "dynamic":
                angles = angles[:longest]
            table = self._table = (
                (angles.cos() * scale).to(positions.device, dtype), (angles.sin() * scale).to(positions.device, dtype))
        return table[0][positions].unsqueeze(1), table[1][positions].unsqueeze(1)

    def join(self, attended: Tensor) -> Tensor:
        batch, _, length, _ = attended.shape
        return self.o_proj(attended.transpose(1, 2).reshape(batch, length, -1))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half rotation (Llama): pairs are (i, i + d/2). Dimensions beyond the table's width pass through."""
    width = cos.shape[-1]
    turned, kept = x[..., :width], x[..., width:]
    low, high = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-high, low], dim=-1) * sin
    return torch.cat([turned, kept], dim=-1) if kept.shape[-1] else turned


class DraftMLP(nn.Module):
    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DraftLayer(nn.Module):
    """The one layer, split around its attention because drafting and training attend differently."""

    def __init__(self, spec: DrafterSpec, rope: Rope) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.hidden_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.self_attn = DraftAttention(spec, rope)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.mlp = DraftMLP(spec)
        self.norm_before_residual = spec.norm_before_residual

    def before(self, embedding: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """z [B, S, 2H] and the residual [B, S, H]."""
        normed = self.hidden_norm(state)
        z = torch.cat([self.input_layernorm(embedding), normed], dim=-1)
        return z, normed if self.norm_before_residual else state

    def after(self, attended: Tensor, residual: Tensor) -> Tensor:
        a = self.self_attn.join(attended) + residual
        return a + self.mlp(self.post_attention_layernorm(a))


class Drafter(nn.Module):
    """Parameters are named as EAGLE and SpecForge name them, with ``midlayer.`` for the layer.

    ``d2t`` int64 [D] is the offset of each draft id to its target id.
    ``window`` limits attention to that many positions, where a checkpoint was trained so.
    """

    def __init__(self, spec: DrafterSpec, rope: Rope | None = None, *, window: int | None = None) -> None:
        super().__init__()
        self.spec, self.rope, self.window = spec, rope or Rope(), window
        h, ht = spec.hidden_size, spec.target_hidden_size
        self.embed_tokens = nn.Embedding(spec.vocab_size, h)
        self.input_norm = RMSNorm(3 * ht, spec.rms_norm_eps) if spec.norm_before_fc else None
        self.fc_norm = nn.ModuleList(RMSNorm(ht, spec.rms_norm_eps) for _ in range(3)) if spec.fc_norm else None
        self.fc = nn.Linear(3 * ht, h, bias=False)
        self.midlayer = DraftLayer(spec, self.rope)
        self.norm = RMSNorm(h, spec.rms_norm_eps)
        self.lm_head = nn.Linear(h, spec.draft_vocab_size, bias=False)
        self.d2t: Tensor
        self.register_buffer("d2t", torch.zeros(spec.draft_vocab_size, dtype=torch.int64))

    def reset(self, seed: int = 0, std: float = 0.02) -> Drafter:
        """Fresh weights, the same on every machine for one seed: normal(0, std), norms one, biases zero."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("norm.weight") or name.startswith("fc_norm"):
                    parameter.fill_(1.0)
                elif name.endswith("bias"):
                    parameter.zero_()
                else:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
        return self

    @property
    def target_ids(self) -> Tensor:
        """int64 [D]: the target id of each draft id."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def features(self, aux: Tensor) -> Tensor:
        """Target features [..., 3 Ht] to the state of step 0, [..., H]."""
        if self.input_norm is not None:
            aux = self.input_norm(aux)
        if self.fc_norm is not None:
            aux = torch.cat([norm(part) for norm, part in zip(self.fc_norm, aux.chunk(3, dim=-1), strict=True)], dim=-1)
        return self.fc(aux)

    def step(
        self, ids: Tensor, states: Tensor, positions: Tensor, cache: DraftCache, *, mask: Tensor | None = None
    ) -> Tensor:
        """One drafting pass. ids [B, S], states [B, S, H], positions [B, S] -> out [B, S, H], before the final norm.

        The S new entries follow what the cache holds and attend causally, or by
        ``mask``, bool [S, cache + S], True where attention is allowed.
        """
        z, residual = self.midlayer.before(self.embed_tokens(ids), states)
        attention = self.midlayer.self_attn
        held, new = cache.length, ids.shape[1]
        longest = held + new if mask is None else int(positions.max()) + 1
        q, k, v = attention.project(z, positions, longest)
        keys, values = cache.append(k, v)
        if mask is None and (new > 1 or self.window is not None):
            mask = self._causal(held, new, q.device)
        attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        return self.midlayer.after(attended, residual)

    def _causal(self, held: int, new: int, device: torch.device) -> Tensor:
        query = torch.arange(held, held + new, device=device)[:, None]
        key = torch.arange(held + new, device=device)[None, :]
        allowed = key <= query
        return allowed if self.window is None else allowed & (query - key < self.window)

    def feed_back(self, out: Tensor) -> Tensor:
        """The state the next step reads."""
        return self.norm(out) if self.spec.norm_output else out

    def logits(self, out: Tensor) -> Tensor:
        """[..., H] before the final norm -> [..., D]."""
        return self.lm_head(self.norm(out))

    def unroll(
        self, aux: Tensor, ids: Tensor, steps: int, *, positions: Tensor | None = None, documents: Tensor | None = None
    ) -> list[Tensor]:
        """Teacher-forced draft steps (training-time test): the normed states of each step, [B, S, H] each.

        aux [B, S, 3 Ht] and ids [B, S] are those of the text itself; entry p of
        step k has read tokens up to x[p+1+k] and proposes x[p+2+k]. Entries whose
        tokens lie past the end read id 0 and mean nothing. ``documents`` int
        [B, S] keeps packed documents from attending to each other, with
        ``positions`` [B, S] counting from 0 in each.
        """
        batch, length = ids.shape
        if positions is None:
            positions = torch.arange(length, device=ids.device).expand(batch, length)
        allowed = self._training_mask(positions, documents, length)
        attention = self.midlayer.self_attn
        longest = (length if documents is None else int(positions.max()) + 1) + steps
        state = self.features(aux)
        normed: list[Tensor] = []
        earlier: list[tuple[Tensor, Tensor]] = []
        for k in range(steps):
            tokens = F.pad(ids[:, k + 1 :], (0, min(k + 1, length)))
            z, residual = self.midlayer.before(self.embed_tokens(tokens), state)
            q, key, value = attention.project(z, positions + k, longest)
            earlier.append((key, value))
            if k == 0:
                attended = F.scaled_dot_product_attention(q, key, value, attn_mask=allowed, enable_gqa=True)
            else:
                attended = _with_diagonals(q, earlier, allowed)
            out = self.midlayer.after(attended, residual)
            last = self.norm(out)
            normed.append(last)
            state = last if self.spec.norm_output else out
        return normed

    def _training_mask(self, positions: Tensor, documents: Tensor | None, length: int) -> Tensor:
        """bool [1 or B, 1, S, S]."""
        allowed = self._causal(0, length, positions.device)[None, None]
        if documents is not None:
            allowed = allowed & (documents[:, None, :, None] == documents[:, None, None, :])
        return allowed


def _with_diagonals(q: Tensor, earlier: list[tuple[Tensor, Tensor]], allowed: Tensor) -> Tensor:
    """Attention over the step-0 keys as ``allowed`` and over every later step's key at the query's own position."""
    groups = q.shape[1] // earlier[0][0].shape[1]
    scale = q.shape[-1] ** -0.5
    keys = [k.repeat_interleave(groups, dim=1) for k, _ in earlier]
    values = [v.repeat_interleave(groups, dim=1) for _, v in earlier]
    scores = (q @ keys[0].transpose(-1, -2) * scale).masked_fill(~allowed, float("-inf"))  # [B, heads, S, S]
    own = torch.stack([(q * k).sum(dim=-1) * scale for k in keys[1:]], dim=-1)  # [B, heads, S, k]
    weights = torch.softmax(torch.cat([scores, own], dim=-1), dim=-1)
    length = scores.shape[-1]
    attended = weights[..., :length] @ values[0]
    for index, value in enumerate(values[1:]):
        attended = attended + weights[..., length + index, None] * value
    return attended


def cut(drafter: Drafter, rows: Tensor) -> Drafter:
    """The same drafter with only these rows of its head, in ascending order of target id; all else is shared.

    rows: int64 [D'], draft ids. Serving it equals serving a checkpoint cut to them.
    """
    if rows.numel() == 0:
        raise Eagle3Error("no rows to keep", expected="one or more draft ids")
    targets = drafter.target_ids[rows]
    targets, order = targets.sort()
    rows = rows[order]
    smaller = Drafter.__new__(Drafter)
    nn.Module.__init__(smaller)
    smaller.spec, smaller.rope, smaller.window = drafter.spec, drafter.rope, drafter.window
    for name in ("embed_tokens", "input_norm", "fc_norm", "fc", "midlayer", "norm"):
        setattr(smaller, name, getattr(drafter, name))
    head = drafter.lm_head.weight.detach()[rows].contiguous()
    smaller.lm_head = nn.Linear(head.shape[1], head.shape[0], bias=False, device="meta")
    smaller.lm_head.weight = nn.Parameter(head, requires_grad=False)
    smaller.register_buffer("d2t", targets - torch.arange(len(targets), device=targets.device))
    return smaller.train(drafter.training)
