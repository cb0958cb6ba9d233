"""The roofline against measured GEMMs, per GPU.

    python -m tests.benchmarks.latency_model

Held against ``latency_reference.csv`` (ai-dynamo/aiconfigurator's measured GEMMs
and collectives), which lies beside the checkout, not in it. The rows of the model
with at least 8,192 rows are the lm_head shapes; their mean absolute error must
stay under 6 % on every GPU whose constants are fitted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import polars as pl

from eagle3_core.cli.output import print_table
from eagle3_core.cost.hardware import Gpu, devices
from eagle3_core.cost.roofline import gemm_ms

LIMIT = 0.06
HEAD_ROWS = 8_192
BATCHES = (1, 4, 8, 16, 64)


def reference(folder: Path) -> pl.DataFrame:
    return pl.read_csv(folder / "data" / "latency_reference.csv", null_values="n/a")


def gemm_errors(frame: pl.DataFrame, *, batch: int = 1) -> pl.DataFrame:
    """One row a measured bf16 lm_head GEMM: gpu, n, k, measured_us, model_us, error (signed share)."""
    known: dict[str, Gpu] = {gpu.label: gpu for gpu in devices().values()}
    rows = []
    for row in frame.filter((pl.col("op") == "gemm") & (pl.col("dtype") == "bfloat16")
                            & (pl.col("m") == batch) & (pl.col("n") >= HEAD_ROWS)).iter_rows(named=True):
        gpu = known.get(row["gpu"])
        if gpu is not None:
            model = gemm_ms(gpu, row["n"], row["k"], batch=batch, bytes_per_weight=2) * 1e3
            rows.append((row["gpu"], row["n"], row["k"], row["latency_us"], model, model / row["latency_us"] - 1))
    return pl.DataFrame(rows, orient="row", schema=["gpu", "n", "k", "measured_us", "model_us", "error"])


def summary(errors: pl.DataFrame) -> pl.DataFrame:
    """gpu, points, mean absolute, worst and mean signed error."""
    return errors.group_by("gpu").agg(
        pl.len().alias("points"), pl.col("error").abs().mean().alias("mean_abs"),
        pl.col("error").abs().max().alias("worst"), pl.col("error").mean().alias("bias"),
    ).sort("gpu")


def collective_errors(frame: pl.DataFrame) -> list[tuple[str, str, float, float]]:
    """gpu, collective, median measured microseconds at 8 GPUs up to 16k elements, the table's constant."""
    out = []
    for gpu in devices().values():
        for op, constant in (("custom_all_reduce_graph", gpu.all_reduce_us), ("nccl_all_gather", gpu.all_gather_us)):
            limit = 16_384 if op.startswith("custom") else 262_144
            found = frame.filter(
                (pl.col("gpu") == gpu.label) & (pl.col("op") == op) & (pl.col("num_gpus").cast(pl.Int64) == 8)
                & (pl.col("elements").cast(pl.Int64) <= limit))
            if len(found):
                out.append((gpu.label, op, float(found["latency_us"].median()), constant))  # type: ignore[arg-type]
    return out


def main() -> int:
    folder = Path(os.environ.get("EAGLE3_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    if not (folder / "data").is_dir():
        print(f"needs the reference data folder {folder.name}/ beside the checkout, or EAGLE3_SHARED")
        return 2
    frame = reference(folder)
    every = {batch: gemm_errors(frame, batch=batch) for batch in BATCHES}
    for name, errors in (*((f"batch {b}", e) for b, e in every.items()), ("all batches", pl.concat(every.values()))):
        table = summary(errors)
        print_table(f"lm_head shapes (rows >= {HEAD_ROWS:,}, bf16), {name}",
                    ("GPU", "points", "mean error", "worst", "bias"),
                    [(r["gpu"], str(r["points"]), f"{r['mean_abs']:.1%}", f"{r['worst']:.1%}", f"{r['bias']:+.1%}")
                     for r in table.iter_rows(named=True)], left=1)
    judged = (every[1], pl.concat(every.values()))
    bad = sum(value > LIMIT for errors in judged for value in summary(errors)["mean_abs"])
    print_table("collectives at 8 GPUs, microseconds", ("GPU", "collective", "measured median", "model"),
                [(gpu, op, f"{seen:.1f}", f"{model:.1f}") for gpu, op, seen, model in collective_errors(frame)], left=2)
    print(f"limit {LIMIT:.0%} a GPU, at batch 1 and over all: {'held' if not bad else f'broken {bad} times'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
