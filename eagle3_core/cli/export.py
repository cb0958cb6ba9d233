"""``eagle3 export``: mapping, configs, commands, decision and report for a chosen size."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json
from eagle3_core.errors import Eagle3Error


def register(app: typer.Typer) -> None:
    @app.command()
    def export(
        target: str | None = typer.Option(None, "--target", help="Preset name, config.json or model folder."),
        decision: Path | None = typer.Option(None, "--decision", help="Export a decision.json as it was decided."),
        supersedes: Path | None = typer.Option(None, "--supersedes", help="The decision.json this one replaces."),
        counts: options.Counts = None,
        latency: options.Latency = None,
        acceptance: options.Acceptance = None,
        size: options.Size = None,
        consumers: options.For = "all",
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
        force: options.Force = False,
        as_json: options.Json = False,
    ) -> None:
        """Write the export bundle: a folder, or one .zip."""
        from eagle3_core.cli.inputs import build_inputs, file_hashes, recorded_inputs
        from eagle3_core.decide.conclude import recommended_for
        from eagle3_core.decide.record import read_decision
        from eagle3_core.export.bundle import bundle_name, bundle_of, make_bundle, write_bundle
        from eagle3_core.export.configs import parse_consumers

        names = parse_consumers(consumers)
        if out is None:
            raise Eagle3Error("--out is missing", expected="a folder or a .zip to write")
        if out.exists() and not force:
            raise Eagle3Error("already exists", where=out, fix="pass --force to replace it")
        if decision is not None:
            if target is not None or size is not None or supersedes is not None:
                raise Eagle3Error("--decision goes without --target, --size and --supersedes",
                                  expected="what was decided, or a new decision")
            record, inputs = recorded_inputs(decision, counts, latency, acceptance)
            files = bundle_of(record, names, inputs=inputs)
            name, chosen = record.setting.target, record.choice.draft_vocab
        else:
            if target is None:
                raise Eagle3Error("--target is missing", expected="a preset, a config.json, or --decision")
            inputs = build_inputs(
                target, counts, latency, acceptance, k=k, draft_tp=draft_tp, target_tp=target_tp, batch=batch,
                dtype=dtype, engine=engine, context=context, ranking=ranking, weights=weights, force=not no_force,
                decode_ms=decode_ms, verify_ms=verify_ms, locked=locked, stand_in=stand_in, force_ids=force_ids,
                pad_from=pad_from,
                topk=topk, draft_tokens=draft_tokens, mix=mix, max_head_gb=max_head_gb, min_worst=min_worst,
            )
            chosen = size or locked or recommended_for(inputs)[1].size
            stamp = created or datetime.now(UTC).isoformat(timespec="seconds")
            files = make_bundle(inputs, chosen, names, created=stamp, decided_by=decided_by,
                                hashes=file_hashes(counts, latency, acceptance, pad_from),
                                previous=read_decision(supersedes) if supersedes else None)
            name = inputs.target.name
        write_bundle(files, out, root=bundle_name(name, chosen), force=force)
        if as_json:
            print_json({"draft_vocab": chosen, "out": str(out), "files": sorted(files)})
            return
        padding = json.loads(files["decision.json"])["token_set"]
        if padding and padding["padding"]:
            print(f"warning: {padding['padding']:,} of {chosen:,} ids were never seen and pad the list: "
                  "count more data, or choose a smaller size")
        if "report.html" not in files:
            print("no report: it needs the decision's counts, pass --counts")
        print(f"wrote {out}: D = {chosen:,} for {', '.join(names)}")
        for path in sorted(files):
            print(f"  {Path(path)}")
