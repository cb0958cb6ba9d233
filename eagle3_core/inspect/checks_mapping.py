"""Checks of the mapping: ids, order, the mask, and what the chosen ids say about how they were chosen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eagle3_core.inspect.facts import MappingFacts
from eagle3_core.inspect.rules import Hit, Subject

PREFIX_SUSPECT = 256
"""A run 0..n-1 of at least this many low ids, and a quarter of D, is filling rather than frequency."""
PADDED_SHARE = 0.05


def _ids(subject: Subject) -> tuple[MappingFacts, np.ndarray] | None:
    mapping = subject.facts.mapping
    return None if mapping is None or mapping.ids is None else (mapping, mapping.ids)


def _some(values: np.ndarray) -> str:
    return ", ".join(f"{int(v):,}" for v in values[:4]) + (" ..." if values.size > 4 else "")


def out_of_range(subject: Subject) -> Iterator[Hit]:
    if (found := _ids(subject)) is None:
        return
    mapping, ids = found
    vocab = subject.facts.vocab_size
    bad = np.flatnonzero((ids < 0) | (ids >= vocab if vocab is not None else False))
    if bad.size:
        yield mapping.source, (f"{bad.size:,} draft ids map outside 0..{(vocab or 0) - 1:,}: "
                               f"draft {_some(bad)} to {_some(ids[bad])}")


def duplicate(subject: Subject) -> Iterator[Hit]:
    mapping = subject.facts.mapping
    if mapping is None or mapping.distinct is None:
        return
    values, counts = mapping.distinct
    if (repeated := values[counts > 1]).size:
        yield mapping.source, f"{repeated.size:,} target ids are mapped more than once: {_some(repeated)}"


def float_d2t(subject: Subject) -> Iterator[Hit]:
    mapping = subject.facts.mapping
    if mapping is not None and mapping.d2t is not None and mapping.d2t.dtype.kind == "f":
        yield mapping.source, f"d2t is {mapping.d2t_dtype}, not int64"


def shape(subject: Subject) -> Iterator[Hit]:
    mapping = subject.facts.mapping
    for name in ("d2t", "t2d"):
        value = getattr(mapping, name, None)
        if value is not None and value.ndim != 1:
            yield mapping.source, f"{name} has the shape {list(value.shape)}"  # type: ignore[union-attr]


def mask_sum(subject: Subject) -> Iterator[Hit]:
    mapping = subject.facts.mapping
    if mapping is None or mapping.t2d is None or mapping.d2t is None or mapping.d2t.ndim != 1:
        return
    chosen = int(mapping.t2d.sum())
    if chosen != mapping.d2t.size:
        yield mapping.source, f"t2d marks {chosen:,} ids, d2t has {mapping.d2t.size:,}"


def disagree(subject: Subject) -> Iterator[Hit]:
    """Compares sets: the order is another rule's, the number too."""
    found = _ids(subject)
    if found is None or found[0].t2d is None or found[0].t2d.ndim != 1:
        return
    mapping, ids = found
    mask = np.asarray(mapping.t2d)
    inside = ids[(ids >= 0) & (ids < mask.size)]
    if int(mask.sum()) == ids.size and not mask[inside].all():
        wrong = inside[~mask[inside]]
        yield mapping.source, f"{wrong.size:,} ids of d2t are not in t2d: {_some(wrong)}"


def lonely_mask(subject: Subject) -> Iterator[Hit]:
    mapping = subject.facts.mapping
    if mapping is not None and mapping.d2t is None and mapping.t2d is not None:
        yield mapping.source, "t2d without d2t"


def no_mask(subject: Subject) -> Iterator[Hit]:
    mapping = subject.facts.mapping
    if mapping is not None and mapping.d2t is not None and mapping.t2d is None:
        yield mapping.source, "d2t without t2d"


def unsorted(subject: Subject) -> Iterator[Hit]:
    if (found := _ids(subject)) is None:
        return
    falls = np.flatnonzero(np.diff(found[1]) < 0)
    if falls.size:
        at = int(falls[0])
        yield found[0].source, (f"draft ids are not in ascending target order: {int(found[1][at]):,} stands before "
                                f"{int(found[1][at + 1]):,}")


def absent(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    if facts.kind in ("checkpoint", "run") and facts.mapping is None and facts.reduced and facts.tensors:
        yield "weights", f"no d2t though D = {facts.draft_vocab_size:,} < V = {facts.vocab_size:,}"


def needless(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    if "d2t" in facts.tensors and facts.draft_vocab_size == facts.vocab_size:
        yield "weights", f"d2t is stored though D = V = {facts.vocab_size:,}"


def prefix(subject: Subject) -> Iterator[Hit]:
    found = _ids(subject)
    if found is not None and subject.facts.reduced and np.array_equal(found[1], np.arange(found[1].size)):
        yield found[0].source, f"maps the first {found[1].size:,} ids of the target"


def eos_ids(subject: Subject) -> dict[int, str]:
    """Ids that end an answer, and who says so."""
    out: dict[int, str] = {}
    value = subject.facts.layer.get("eos_token_id", subject.facts.config.get("eos_token_id"))
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int) and not isinstance(item, bool):
            out[item] = "the config's eos_token_id"
    if subject.target is not None:
        out |= dict.fromkeys(subject.target.eos_token_ids, "the target's eos_token_id")
    if subject.counts is not None and subject.counts.vocab_size == subject.facts.vocab_size:
        out |= {int(i): "an end of turn in the counts" for i in subject.counts.ids_with_role("eos", "end_of_turn")}
    return out


def eos(subject: Subject) -> Iterator[Hit]:
    found = _ids(subject)
    if found is None or not subject.facts.reduced:
        return
    wanted = eos_ids(subject)
    missing = [i for i in sorted(wanted) if not (found[1] == i).any()]
    for who in dict.fromkeys(wanted[i] for i in missing):
        ids = [f"{i:,}" for i in missing if wanted[i] == who]
        subject_is = f"token {ids[0]} ({who}) is" if len(ids) == 1 else f"tokens {', '.join(ids)} ({who}) are"
        yield found[0].source, f"{subject_is} not in the draft vocabulary"


def padded(subject: Subject) -> Iterator[Hit]:
    """Never counted ids where counts are given; else a long run of the lowest ids, which is how trainers pad."""
    found = _ids(subject)
    if found is None or not subject.facts.reduced:
        return
    mapping, ids = found
    counts = subject.counts
    if counts is not None and counts.vocab_size == subject.facts.vocab_size:
        inside = ids[(ids >= 0) & (ids < counts.vocab_size)]
        unseen = int((counts.total[inside] == 0).sum())
        if unseen > PADDED_SHARE * ids.size:
            yield mapping.source, f"{unseen:,} of {ids.size:,} ids never occur in the counts"
        return
    ordered = mapping.distinct[0] if mapping.distinct is not None else ids
    run = int(np.argmax(np.append(ordered, -1) != np.arange(ordered.size + 1)))
    if PREFIX_SUSPECT <= run < ids.size and run >= ids.size / 4:
        yield mapping.source, f"the ids 0..{run - 1:,} are all in: {run / ids.size:.0%} of D"


def rounded(subject: Subject) -> Iterator[Hit]:
    """Integers that all survive a cast to bf16 (8 significant bits), though most offsets of that size do not."""
    mapping = subject.facts.mapping
    if mapping is None or mapping.d2t is None or mapping.d2t.dtype.kind not in "iu" or mapping.form != "offsets":
        return
    large = np.unique(np.abs(mapping.d2t.astype(np.int64)))
    large = large[large > 512]
    if large.size >= 8:
        step = 2 ** (np.floor(np.log2(large)).astype(np.int64) - 7)
        if not (large % step).any():
            yield mapping.source, f"all {large.size:,} different offsets above 512 have at most 8 significant bits"
