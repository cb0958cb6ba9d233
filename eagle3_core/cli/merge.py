"""``eagle3 merge``: counts of one tokenizer added up."""

from __future__ import annotations

from pathlib import Path

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json
from eagle3_core.errors import Eagle3Error


def register(app: typer.Typer) -> None:
    @app.command()
    def merge(
        counts: list[Path] = typer.Argument(..., help="Two or more *.counts.parquet of one tokenizer."),
        out: options.Out = None,
        force: options.Force = False,
        as_json: options.Json = False,
    ) -> None:
        """Add counts of one tokenizer; others are refused."""
        from eagle3_core.cli.count import counts_summary
        from eagle3_core.corpus.counts import merge_counts, read_counts, write_counts

        if len(counts) < 2:
            raise Eagle3Error("one file is nothing to merge", expected="two or more counts files")
        if out is None:
            raise Eagle3Error("--out is missing", expected="where to write, such as all.counts.parquet")
        if out.exists() and not force:
            raise Eagle3Error("already exists", where=out, fix="pass --force to replace it")
        merged = merge_counts([read_counts(path) for path in counts])
        write_counts(merged, out)
        summary = counts_summary(merged)
        if as_json:
            print_json(summary)
            return
        print(f"wrote {out}: {summary['tokens']:,} tokens of {summary['documents']:,} documents, "
              f"{len(summary['domains'])} domains")
