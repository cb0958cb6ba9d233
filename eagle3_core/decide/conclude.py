"""From inputs and a chosen size to a Decision: evidence, assumptions and tripwires worked out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import polars as pl

from eagle3_core import __version__
from eagle3_core.acceptance.model import per_position
from eagle3_core.cost.hardware import Gpu
from eagle3_core.decide.confidence import confidence, confidence_text
from eagle3_core.decide.questions import answers, answers_text
from eagle3_core.decide.recommend import Constraints, Recommendation, recommend, verdict
from eagle3_core.decide.record import (
    Assumption,
    Choice,
    Decision,
    InputEvidence,
    Setting,
    Tripwire,
    decision_hash,
    token_set,
)
from eagle3_core.decide.restore import changes, shown_source, sources_of
from eagle3_core.decide.sensitivity import sensitivity
from eagle3_core.decide.tradeoff import TradeoffInputs, target_timing, tradeoff
from eagle3_core.specs.drafter import check_draft_vocab
from eagle3_core.specs.sizes import INHERITED, size_grid
from eagle3_core.vocab.mapping import VocabMapping
from eagle3_core.vocab.ranking import Ranking, rank


def constraints_of(inputs: TradeoffInputs) -> Constraints:
    """What the setting demands: no padded rows, the user's limits, the checkpoint's size where it is locked."""
    return Constraints(max_lm_head_bytes=inputs.max_lm_head_bytes, min_worst_coverage=inputs.min_worst_coverage,
                       multiple_of=64 * inputs.draft_tp, locked_size=inputs.locked_size)


def option_sizes(inputs: TradeoffInputs, size: int, recommended: int) -> tuple[int, ...]:
    """Sizes to compare side by side: chosen, recommended, the inherited 32,000, full."""
    vocab = inputs.target.vocab_size
    wanted = {size, recommended, vocab}
    if vocab > INHERITED:
        wanted.add(INHERITED)
    return tuple(sorted(wanted))


def full_table(inputs: TradeoffInputs, size: int, *, also: Iterable[int] = ()) -> pl.DataFrame:
    """The slider's grid, the chosen size and those of ``also``."""
    check_draft_vocab(size, inputs.target.vocab_size)
    locked = {inputs.locked_size} if inputs.locked_size else set()
    return tradeoff(inputs, sorted({*size_grid(inputs.target.vocab_size), size, *locked, *also}))


def ranking_of(inputs: TradeoffInputs) -> Ranking:
    return rank(inputs.counts, inputs.strategy, force=inputs.force, weights=inputs.weights,
                extra_forced=inputs.extra_forced, pad_from=inputs.pad_from)


def decide(
    inputs: TradeoffInputs, size: int, *, created: str, decided_by: str = "", reason: str | None = None,
    previous: Decision | None = None, hashes: dict[str, str] | None = None,
) -> Decision:
    """The record of choosing ``size``. ``created`` is the only thing in it that is not a function of the inputs.

    ``previous`` is the decision that this one replaces.
    """
    table = full_table(inputs, size)
    recommendation = recommend(table, tolerance=inputs.tolerance, constraints=constraints_of(inputs))
    ranking = ranking_of(inputs)
    # A stand-in tokenizer's ids mean nothing to the target, so there is no token set to record.
    tokens = None if inputs.stand_in else token_set(
        VocabMapping(ranking.ids(size), inputs.target.vocab_size), ranking=inputs.strategy,
        forced=min(len(ranking.forced), size), padding=ranking.padding(size))
    moves = sensitivity(inputs, size, constraints_of(inputs))
    chosen_reason = reason or (recommendation.reason if size == recommendation.size else "chosen by hand")
    target = inputs.target
    decision = Decision(
        tool_version=__version__, created=created, decided_by=decided_by,
        setting=Setting(
            target=target.name, hidden_size=target.hidden_size, vocab_size=target.vocab_size,
            tokenizer_sha256=inputs.counts.meta.tokenizer_sha256, from_scratch=inputs.locked_size is None,
            k=inputs.k, draft_tp=inputs.draft_tp, target_tp=inputs.target_tp, batch=inputs.batch, dtype=inputs.dtype,
            engine=inputs.engine, context=inputs.context, topk=inputs.topk, draft_tokens=inputs.draft_tokens,
        ),
        choice=Choice(
            draft_vocab=size, reason=chosen_reason, recommended=recommendation.size,
            equivalent_low=recommendation.low_size, equivalent_high=recommendation.high_size,
            verdict=verdict(recommendation, table),
            confidence=confidence_text(confidence(table, size, k=inputs.k, tolerance=inputs.tolerance),
                                       inputs.tolerance),
            answers=answers_text(answers(inputs, table)),
        ),
        token_set=tokens,
        inputs=evidence_of(inputs, hashes or {}),
        assumptions=assumptions_of(inputs),
        tripwires=propose_tripwires(inputs, table, size),
        options=option_sizes(inputs, size, recommendation.size),
        table=tuple(_plain(row) for row in table.iter_rows(named=True)),
        sensitivity=tuple(_plain(row) for row in moves.iter_rows(named=True)),
        gaps=("the counts are another tokenizer's: no mapping can be made until the target's own are counted",)
        if inputs.stand_in else (),
        sources=sources_of(inputs),
    )
    if previous is None:
        return decision
    return decision.model_copy(update={
        "supersedes": decision_hash(previous), "changes": changes(previous, decision)})


def rounded(value: Any, digits: int = 6) -> Any:
    """A float at ``digits`` significant digits; JSON has no NaN or infinity, so such a figure is None."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: [rounded(item) for item in value] if isinstance(value, list) else rounded(value)
        for key, value in row.items()
    }


def evidence_of(inputs: TradeoffInputs, hashes: dict[str, str]) -> tuple[InputEvidence, ...]:
    """Every input with its mark and source."""
    counts, meta, times = inputs.counts, inputs.counts.meta, target_timing(inputs)
    latency = inputs.latency
    coverage_mark = "modelled" if inputs.stand_in else "measured"
    if isinstance(latency, Gpu):
        step = InputEvidence(name="draft step", value=f"roofline of {latency.label}", evidence="modelled",
                             source=latency.source)
    else:
        state = ", machine disturbed" if latency.disturbed else ""
        step = InputEvidence(name="draft step", value=f"{latency.device.name}, {latency.dtype}{state}",
                             evidence="measured", source=f"measured {latency.created}", sha256=hashes.get("latency"))
    padding: tuple[InputEvidence, ...] = ()
    if inputs.pad_from is not None:
        other = inputs.pad_from.meta
        padding = (InputEvidence(name="padding order", value=f"{inputs.pad_from.tokens:,} tokens, {other.tokenizer}",
                                 evidence="measured", source=", ".join(f.name for f in other.inputs),
                                 sha256=hashes.get("pad_from")),)
    return (
        *padding,
        InputEvidence(name="target", value=f"H {inputs.target.hidden_size:,}, V {inputs.target.vocab_size:,}",
                      evidence="published", source=shown_source(inputs.target)),
        InputEvidence(name="token counts", value=f"{counts.tokens:,} tokens ({meta.tokens}), {meta.tokenizer}, "
                      f"{len(meta.domains)} domains", evidence=coverage_mark,
                      source=", ".join(f.name for f in meta.inputs), sha256=hashes.get("counts")),
        step,
        InputEvidence(name="acceptance", value=", ".join(f"{a:.3g}" for a in inputs.acceptance.alpha),
                      evidence=inputs.acceptance.evidence, source=inputs.acceptance.source,
                      sha256=hashes.get("acceptance")),
        InputEvidence(name="target decode", value=f"{times.decode_ms:.3g} ms", evidence=times.evidence,
                      source="given" if inputs.decode_ms else "latency source"),
        InputEvidence(name="verify pass", value=f"{times.verify_ms:.3g} ms for {inputs.k + 1} tokens",
                      evidence=times.evidence, source="given" if inputs.verify_ms else "latency source"),
    )


def assumptions_of(inputs: TradeoffInputs) -> tuple[Assumption, ...]:
    """What was taken for granted, each with what would prove it wrong."""
    out = [Assumption(text="Live traffic is like the counted data.",
                      wrong_if="coverage of live tokens falls below its tripwire.")]
    if inputs.acceptance.evidence == "assumed":
        out.append(Assumption(text=f"alpha is {inputs.acceptance.alpha[0]:g} at full vocabulary.",
                              wrong_if="a served or measured alpha differs by more than its tripwire allows."))
    if inputs.acceptance.record is None or len(inputs.acceptance.record.points) < 2:
        out.append(Assumption(text="Acceptance falls with coverage to the power 0.7.",
                              wrong_if="acceptance measured at two sizes lies outside the band."))
    if inputs.stand_in:
        out.append(Assumption(text=f"The tokens of {inputs.counts.meta.tokenizer} stand in for the target's.",
                              wrong_if="the target's own counts give another coverage."))
    if isinstance(inputs.latency, Gpu):
        out.append(Assumption(text="The device reaches the modelled share of its bandwidth.",
                              wrong_if="a measured draft step is above its tripwire."))
    return tuple(out)


def propose_tripwires(inputs: TradeoffInputs, table: pl.DataFrame, size: int) -> tuple[Tripwire, ...]:
    """The values at which another size would win by more than the tolerance, one input moved at a time.

    An input whose whole range leaves the choice standing gets no tripwire, apart
    from coverage: there a point below the lowest fold says the data has changed.
    """
    row = table.row(by_predicate=pl.col("draft_vocab") == size, named=True)
    wires = [
        Tripwire(metric="coverage", direction="below", value=round(row["coverage_low"] - 0.01, 4),
                 reason="a point under the lowest fold: live tokens are not like the counted ones"),
        Tripwire(metric="worst_coverage", direction="below", value=round(row["worst_coverage"] - 0.02, 4),
                 reason=f"two points under {row['worst_domain']}, the worst domain when this was decided"),
    ]
    asked = inputs.min_worst_coverage
    if asked is not None and wires[1].value < asked <= row["worst_coverage"]:
        wires[1] = Tripwire(metric="worst_coverage", direction="below", value=asked,
                            reason="the smallest coverage of any domain that was asked for")
    if row["speedup"] > 1:
        wires.append(Tripwire(metric="tau", direction="below", value=round(row["round_ms"] / row["decode_ms"], 3),
                              reason="below this the drafter is slower than none"))
    if inputs.locked_size is not None:
        return tuple(wires)
    alpha = per_position(inputs.acceptance.alpha, inputs.k)
    sizes = table["draft_vocab"].to_list()

    def at_alpha(value: float) -> bool:
        scaled_alpha = tuple(float(min(a * value / alpha[0], 0.995)) for a in alpha)
        moved = dataclasses.replace(inputs.acceptance, alpha=scaled_alpha, record=None)
        return _holds(dataclasses.replace(inputs, acceptance=moved), sizes, size)

    if alpha[0] > 0:
        for direction, limit in (("below", 0.02), ("above", 0.99)):
            edge = _edge(at_alpha, float(alpha[0]), limit)
            if edge is not None:
                wires.append(Tripwire(metric="alpha", direction=direction, value=round(edge, 3),  # type: ignore[arg-type]
                                      reason="another size would win by more than the tolerance"))
    from eagle3_core.decide.sensitivity import _pinned, scaled

    pinned = _pinned(inputs)

    def at_step(factor: float) -> bool:
        changed = dataclasses.replace(inputs, latency=scaled(inputs.latency, factor), **pinned)
        return _holds(changed, sizes, size)

    for direction, limit in (("below", 0.05), ("above", 20.0)):
        edge = _edge(at_step, 1.0, limit)
        if edge is not None:
            wires.append(Tripwire(metric="step_ms", direction=direction,  # type: ignore[arg-type]
                                  value=float(f"{row['step_ms'] * edge:.4g}"),
                                  reason="another size would win by more than the tolerance"))
    return tuple(wires)


def _holds(inputs: TradeoffInputs, sizes: list[int], size: int) -> bool:
    """The chosen size is still within tolerance of the best."""
    table = tradeoff(inputs, sizes)
    here = table.row(by_predicate=pl.col("draft_vocab") == size, named=True)
    return here["speedup"] >= float(table["speedup"].max()) * (1 - inputs.tolerance)  # type: ignore[arg-type]


def _edge(holds: Callable[[float], bool], inside: float, limit: float, rounds: int = 9) -> float | None:
    """Where ``holds`` turns false between ``inside`` and ``limit``, by bisection; None when it never does."""
    if not holds(inside) or holds(limit):
        return None
    for _ in range(rounds):
        middle = (inside * limit) ** 0.5
        if holds(middle):
            inside = middle
        else:
            limit = middle
    return limit


def recommended_for(inputs: TradeoffInputs) -> tuple[pl.DataFrame, Recommendation]:
    """The grid's table and what it recommends."""
    table = full_table(inputs, inputs.locked_size or inputs.target.vocab_size)
    return table, recommend(table, tolerance=inputs.tolerance, constraints=constraints_of(inputs))
