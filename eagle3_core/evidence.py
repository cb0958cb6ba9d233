"""How a number is known. It is shown wherever the number is."""

from __future__ import annotations

from typing import Literal, get_args

Evidence = Literal["measured", "derived", "published", "modelled", "inherited", "assumed"]
"""From strongest to weakest:

measured   seen on a machine or counted in data, by this tool or a file it reads
derived    arithmetic on dimensions, nothing uncertain in it
published  a figure from a paper, model card or tracker, with its source
modelled   a formula with fitted constants (roofline, elasticity, stand-in tokenizer)
inherited  taken over from an earlier run or checkpoint and not re-examined
assumed    chosen by us or by the user, without evidence
"""

EVIDENCE: tuple[Evidence, ...] = get_args(Evidence)


def weakest(*marks: Evidence) -> Evidence:
    """The mark of a figure computed from several: no stronger than its weakest input.

    ``derived`` inputs are exact, so they never weaken a ``measured`` figure.
    """
    uncertain = [mark for mark in marks if mark != "derived"]
    return EVIDENCE[max(map(EVIDENCE.index, uncertain))] if uncertain else "derived"
