"""``eagle3 coverage``: held-out coverage of a counts file at each size."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import typer

from eagle3_core.cli import options
from eagle3_core.cli.inputs import parse_weights
from eagle3_core.cli.output import print_json, print_table


def coverage_rows(
    path: Path, sizes: str, *, strategy: str = "pooled", weights: dict[str, float] | None = None, force: bool = True,
    force_file: Path | None = None, pad_from: Path | None = None, documents: Path | None = None,
    matrix: bool = False, compare: bool = False,
) -> list[dict[str, Any]]:
    """One object a size; the function behind the command."""
    from eagle3_core.corpus.counts import read_counts
    from eagle3_core.specs.sizes import parse_sizes
    from eagle3_core.vocab.coverage import DOMAIN_PREFIX, compare_rankings, coverage_table, cross_domain, domain_table
    from eagle3_core.vocab.ranking import forced_summary, rank, read_forced

    counts = read_counts(path)
    wanted = parse_sizes(sizes, counts.vocab_size)
    extra = read_forced(force_file, counts) if force_file else ()
    ranked = {"strategy": strategy, "weights": weights, "force": force, "extra_forced": extra}
    table = coverage_table(counts, wanted, **ranked, pad_from=read_counts(pad_from) if pad_from else None)
    rows = [_row(row, DOMAIN_PREFIX) for row in table.iter_rows(named=True)]
    for row, more in zip(rows, _outlook(counts, wanted, ranked), strict=True):
        row |= more
    if documents is not None:
        for row, more in zip(rows, _documents(documents, counts, wanted, ranked), strict=True):
            row |= more
    ranking = rank(counts, **ranked)
    forced = {"forced": len(ranking.forced), **forced_summary(counts, ranking)}
    for row in rows:
        row["forced"] = forced
        row["by_domain"] = {r.pop("domain"): {key: _finite(value) for key, value in r.items()}
                            for r in domain_table(counts, row["draft_vocab"], **ranked).to_dicts()}
        if matrix:
            frame = cross_domain(counts, row["draft_vocab"], force=force)
            row["matrix"] = {r.pop("ranked_on"): r for r in frame.to_dicts()}
        if compare:
            frame = compare_rankings(counts, row["draft_vocab"], force=force, weights=weights)
            row["rankings"] = {r.pop("strategy"): r for r in frame.to_dicts()}
    return rows


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _row(row: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {
        "draft_vocab": row["draft_vocab"],
        "coverage_heldout": row["coverage"],
        "coverage_heldout_low": row["coverage_low"],
        "coverage_heldout_high": row["coverage_high"],
        "coverage_in_sample": row["coverage_in_sample"],
        "worst_domain": row["worst_domain"],
        "worst_coverage": row["worst_coverage"],
        "domains": {name.removeprefix(prefix): None if math.isnan(row[name]) else row[name]
                    for name in row if name.startswith(prefix)},
        "unseen_mass": row["unseen_mass"],
        "good_turing": row["good_turing"],
        "mean_run": None if math.isinf(row["mean_run"]) else row["mean_run"],
        "forced_cost": row["forced_cost"],
        "padding": row["padding"],
    }


def _outlook(counts: Any, sizes: tuple[int, ...], ranked: dict[str, Any]) -> list[dict[str, Any]]:
    """The interval for a larger corpus; None where the documents are too few for one."""
    from eagle3_core.vocab.outlook import can_extrapolate, outlook

    if not can_extrapolate(counts):
        return [{"larger_corpus_low": None, "larger_corpus_high": None, "supported": False} for _ in sizes]
    return [{"larger_corpus_low": r["low"], "larger_corpus_high": r["high"], "supported": r["supported"]}
            for r in outlook(counts, sizes, **ranked).iter_rows(named=True)]


def _documents(path: Path, counts: Any, sizes: tuple[int, ...], ranked: dict[str, Any]) -> list[dict[str, Any]]:
    from eagle3_core.corpus.documents import read_documents
    from eagle3_core.vocab.documents import documents_below

    frame = documents_below(counts, read_documents(path), sizes, **ranked)
    out = []
    for size in sizes:
        by_name = {r["domain"]: r for r in frame.iter_rows(named=True) if r["draft_vocab"] == size}
        out.append({key: {name: row[key] for name, row in by_name.items()} for key in ("below_95", "below_90")})
    return [{"documents_below_95": r["below_95"], "documents_below_90": r["below_90"]} for r in out]


def register(app: typer.Typer) -> None:
    @app.command()
    def coverage(
        counts: Path = typer.Argument(..., help="Token counts (*.counts.parquet)."),
        sizes: options.Sizes = "8192,16384,32000,65536,full",
        ranking: options.Ranking = "pooled",
        weights: options.Weights = None,
        no_force: options.NoForce = False,
        force_file: Path | None = typer.Option(None, "--force", "--force-ids",
                                               help="JSON list of ids or token texts to force in as well."),
        pad_from: Path | None = typer.Option(None, "--pad-from",
                                             help="Counts of the same tokenizer that say which padding is likeliest."),
        documents: Path | None = typer.Option(None, "--documents", help="Sample of eagle3 count --documents."),
        matrix: bool = typer.Option(False, "--matrix", help="Ranked on one domain, measured on each."),
        compare: bool = typer.Option(False, "--compare", help="Every ranking strategy beside pooled."),
        as_json: options.Json = False,
    ) -> None:
        """Held-out coverage: ranked on nine document folds, measured on the tenth, all ten in turn."""
        rows = coverage_rows(counts, sizes, strategy=ranking, weights=parse_weights(weights), force=not no_force,
                             force_file=force_file, pad_from=pad_from, documents=documents, matrix=matrix,
                             compare=compare)
        if as_json:
            print_json(rows)
        else:
            _show(counts.name, rows)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _show(name: str, rows: list[dict[str, Any]]) -> None:
    names = list(rows[0]["domains"])
    print_table(
        f"{name}: coverage held out, with the range over folds (measured)",
        ("D", "held out", "range", "in sample", "a larger corpus", *names, "miss every", "padding"),
        [
            (f"{r['draft_vocab']:,}", _percent(r["coverage_heldout"]),
             f"{r['coverage_heldout_low']:.1%} to {r['coverage_heldout_high']:.1%}", _percent(r["coverage_in_sample"]),
             "-" if r["larger_corpus_low"] is None
             else f"{r['larger_corpus_low']:.1%} to {r['larger_corpus_high']:.1%}",
             *(_percent(r["domains"][n]) for n in names),
             "-" if r["mean_run"] is None else f"{r['mean_run'] + 1:.1f}", f"{r['padding']:,}")
            for r in rows
        ],
    )
    first = rows[0]
    print(f"unseen mass {first['unseen_mass']:.2%} of held-out tokens (Good-Turing {first['good_turing']:.2%})")
    forced = dict(first["forced"])
    if number := forced.pop("forced"):
        never = forced.pop("never seen")
        roles = ", ".join(f"{role.replace('_', ' ')} {n}" for role, n in forced.items())
        print(f"forced at every size: {number:,} tokens ({roles}), {never:,} of them never seen; cost in coverage: "
              + ", ".join(f"{r['forced_cost']:.2%} at {r['draft_vocab']:,}" for r in rows))
    weak = [f"{r['draft_vocab']:,}" for r in rows if not r["supported"]]
    if weak:
        print(f"too little data to tell coverage to a point at D = {', '.join(weak)}: see the larger-corpus interval")
    padded = [r for r in rows if r["padding"]]
    if padded:
        print("padding: " + ", ".join(f"D = {r['draft_vocab']:,} has {r['padding']:,} ids never seen" for r in padded))
    for row in rows:
        for key, title in (("documents_below_95", "documents below 95 %"), ("documents_below_90", "below 90 %")):
            if key in row:
                print(f"D = {row['draft_vocab']:,}, {title}: "
                      + ", ".join(f"{n} {v:.1%}" for n, v in row[key].items()))
        if "matrix" in row:
            print_table(f"D = {row['draft_vocab']:,}: ranked on the row, measured on the column", ("", *names),
                        [(n, *(_percent(v) for v in r.values())) for n, r in row["matrix"].items()], left=1)
        if "rankings" in row:
            print_table(f"D = {row['draft_vocab']:,}: rankings, gain or loss against pooled in points",
                        ("ranking", "held out", "worst", *names),
                        [(n, _percent(r["coverage"]), _percent(r["worst_coverage"]),
                          *(f"{r[f'gain:{d}'] * 100:+.2f}" for d in names)) for n, r in row["rankings"].items()],
                        left=1)
