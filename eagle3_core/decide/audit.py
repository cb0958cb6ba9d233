"""A record for a checkpoint that came without one: what can be measured, and the gaps, marked.

The inherited list is measured on the user's tokens beside the best list of its
size; who chose it, on what data and why is not known and is said so.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from eagle3_core.corpus.text import show_token
from eagle3_core.decide.conclude import decide
from eagle3_core.decide.record import Decision, InputEvidence, Tripwire, token_set
from eagle3_core.decide.tradeoff import TradeoffInputs
from eagle3_core.errors import Eagle3Error
from eagle3_core.vocab.mapping import VocabMapping
from eagle3_core.vocab.ranking import FORCED_ROLES

UNKNOWN: tuple[str, ...] = (
    "who chose this size, when and why",
    "which tokens the list was ranked on, and whether they were held out",
    "acceptance at any other size: nothing above the checkpoint's D can be measured on it",
)
_NAMED = 6


def audit(
    inputs: TradeoffInputs, mapping: VocabMapping, checkpoint: str, *, created: str, decided_by: str = "",
    hashes: dict[str, str] | None = None,
) -> Decision:
    """The record of an inherited list. Raises Eagle3Error when the counts are not the target's."""
    if inputs.stand_in:
        raise Eagle3Error("counts are of another vocabulary than the checkpoint's target",
                          found=f"V = {inputs.counts.vocab_size:,}", expected=f"V = {inputs.target.vocab_size:,}")
    size, counts = mapping.draft_vocab_size, inputs.counts
    inputs = dataclasses.replace(inputs, locked_size=size)
    decision = decide(inputs, size, created=created, decided_by=decided_by, hashes=hashes,
                      reason=f"inherited with {checkpoint}")
    inside = counts.by_domain[:, mapping.target_ids].sum(axis=1)
    tokens = counts.by_domain.sum(axis=1)
    coverage = inside.sum() / counts.tokens
    shares = np.where(tokens > 0, inside / np.maximum(tokens, 1), np.inf)
    worst = int(shares.argmin())
    best = decision.row(size)
    member = np.zeros(counts.vocab_size, dtype=bool)
    member[mapping.target_ids] = True
    needed = counts.ids_with_role(*FORCED_ROLES)
    lacking = needed[~member[needed]]
    never = int((counts.total[mapping.target_ids] == 0).sum())
    measured = (
        InputEvidence(
            name="coverage of the inherited list",
            value=f"{coverage:.2%}, worst {counts.domains[worst]} {shares[worst]:.2%}; the best list of this size "
                  f"covers {best['coverage']:.2%} held out, worst {best['worst_domain']} {best['worst_coverage']:.2%}",
            evidence="measured", source="these counts"),
        InputEvidence(name="ids of the list never seen", value=f"{never:,} of {size:,}", evidence="measured",
                      source="these counts"),
        InputEvidence(name="draft vocabulary", value=f"{size:,}", evidence="inherited", source=checkpoint),
    )
    gaps = list(UNKNOWN)
    if len(lacking):
        names = ", ".join(show_token(counts.token[int(i)]) for i in lacking[:_NAMED])
        more = f" and {len(lacking) - _NAMED:,} more" if len(lacking) > _NAMED else ""
        gaps.append(f"the list lacks {len(lacking):,} tokens that this tool always includes: {names}{more}")
    wires = tuple(w for w in decision.tripwires if "coverage" not in w.metric)
    own = (
        Tripwire(metric="coverage", direction="below", value=round(float(coverage) - 0.01, 4),
                 reason="a point under the inherited list's coverage when it was audited"),
        Tripwire(metric="worst_coverage", direction="below", value=round(float(shares[worst]) - 0.02, 4),
                 reason=f"two points under {counts.domains[worst]}, the worst domain when it was audited"),
    )
    return decision.model_copy(update={
        "inputs": (*measured, *decision.inputs), "gaps": (*decision.gaps, *gaps), "tripwires": (*own, *wires),
        "token_set": token_set(mapping, ranking="inherited", forced=0, padding=never),
    })
