"""From shared options to ``TradeoffInputs``: the same reading of the same flags in every command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eagle3_core.errors import Eagle3Error

if TYPE_CHECKING:
    # The commands that need none of it start without it.
    from eagle3_core.corpus.counts import TokenCounts
    from eagle3_core.decide.record import Decision
    from eagle3_core.decide.tradeoff import TradeoffInputs

DEFAULT_DEVICE = "h200"


def parse_weights(text: str | None, option: str = "--weights") -> dict[str, float] | None:
    """``code=2,zh=1`` -> weights. Raises Eagle3Error naming the bad part."""
    if text is None:
        return None
    out = {}
    for part in text.split(","):
        name, found, value = part.partition("=")
        try:
            out[name.strip()] = float(value)
        except ValueError:
            found = ""
        if not found:
            raise Eagle3Error(option, found=repr(part), expected="NAME=NUMBER, comma separated")
    return out


def checked_counts(path: Path | None, vocab_size: int, target: str, *, stand_in: bool) -> TokenCounts:
    """Read counts and refuse another tokenizer's unless the user asked for a stand-in."""
    from eagle3_core.corpus.counts import read_counts

    if path is None:
        raise Eagle3Error("--counts is missing", expected="a *.counts.parquet made by eagle3 count")
    counts = read_counts(path)
    if counts.vocab_size != vocab_size and not stand_in:
        raise Eagle3Error(f"counts are of another vocabulary than {target}'s", where=path,
                          found=f"V = {counts.vocab_size:,} ({counts.meta.tokenizer})", expected=f"V = {vocab_size:,}",
                          fix="count with the target's tokenizer, or pass --stand-in to mark every figure modelled")
    return counts


def build_inputs(
    target: str, counts: Path | None, latency: str | None, acceptance: str | None, *, k: int = 5, draft_tp: int = 1,
    target_tp: int = 1, batch: int = 1, dtype: str | None = None, engine: str = "sglang", context: int = 1024,
    ranking: str = "pooled", weights: str | None = None, force: bool = True, decode_ms: float | None = None,
    verify_ms: float | None = None, locked: int | None = None, stand_in: bool = False,
    force_ids: Path | None = None, pad_from: Path | None = None, topk: int = 1, draft_tokens: int | None = None,
    mix: str | None = None, max_head_gb: float | None = None, min_worst: float | None = None,
) -> TradeoffInputs:
    """Raises Eagle3Error for anything that does not fit together. ``dtype`` None is the profile's, else bfloat16."""
    from eagle3_core.acceptance.model import resolve_acceptance
    from eagle3_core.corpus.counts import read_counts
    from eagle3_core.cost.hardware import resolve_latency
    from eagle3_core.cost.profile import LatencyProfile
    from eagle3_core.decide.tradeoff import TradeoffInputs
    from eagle3_core.specs.drafter import check_draft_vocab
    from eagle3_core.specs.presets import resolve_target
    from eagle3_core.vocab.ranking import read_forced

    spec = resolve_target(target)
    if locked is not None:
        check_draft_vocab(locked, spec.vocab_size, where="--locked")
    source = resolve_latency(latency or DEFAULT_DEVICE)
    if dtype is None:
        dtype = source.dtype if isinstance(source, LatencyProfile) else "bfloat16"
    found = checked_counts(counts, spec.vocab_size, spec.name, stand_in=stand_in)
    return TradeoffInputs(
        target=spec, counts=found, extra_forced=read_forced(force_ids, found) if force_ids else (),
        pad_from=read_counts(pad_from) if pad_from else None, latency=source,
        acceptance=resolve_acceptance(acceptance), strategy=ranking, force=force, weights=parse_weights(weights), k=k,
        draft_tp=draft_tp, target_tp=target_tp, batch=batch, dtype=dtype, engine=engine, context=context,
        decode_ms=decode_ms, verify_ms=verify_ms, locked_size=locked, topk=topk, draft_tokens=draft_tokens,
        mix=parse_weights(mix, "--mix"), min_worst_coverage=min_worst,
        max_lm_head_bytes=None if max_head_gb is None else int(max_head_gb * 1e9),
    )


def file_hashes(
    counts: Path | None, latency: str | None, acceptance: str | None, pad_from: Path | None = None
) -> dict[str, str]:
    """SHA-256 of the artifact files that were given, for the decision record."""
    from eagle3_core.files import sha256_file

    named = {"counts": counts, "latency": latency, "acceptance": acceptance, "pad_from": pad_from}
    return {name: sha256_file(Path(p)) for name, p in named.items() if p is not None and Path(p).is_file()}


def recorded_inputs(
    path: Path, counts: Path | None, latency: str | None, acceptance: str | None
) -> tuple[Decision, TradeoffInputs | None]:
    """A recorded decision and, with its counts file, the inputs it was made from.

    Raises Eagle3Error when a file given is not the one that was decided on.
    """
    from eagle3_core.acceptance.model import resolve_acceptance
    from eagle3_core.corpus.counts import read_counts
    from eagle3_core.cost.hardware import resolve_latency
    from eagle3_core.decide.record import read_decision
    from eagle3_core.decide.restore import restore_inputs

    record = read_decision(path)
    known = {item.sha256 for item in record.inputs}
    for name, found in file_hashes(counts, latency, acceptance).items():
        if found not in known:
            raise Eagle3Error(f"--{name} is not the file of this decision", found=f"sha256 {found[:12]}...",
                              expected="a file recorded in it", fix="decide again with --target")
    if counts is None:
        return record, None
    return record, restore_inputs(record, read_counts(counts), latency=resolve_latency(latency) if latency else None,
                                  acceptance=resolve_acceptance(acceptance) if acceptance else None)
