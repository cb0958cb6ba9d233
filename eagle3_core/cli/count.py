"""``eagle3 count``: token counts of your data, by domain and document fold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json, print_table, progress_bar
from eagle3_core.errors import Eagle3Error


def _domains(values: list[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        name, found, pattern = value.partition("=")
        if not found or not name or not pattern:
            raise Eagle3Error("--domain", found=repr(value), expected="NAME=GLOB")
        pairs[name] = pattern
    return pairs


def counts_summary(counts: Any) -> dict[str, Any]:
    """What a counts file holds, for people and for --json."""
    meta = counts.meta
    return {
        "tokenizer": meta.tokenizer, "tokenizer_sha256": meta.tokenizer_sha256, "vocab_size": meta.vocab_size,
        "tokens_counted": meta.tokens, "tokens": counts.tokens, "distinct": int((counts.total > 0).sum()),
        "documents": sum(map(sum, meta.documents)), "rejected": meta.rejected,
        "domains": {
            name: {"tokens": int(counts.by_domain[i].sum()), "documents": sum(meta.documents[i]),
                   "distinct": int((counts.by_domain[i] > 0).sum())}
            for i, name in enumerate(meta.domains)
        },
        "notes": list(meta.notes),
    }


def register(app: typer.Typer) -> None:
    @app.command()
    def count(
        data: list[str] = typer.Argument(..., help="Files, folders, globs or URLs; .gz and .zst are read as they are."),
        tokenizer: options.Tokenizer = None,
        target: str | None = typer.Option(None, "--target", help="Target, for V: padding rows are kept."),
        out: options.Out = None,
        tokens: str = typer.Option("assistant", "--tokens", help="assistant, all or prompt."),
        fmt: str | None = typer.Option(None, "--format", help="Force a reader."),
        domain: list[str] = typer.Option([], "--domain", help="NAME=GLOB over file names; repeat it."),
        domain_field: str | None = typer.Option(None, "--domain-field", help="Take the domain from this field."),
        processes: int | None = typer.Option(None, "--processes", min=1, help="Default: one a core."),
        max_bad: float = typer.Option(0.01, "--max-bad", min=0, max=1, help="Share of bad records to accept."),
        engine: str = typer.Option("local", "--engine", help="local, or ray for a cluster."),
        ray_address: str | None = typer.Option(None, "--ray-address",
                                               help="Of the cluster; default RAY_ADDRESS, else a local one starts."),
        resume: bool = typer.Option(False, "--resume", help="Continue from finished input files."),
        documents: int = typer.Option(0, "--documents", min=0,
                                      help="Also keep this many documents a domain as bags of ids."),
        as_json: options.Json = False,
    ) -> None:
        """Count the tokens a drafter would have to propose, in your own data."""
        from eagle3_core.corpus.counting import count as count_tokens
        from eagle3_core.corpus.counts import write_counts
        from eagle3_core.corpus.tokenizer import load_tokenizer
        from eagle3_core.specs.presets import resolve_target

        if tokens not in ("assistant", "all", "prompt"):
            raise Eagle3Error("--tokens", found=repr(tokens), expected="assistant, all or prompt")
        if out is None:
            raise Eagle3Error("--out is missing", expected="where to write, such as mine.counts.parquet")
        if tokenizer is None and (target is None or not Path(target).is_dir()):
            raise Eagle3Error("--tokenizer is missing", expected="a tokenizer folder or file")
        vocab = resolve_target(target).vocab_size if target else None
        opened = load_tokenizer(tokenizer or str(target))
        with progress_bar("counting") as advance:
            result = count_tokens(
                data, opened, vocab_size=vocab, tokens=tokens, fmt=fmt, domains=_domains(domain),  # type: ignore[arg-type]
                domain_field=domain_field, processes=processes, max_bad=max_bad, out=out, resume=resume,
                engine=engine, ray_address=ray_address, progress=advance,  # type: ignore[arg-type]
            )
        write_counts(result, out)
        if documents:
            from eagle3_core.corpus.documents import sample_documents, write_documents

            with progress_bar("sampling documents") as advance:
                sample = sample_documents(
                    data, opened, vocab_size=vocab, tokens=tokens, fmt=fmt, domains=_domains(domain),  # type: ignore[arg-type]
                    domain_field=domain_field, per_domain=documents, progress=advance,
                )
            write_documents(sample, out.with_name(out.name.removesuffix(".counts.parquet") + ".documents.parquet"))
        summary = counts_summary(result)
        if as_json:
            print_json(summary)
            return
        print_table(
            f"{summary['tokens']:,} tokens ({tokens}) of {summary['documents']:,} documents, {opened.name}",
            ("domain", "documents", "tokens", "distinct ids"),
            [(name, f"{d['documents']:,}", f"{d['tokens']:,}", f"{d['distinct']:,}")
             for name, d in summary["domains"].items()],
            left=1,
        )
        for note in summary["notes"]:
            print(f"note: {note}")
        if summary["rejected"]:
            print(f"rejected {summary['rejected']:,} records, kept in {out.name}.rejected.jsonl")
        print(f"wrote {out}")

