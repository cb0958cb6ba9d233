"""Predicted against measured, from ``figures.csv``: every row there names its source.

Each function returns a frame with ``case``, ``predicted``, ``measured`` and ``error``
(signed share). Nothing is fitted on what it is compared with, except where the name
says so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from eagle3_core.acceptance.model import alphas_of_length
from eagle3_core.cost.hardware import devices
from eagle3_core.cost.roofline import gemm_ms
from eagle3_core.decide.projection import acceptance_length, round_time, speedup

FIT_ON = (8_192, 32_768, 128_256)
"""Sizes whose round time fixes FR-Spec's line; the others are predicted."""


def figures() -> pl.DataFrame:
    return pl.read_csv(Path(__file__).with_name("figures.csv"))


def _compared(case: list[str], predicted: list[float], measured: list[float]) -> pl.DataFrame:
    frame = pl.DataFrame({"case": case, "predicted": predicted, "measured": measured})
    return frame.with_columns(error=pl.col("predicted") / pl.col("measured") - 1)


def _value(frame: pl.DataFrame, **where: object) -> float:
    for name, value in where.items():
        frame = frame.filter(pl.col(name) == value)
    return float(frame["value"].item())


def fr_spec(group: str) -> tuple[pl.DataFrame, int, int]:
    """Throughput at the sizes left out of the fit; the predicted optimum; the measured one."""
    rows = figures().filter((pl.col("group") == group) & pl.col("draft_vocab").is_not_null())
    sizes = np.array(sorted(set(rows["draft_vocab"])))
    tau = np.array([_value(rows, draft_vocab=d, metric="accept_len") for d in sizes.tolist()])
    seen = np.array([_value(rows, draft_vocab=d, metric="tokens_per_s") for d in sizes.tolist()])
    used = np.isin(sizes, FIT_ON)
    slope, base = np.polyfit(sizes[used], (tau / seen)[used], 1)
    predicted = tau / (base + slope * sizes)
    left = ~used
    table = _compared([f"D {d:,}" for d in sizes[left].tolist()], predicted[left].tolist(), seen[left].tolist())
    return table, int(sizes[predicted.argmax()]), int(sizes[seen.argmax()])


def speed_bench() -> pl.DataFrame:
    """tau * T_decode / T_round at the three contexts, in the order of the table's two columns."""
    rows = figures().filter(pl.col("group") == "speedbench")
    seen = rows.filter(pl.col("metric") == "speedup")
    contexts = ("1k", "2k", "8k") * 2
    case, predicted = [], []
    for context, name in zip(contexts, seen["case"], strict=True):
        tau = float(name.split()[1])
        decode = _value(rows, case=context, metric="t_autoregressive_step")
        round_ms = _value(rows, case=context, metric="t_speculative_round")
        case.append(f"context {context}, tau {tau:g}")
        predicted.append(float(speedup(np.array(tau), np.array(round_ms), decode)))
    return _compared(case, predicted, seen["value"].to_list())


def slim_spec(kappa: float = 0.25) -> pl.DataFrame:
    """rho_TPS = rho_tau (1 + kappa) / (1 + nu kappa), kappa the full head's share of the rest of a round."""
    rows = figures().filter(pl.col("group") == "slimspec")
    case, predicted, seen = [], [], []
    for name in rows["case"].unique(maintain_order=True):
        rho = _value(rows, case=name, metric="accept_len_ratio_rho_tau")
        nu = _value(rows, case=name, metric="head_time_ratio_nu")
        # A round of 1 without the head: 1 + kappa with the full head, 1 + nu kappa with this one.
        full, cut = (float(round_time(np.array(0.0), k=1, verify_ms=1 + share * kappa)) for share in (1.0, nu))
        case.append(name)
        predicted.append(rho * full / cut)
        seen.append(_value(rows, case=name, metric="speedup_vs_full_vocab_drafter"))
    return _compared(case, predicted, seen)


def leviathan() -> pl.DataFrame:
    """Their table of speedups with a free drafter: verify and decode alike, draft steps at no cost."""
    rows = figures().filter(pl.col("group") == "leviathan")
    predicted = []
    for row in rows.iter_rows(named=True):
        k = int(row["steps"])
        tau = acceptance_length(np.full(k, float(row["case"].split()[1])))
        predicted.append(float(speedup(tau, round_time(np.array(0.0), k=k, verify_ms=1.0), 1.0)))
    cases = [f"{c}, gamma {s}" for c, s in zip(rows["case"], rows["steps"], strict=True)]
    return _compared(cases, predicted, rows["value"].to_list())


def chains() -> pl.DataFrame:
    """SpecBundle's lengths, a row a drafter and task: ``target``, ``t3``, ``t5``, ``t7``."""
    rows = figures().filter(pl.col("group") == "specbundle")
    wide = rows.pivot(on="steps", index=["target", "case"], values="value", aggregate_function="first")
    return wide.rename({"3": "t3", "5": "t5", "7": "t7"}).drop_nulls()


def carried(table: pl.DataFrame, decay: float) -> pl.DataFrame:
    """Chain 3's length carried to chains 5 and 7: ``target``, ``chain``, predicted, measured, error."""
    out = []
    for row in table.iter_rows(named=True):
        alpha = alphas_of_length(row["t3"], 3, 7, decay=decay)
        for k in (5, 7):
            found = float(acceptance_length(alpha[:k]))
            out.append((row["target"], k, found, row[f"t{k}"], found / row[f"t{k}"] - 1))
    return pl.DataFrame(out, orient="row", schema=["target", "chain", "predicted", "measured", "error"])


def left_out(table: pl.DataFrame) -> pl.DataFrame:
    """``carried`` with the decay of least mean absolute error on all other targets, for every target in turn."""
    tried = [carried(table, float(decay)) for decay in np.arange(0.80, 0.931, 0.005)]
    out = []
    for target in sorted(set(table["target"])):
        others = pl.col("target") != target
        best = min(tried, key=lambda errors: errors.filter(others)["error"].abs().mean())  # type: ignore[arg-type]
        out.append(best.filter(~others))
    return pl.concat(out)


def kimi_head_share(draft_tp: int) -> float:
    """Share of Kimi-K2's round at batch 8, chain 3 (31.6 ms over SpecBundle) saved by 32,000 rows, on an H200."""
    gpu = devices()["h200"]
    full, cut = (gemm_ms(gpu, rows / draft_tp, 7_168, batch=8, bytes_per_weight=2) for rows in (163_840, 32_000))
    return 3 * (full - cut) / 31.6


