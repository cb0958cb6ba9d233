"""``eagle3 inspect``: what a checkpoint, a mapping or a run directory is, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json, print_table

if TYPE_CHECKING:
    from eagle3_core.inspect.coverage import MappingCoverage, Moved
    from eagle3_core.inspect.facts import Facts, Serving
    from eagle3_core.inspect.rules import Finding


def inspection(
    path: Path, *, counts: Path | None = None, against: Path | None = None, consumer: str | None = None,
    target: str | None = None, tp: int = 1, serving: Serving | None = None,
) -> tuple[Facts, list[Finding], MappingCoverage | None, Moved | None]:
    """The function behind the command."""
    from eagle3_core.inspect.coverage import coverage_of, moved_rows
    from eagle3_core.inspect.read import inspect_path
    from eagle3_core.inspect.rules import lint
    from eagle3_core.specs.presets import resolve_target

    facts = inspect_path(path, target=resolve_target(target) if target else None)
    held = None
    if counts is not None:
        from eagle3_core.corpus.counts import read_counts

        held = read_counts(counts)
    findings = lint(facts, consumer, counts=held, tp=tp, serving=serving)
    covered = coverage_of(facts, held) if held is not None else None
    moved = moved_rows(facts, inspect_path(against)) if against is not None else None
    return facts, findings, covered, moved


def register(app: typer.Typer) -> None:
    @app.command("inspect")
    def inspect_(
        path: Path = typer.Argument(..., help="Checkpoint folder or file, mapping, or run directory."),
        counts: options.Counts = None,
        against: Path | None = typer.Option(None, "--against", help="Another mapping: which rows change meaning."),
        consumer: str | None = typer.Option(None, "--for", help="Judge by one of sglang, vllm, specforge, speculators, "
                                                                "modelopt, llama.cpp, eagle."),
        target: str | None = typer.Option(None, "--target", help="Preset name, config.json or model folder."),
        tp: int = typer.Option(1, "--draft-tp", min=1, help="Tensor parallel degree of the drafter."),
        steps: int | None = typer.Option(None, "--steps", min=1, help="SGLang's --speculative-num-steps."),
        topk: int | None = typer.Option(None, "--topk", min=1, help="SGLang's --speculative-eagle-topk."),
        draft_tokens: int | None = typer.Option(None, "--draft-tokens", min=1,
                                                help="SGLang's --speculative-num-draft-tokens."),
        k: int | None = typer.Option(None, "--k", min=1, help="vLLM's num_speculative_tokens."),
        as_json: options.Json = False,
    ) -> None:
        """What it is, who could load it, and the lint. Exit 0 without errors, 1 with, 2 when it cannot be read."""
        from eagle3_core.inspect.facts import Serving

        serving = Serving(steps=steps, topk=topk, draft_tokens=draft_tokens, num_speculative_tokens=k,
                          source="the options")
        facts, findings, covered, moved = inspection(path, counts=counts, against=against, consumer=consumer,
                                                     target=target, tp=tp, serving=serving)
        if as_json:
            print_json(as_dict(facts, findings, covered, moved))
        else:
            _show(facts)
            if covered is not None:
                _show_coverage(covered)
            if moved is not None:
                _show_moved(moved)
            _show_findings(findings)
        if any(f.severity == "error" for f in findings):
            raise typer.Exit(1)


def as_dict(
    facts: Facts, findings: list[Finding], covered: MappingCoverage | None, moved: Moved | None
) -> dict[str, Any]:
    from eagle3_core.inspect.summary import coverage_dict, facts_dict, findings_list, moved_dict

    out = {**facts_dict(facts), "lint": findings_list(findings)}
    if covered is not None:
        out["coverage"] = coverage_dict(covered)
    if moved is not None:
        out["against"] = moved_dict(moved)
    return out


def _line(text: str) -> str:
    """Names and notes come from files: nothing in them may move the cursor or forge a line."""
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in text)


def _say(text: str) -> None:
    print(_line(text))


def _show(facts: Facts) -> None:
    from eagle3_core.inspect.coverage import size_standing
    from eagle3_core.inspect.rules import who_could_load
    from eagle3_core.inspect.summary import dimensions

    _say(f"{facts.path}: {facts.what}")
    _say("  " + ", ".join(f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
                          for name, value in dimensions(facts).items() if value is not None))
    for text in (*facts.evidence, *facts.notes):
        _say(f"  {text}")
    if facts.draft_vocab_size is not None:
        _say(f"  {size_standing(facts).why}")
    if facts.parts:
        print_table("parts (derived from the headers)", ("part", "", "parameters", "stored MiB"), [
            (part.name, part.standing, f"{part.parameters:,}", f"{part.stored / 2**20:,.1f}" if part.stored else "-")
            for part in facts.parts
        ], left=2)
        _say(", ".join(f"{facts.parameters(s):,} {s}" for s in ("trainable", "frozen", "shared with the target")
                       if facts.parameters(s)))
    if facts.kind != "token counts":
        print_table("who could load it as it is", ("consumer", "", "why not"), [
            (row.consumer, "yes" if row.loads else "no", _line(row.reason)) for row in who_could_load(facts)
        ], left=3)


def _show_coverage(found: MappingCoverage) -> None:
    print_table(
        f"coverage of {found.tokens:,} counted tokens (measured): {found.coverage:.2%}; the best {found.draft_vocab:,} "
        f"ids have {found.best_heldout:.2%} held out, {found.best_in_sample:.2%} in sample",
        ("domain", "tokens", "this mapping", "best, in sample"),
        [(_line(r["domain"]), f"{r['tokens']:,}", f"{r['coverage']:.2%}", f"{r['best']:.2%}")
         for r in found.by_domain.to_dicts()], left=1)
    if found.forced_missing.height:
        some = ", ".join(f"{r['text']} ({r['role']})" for r in found.forced_missing.head(6).to_dicts())
        _say(f"{found.forced_missing.height:,} tokens that should be forced are missing: {some}")
    if found.lost.height:
        print_table("lost tokens that matter most", ("token", "role", "id", "count", "share"), [
            (_line(r["text"]), r["role"], str(r["token_id"]), f"{r['count']:,}", f"{r['share']:.3%}")
            for r in found.lost.head(10).to_dicts()], left=2)


def _show_moved(found: Moved) -> None:
    print(f"against the other mapping: {found.same:,} rows mean the same, {found.moved:,} change, {len(found.lost):,} "
          f"tokens are gone, {len(found.new):,} are new")
    if found.moved:
        print_table("rows whose meaning moves (sgl-project/SpecForge#534)", ("row", "before", "after", "now at row"), [
            (f"{r['row']:,}", f"{r['before']:,}", f"{r['after']:,}", "-" if r["now_at"] is None else f"{r['now_at']:,}")
            for r in found.rows.head(12).to_dicts()])


def _show_findings(findings: list[Finding]) -> None:
    if not findings:
        print("lint: nothing found")
    for f in findings:
        _say(f"{f.severity}: {f.where}: {f.what} [{f.rule}; {', '.join(c for c in f.consumers if c) or 'any'}]")
        _say(f"  why: {f.why}" + (f" ({', '.join(f.links)})" if f.links else ""))
        _say(f"  mend: {f.fix}")
