"""The one table: everything a size buys and costs, one row per draft-vocabulary size.

The apps, the command line, the report and the export read this table and
compute nothing of their own. ``COLUMNS`` says what each figure is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from eagle3_core.acceptance.model import AcceptanceBand, AcceptanceSource, acceptance_at
from eagle3_core.corpus.counts import TokenCounts
from eagle3_core.cost.hardware import Gpu
from eagle3_core.cost.profile import LatencyProfile
from eagle3_core.cost.step import step_latency
from eagle3_core.cost.target_time import TargetTimes, target_times
from eagle3_core.decide.projection import acceptance_length, break_even_alpha, harmonic_mix, round_time, speedup
from eagle3_core.decide.tree import Tree, tree_length
from eagle3_core.errors import Eagle3Error
from eagle3_core.evidence import Evidence, weakest
from eagle3_core.specs.drafter import DrafterSpec, drafter_for
from eagle3_core.specs.parameters import count_parameters, dtype_bytes, training_memory
from eagle3_core.specs.sizes import check_sizes, size_grid
from eagle3_core.specs.target import TargetSpec
from eagle3_core.vocab.coverage import coverage_table


class Column(NamedTuple):
    """What a figure is, for the screens that explain it."""

    unit: str
    meaning: str
    formula: str
    source: str


COLUMNS: dict[str, Column] = {
    "draft_vocab": Column("tokens", "Draft vocabulary size D.", "", ""),
    "coverage": Column("share", "Held-out tokens inside the draft vocabulary.",
                       "rank on nine document folds, measure on the tenth, all ten in turn", "the counts file"),
    "worst_coverage": Column("share", "Held-out coverage of the worst domain.", "smallest over domains",
                             "the counts file"),
    "coverage_in_sample": Column("share", "Coverage of the tokens the list was made from; what trainers print.",
                                 "", "the counts file"),
    "unseen_mass": Column("share", "Held-out tokens whose id never occurred in the ranking part.", "",
                          "the counts file"),
    "lm_head_params": Column("parameters", "Parameters of the draft head.", "D * H", "target config"),
    "trainable_params": Column("parameters", "Parameters a trainer updates.",
                               "2H*h*(n_q + 2 n_kv) + n_q*h*H + 3*H*I + 3*H_t*H + D*H + 4H", "target config"),
    "total_params": Column("parameters", "Trainable, frozen embedding and frozen verifier head sliced to D.",
                           "trainable + V*H_t + D*H_t", "target config"),
    "lm_head_bytes": Column("bytes", "Bytes of the head, read once a draft step.", "D * H * bytes per weight",
                            "target config"),
    "training_bytes": Column("bytes", "Weights, masters, gradients and AdamW moments while training.",
                             "activations left out", "target config"),
    "step_ms": Column("ms", "One draft step: layer, head, sampling, collectives, launches.",
                      "median; fc is paid once a round and kept apart", "latency profile, or roofline"),
    "tau": Column("tokens", "Tokens a round, bonus token included.", "1 + sum_k prod_{i<=k} alpha_i",
                  "acceptance source; below its size alpha * (C / C_ref)^0.7"),
    "round_ms": Column("ms", "K draft steps, one verify pass, fc and overhead.",
                       "fc + K * step + verify(K + 1) + overhead", ""),
    "speedup": Column("x", "Against the target decoding alone.", "tau * T_decode / T_round", "SPEED-Bench 2604.09557"),
    "tokens_per_s": Column("tokens/s", "Tokens a second and sequence.", "speedup / T_decode", ""),
    "break_even_alpha": Column("probability", "The alpha, equal at every position, at which speedup is 1.",
                               "tau(alpha) = T_round / T_decode", ""),
    "vs_best": Column("share", "Projected speedup against the best size of the table.", "speedup / best - 1", ""),
}


@dataclass(frozen=True, eq=False)
class TradeoffInputs:
    """Everything the table depends on. ``decode_ms`` and ``verify_ms`` override the modelled target times."""

    target: TargetSpec
    counts: TokenCounts
    latency: LatencyProfile | Gpu
    acceptance: AcceptanceSource
    strategy: str = "pooled"
    force: bool = True
    extra_forced: tuple[int, ...] = ()
    """Ids the user forces in as well."""
    pad_from: TokenCounts | None = None
    """Counts that say which unseen ids are likeliest, where D exceeds the ids seen."""
    weights: Mapping[str, float] | None = None
    mix: Mapping[str, float] | None = None
    """Share of served tokens by domain; tau is then the harmonic mean of the domains' own."""
    k: int = 5
    topk: int = 1
    """Candidates a node of the draft tree; 1 is a chain of ``k``."""
    draft_tokens: int | None = None
    """Tokens verified a round, the last known one included; None is K + 1."""
    draft_tp: int = 1
    target_tp: int = 1
    batch: int = 1
    dtype: str = "bfloat16"
    engine: str = "sglang"
    context: int = 1024
    decode_ms: float | None = None
    verify_ms: float | None = None
    overhead_ms: float = 0.0
    locked_size: int | None = None
    """D of the checkpoint that fine-tuning starts from; None when training from scratch."""
    tolerance: float = 0.01
    max_lm_head_bytes: int | None = None
    min_worst_coverage: float | None = None

    def __post_init__(self) -> None:
        for name in ("decode_ms", "verify_ms"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise Eagle3Error(name, found=value, expected="milliseconds above 0")
        if self.k < 1 or self.batch < 1:
            raise Eagle3Error("K and batch", found=f"{self.k} and {self.batch}", expected="at least 1")
        if not self.overhead_ms >= 0:
            raise Eagle3Error("overhead_ms", found=self.overhead_ms, expected="0 or more")
        if self.mix is not None:
            _check_mix(self.mix, self.counts.domains)
        _ = self.tree

    @property
    def tree(self) -> Tree:
        """Raises Eagle3Error for a shape that cannot be drafted."""
        return Tree(self.topk, self.k, self.draft_tokens or self.k + 1)

    @property
    def stand_in(self) -> bool:
        """Another tokenizer's counts are used for this target."""
        return self.counts.vocab_size != self.target.vocab_size


def _check_mix(mix: Mapping[str, float], domains: Sequence[str]) -> None:
    for name, share in mix.items():
        if name not in domains:
            raise Eagle3Error("unknown domain in the task mix", found=name, expected=", ".join(domains))
        if not share >= 0:
            raise Eagle3Error(f"share of {name} in the task mix", found=share, expected="0 or more")
    if not sum(mix.values()) > 0:
        raise Eagle3Error("the task mix is empty", expected="a share above 0")


def target_timing(inputs: TradeoffInputs) -> TargetTimes:
    """Decode and verify times, the user's own figures first.

    A given decode time without a verify time scales the modelled verify pass by
    the same factor: what the model knows is their ratio.
    """
    modelled = target_times(inputs.latency, inputs.target, k=inputs.tree.draft_tokens - 1, batch=inputs.batch,
                            dtype=inputs.dtype, target_tp=inputs.target_tp, context=inputs.context)
    if inputs.decode_ms is None and inputs.verify_ms is None:
        return modelled
    decode = modelled.decode_ms if inputs.decode_ms is None else inputs.decode_ms
    verify = decode * modelled.verify_ratio if inputs.verify_ms is None else inputs.verify_ms
    both = inputs.decode_ms is not None and inputs.verify_ms is not None
    return TargetTimes(decode, verify, "assumed" if both else weakest("assumed", modelled.evidence))


def tradeoff(
    inputs: TradeoffInputs, sizes: Sequence[int] | None = None, *, coverage: Mapping[str, object] | None = None
) -> pl.DataFrame:
    """One row per size (default: the slider's grid).

    The columns are ``coverage_table``'s, ``step_latency``'s and those of
    ``COLUMNS``; every group has its ``*_evidence``. Acceptance at a size needs
    the coverage at the reference size, so a single row costs the same as a few.
    ``coverage`` takes the place of the ranking's, by column: a given mapping instead of the best (``inherited.py``).
    """
    target = inputs.target
    sizes = size_grid(target.vocab_size) if sizes is None else check_sizes(sizes, target.vocab_size)
    table = _coverage(inputs, sizes).with_columns(*_parameters(inputs, sizes))
    if coverage is not None:
        table = table.with_columns(pl.lit(value).alias(name) for name, value in coverage.items())
    drafter = drafter_for(target)
    latency = _latency(inputs, drafter, sizes)
    table = table.hstack(latency.drop("draft_vocab"))
    times = target_timing(inputs)
    band = _acceptance(inputs, sizes, table["coverage"].to_numpy())
    tau, tau_low, tau_high = _lengths(inputs, sizes, table, band)
    fixed = {"k": inputs.k, "verify_ms": times.verify_ms, "fc_ms": latency["fc_ms"].to_numpy(),
             "overhead_ms": inputs.overhead_ms}
    round_ms = round_time(latency["step_ms"].to_numpy(), **fixed)
    slow = round_time(latency["step_high_ms"].to_numpy(), **fixed)
    fast = round_time(latency["step_low_ms"].to_numpy(), **fixed)
    central = speedup(tau, round_ms, times.decode_ms)
    marks: list[Evidence] = [
        weakest(acceptance, coverage, latency, times.evidence)
        for acceptance, coverage, latency in zip(
            band.evidence, table["coverage_evidence"], table["latency_evidence"], strict=True
        )
    ]
    return table.with_columns(
        pl.Series("alpha", band.central.tolist()),
        pl.Series("tau", tau), pl.Series("tau_low", tau_low), pl.Series("tau_high", tau_high),
        pl.Series("acceptance_evidence", list(band.evidence)),
        pl.lit(times.decode_ms).alias("decode_ms"), pl.lit(times.verify_ms).alias("verify_ms"),
        pl.lit(times.evidence).alias("target_evidence"),
        pl.Series("round_ms", round_ms),
        pl.Series("speedup", central),
        pl.Series("speedup_low", speedup(tau_low, slow, times.decode_ms)),
        pl.Series("speedup_high", speedup(tau_high, fast, times.decode_ms)),
        pl.Series("tokens_per_s", central / times.decode_ms * 1e3),
        pl.Series("break_even_alpha", break_even_alpha(round_ms, times.decode_ms, inputs.k, length_of(inputs))),
        pl.Series("speedup_evidence", marks),
        pl.Series("vs_best", central / central.max() - 1),
    )


def _latency(inputs: TradeoffInputs, drafter: DrafterSpec, sizes: Sequence[int]) -> pl.DataFrame:
    return draft_steps(inputs.latency, drafter, sizes, k=inputs.k, topk=inputs.topk, batch=inputs.batch,
                       dtype=inputs.dtype, draft_tp=inputs.draft_tp, engine=inputs.engine, context=inputs.context)


def draft_steps(
    latency: LatencyProfile | Gpu, drafter: DrafterSpec, sizes: Sequence[int], *, k: int, topk: int, batch: int,
    **options: Any,
) -> pl.DataFrame:
    """``step_latency``; in a tree every step after the first runs ``topk`` tokens a sequence: the mean is shown."""
    first = step_latency(latency, drafter, sizes, batch=batch, **options)
    if topk == 1 or k == 1:
        return first
    later = step_latency(latency, drafter, sizes, batch=batch * topk, **options)
    each = [name for name in first.columns if name.endswith("_ms") and name != "fc_ms"]
    return first.with_columns(
        *((first[name] + (k - 1) * later[name]) / k for name in each),
        later["latency_evidence"], first["interpolated"] | later["interpolated"],
    )


def length_of(inputs: TradeoffInputs) -> Callable[[np.ndarray], np.ndarray]:
    """alpha [..., K] -> tau of the chain or tree that is drafted."""
    if inputs.topk == 1:
        return acceptance_length
    return lambda alpha: tree_length(alpha, inputs.tree)


def _lengths(
    inputs: TradeoffInputs, sizes: Sequence[int], table: pl.DataFrame, band: AcceptanceBand
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """tau central, low and high, [sizes] each; over a task mix the harmonic mean of the domains'."""
    length = length_of(inputs)
    if not inputs.mix:
        return length(band.central), length(band.low), length(band.high)
    shares = {name: share for name, share in inputs.mix.items() if share > 0}
    by_domain = []
    for name in shares:
        own = _acceptance(inputs, sizes, table[f"coverage:{name}"].to_numpy(), column=f"coverage:{name}")
        by_domain.append((length(own.central), length(own.low), length(own.high)))
    weights = list(shares.values())
    central, low, high = (
        np.array([harmonic_mix([row[i] for row in rows], weights) for i in range(len(sizes))])
        for rows in zip(*by_domain, strict=True)
    )
    return central, low, high


def _acceptance(
    inputs: TradeoffInputs, sizes: Sequence[int], coverage: np.ndarray, column: str = "coverage"
) -> AcceptanceBand:
    """The band at ``sizes``; the reference size joins them so that its coverage is exact."""
    vocab = inputs.target.vocab_size
    reference = inputs.acceptance.reference_size
    if reference is None or reference >= vocab or reference in sizes:
        return acceptance_at(inputs.acceptance, sizes, coverage, inputs.k, vocab_size=vocab)
    extended = sorted({*sizes, reference})
    keep = np.searchsorted(extended, list(sizes))
    wide = np.empty(len(extended))
    wide[keep] = coverage
    wide[extended.index(reference)] = _coverage(inputs, (reference,))[column][0]
    band = acceptance_at(inputs.acceptance, extended, wide, inputs.k, vocab_size=vocab)
    return type(band)(band.low[keep], band.central[keep], band.high[keep], tuple(band.evidence[i] for i in keep))


def _parameters(inputs: TradeoffInputs, sizes: Sequence[int]) -> list[pl.Series]:
    counts = [count_parameters(drafter_for(inputs.target, size)) for size in sizes]
    return [
        pl.Series("lm_head_params", [c.lm_head for c in counts]),
        pl.Series("trainable_params", [c.trainable for c in counts]),
        pl.Series("total_params", [c.total for c in counts]),
        pl.Series("lm_head_bytes", [c.lm_head * dtype_bytes(inputs.dtype) for c in counts]),
        pl.Series("training_bytes", [training_memory(c, inputs.dtype).total for c in counts]),
    ]


def _coverage(inputs: TradeoffInputs, sizes: Sequence[int]) -> pl.DataFrame:
    """Cached by the identity of the counts: every visitor and every slider step shares it."""
    weights = tuple(sorted(inputs.weights.items())) if inputs.weights else None
    pad_from = None if inputs.pad_from is None else _ById(inputs.pad_from)
    return _cached_coverage(_ById(inputs.counts), tuple(sizes), inputs.strategy, inputs.force, weights,
                            inputs.target.vocab_size, inputs.extra_forced, pad_from)


class _ById:
    """A hashable handle that keeps its object alive, so that an id is never reused while cached."""

    __slots__ = ("value",)

    def __init__(self, value: TokenCounts) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.value is other.value


@lru_cache(maxsize=256)
def _cached_coverage(
    counts: _ById, sizes: tuple[int, ...], strategy: str, force: bool,
    weights: tuple[tuple[str, float], ...] | None, vocab_size: int, extra_forced: tuple[int, ...],
    pad_from: _ById | None,
) -> pl.DataFrame:
    return coverage_table(counts.value, sizes, strategy=strategy, force=force,
                          weights=dict(weights) if weights else None, vocab_size=vocab_size,
                          extra_forced=extra_forced, pad_from=None if pad_from is None else pad_from.value)
