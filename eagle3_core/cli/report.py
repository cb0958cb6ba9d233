"""``eagle3 report``: one HTML file to send."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json
from eagle3_core.errors import Eagle3Error


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
        created: str | None = typer.Option(None, "--created", help="Time stamp to record; default now."),
        decided_by: str = typer.Option("", "--decided-by", help="Who decides, for the record."),
        force: options.Force = False,
        as_json: options.Json = False,
    ) -> None:
        """Write a self-contained HTML report that opens without a network."""
        from eagle3_core.cli.inputs import build_inputs, file_hashes, recorded_inputs
        from eagle3_core.decide.conclude import decide, recommended_for
        from eagle3_core.files import write_text
        from eagle3_core.report.data import report_data
        from eagle3_core.report.html import render_html

        if out is None:
            raise Eagle3Error("--out is missing", expected="where to write, such as report.html")
        if out.exists() and not force:
            raise Eagle3Error("already exists", where=out, fix="pass --force to replace it")
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
            )
            chosen = size or locked or recommended_for(inputs)[1].size
            decision = decide(inputs, chosen, created=created or datetime.now(UTC).isoformat(timespec="seconds"),
                              decided_by=decided_by, hashes=file_hashes(counts, latency, acceptance, pad_from))
        data = report_data(inputs, decision)
        page = render_html(data)
        write_text(out, page, force=force)
        if as_json:
            print_json({"out": str(out), "bytes": len(page.encode()), "draft_vocab": chosen, "verdict": data.verdict})
        else:
            print(data.verdict)
            print(f"wrote {out} ({len(page.encode()):,} bytes)")
