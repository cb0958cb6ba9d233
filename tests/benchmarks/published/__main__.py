"""A page of predicted against measured.

    python -m tests.benchmarks.published
"""

from __future__ import annotations

import polars as pl

from eagle3_core.acceptance.model import DEPTH_ODDS
from eagle3_core.cli.output import print_table
from tests.benchmarks.published import compare


def _show(title: str, table: pl.DataFrame) -> None:
    print_table(title, ("case", "predicted", "measured", "error"),
                [(r["case"], f"{r['predicted']:.4g}", f"{r['measured']:.4g}", f"{r['error']:+.1%}")
                 for r in table.iter_rows(named=True)], left=1)


def main() -> None:
    for group, name in (("frspec-a800", "A800, Llama-3-8B"), ("frspec-3090", "RTX 3090, Llama-3.2-1B")):
        table, predicted, measured = compare.fr_spec(group)
        _show(f"FR-Spec, {name}: tokens/s at sizes left out of the fit", table)
        print(f"optimum: predicted {predicted:,}, measured {measured:,}\n")
    _show("SPEED-Bench: speedup = tau T_decode / T_round", compare.speed_bench())
    _show("SlimSpec: head-only rule, kappa 0.25 (theirs, approximate)", compare.slim_spec())
    _show("Leviathan: a free drafter", compare.leviathan())
    table = compare.chains()
    rows = []
    for name, found in (("one alpha", compare.carried(table, 1.0)), ("odds falling, target left out of the fit",
                                                                    compare.left_out(table))):
        for k in (5, 7):
            error = found.filter(pl.col("chain") == k)["error"]
            rows.append((name, str(k), f"{error.mean():+.1%}", f"{error.abs().mean():.1%}",
                         f"{error.min():+.1%} to {error.max():+.1%}"))
        rows.append((name, "both", f"{found['error'].mean():+.1%}", f"{found['error'].abs().mean():.2%}", ""))
    print_table(f"SpecBundle: chain 3 carried further, {len(table)} drafters and tasks; kept: odds x {DEPTH_ODDS}",
                ("positions", "chain", "mean error", "mean absolute", "range"), rows, left=1)
    print_table("Kimi-K2, batch 8, chain 3, H200: head saving of 32,000 against full, share of a round",
                ("draft TP", "predicted", "derived from the fit"),
                [(str(tp), f"{compare.kimi_head_share(tp):.2%}", seen) for tp, seen in ((8, "0.6%"), (1, "4.4%"))])


if __name__ == "__main__":
    main()
