"""Training documents in packed rows, in an order that is a function of seed and epoch alone.

Nothing about the order has to be saved: row ``i`` of epoch ``e`` holds the same
documents in every process and after every resume. A row packs whole documents
up to ``batch_tokens``; ``documents`` and ``positions`` keep them apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3_core.errors import Eagle3Error
from eagle3_core.training.features import Document, FeatureSet, hash_share

if TYPE_CHECKING:
    from eagle3_core.drafter.target import Target
    from eagle3_core.extract.documents import Encoded


class Source(Protocol):
    """Documents by index: hidden states on disk, or made by the target when asked for."""

    def __len__(self) -> int: ...
    def load(self, index: int) -> Document: ...


class OnlineSource:
    """Texts whose hidden states the target makes each time they are read."""

    def __init__(self, target: Target, texts: Sequence[Encoded]) -> None:
        self.target, self.texts = target, texts

    def __len__(self) -> int:
        return len(self.texts)

    def load(self, index: int) -> Document:
        text = self.texts[index]
        ids = torch.from_numpy(np.ascontiguousarray(text.ids))
        with torch.no_grad():
            seen = self.target.forward(ids[None].to(self.target.device))
        return Document(text.name, ids, torch.from_numpy(np.ascontiguousarray(text.mask)), seen.aux[0].cpu(),
                        seen.last[0].cpu())

    def ids_and_mask(self, index: int) -> tuple[Tensor, Tensor]:
        text = self.texts[index]
        return torch.from_numpy(text.ids), torch.from_numpy(text.mask)


@dataclass(frozen=True)
class Split:
    """Indices of training and held-out documents, their lengths, and a hash of all ids and masks."""

    train: tuple[int, ...]
    heldout: tuple[int, ...]
    lengths: tuple[int, ...]
    sha256: str


def split(source: FeatureSet | OnlineSource, share: float, max_length: int) -> Split:
    """By a stable hash of the ids, as ``split_heldout``; one pass over the documents.

    Raises Eagle3Error when there are fewer than two documents.
    """
    digest = hashlib.sha256()
    lengths, shares = [], []
    for index in range(len(source)):
        if isinstance(source, OnlineSource):
            ids, mask = source.ids_and_mask(index)
        else:
            document = source.load(index)
            ids, mask = document.ids, document.mask
        digest.update(ids.numpy().astype("<i8").tobytes() + mask.numpy().astype(np.uint8).tobytes())
        lengths.append(min(len(ids), max_length))
        shares.append(hash_share(ids))
    if len(shares) < 2:
        raise Eagle3Error("too few documents to hold some out", found=len(shares), expected="at least 2")
    by_hash = np.array(shares)
    sides = by_hash < share
    if not sides.any():
        sides[by_hash.argmin()] = True
    if sides.all():
        sides[by_hash.argmax()] = False
    return Split(tuple(np.flatnonzero(~sides).tolist()), tuple(np.flatnonzero(sides).tolist()), tuple(lengths),
                 digest.hexdigest())


def rows_of_epoch(chosen: Sequence[int], lengths: Sequence[int], tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Documents of each packed row: shuffled, then filled one row after the other."""
    order = np.random.default_rng([seed, epoch]).permutation(np.asarray(chosen, dtype=np.int64))
    rows: list[list[int]] = []
    filled = tokens + 1
    for index in order.tolist():
        if filled + lengths[index] > tokens:
            rows.append([])
            filled = 0
        rows[-1].append(index)
        filled += lengths[index]
    return rows


@dataclass(frozen=True)
class Packed:
    """ids [1, S], aux [1, S, 3 Ht], last [S, Ht], weights [K, S] by target position; see ``pack``."""

    ids: Tensor
    aux: Tensor
    last: Tensor
    positions: Tensor
    documents: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> Packed:
        return Packed(**{name: value.to(device) for name, value in vars(self).items()})


def pack(
    documents: Sequence[Document], steps: int, *, max_length: int, norm: Tensor, eps: float, loss_on: str = "assistant",
    excluded: Sequence[Tensor] | None = None,
) -> Packed:
    """One row of whole documents.

    ``weights[k, t]`` is 1 where step k, started at t - 1 - k, is judged by the
    target's distribution at t: token t + 1 is to be proposed, both lie in one
    document, and t is not ``excluded`` (one bool [S] a document).
    """
    ids, aux, last, positions, owners, weights = [], [], [], [], [], []
    for number, document in enumerate(documents):
        length = min(len(document.ids), max_length)
        state = document.last[:length].float()
        if not document.post_norm:
            state = F.rms_norm(state, (state.shape[-1],), norm.float(), eps)
        wanted = document.mask[:length].float() if loss_on == "assistant" else torch.ones(length)
        judged = F.pad(wanted[1:], (0, 1))
        if excluded is not None:
            judged = judged.masked_fill(excluded[number][:length], 0.0)
        place = torch.arange(length)
        weights.append(torch.stack([judged * (place > k) for k in range(steps)]))
        ids.append(document.ids[:length])
        aux.append(document.aux[:length].float())
        last.append(state)
        positions.append(place)
        owners.append(torch.full((length,), number))
    return Packed(torch.cat(ids)[None], torch.cat(aux)[None], torch.cat(last), torch.cat(positions)[None],
                  torch.cat(owners)[None], torch.cat(weights, dim=1))
