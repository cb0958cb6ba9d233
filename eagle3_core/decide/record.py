"""The decision as a file that can be checked later: ``decision.json``, and ``DECISION.md`` made from it.

It holds what was chosen and why, the whole tradeoff table it was chosen from,
every input with its evidence and hash, the chosen token set itself, assumptions
with what would prove each wrong, and tripwires: the conditions to look again.
Its JSON schema is shipped as ``decision.schema.json``.
"""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eagle3_core.errors import Eagle3Error
from eagle3_core.evidence import Evidence
from eagle3_core.files import canonical_json, read_json
from eagle3_core.vocab.mapping import VocabMapping, mapping_from_ids

SCHEMA_VERSION = 1
Metric = Literal["coverage", "worst_coverage", "alpha", "tau", "step_ms"]
Direction = Literal["below", "above"]
METRIC_NAMES: dict[str, str] = {
    "coverage": "coverage of live tokens", "worst_coverage": "coverage of the worst domain",
    "alpha": "acceptance alpha of the first draft", "tau": "acceptance length tau", "step_ms": "draft step",
}


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Setting(_Record):
    """Where the choice holds. Another value of any of these is a reason to decide again."""

    target: str
    hidden_size: int
    vocab_size: int
    tokenizer_sha256: str
    from_scratch: bool
    """False when fine-tuning from a checkpoint, whose draft vocabulary is locked."""
    k: int
    draft_tp: int
    target_tp: int
    batch: int
    dtype: str
    engine: str
    context: int
    topk: int = 1
    """Candidates a node of the draft tree; 1 is a chain."""
    draft_tokens: int | None = None


class Sources(_Record):
    """What the table was computed from: with the files named by hash, enough to compute it again."""

    target: dict[str, Any]
    """The target's dimensions, as TargetSpec."""
    device: str | None
    """Name of a modelled device; None for a measured profile, which is a file."""
    alpha: tuple[float, ...]
    reference_size: int | None
    """D at which ``alpha`` holds; None is the full vocabulary."""
    acceptance_evidence: Evidence
    acceptance_source: str
    decode_ms: float | None
    verify_ms: float | None
    overhead_ms: float
    tolerance: float
    ranking: str
    force: bool
    extra_forced: tuple[int, ...] = ()
    """Ids the user forced in as well."""
    weights: dict[str, float] | None
    mix: dict[str, float] | None = None
    """Share of served tokens by domain, where tau is their harmonic mean."""
    max_lm_head_bytes: int | None = None
    min_worst_coverage: float | None = None
    locked_size: int | None


class InputEvidence(_Record):
    """One input, how it is known, and where it came from."""

    name: str
    value: str
    evidence: Evidence
    source: str
    sha256: str | None = None


class Assumption(_Record):
    text: str
    wrong_if: str


class Tripwire(_Record):
    """Decide again when ``metric`` is ``direction`` ``value``."""

    metric: Metric
    direction: Direction
    value: float
    reason: str

    @property
    def condition(self) -> str:
        """``coverage of live tokens below 92.7 %``."""
        value = f"{self.value:.1%}" if "coverage" in self.metric else f"{self.value:.4g}"
        return f"{METRIC_NAMES[self.metric]} {self.direction} {value}" + (" ms" if self.metric == "step_ms" else "")

    def tripped(self, found: float) -> bool:
        return found < self.value if self.direction == "below" else found > self.value


class Choice(_Record):
    draft_vocab: int = Field(ge=1)
    reason: str
    recommended: int
    equivalent_low: int
    equivalent_high: int
    verdict: str
    confidence: str = ""
    """How often the size stays the best over what is not known, in a sentence."""
    answers: tuple[str, ...] = ()
    """The recommendation asked backwards, a sentence each."""


class TokenSet(_Record):
    """The chosen target ids, as a compressed bitmap over V, and the ranking they come from."""

    bitmap: str
    ranking: str
    forced: int
    """How many of them were forced in."""
    padding: int
    order: str | None = None
    """Rank of each id, ascending ids, compressed 32-bit integers; for consumers that keep the ranking's order."""

    def ranked(self, vocab_size: int) -> VocabMapping | None:
        """The ids in ranking order. Raises Eagle3Error when the order is damaged."""
        if self.order is None:
            return None
        ids = self.mapping(vocab_size).target_ids
        rank = np.frombuffer(_unpack(self.order, "order"), dtype="<u4")
        if not np.array_equal(np.sort(rank), np.arange(len(ids))):
            raise Eagle3Error("field token_set.order", found=f"{len(rank)} ranks", expected=f"each of {len(ids)} once")
        ranked = np.empty(len(ids), dtype=np.int64)
        ranked[rank] = ids
        return VocabMapping(ranked, vocab_size)

    def mapping(self, vocab_size: int) -> VocabMapping:
        """Raises Eagle3Error when the bitmap is damaged."""
        packed = np.frombuffer(_unpack(self.bitmap, "bitmap"), dtype=np.uint8)
        mask = np.unpackbits(packed)[:vocab_size].astype(bool)
        if packed.size != math.ceil(vocab_size / 8):
            raise Eagle3Error("field token_set.bitmap", found=f"{packed.size} bytes", expected=f"{vocab_size} bits")
        return mapping_from_ids(np.flatnonzero(mask), vocab_size)


_UNPACKED_LIMIT = 1 << 24


def _unpack(text: str, name: str) -> bytes:
    """At most 16 MB, whatever a hostile record claims."""
    try:
        worker = zlib.decompressobj()
        data = worker.decompress(base64.b64decode(text, validate=True), _UNPACKED_LIMIT)
        if not worker.eof:
            raise ValueError("cut short or too long")
    except (ValueError, zlib.error) as error:
        raise Eagle3Error(f"field token_set.{name}", found=error, expected="compressed data") from None
    return data[: len(data) // 4 * 4] if name == "order" else data


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def token_set(ranked: VocabMapping, *, ranking: str, forced: int, padding: int) -> TokenSet:
    """``ranked``: the chosen ids in ranking order."""
    mapping = mapping_from_ids(ranked.target_ids, ranked.vocab_size)
    order = None
    if mapping.draft_vocab_size < mapping.vocab_size:
        order = _pack(np.argsort(ranked.target_ids).astype("<u4").tobytes())
    return TokenSet(bitmap=_pack(np.packbits(mapping.t2d).tobytes()), ranking=ranking, forced=forced, padding=padding,
                    order=order)


class Decision(_Record):
    schema_version: int = SCHEMA_VERSION
    tool_version: str
    created: str
    decided_by: str = ""
    setting: Setting
    choice: Choice
    token_set: TokenSet | None
    """None where another tokenizer's counts stood in: there is no mapping until the target's own are counted."""
    inputs: tuple[InputEvidence, ...]
    assumptions: tuple[Assumption, ...]
    tripwires: tuple[Tripwire, ...]
    options: tuple[int, ...]
    """Sizes compared side by side; each has its row in ``table``."""
    table: tuple[dict[str, Any], ...]
    sensitivity: tuple[dict[str, Any], ...] = ()
    gaps: tuple[str, ...] = ()
    """What is not known, for a record written after the fact."""
    supersedes: str | None = None
    """SHA-256 of the decision this one replaces."""
    changes: tuple[str, ...] = ()
    """What differs from the decision it replaces, in words."""
    sources: Sources

    def row(self, size: int) -> dict[str, Any]:
        for row in self.table:
            if row.get("draft_vocab") == size:
                return row
        raise Eagle3Error("decision has no row for a size", found=size)


def decision_json(decision: Decision) -> str:
    return canonical_json(decision.model_dump(mode="json"))


def decision_hash(decision: Decision) -> str:
    """What ``supersedes`` refers to: SHA-256 of the record as this project writes it."""
    return hashlib.sha256(decision_json(decision).encode()).hexdigest()


def decision_schema() -> str:
    return canonical_json(Decision.model_json_schema())


def parse_decision(value: Any, where: object) -> Decision:
    """Raises Eagle3Error naming the first bad field; a newer schema is refused by its number."""
    version = value.get("schema_version") if isinstance(value, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise Eagle3Error("was made by a newer version", where=where, found=f"schema {version}",
                          expected=f"at most {SCHEMA_VERSION}")
    try:
        decision = Decision.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise Eagle3Error(f"field {'.'.join(map(str, first['loc'])) or '(root)'}", where=where, found=first["msg"],
                          expected="a decision.json") from None
    if decision.token_set is not None:
        mapping = decision.token_set.mapping(decision.setting.vocab_size)
        if mapping.draft_vocab_size != decision.choice.draft_vocab:
            raise Eagle3Error("field token_set", where=where, found=f"{mapping.draft_vocab_size} ids",
                              expected=f"{decision.choice.draft_vocab}")
    for size in {decision.choice.draft_vocab, *decision.options}:
        row = decision.row(size)
        bad = [name for name in _SHOWN if not isinstance(row.get(name), int | float)]
        if bad or not isinstance(row.get("worst_domain"), str):
            raise Eagle3Error(f"field table, row {size}", where=where, found=f"no {(bad or ['worst_domain'])[0]}",
                              expected="a decision.json")
    return decision


def read_decision(path: str | Path) -> Decision:
    return parse_decision(read_json(path), path)


_SHOWN = ("coverage", "worst_coverage", "lm_head_params", "step_ms", "tau", "speedup", "speedup_low", "speedup_high",
          "vs_best", "round_ms", "decode_ms")


def markdown_cell(value: str) -> str:
    """Text inside a markdown table or line: no line breaks, pipes or markup of its own."""
    out = "".join(ch if ch.isprintable() else " " for ch in value)
    for mark in "\\`*_{}[]<>|#":
        out = out.replace(mark, "\\" + mark)
    return out


_cell = markdown_cell


def decision_markdown(decision: Decision) -> str:
    """DECISION.md: the record for people."""
    s, c = decision.setting, decision.choice
    origin = "trained from scratch" if s.from_scratch else "fine-tuned, size locked by the checkpoint"
    lines = [
        f"# Draft vocabulary for {_cell(s.target)}: D = {c.draft_vocab:,}", "",
        _cell(c.verdict), "",
        f"- Chosen: {c.draft_vocab:,} of V = {s.vocab_size:,}, {_cell(c.reason)}",
        f"- Equivalent: {c.equivalent_low:,} to {c.equivalent_high:,}",
        f"- Setting: {origin}; K = {s.k}, draft TP {s.draft_tp}, target TP {s.target_tp}, batch {s.batch}, "
        f"{s.dtype}, {s.engine}, context {s.context:,}",
        f"- Decided: {_cell(decision.created)}" + (f" by {_cell(decision.decided_by)}" if decision.decided_by else ""),
        "- Tokens: none yet, see below" if decision.token_set is None else
        f"- Tokens: {decision.token_set.ranking} ranking, {decision.token_set.forced:,} forced, "
        f"{decision.token_set.padding:,} padding",
        *(f"- {_cell(line)}" for line in (c.confidence, *c.answers) if line), "",
        "## Options", "",
        "| D | coverage held out | worst domain | lm_head | draft step ms | tau | speedup | vs best |",
        "|---:|---:|---|---:|---:|---:|---|---:|",
    ]
    for size in decision.options:
        row = decision.row(size)
        mark = " (chosen)" if size == c.draft_vocab else ""
        lines.append(
            f"| {size:,}{mark} | {row['coverage']:.2%} | {_cell(row['worst_domain'])} {row['worst_coverage']:.1%} "
            f"| {row['lm_head_params'] / 1e6:,.1f}M | {row['step_ms']:.3g} | {row['tau']:.2f} "
            f"| {row['speedup']:.2f}x, {row['speedup_low']:.2f} to {row['speedup_high']:.2f} | {row['vs_best']:+.1%} |")
    lines += ["", "## Evidence", "", "| input | value | how known | source |", "|---|---|---|---|"]
    lines += [f"| {_cell(i.name)} | {_cell(i.value)} | {i.evidence} | {_cell(i.source)} |" for i in decision.inputs]
    lines += ["", "## Assumptions", ""]
    lines += [f"- {_cell(a.text)} Wrong if: {_cell(a.wrong_if)}" for a in decision.assumptions]
    lines += ["", "## Look again when", ""]
    lines += [f"- {t.condition}: {_cell(t.reason)}" for t in decision.tripwires]
    lines.append("- the engine, draft or target TP, K, target or tokenizer changes"
                 + ("" if s.from_scratch else ", or the drafter is trained from scratch"))
    if decision.supersedes:
        lines += ["", "## Replaces", "", f"An earlier decision, sha256 {_cell(decision.supersedes[:16])}...:", ""]
        lines += [f"- {_cell(change)}" for change in decision.changes] or ["- nothing differs"]
    if decision.gaps:
        lines += ["", "## Not known", "", *(f"- {_cell(gap)}" for gap in decision.gaps)]
    return "\n".join(lines) + "\n"
