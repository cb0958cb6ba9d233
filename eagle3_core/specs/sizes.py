"""The candidate draft-vocabulary sizes: log steps in multiples of 64, the inherited 32,000, and V."""

from __future__ import annotations

from collections.abc import Iterable

from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.drafter import check_draft_vocab

INHERITED = 32_000
"""What nearly every trainer uses because an earlier checkpoint had it."""
SMALLEST = 1_024
STEPS_PER_OCTAVE = 8


def size_grid(vocab_size: int) -> tuple[int, ...]:
    """Ascending sizes from 1,024 to V: eight log steps an octave, each a multiple of 64, plus 32,000 and V."""
    sizes = {vocab_size}
    step = 0
    while (size := SMALLEST * 2 ** (step / STEPS_PER_OCTAVE)) < vocab_size:
        rounded = round(size / 64) * 64
        if rounded < vocab_size:
            sizes.add(rounded)
        step += 1
    if vocab_size > INHERITED:
        sizes.add(INHERITED)
    return tuple(sorted(sizes))


def parse_sizes(text: str, vocab_size: int) -> tuple[int, ...]:
    """``"8192,32000,full"`` or ``"auto"`` -> ascending distinct sizes. Raises Eagle3Error naming the bad part."""
    if text.strip() == "auto":
        return size_grid(vocab_size)
    sizes: set[int] = set()
    for part in text.replace("_", "").split(","):
        word = part.strip()
        if word in ("full", "V"):
            sizes.add(vocab_size)
            continue
        if not word.isascii() or not word.isdigit():
            raise Eagle3Error("--sizes", found=repr(word[:40]), expected="whole numbers, 'full' or 'auto'")
        sizes.add(int(word))
    return check_sizes(sizes, vocab_size)


def check_sizes(sizes: Iterable[int], vocab_size: int) -> tuple[int, ...]:
    """Ascending distinct sizes, each in [64, V]."""
    ordered = tuple(sorted(set(sizes)))
    for size in ordered:
        check_draft_vocab(size, vocab_size)
    return ordered
