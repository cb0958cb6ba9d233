"""``eagle3 measure acceptance``: acceptance at every size in one pass, or what a server or trainer reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json, print_table, progress_bar
from eagle3_core.errors import Eagle3Error


def parse_numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        values = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        values = ()
    if not values or any(not 0 <= v < 100 for v in values):
        raise Eagle3Error(option, found=repr(text), expected="numbers of 0 or more, such as 0,1")
    return values


def out_paths(out: Path, keys: list[tuple[str, float]]) -> list[Path]:
    """The first record takes ``out``; the others get their ranking and temperature into the name."""
    stem = out.name.removesuffix(".json").removesuffix(".acceptance")
    first = keys[0]
    paths = []
    for ranking, temperature in keys:
        name = stem
        if ranking != first[0]:
            name += f".{ranking}"
        if temperature != first[1]:
            name += f".t{temperature:g}"
        paths.append(out if (ranking, temperature) == first else out.with_name(f"{name}.acceptance.json"))
    return paths


def point_rows(record: Any) -> list[tuple[str, ...]]:
    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.1%}"

    return [
        (f"{p.draft_vocab:,}", f"{p.tau:.3f}", f"{p.tau_low:.3f} to {p.tau_high:.3f}",
         ", ".join(f"{a:.3f}" for a in p.alpha), share(p.coverage), share(p.coverage_accepted), share(p.rescue))
        for p in record.points
    ]


def print_record(record: Any) -> None:
    print_table(
        f"{record.drafter} on {record.target}, temperature {record.temperature:g}, {record.ranking} ranking "
        f"({record.method}, {record.evidence})",
        ("D", "tau", "95 %", "alpha by position", "coverage", "of its hits", "rescued"), point_rows(record),
    )
    if record.elasticity is not None:
        print(f"elasticity of alpha to coverage: {record.elasticity:.2f}")
    for note in record.notes:
        print(f"note: {note}")


def register_on(measure: typer.Typer) -> None:
    @measure.command()
    def acceptance(
        drafter: Path | None = typer.Option(None, "--drafter", help="Drafter checkpoint folder."),
        target: str | None = typer.Option(None, "--target", help="Target folder with weights, or .gguf."),
        data: list[str] = typer.Option([], "--data", help="Text files, or a folder of hidden states; repeat it."),
        counts: options.Counts = None,
        sizes: options.Sizes = "auto",
        temperature: str = typer.Option("0", "--temperature", help="Comma list; 0 is greedy."),
        depth: int = typer.Option(5, "--depth", min=1, max=16, help="Draft steps."),
        ranking: str = typer.Option("pooled", "--ranking", help="Comma list of rankings to compare."),
        no_force: options.NoForce = False,
        tokenizer: options.Tokenizer = None,
        max_length: int = typer.Option(2048, "--max-length", min=8, help="Tokens kept of a document."),
        documents: int | None = typer.Option(None, "--documents", min=1, help="Stop after so many documents."),
        domain: list[str] = typer.Option([], "--domain", help="NAME=GLOB over file names; repeat it."),
        domain_field: str | None = typer.Option(None, "--domain-field", help="Take the domain from this field."),
        trained_by: str | None = typer.Option(None, "--trained-by", help="specforge: read norm_output its way."),
        reported: list[Path] = typer.Option([], "--from", help="A server's or trainer's log, scrape, JSON or event "
                                                               "file instead; repeat it to compare."),
        size: options.Size = None,
        k: int | None = typer.Option(None, "--k", min=1, help="With --from: draft length, where the file has none."),
        coverage: float | None = typer.Option(None, "--coverage", min=0, max=1,
                                              help="With --from: held-out coverage at --size."),
        out: options.Out = None,
        as_json: options.Json = False,
    ) -> None:
        """Measure how often drafts are accepted, at every size; write *.acceptance.json."""
        from eagle3_core.acceptance.record import write_acceptance

        if out is None:
            raise Eagle3Error("--out is missing", expected="where to write, such as mine.acceptance.json")
        if reported:
            from eagle3_core.acceptance.served import compare, read_reported
            from eagle3_core.specs.presets import resolve_target

            vocab = resolve_target(target).vocab_size if target else None
            records = [read_reported(path, draft_vocab=size, vocab_size=vocab, k=k, coverage=coverage)
                       for path in reported]
            paths = [out, *(out.with_name(f"{out.name.split('.')[0]}.{i}.acceptance.json")
                            for i in range(2, len(records) + 1))]
            conflicts = compare(records)
        else:
            from eagle3_core.acceptance.measure import measure_acceptance
            from eagle3_core.cli.count import _domains
            from eagle3_core.corpus.counts import read_counts

            for name, value in (("--drafter", drafter), ("--target", target), ("--data", data), ("--counts", counts)):
                if not value:
                    raise Eagle3Error(f"{name} is missing", fix="or give --from with a server's report")
            assert drafter is not None
            assert target is not None
            assert counts is not None
            temperatures = parse_numbers(temperature, "--temperature")
            rankings = tuple(dict.fromkeys(part.strip() for part in ranking.split(",")))
            with progress_bar("acceptance") as advance:
                records = measure_acceptance(
                    drafter, target, data, read_counts(counts), sizes=sizes, temperatures=temperatures, depth=depth,
                    rankings=rankings, force=not no_force, tokenizer=tokenizer, max_length=max_length, limit=documents,
                    domains=_domains(domain), domain_field=domain_field, trained_by=trained_by, progress=advance)
            paths = out_paths(out, [(r.ranking, r.temperature) for r in records])
            conflicts = []
        for record, path in zip(records, paths, strict=True):
            write_acceptance(record, path)
        if as_json:
            print_json([record.model_dump(mode="json") for record in records])
            return
        for record in records:
            print_record(record)
        for line in conflicts:
            print(f"conflict: {line}")
        for path in paths:
            print(f"wrote {path}")
