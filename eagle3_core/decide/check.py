"""Does a decision still hold? Its tripwires against new evidence, and what would be chosen now.

New evidence is any of: counts of live tokens, a served or measured acceptance
file, a latency profile, the checkpoint that is served, another setting. The
recorded token set is measured on the live tokens as it is; nothing is ranked again.

What would be chosen now is worked out from the recorded table: coverage, alpha
and step times are replaced by what is known newly, the rest stays. Where only
the coverage is new, alpha follows it by the same elasticity,

    alpha'(D) = alpha(D) * (C'(D) / C(D))^0.7
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from eagle3_core.acceptance.model import ELASTICITY, acceptance_at, acceptance_from_record
from eagle3_core.acceptance.record import AcceptanceRecord
from eagle3_core.corpus.counts import TokenCounts
from eagle3_core.cost.hardware import Gpu
from eagle3_core.cost.profile import LatencyProfile
from eagle3_core.decide.projection import acceptance_length, break_even_alpha, speedup
from eagle3_core.decide.recommend import Constraints, recommend
from eagle3_core.decide.record import Decision
from eagle3_core.decide.restore import target_of
from eagle3_core.decide.tradeoff import draft_steps
from eagle3_core.decide.tree import Tree, tree_length
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import read_json
from eagle3_core.specs.drafter import drafter_for
from eagle3_core.vocab.coverage import coverage_table
from eagle3_core.vocab.formats import read_mapping

Status = Literal["holds", "revisit", "not checked"]
MIN_TOKENS = 2_000
"""A domain with fewer live tokens is not judged: a point of coverage would be a handful of tokens."""


@dataclass(frozen=True)
class Finding:
    """One condition. ``found`` and ``limit`` are text, ready to show; ``note`` says why it matters."""

    name: str
    status: Status
    found: str
    limit: str
    note: str


@dataclass(frozen=True)
class Check:
    findings: tuple[Finding, ...]
    chosen: int
    would_choose: int | None
    """The recommendation on the new evidence; None where nothing that moves it was given."""
    cost: float | None
    """Share of the best speedup that the chosen size would now give up."""

    @property
    def holds(self) -> bool:
        return not any(f.status == "revisit" for f in self.findings)


def check(
    decision: Decision, *, counts: TokenCounts | None = None, acceptance: AcceptanceRecord | None = None,
    latency: LatencyProfile | Gpu | None = None, checkpoint: Path | None = None,
    setting: Mapping[str, Any] | None = None,
) -> Check:
    """Raises Eagle3Error when no evidence is given, or it does not fit the decision's target."""
    changed = {key: value for key, value in (setting or {}).items() if value is not None}
    if counts is None and acceptance is None and latency is None and checkpoint is None and not changed:
        raise Eagle3Error("nothing to check against", expected="--counts, --acceptance, --latency or --checkpoint")
    findings = _setting(decision, changed)
    same_tokens = counts is None or counts.meta.tokenizer_sha256 == decision.setting.tokenizer_sha256
    if counts is not None:
        if counts.tokens == 0:
            raise Eagle3Error("counts hold no tokens", expected="live tokens to check against")
        findings += _same("tokenizer", decision.setting.tokenizer_sha256[:12], counts.meta.tokenizer_sha256[:12])
    values = _coverage(decision, counts) if counts is not None and same_tokens else {}
    if acceptance is not None:
        _check_acceptance_target(decision, acceptance)
        values |= _acceptance(decision, acceptance)
    steps = None
    if latency is not None:
        steps = _steps(decision, latency)
        values["step_ms"] = (steps[decision.choice.draft_vocab], "")
    findings += _tripwires(decision, values, counts is not None and not same_tokens)
    if checkpoint is not None:
        findings += _checkpoint(decision, checkpoint)
    moved = (counts is not None and same_tokens) or acceptance is not None or latency is not None
    size = cost = None
    if moved:
        size, cost = _now(decision, counts if same_tokens else None, acceptance, steps)
        if cost > decision.sources.tolerance and decision.sources.locked_size is None:
            findings.append(Finding("choice", "revisit", f"{decision.choice.draft_vocab:,} gives up {cost:.1%}",
                                    f"within {decision.sources.tolerance:.0%} of the best",
                                    f"{size:,} would be chosen now"))
    return Check(tuple(findings), decision.choice.draft_vocab, size, cost)


def _same(name: str, recorded: object, found: object) -> list[Finding]:
    status: Status = "holds" if recorded == found else "revisit"
    return [Finding(name, status, str(found), str(recorded), "the decision is for this setting")]


def _setting(decision: Decision, changed: Mapping[str, Any]) -> list[Finding]:
    recorded = decision.setting.model_dump()
    out: list[Finding] = []
    for name, value in changed.items():
        if name not in recorded:
            raise Eagle3Error("unknown setting", found=name, expected=", ".join(recorded))
        out += _same(name, recorded[name], value)
    return out


def _coverage(decision: Decision, counts: TokenCounts) -> dict[str, tuple[float | None, str]]:
    """Coverage of the live tokens under the recorded token set, all together and by domain."""
    if decision.token_set is None:
        none = (None, "the record holds no token set: another tokenizer's counts stood in")
        return {"coverage": none, "worst_coverage": none}
    ids = decision.token_set.mapping(decision.setting.vocab_size).target_ids
    inside = counts.by_domain[:, ids].sum(axis=1)
    tokens = counts.by_domain.sum(axis=1)
    enough = tokens >= MIN_TOKENS
    if not enough.any():
        few = (None, f"only {counts.tokens:,} live tokens, {MIN_TOKENS:,} of a domain are needed")
        return {"coverage": few, "worst_coverage": few}
    share = np.where(enough, inside / np.maximum(tokens, 1), np.inf)
    worst = int(share.argmin())
    return {"coverage": (float(inside.sum() / tokens.sum()), ""),
            "worst_coverage": (float(share[worst]), counts.domains[worst])}


def _check_acceptance_target(decision: Decision, record: AcceptanceRecord) -> None:
    if record.vocab_size != decision.setting.vocab_size:
        raise Eagle3Error("acceptance is of another target", found=f"V = {record.vocab_size:,}",
                          expected=f"V = {decision.setting.vocab_size:,}")


def _table_curve(decision: Decision, name: str, size: float) -> float:
    x = np.log([row["draft_vocab"] for row in decision.table])
    return float(np.interp(np.log(size), x, [row[name] for row in decision.table]))


def _acceptance(decision: Decision, record: AcceptanceRecord) -> dict[str, tuple[float | None, str]]:
    """alpha at the size the tripwire is about, and tau at the chosen size."""
    reference = decision.sources.reference_size or decision.setting.vocab_size
    exact = [p for p in record.points if p.draft_vocab == reference]
    if exact:
        alpha, note = exact[0].alpha[0], ""
    else:
        point = record.points[-1]
        ratio = _table_curve(decision, "coverage", reference) / _table_curve(decision, "coverage", point.draft_vocab)
        alpha = min(point.alpha[0] * ratio**ELASTICITY, 1.0)
        note = f"modelled: from {point.alpha[0]:.3f} at {point.draft_vocab:,}"
    tau = float(_length(decision)(_alphas(decision, record, None)[decision.choice.draft_vocab]))
    return {"alpha": (alpha, note), "tau": (tau, "")}


def _length(decision: Decision) -> Callable[[np.ndarray], np.ndarray]:
    """alpha [..., K] -> tau of the chain or tree that was decided on."""
    s = decision.setting
    if s.topk == 1:
        return acceptance_length
    tree = Tree(s.topk, s.k, s.draft_tokens or s.k + 1)
    return lambda alpha: tree_length(alpha, tree)


def _alphas(
    decision: Decision, record: AcceptanceRecord, coverage: Mapping[int, float] | None
) -> dict[int, np.ndarray]:
    sizes = [row["draft_vocab"] for row in decision.table]
    known = [(coverage or {}).get(row["draft_vocab"], row["coverage"]) for row in decision.table]
    band = acceptance_at(acceptance_from_record(record), sizes, np.array(known), decision.setting.k,
                         vocab_size=decision.setting.vocab_size)
    return dict(zip(sizes, band.central, strict=True))


def _steps(decision: Decision, latency: LatencyProfile | Gpu) -> dict[int, float]:
    s = decision.setting
    sizes = [row["draft_vocab"] for row in decision.table]
    frame = draft_steps(latency, drafter_for(target_of(decision)), sizes, k=s.k, topk=s.topk, batch=s.batch,
                        dtype=s.dtype, draft_tp=s.draft_tp, engine=s.engine, context=s.context)
    return dict(zip(sizes, frame["step_ms"].to_list(), strict=True))


def _tripwires(
    decision: Decision, values: Mapping[str, tuple[float | None, str]], other_tokenizer: bool
) -> list[Finding]:
    out = []
    for wire in decision.tripwires:
        limit = f"{'at least' if wire.direction == 'below' else 'at most'} {wire.value:.4g}"
        found, note = values.get(wire.metric, (None, ""))
        if found is None:
            why = note or ("counts are of another tokenizer" if other_tokenizer and "coverage" in wire.metric
                           else "no evidence given")
            out.append(Finding(wire.metric, "not checked", "", limit, why))
            continue
        status: Status = "revisit" if wire.tripped(found) else "holds"
        shown = f"{found:.4g}" + (f" ({note})" if note else "")
        out.append(Finding(wire.metric, status, shown, limit, wire.reason))
    return out


def _checkpoint(decision: Decision, folder: Path) -> list[Finding]:
    """The served checkpoint has the decision's size and its token set."""
    config = folder / "config.json" if folder.is_dir() else folder
    size = None
    if config.is_file() and config.suffix == ".json":
        value = read_json(config)
        if not isinstance(value, dict):
            raise Eagle3Error("is not a draft config", where=config, expected="an object")
        size = value.get("draft_vocab_size")
    out: list[Finding] = []
    if size is not None:
        out += _same("draft vocabulary of the checkpoint", decision.choice.draft_vocab, size)
    vocab = decision.setting.vocab_size
    if decision.token_set is None or decision.choice.draft_vocab == vocab or (size is not None and size == vocab):
        return out or [Finding("checkpoint", "not checked", "", "", "it states no draft_vocab_size")]
    recorded = decision.token_set.mapping(vocab).target_ids
    found = np.sort(read_mapping(folder, vocab_size=vocab).target_ids)
    other = len(np.setdiff1d(found, recorded))
    return [*out, Finding("token set of the checkpoint", "holds" if np.array_equal(found, recorded) else "revisit",
                          f"{len(found):,} ids, {other:,} of them not in the decision",
                          f"the {len(recorded):,} recorded",
                          "the checkpoint was trained on this list")]


def _now(
    decision: Decision, counts: TokenCounts | None, acceptance: AcceptanceRecord | None,
    steps: Mapping[int, float] | None,
) -> tuple[int, float]:
    """Recommended size and what the chosen one gives up, on the recorded table with the new evidence in it."""
    s, source = decision.setting, decision.sources
    rows = [dict(row) for row in decision.table]
    coverage: dict[int, float] = {}
    if counts is not None and decision.token_set is not None:
        fresh = coverage_table(counts, [r["draft_vocab"] for r in rows], strategy=source.ranking, force=source.force,
                               weights=source.weights, extra_forced=source.extra_forced)
        coverage = dict(zip(fresh["draft_vocab"], fresh["coverage"], strict=True))
        for row, worst in zip(rows, fresh["worst_coverage"], strict=True):
            row["worst_coverage"] = worst
    alphas = _alphas(decision, acceptance, coverage) if acceptance is not None else None
    length = _length(decision)
    for row in rows:
        size = row["draft_vocab"]
        before = alpha = np.asarray(row["alpha"], dtype=np.float64)
        if alphas is not None:
            alpha = alphas[size]
        elif size in coverage:
            alpha = np.clip(alpha * (coverage[size] / row["coverage"]) ** ELASTICITY, 0, 1)
        if steps is not None:
            row["round_ms"] += s.k * (steps[size] - row["step_ms"])
        # The recorded tau may be over a task mix: what the new alpha changes is its ratio.
        tau = row["tau"] * float(length(alpha) / length(before))
        row["speedup"] = float(speedup(np.asarray(tau), row["round_ms"], row["decode_ms"]))
        row["break_even_alpha"] = float(break_even_alpha(row["round_ms"], row["decode_ms"], s.k, length)[0])
    names = ("draft_vocab", "speedup", "break_even_alpha", "worst_coverage", "lm_head_bytes")
    table = pl.DataFrame([{name: row[name] for name in names} for row in rows])
    small = [r for r in rows if source.max_lm_head_bytes is None or r["lm_head_bytes"] <= source.max_lm_head_bytes]
    worst = source.min_worst_coverage
    if worst is not None and small:
        # Where live tokens leave no size above the limit, the best covered ones remain.
        worst = min(worst, max(r["worst_coverage"] for r in small))
    constraints = Constraints(multiple_of=64 * s.draft_tp, locked_size=source.locked_size,
                              max_lm_head_bytes=source.max_lm_head_bytes, min_worst_coverage=worst)
    result = recommend(table, tolerance=source.tolerance, constraints=constraints)
    here = next(row["speedup"] for row in rows if row["draft_vocab"] == decision.choice.draft_vocab)
    return result.size, 1 - here / result.best_speedup


def junit(result: Check, name: str) -> str:
    """The check as a JUnit file: one test a condition, a failure where it asks to decide again."""
    from xml.etree import ElementTree

    failed = sum(f.status == "revisit" for f in result.findings)
    skipped = sum(f.status == "not checked" for f in result.findings)
    suite = ElementTree.Element("testsuite", name="eagle3 check", tests=str(len(result.findings)),
                                failures=str(failed), skipped=str(skipped), errors="0")
    for f in result.findings:
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(name), name=_xml(f"{f.name} {f.limit}".strip()))
        if f.status == "revisit":
            ElementTree.SubElement(case, "failure", message=_xml(f"found {f.found}")).text = _xml(f.note)
        elif f.status == "not checked":
            ElementTree.SubElement(case, "skipped", message=_xml(f.note))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    """XML has no escape for control characters."""
    return "".join(ch if ch.isprintable() else "?" for ch in text)
