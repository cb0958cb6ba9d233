"""The commands that make a report again: every option that is not the default, files by name.

Paths of the machine are not recorded, so a file stands by its base name; the
hashes in the record say whether it is the same one.
"""

from __future__ import annotations

import shlex

from eagle3_core.cost.hardware import Gpu
from eagle3_core.decide.record import Decision
from eagle3_core.decide.tradeoff import TradeoffInputs

COUNTS = "mine.counts.parquet"


def count_command(inputs: TradeoffInputs) -> str:
    """``eagle3 count`` over the files that were counted, by their names."""
    meta = inputs.counts.meta
    files = " ".join(_quoted(f.name) for f in meta.inputs[:12]) or "DATA"
    more = " ..." if len(meta.inputs) > 12 else ""
    return (f"eagle3 count {files}{more} --tokenizer {_quoted(meta.tokenizer)} "
            f"--target {_quoted(inputs.target.name)} --tokens {meta.tokens} --out {COUNTS}")


def report_command(inputs: TradeoffInputs, decision: Decision) -> str:
    """``eagle3 report`` for these inputs and the chosen size."""
    s, latency = decision.setting, inputs.latency
    source = latency.name if isinstance(latency, Gpu) else f"{s.target}.latency.json"
    parts = [f"--target {_quoted(s.target)}", f"--counts {COUNTS}", f"--latency {_quoted(source)}",
             f"--size {decision.choice.draft_vocab}", f"--acceptance {_acceptance(inputs)}"]
    defaults = {"k": 5, "topk": 1, "draft_tokens": None, "draft_tp": 1, "target_tp": 1, "batch": 1,
                "engine": "sglang", "context": 1024}
    parts += [f"--{name.replace('_', '-')} {getattr(s, name)}" for name, usual in defaults.items()
              if getattr(s, name) != usual]
    parts.append(f"--dtype {s.dtype}")
    if inputs.strategy != "pooled":
        parts.append(f"--ranking {inputs.strategy}")
    for option, shares in (("weights", inputs.weights), ("mix", inputs.mix)):
        if shares:
            parts.append(f"--{option} " + _quoted(",".join(f"{name}={value:g}" for name, value in shares.items())))
    if inputs.max_lm_head_bytes is not None:
        parts.append(f"--max-head-gb {inputs.max_lm_head_bytes / 1e9:g}")
    if inputs.min_worst_coverage is not None:
        parts.append(f"--min-worst {inputs.min_worst_coverage:g}")
    if not inputs.force:
        parts.append("--no-force")
    if inputs.extra_forced:
        parts.append("--force-ids forced.json")
    if inputs.pad_from is not None:
        parts.append("--pad-from padding.counts.parquet")
    for name, value in (("decode-ms", inputs.decode_ms), ("verify-ms", inputs.verify_ms)):
        if value is not None:
            parts.append(f"--{name} {value:g}")
    if inputs.locked_size is not None:
        parts.append(f"--locked {inputs.locked_size}")
    if inputs.stand_in:
        parts.append("--stand-in")
    return " ".join(["eagle3 report", *parts, f"--created {_quoted(decision.created)}", "--out report.html"])


def commands(inputs: TradeoffInputs, decision: Decision) -> tuple[str, ...]:
    """Count, report, export, and the check to run later."""
    latency = "" if isinstance(inputs.latency, Gpu) else f" --latency {_quoted(decision.setting.target)}.latency.json"
    return (
        count_command(inputs),
        report_command(inputs, decision),
        f"eagle3 export --decision decision.json --counts {COUNTS}{latency} --for all --out bundle",
        "eagle3 check decision.json --counts live.counts.parquet",
    )


def _acceptance(inputs: TradeoffInputs) -> str:
    if inputs.acceptance.record is not None or inputs.acceptance.reference_size is not None:
        return "mine.acceptance.json"
    return ",".join(f"{a:g}" for a in inputs.acceptance.alpha)


def _quoted(text: str) -> str:
    """One shell word on one line, whatever a file is called."""
    return shlex.quote("".join(ch if ch.isprintable() else "?" for ch in text))
