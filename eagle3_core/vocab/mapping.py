"""VocabMapping: which target id each draft id stands for.

``target_ids[i]`` is the target id of draft id ``i`` (order kept). The two tensors
every trainer and engine agrees on follow from it:

    d2t[i] = target_ids[i] - i      int64 [D], an offset, never absolute
    t2d[v] = v in target_ids        bool [V], membership
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from eagle3_core.errors import Eagle3Error

MOST_IDS = 1 << 24
"""Sixty times the largest vocabulary in use; a file that states more is damaged, and would take the memory."""


@dataclass(frozen=True, eq=False)
class VocabMapping:
    """target_ids: int64 [D], distinct, each in [0, V)."""

    target_ids: np.ndarray
    vocab_size: int

    def __post_init__(self) -> None:
        ids = np.asarray(self.target_ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise Eagle3Error("target ids", found=f"{ids.dtype} of shape {ids.shape}", expected="integers [D]")
        if self.vocab_size > MOST_IDS:
            raise Eagle3Error("more target ids than any model has", found=f"V = {self.vocab_size:,}",
                              expected=f"at most {MOST_IDS:,}")
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self.vocab_size):
            at = int(np.flatnonzero((ids < 0) | (ids >= self.vocab_size))[0])
            raise Eagle3Error(f"draft id {at} maps outside the target vocabulary", found=int(ids[at]),
                              expected=f"0 to {self.vocab_size - 1}")
        seen = np.zeros(self.vocab_size, dtype=bool)
        seen[ids] = True
        if int(seen.sum()) != ids.size:
            values, repeats = np.unique(ids, return_counts=True)
            raise Eagle3Error("target id mapped twice", found=int(values[repeats > 1][0]), expected="distinct ids")
        ids.setflags(write=False)
        object.__setattr__(self, "target_ids", ids)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, VocabMapping)
            and self.vocab_size == other.vocab_size
            and np.array_equal(self.target_ids, other.target_ids)
        )

    @property
    def draft_vocab_size(self) -> int:
        return int(self.target_ids.size)

    @functools.cached_property
    def d2t(self) -> np.ndarray:
        """int64 [D]: offset of each draft id to its target id."""
        return self.target_ids - np.arange(self.target_ids.size, dtype=np.int64)

    @functools.cached_property
    def t2d(self) -> np.ndarray:
        """bool [V]: is the target id in the draft vocabulary."""
        mask = np.zeros(self.vocab_size, dtype=bool)
        mask[self.target_ids] = True
        return mask

    @property
    def is_ascending(self) -> bool:
        """Trainers that slice target logits by the mask need ascending target ids."""
        return bool(np.all(np.diff(self.target_ids) > 0))

    @property
    def is_identity(self) -> bool:
        return self.draft_vocab_size == self.vocab_size and self.is_ascending

    def ascending(self) -> tuple[VocabMapping, np.ndarray]:
        """The same tokens in ascending order, and the lm_head row of ``self`` that each new row takes, [D].

        ids [7, 3, 1] become [1, 3, 7] and take rows [2, 1, 0].
        """
        rows = np.argsort(self.target_ids, kind="stable")
        return VocabMapping(self.target_ids[rows], self.vocab_size), rows


def mapping_from_ids(ids: np.ndarray, vocab_size: int) -> VocabMapping:
    """The ascending mapping of a set of target ids, what trainers expect."""
    return VocabMapping(np.sort(np.asarray(ids, dtype=np.int64)), vocab_size)


def mapping_from_d2t(d2t: np.ndarray, vocab_size: int) -> VocabMapping:
    """From offsets. Raises Eagle3Error for floats: bf16 rounds 32,001 to 32,000."""
    d2t = np.asarray(d2t)
    if d2t.dtype.kind not in "iu" or d2t.ndim != 1:
        raise Eagle3Error("d2t", found=f"{d2t.dtype} of shape {d2t.shape}", expected="int64 [D]")
    return VocabMapping(d2t.astype(np.int64) + np.arange(d2t.size, dtype=np.int64), vocab_size)
