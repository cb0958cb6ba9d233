"""``eagle3 convert``: a checkpoint or a mapping in another consumer's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json
from eagle3_core.errors import Eagle3Error


def register(app: typer.Typer) -> None:
    @app.command()
    def convert(
        path: Path = typer.Argument(..., help="Checkpoint folder or weights file, or a mapping file or folder."),
        consumer: str = typer.Option(..., "--for", help="Trainer or engine to write for."),
        out: options.Out = None,
        checkpoint: Path | None = typer.Option(None, "--checkpoint",
                                               help="With a mapping: the checkpoint whose rows follow it."),
        mapping: Path | None = typer.Option(None, "--mapping", help="Other tokens or another order of the rows."),
        counts: options.Counts = None,
        size: options.Size = None,
        target: str | None = typer.Option(None, "--target", help="Preset, config.json or model folder."),
        embedding: str = typer.Option("auto", "--embedding", help="auto, keep or drop."),
        vocab_size: int | None = typer.Option(None, "--vocab-size", help="V, where a mapping file does not say it."),
        fmt: str | None = typer.Option(None, "--format", help="Of a bare tensor of ids: offsets or absolute."),
        force: options.Force = False,
        as_json: options.Json = False,
    ) -> None:
        """Write a checkpoint or mapping as another trainer or engine reads it."""
        from eagle3_core.export.configs import check_consumer
        from eagle3_core.export.convert import convert as convert_checkpoint
        from eagle3_core.specs.presets import resolve_target
        from eagle3_core.vocab.formats import read_mapping

        check_consumer(consumer)
        if out is None:
            raise Eagle3Error("--out is missing", expected="a folder to write")
        if embedding not in ("auto", "keep", "drop"):
            raise Eagle3Error("--embedding", found=repr(embedding), expected="auto, keep or drop")
        spec = resolve_target(target) if target else None
        vocab = vocab_size or (spec.vocab_size if spec else None)
        if checkpoint is None and not _is_checkpoint(path):
            _convert_mapping(read_mapping(path, fmt, vocab), consumer, out, force=force, as_json=as_json)
            return
        wanted = None
        if checkpoint is not None:
            wanted = read_mapping(path, fmt, vocab)
        elif mapping is not None:
            wanted = read_mapping(mapping, fmt, vocab)
        elif size is not None:
            wanted = _top(counts, size)
        made = convert_checkpoint(checkpoint or path, consumer, out, mapping=wanted, target=spec,
                                  embedding=embedding, force=force)  # type: ignore[arg-type]
        moved = 0 if made.rows is None else int((made.rows != range(len(made.rows))).sum())
        summary: dict[str, Any] = {
            "out": str(out), "for": consumer, "draft_vocab": made.draft_vocab, "from_draft_vocab": made.from_vocab,
            "renamed": made.renamed, "rows_moved": moved, "dropped": list(made.dropped), "notes": list(made.notes),
            "rows": None if made.rows is None else made.rows.tolist(),
        }
        if as_json:
            print_json(summary)
            return
        print(f"wrote {out}: D = {made.draft_vocab:,} of {made.from_vocab:,} rows for {consumer}, "
              f"{made.renamed} tensors renamed, {moved:,} rows moved")
        for name in made.dropped:
            print(f"left out: {name}")
        for note in made.notes:
            print(f"note: {note}")


def _is_checkpoint(path: Path) -> bool:
    if path.is_dir():
        from eagle3_core.inspect.headers import find_weights

        return (path / "config.json").is_file() and find_weights(path) is not None
    return path.suffix in (".safetensors", ".bin") and (path.parent / "config.json").is_file()


def _top(counts: Path | None, size: int) -> Any:
    """The ``size`` most frequent tokens of a counts file, forced tokens first."""
    from eagle3_core.corpus.counts import read_counts
    from eagle3_core.vocab.ranking import mapping_at, rank

    if counts is None:
        raise Eagle3Error("--size needs --counts", expected="the counts that say which tokens to keep")
    return mapping_at(rank(read_counts(counts)), size)


def _convert_mapping(mapping: Any, consumer: str, out: Path, *, force: bool, as_json: bool) -> None:
    from eagle3_core.export.consumer_files import MAPPING_FORMAT
    from eagle3_core.export.convert import KEEPS_ORDER
    from eagle3_core.vocab.formats.writers import write_mapping

    ordered, rows = (mapping, None) if consumer in KEEPS_ORDER else mapping.ascending()
    if rows is not None and mapping.is_ascending:
        rows = None
    files = write_mapping(MAPPING_FORMAT[consumer], ordered, out, force=force)
    if as_json:
        print_json({"out": [str(p) for p in files], "for": consumer, "draft_vocab": ordered.draft_vocab_size,
                    "rows": None if rows is None else rows.tolist()})
        return
    print(f"wrote {', '.join(p.name for p in files)}: D = {ordered.draft_vocab_size:,} of V = {ordered.vocab_size:,}")
    if rows is not None:
        shown = ", ".join(map(str, rows[:6].tolist())) + (", ..." if len(rows) > 6 else "")
        print(f"sorted: the lm_head rows must follow as [{shown}]; pass --checkpoint to move them")
