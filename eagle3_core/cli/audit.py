"""``eagle3 audit``: a decision record for a checkpoint that came without one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json
from eagle3_core.errors import Eagle3Error


def register(app: typer.Typer) -> None:
    @app.command()
    def audit(
        target: options.Target,
        checkpoint: Path = typer.Option(..., "--checkpoint", help="Draft checkpoint folder or mapping file."),
        counts: options.Counts = None,
        latency: options.Latency = None,
        acceptance: options.Acceptance = None,
        out: options.Out = None,
        k: options.K = 5,
        draft_tp: options.DraftTP = 1,
        target_tp: options.TargetTP = 1,
        batch: options.Batch = 1,
        dtype: str | None = typer.Option(None, "--dtype", help="Default: the profile's, else bfloat16."),
        engine: options.Engine = "sglang",
        decode_ms: options.DecodeMs = None,
        verify_ms: options.VerifyMs = None,
        created: str | None = typer.Option(None, "--created", help="Time stamp to record; default now."),
        force: options.Force = False,
        as_json: options.Json = False,
    ) -> None:
        """Measure an inherited draft vocabulary on your tokens; write decision.json with the gaps marked."""
        from eagle3_core.cli.inputs import build_inputs, file_hashes
        from eagle3_core.decide.audit import audit as audit_list
        from eagle3_core.decide.record import decision_json
        from eagle3_core.files import write_text
        from eagle3_core.vocab.formats import read_mapping

        if out is None:
            raise Eagle3Error("--out is missing", expected="where to write, such as decision.json")
        inputs = build_inputs(target, counts, latency, acceptance, k=k, draft_tp=draft_tp, target_tp=target_tp,
                              batch=batch, dtype=dtype, engine=engine, decode_ms=decode_ms, verify_ms=verify_ms)
        mapping = read_mapping(checkpoint, vocab_size=inputs.target.vocab_size)
        stamp = created or datetime.now(UTC).isoformat(timespec="seconds")
        record = audit_list(inputs, mapping, checkpoint.resolve().name, created=stamp,
                            hashes=file_hashes(counts, latency, acceptance))
        write_text(out, decision_json(record), force=force)
        if as_json:
            print_json({"out": str(out), "draft_vocab": record.choice.draft_vocab,
                        "measured": [i.model_dump(mode="json") for i in record.inputs[:3]], "gaps": record.gaps})
            return
        for item in record.inputs[:3]:
            print(f"{item.name}: {item.value} ({item.evidence})")
        for gap in record.gaps:
            print(f"not known: {gap}")
        print(f"wrote {out}")
