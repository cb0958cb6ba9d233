"""From a record back to inputs, and what differs between two records."""

from __future__ import annotations

import dataclasses
from typing import Any

from eagle3_core.acceptance.model import AcceptanceSource
from eagle3_core.corpus.counts import TokenCounts
from eagle3_core.cost.hardware import Gpu, devices
from eagle3_core.cost.profile import LatencyProfile
from eagle3_core.decide.record import Decision, Sources
from eagle3_core.decide.tradeoff import TradeoffInputs
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.target import TargetSpec


def shown_source(target: TargetSpec) -> str:
    """Where the dimensions come from; the place of a config on one machine says nothing on another."""
    return f"config.json of {target.name}" if target.source.endswith(".json") else target.source


def sources_of(inputs: TradeoffInputs) -> Sources:
    target = {key: list(item) if isinstance(item, tuple) else item
              for key, item in dataclasses.asdict(inputs.target).items()}
    target["source"] = shown_source(inputs.target)
    latency = inputs.latency
    return Sources(
        target=target, device=latency.name if isinstance(latency, Gpu) else None, alpha=inputs.acceptance.alpha,
        reference_size=inputs.acceptance.reference_size, acceptance_evidence=inputs.acceptance.evidence,
        acceptance_source=inputs.acceptance.source, decode_ms=inputs.decode_ms, verify_ms=inputs.verify_ms,
        overhead_ms=inputs.overhead_ms, tolerance=inputs.tolerance, ranking=inputs.strategy, force=inputs.force,
        extra_forced=inputs.extra_forced,
        weights=dict(inputs.weights) if inputs.weights else None,
        mix=dict(inputs.mix) if inputs.mix else None, max_lm_head_bytes=inputs.max_lm_head_bytes,
        min_worst_coverage=inputs.min_worst_coverage, locked_size=inputs.locked_size,
    )


def target_of(decision: Decision) -> TargetSpec:
    """Raises Eagle3Error when the record's target is not one of ours."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in decision.sources.target.items()
    }
    try:
        target = TargetSpec(**values)
    except TypeError as error:
        raise Eagle3Error("field sources.target", found=error, expected="a target's dimensions") from None
    wrong = [f.name for f in dataclasses.fields(TargetSpec)
             if f.type == "int" and (not isinstance(getattr(target, f.name), int) or getattr(target, f.name) < 1)]
    if wrong:
        raise Eagle3Error(f"field sources.target.{wrong[0]}", found=repr(getattr(target, wrong[0]))[:40],
                          expected="a positive integer")
    if target.vocab_size != decision.setting.vocab_size or target.hidden_size != decision.setting.hidden_size:
        raise Eagle3Error("field sources.target", found=f"V = {target.vocab_size:,}, H = {target.hidden_size:,}",
                          expected="the setting's dimensions")
    return target


def restore_inputs(
    decision: Decision, counts: TokenCounts, *, latency: LatencyProfile | Gpu | None = None,
    acceptance: AcceptanceSource | None = None,
) -> TradeoffInputs:
    """The inputs a decision was made from. Counts and a measured profile are files and must be given.

    Raises Eagle3Error when the profile is missing or the counts are another tokenizer's.
    """
    s, source = decision.setting, decision.sources
    if counts.meta.tokenizer_sha256 != s.tokenizer_sha256:
        raise Eagle3Error("counts are not those of the decision's tokenizer", found=counts.meta.tokenizer)
    if latency is None:
        if source.device not in devices():
            raise Eagle3Error("the decision's latency is a file", found=source.device or "a measured profile",
                              fix="pass it with --latency")
        latency = devices()[source.device]
    if acceptance is None:
        acceptance = AcceptanceSource(source.alpha, source.reference_size, source.acceptance_evidence,
                                      source.acceptance_source)
    return TradeoffInputs(
        target=target_of(decision), counts=counts, latency=latency, acceptance=acceptance, strategy=source.ranking,
        force=source.force, extra_forced=source.extra_forced, weights=source.weights,
        mix=source.mix, k=s.k, topk=s.topk, draft_tokens=s.draft_tokens, draft_tp=s.draft_tp,
        target_tp=s.target_tp, batch=s.batch, dtype=s.dtype, engine=s.engine, context=s.context,
        decode_ms=source.decode_ms, verify_ms=source.verify_ms,
        overhead_ms=source.overhead_ms, locked_size=source.locked_size, tolerance=source.tolerance,
        max_lm_head_bytes=source.max_lm_head_bytes, min_worst_coverage=source.min_worst_coverage,
    )


def changes(old: Decision, new: Decision) -> tuple[str, ...]:
    """What differs between two decisions, one line each: setting, inputs, figures of the choice."""
    out = []
    before, after = old.setting.model_dump(), new.setting.model_dump()
    out += [f"{name.replace('_', ' ')}: {_short(before[name])} to {_short(after[name])}"
            for name in after if before[name] != after[name]]
    for name in ("ranking", "force", "extra_forced", "weights"):
        was, now = getattr(old.sources, name), getattr(new.sources, name)
        if was != now:
            out.append(f"{name.replace('_', ' ')}: {was if was else 'none'} to {now if now else 'none'}")
    known = {item.name: item for item in old.inputs}
    for item in new.inputs:
        was = known.get(item.name)
        if was is None:
            out.append(f"{item.name}: new, {item.value} ({item.evidence})")
        elif (was.value, was.evidence) != (item.value, item.evidence):
            out.append(f"{item.name}: {was.value} ({was.evidence}) to {item.value} ({item.evidence})")
        elif was.sha256 != item.sha256:
            out.append(f"{item.name}: another file of the same summary")
    if old.choice.draft_vocab != new.choice.draft_vocab:
        out.append(f"draft vocabulary: {old.choice.draft_vocab:,} to {new.choice.draft_vocab:,}")
    if old.choice.recommended != new.choice.recommended:
        out.append(f"recommended: {old.choice.recommended:,} to {new.choice.recommended:,}")
    a, b = old.row(old.choice.draft_vocab), new.row(new.choice.draft_vocab)
    for name, text in (("coverage", "{:.2%}"), ("worst_coverage", "{:.2%}"), ("step_ms", "{:.3g} ms"),
                       ("tau", "{:.2f}"), ("speedup", "{:.3g}x")):
        if text.format(a[name]) != text.format(b[name]):
            out.append(f"{name.replace('_', ' ')}: {text.format(a[name])} to {text.format(b[name])}")
    return tuple(out)


def _short(value: object) -> str:
    if isinstance(value, str) and len(value) == 64:
        return value[:12] + "..."
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
