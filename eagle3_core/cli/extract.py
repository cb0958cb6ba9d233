"""``eagle3 extract``: hidden states of a target on disk, in SpecForge's or speculators' format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json, progress_bar
from eagle3_core.errors import Eagle3Error


def parse_layers(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    try:
        layers = tuple(int(part) for part in text.split(","))
    except ValueError:
        layers = ()
    if len(layers) != 3 or list(layers) != sorted(set(layers)) or layers[0] < 0:
        raise Eagle3Error("--aux-layers", found=repr(text), expected="three ascending layer ids, such as 1,14,26")
    return layers[0], layers[1], layers[2]


def size_text(count: int) -> str:
    """924 GB, 3.1 MB: decimal units, as disks are sold."""
    value, unit = float(count), "B"
    for bigger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, bigger
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:,.1f} {unit}"


def end_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """What ends a turn: the model's generation config, and the tokenizer's end-of-turn tokens."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [] if configured is None else [configured]
    ids += [i for i, role in enumerate(tokenizer.roles) if role in ("eos", "end_of_turn")]
    return tuple(dict.fromkeys(ids))


def register(app: typer.Typer) -> None:
    @app.command()
    def extract(
        target: options.Target,
        data: list[str] = typer.Option(..., "--data", help="Chat or text files, folders, globs; repeat it."),
        out: options.Out = None,
        fmt: str = typer.Option("specforge", "--format", help="specforge or speculators."),
        tokenizer: options.Tokenizer = None,
        aux_layers: str | None = typer.Option(None, "--aux-layers", help="Three 0-based layers whose output is read."),
        max_length: int = typer.Option(2048, "--max-length", min=8, help="Tokens kept of a document."),
        documents: int | None = typer.Option(None, "--documents", min=1, help="Stop after so many documents."),
        dtype: str = typer.Option("bfloat16", "--store", help="Stored as bfloat16, float16 or float32."),
        run_dtype: str = typer.Option("float32", "--dtype", help="The target runs in this dtype."),
        device: str = typer.Option("auto", "--device", help="auto, cpu, cuda or mps."),
        generate: bool = typer.Option(False, "--generate", help="Let the target answer the prompts itself first."),
        max_new: int = typer.Option(256, "--max-new", min=1, help="With --generate: tokens an answer."),
        temperature: float = typer.Option(0.0, "--temperature", min=0, help="With --generate: 0 is greedy."),
        batch: int = typer.Option(16, "--batch", min=1, help="With --generate: prompts at once."),
        compress: bool = typer.Option(False, "--compress", help="SpecForge's .ckpt.gz."),
        domain: list[str] = typer.Option([], "--domain", help="NAME=GLOB over file names; repeat it."),
        domain_field: str | None = typer.Option(None, "--domain-field", help="Take the domain from this field."),
        dry_run: bool = typer.Option(False, "--plan", help="Say how much would be written, and stop."),
        as_json: options.Json = False,
    ) -> None:
        """Run the target over text and keep its hidden states. A killed run continues."""
        from eagle3_core.cli.count import _domains
        from eagle3_core.corpus.tokenizer import load_tokenizer
        from eagle3_core.cost.verify import load_target
        from eagle3_core.drafter.target import Target
        from eagle3_core.extract.documents import encode_documents
        from eagle3_core.extract.run import Generation, check_room, plan
        from eagle3_core.extract.run import extract as run_extract
        from eagle3_core.specs.presets import resolve_target

        if out is None:
            raise Eagle3Error("--out is missing", expected="a folder for the hidden states")
        layers = parse_layers(aux_layers)
        source = Path(target)
        model = Target(load_target(source, run_dtype, device), layers) if source.suffix == ".gguf" else None
        hidden, vocab = (model.hidden_size, model.vocab_size) if model else (
            (spec := resolve_target(target)).hidden_size, spec.vocab_size)
        opened = load_tokenizer(tokenizer or target)
        encoded, rejected = encode_documents(
            data, opened, vocab_size=vocab, max_length=max_length, domains=_domains(domain), domain_field=domain_field,
            prompts=generate, limit=documents)
        how = Generation(max_new, temperature, batch) if generate else None
        planned = plan(encoded, hidden, out, fmt=fmt, dtype=dtype, generation=how)
        summary = {"documents": planned.documents, "rejected": len(rejected), "tokens": planned.tokens,
                   "bytes": planned.bytes, "free_bytes": planned.free, "exact": planned.exact, "written": 0}
        bound = "" if planned.exact else "at most "
        print(f"{planned.documents:,} documents, {bound}{planned.tokens:,} tokens, {bound}{size_text(planned.bytes)} "
              f"to write, {size_text(planned.free)} free", file=sys.stderr)
        if rejected:
            first = rejected[0]
            print(f"{len(rejected)} records left out, first {first.file} line {first.line}: {first.why}",
                  file=sys.stderr)
        if not dry_run:
            if not out.exists():
                check_room(planned, out)
            model = model or Target(load_target(source, run_dtype, device), layers)
            with progress_bar("hidden states") as advance:
                summary["written"] = run_extract(
                    model, encoded, out, fmt=fmt, dtype=dtype, target_name=source.name, generation=how,
                    compress=compress, eos=end_tokens(model.model, opened), progress=advance)
        if as_json:
            print_json(summary)
        elif not dry_run:
            print(f"wrote {summary['written']:,} documents to {out}; feature layers {list(model.aux_layers)} "  # type: ignore[union-attr]
                  "(outputs of 0-based layers)")
