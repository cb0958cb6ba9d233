"""``eagle3 coverage``: held-out coverage of a counts file at each size."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import typer

from eagle3_core.cli import options
from eagle3_core.cli.inputs import parse_weights
from eagle3_core.cli.output import print_json, print_table


def coverage_rows(path: Path, sizes: str, **settings: Any) -> list[dict[str, Any]]:
    """One object a size; the function behind the command."""
    from eagle3_core.corpus.counts import read_counts
    from eagle3_core.specs.sizes import parse_sizes
    from eagle3_core.vocab.coverage import DOMAIN_PREFIX, coverage_table

    counts = read_counts(path)
    table = coverage_table(counts, parse_sizes(sizes, counts.vocab_size), **settings)
    return [_row(row, DOMAIN_PREFIX) for row in table.iter_rows(named=True)]


def _row(row: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {
        "draft_vocab": row["draft_vocab"],
        "coverage_heldout": row["coverage"],
        "coverage_heldout_low": row["coverage_low"],
        "coverage_heldout_high": row["coverage_high"],
        "coverage_in_sample": row["coverage_in_sample"],
        "worst_domain": row["worst_domain"],
        "worst_coverage": row["worst_coverage"],
        "domains": {name.removeprefix(prefix): row[name] for name in row if name.startswith(prefix)},
        "unseen_mass": row["unseen_mass"],
        "good_turing": row["good_turing"],
        "mean_run": None if math.isinf(row["mean_run"]) else row["mean_run"],
        "forced_cost": row["forced_cost"],
        "padding": row["padding"],
    }


def register(app: typer.Typer) -> None:
    @app.command()
    def coverage(
        counts: Path = typer.Argument(..., help="Token counts (*.counts.parquet)."),
        sizes: options.Sizes = "8192,16384,32000,65536,full",
        ranking: options.Ranking = "pooled",
        weights: options.Weights = None,
        no_force: options.NoForce = False,
        force_file: Path | None = typer.Option(None, "--force-ids", help="JSON list of ids to force in as well."),
        as_json: options.Json = False,
    ) -> None:
        """Held-out coverage: ranked on nine document folds, measured on the tenth, all ten in turn."""
        extra: tuple[int, ...] = ()
        if force_file is not None:
            from eagle3_core.errors import Eagle3Error
            from eagle3_core.files import read_json

            value = read_json(force_file)
            if not isinstance(value, list) or not all(isinstance(i, int) for i in value):
                raise Eagle3Error("is not a list of token ids", where=force_file, found=json.dumps(value)[:40])
            extra = tuple(value)
        rows = coverage_rows(counts, sizes, strategy=ranking, weights=parse_weights(weights), force=not no_force,
                             extra_forced=extra)
        if as_json:
            print_json(rows)
            return
        names = list(rows[0]["domains"])
        print_table(
            f"{counts.name}: coverage held out, with the range over folds (measured)",
            ("D", "held out", "range", "in sample", *names, "padding"),
            [
                (f"{r['draft_vocab']:,}", f"{r['coverage_heldout']:.2%}",
                 f"{r['coverage_heldout_low']:.1%} to {r['coverage_heldout_high']:.1%}",
                 f"{r['coverage_in_sample']:.2%}",
                 *(f"{r['domains'][n]:.2%}" for n in names), f"{r['padding']:,}")
                for r in rows
            ],
        )
        print(f"unseen mass {rows[0]['unseen_mass']:.2%} of held-out tokens (Good-Turing {rows[0]['good_turing']:.2%})")
