"""``eagle3 report``: one HTML file to send."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json
from eagle3_core.errors import Eagle3Error, suggest

if TYPE_CHECKING:
    from eagle3_core.report.data import ReportData


FORMATS = ("html", "md", "pdf")


def _rendered(data: ReportData, out: Path, fmt: str) -> dict[str, bytes]:
    """File name -> bytes."""
    from eagle3_core.report.html import render_html
    from eagle3_core.report.markdown import markdown_files
    from eagle3_core.report.pdf import chromium, print_pdf

    if fmt == "md":
        text, picture = markdown_files(data, out.stem).items()
        return {out.name: text[1].encode(), picture[0]: picture[1].encode()}
    if fmt == "pdf":
        chromium()
        return {out.name: print_pdf(render_html(data, scripts=False))}
    return {out.name: render_html(data).encode()}


def _write(out: Path, files: dict[str, bytes], force: bool) -> dict[str, int]:
    """Beside each other in the folder of ``out``; nothing when one is there already. Path -> bytes written."""
    from eagle3_core.files import write_bytes

    paths = {out.parent / name: data for name, data in files.items()}
    for path in paths:
        if path.exists() and not force:
            raise Eagle3Error("already exists", where=path, fix="pass --force to replace it")
    for path, data in paths.items():
        write_bytes(path, data, force=force)
    return {str(path): len(data) for path, data in paths.items()}


def _write_comparison(pair: tuple[Path, Path], out: Path, fmt: str, force: bool, as_json: bool) -> None:
    from eagle3_core.report.compare import (
        compare,
        comparison_html,
        comparison_json,
        comparison_markdown,
        read_either,
    )
    from eagle3_core.report.pdf import chromium, print_pdf

    if fmt == "pdf":
        chromium()
    result = compare(read_either(pair[0]), read_either(pair[1]), (pair[0].name, pair[1].name))
    if fmt == "md":
        data = comparison_markdown(result).encode()
    else:
        page = comparison_html(result)
        data = print_pdf(page) if fmt == "pdf" else page.encode()
    _write(out, {out.name: data}, force)
    if as_json:
        print_json({"out": str(out), **comparison_json(result)})
        return
    for change in result.changes:
        print(change)
    print(f"wrote {out} ({len(data):,} bytes)")


def register(app: typer.Typer) -> None:
    @app.command()
    def report(
        decision_file: Path | None = typer.Argument(None, metavar="[DECISION.JSON]",
                                                    help="Report a recorded decision; needs its --counts."),
        target: str | None = typer.Option(None, "--target", help="Preset name, config.json or model folder."),
        counts: options.Counts = None,
        latency: options.Latency = None,
        acceptance: options.Acceptance = None,
        size: options.Size = None,
        out: options.Out = None,
        k: options.K = 5,
        topk: options.Topk = 1,
        draft_tokens: options.DraftTokens = None,
        mix: options.Mix = None,
        draft_tp: options.DraftTP = 1,
        target_tp: options.TargetTP = 1,
        batch: options.Batch = 1,
        dtype: str | None = typer.Option(None, "--dtype", help="Default: the profile's, else bfloat16."),
        engine: options.Engine = "sglang",
        context: options.Context = 1024,
        ranking: options.Ranking = "pooled",
        weights: options.Weights = None,
        no_force: options.NoForce = False,
        force_ids: options.ForceIds = None,
        pad_from: options.PadFrom = None,
        decode_ms: options.DecodeMs = None,
        verify_ms: options.VerifyMs = None,
        locked: options.Locked = None,
        stand_in: options.StandIn = False,
        max_head_gb: options.MaxHeadGb = None,
        min_worst: options.MinWorst = None,
        created: str | None = typer.Option(None, "--created", help="Time stamp to record; default now."),
        decided_by: str = typer.Option("", "--decided-by", help="Who decides, for the record."),
        fmt: str = typer.Option("html", "--format", help="html, md (with an SVG beside it) or pdf (needs Chromium)."),
        pair: tuple[Path, Path] | None = typer.Option(
            None, "--compare", help="Two decision.json or report files to lay side by side."),
        force: options.Force = False,
        as_json: options.Json = False,
    ) -> None:
        """Write a self-contained HTML report that opens without a network."""
        from eagle3_core.cli.inputs import build_inputs, file_hashes, recorded_inputs
        from eagle3_core.decide.conclude import decide, recommended_for
        from eagle3_core.report.data import report_data

        if out is None:
            raise Eagle3Error("--out is missing", expected="where to write, such as report.html")
        if fmt not in FORMATS:
            raise Eagle3Error("--format", found=repr(fmt), expected=", ".join(FORMATS), fix=suggest(fmt, FORMATS))
        if out.exists() and not force:
            raise Eagle3Error("already exists", where=out, fix="pass --force to replace it")
        if pair is not None:
            if decision_file is not None or target is not None:
                raise Eagle3Error("--compare goes without a decision or a --target", expected="two files")
            _write_comparison(pair, out, fmt, force, as_json)
            return
        if decision_file is not None:
            if target is not None or size is not None:
                raise Eagle3Error("a decision goes without --target and --size",
                                  expected="what was decided, or a new decision")
            decision, restored = recorded_inputs(decision_file, counts, latency, acceptance)
            if restored is None:
                raise Eagle3Error("--counts is missing", expected="the counts file of this decision")
            inputs, chosen = restored, decision.choice.draft_vocab
        else:
            if target is None:
                raise Eagle3Error("--target is missing", expected="a preset, a config.json, or a decision.json")
            inputs = build_inputs(
                target, counts, latency, acceptance, k=k, draft_tp=draft_tp, target_tp=target_tp, batch=batch,
                dtype=dtype, engine=engine, context=context, ranking=ranking, weights=weights, force=not no_force,
                decode_ms=decode_ms, verify_ms=verify_ms, locked=locked, stand_in=stand_in, force_ids=force_ids,
                pad_from=pad_from,
                topk=topk, draft_tokens=draft_tokens, mix=mix, max_head_gb=max_head_gb, min_worst=min_worst,
            )
            chosen = size or locked or recommended_for(inputs)[1].size
            decision = decide(inputs, chosen, created=created or datetime.now(UTC).isoformat(timespec="seconds"),
                              decided_by=decided_by, hashes=file_hashes(counts, latency, acceptance, pad_from))
        data = report_data(inputs, decision)
        written = _write(out, _rendered(data, out, fmt), force)
        if as_json:
            print_json({"out": str(out), "files": list(written), "bytes": sum(written.values()),
                        "draft_vocab": chosen, "verdict": data.verdict})
        else:
            print(data.verdict)
            for name, size_of in written.items():
                print(f"wrote {name} ({size_of:,} bytes)")
