"""AcceptanceRecord: how often drafts were accepted, by draft-vocabulary size, as a file (``*.acceptance.json``).

alpha_k is the probability that draft k is accepted given that drafts 1..k-1
were. A target token outside the draft vocabulary counts as a miss. tau is the
acceptance length, bonus token included: 1 + sum_k prod_{i<=k} alpha_i.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from eagle3_core.errors import Eagle3Error
from eagle3_core.evidence import Evidence
from eagle3_core.files import canonical_json, read_json, write_text

FORMAT_VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class AcceptancePoint(_Record):
    """Acceptance at one size. ``alpha[k-1]`` is alpha_k; the intervals are 95 % over documents."""

    draft_vocab: int = Field(ge=1)
    alpha: tuple[float, ...]
    alpha_low: tuple[float, ...]
    alpha_high: tuple[float, ...]
    tau: float = Field(ge=1)
    tau_low: float
    tau_high: float
    coverage: float | None = None
    """Share of the target's own argmax tokens inside the draft vocabulary."""
    coverage_accepted: float | None = None
    """The same on the positions the full drafter gets right (C_acc)."""
    rescue: float | None = None
    """Share of positions right at this size though the full drafter is wrong."""
    teacher_forced: tuple[float, ...] = ()
    """Acceptance at each depth on the text's own prefix, whatever came of the drafts before: trainers' acc_k."""

    @model_validator(mode="after")
    def _same_depth(self) -> AcceptancePoint:
        if not self.alpha or not len(self.alpha) == len(self.alpha_low) == len(self.alpha_high):
            raise ValueError("alpha, alpha_low and alpha_high must have one value for each depth")
        if any(not 0 <= a <= 1 for a in (*self.alpha, *self.alpha_low, *self.alpha_high)):
            raise ValueError("alpha must lie in [0, 1]")
        return self


class AcceptanceRecord(_Record):
    format_version: int = FORMAT_VERSION
    tool_version: str
    created: str
    target: str
    drafter: str
    vocab_size: int
    trained_draft_vocab: int | None = None
    """D of the checkpoint; nothing above it can be measured."""
    temperature: float = 0.0
    method: Literal["one_pass", "free_running", "served", "training_log", "published"]
    evidence: Evidence = "measured"
    ranking: str = "pooled"
    points: tuple[AcceptancePoint, ...]
    """Ascending in draft_vocab; a single point for sources that know one size only."""
    domains: dict[str, tuple[AcceptancePoint, ...]] = {}
    over: Literal["rounds", "positions"] = "rounds"
    """What alpha is a mean over: rounds as a server runs them, or every position of a text."""
    tokens: int | None = None
    documents: int | None = None
    elasticity: float | None = None
    """e of alpha' = alpha * C^e fitted to the points."""
    source: str
    notes: tuple[str, ...] = ()


def read_acceptance(path: str | Path) -> AcceptanceRecord:
    """Raises Eagle3Error naming the file and the first bad field."""
    value = read_json(path)
    try:
        record = AcceptanceRecord.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise Eagle3Error(f"field {'.'.join(map(str, first['loc'])) or '(root)'}", where=path, found=first["msg"],
                          expected="a *.acceptance.json made by eagle3 measure acceptance") from None
    sizes = [point.draft_vocab for point in record.points]
    if not sizes or sizes != sorted(set(sizes)):
        raise Eagle3Error("field points", where=path, found=sizes[:5], expected="one or more, ascending")
    return record


def write_acceptance(record: AcceptanceRecord, path: str | Path) -> None:
    write_text(path, canonical_json(record.model_dump(mode="json")))
