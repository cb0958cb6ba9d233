"""``eagle3 check``: does a decision still hold on new evidence?"""

from __future__ import annotations

from pathlib import Path

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json, print_table


def register(app: typer.Typer) -> None:
    @app.command()
    def check(
        decision: Path = typer.Argument(..., help="A decision.json."),
        counts: options.Counts = None,
        latency: options.Latency = None,
        acceptance: Path | None = typer.Option(None, "--acceptance", help="Acceptance file (*.acceptance.json)."),
        checkpoint: Path | None = typer.Option(None, "--checkpoint", help="The draft checkpoint that is served."),
        target: str | None = typer.Option(None, "--target", help="The target's name as it is now."),
        engine: str | None = typer.Option(None, "--engine", help="sglang or vllm, as it is now."),
        k: int | None = typer.Option(None, "--k", min=1, help="Draft length as it is now."),
        draft_tp: int | None = typer.Option(None, "--draft-tp", min=1, help="Tensor parallel degree as it is now."),
        target_tp: int | None = typer.Option(None, "--target-tp", min=1, help="The target's, as it is now."),
        junit: Path | None = typer.Option(None, "--junit", help="Write a JUnit file for CI."),
        as_json: options.Json = False,
    ) -> None:
        """Exit 0 when the decision holds, 1 when it should be made again, 2 when the input is unusable."""
        from eagle3_core.acceptance.record import read_acceptance
        from eagle3_core.corpus.counts import read_counts
        from eagle3_core.cost.hardware import resolve_latency
        from eagle3_core.decide.check import check as check_decision
        from eagle3_core.decide.check import junit as junit_text
        from eagle3_core.decide.record import read_decision
        from eagle3_core.files import write_text

        result = check_decision(
            read_decision(decision),
            counts=read_counts(counts) if counts else None,
            acceptance=read_acceptance(acceptance) if acceptance else None,
            latency=resolve_latency(latency) if latency else None,
            checkpoint=checkpoint,
            setting={"target": target, "engine": engine, "k": k, "draft_tp": draft_tp, "target_tp": target_tp},
        )
        if junit is not None:
            write_text(junit, junit_text(result, decision.name))
        if as_json:
            print_json({
                "holds": result.holds, "draft_vocab": result.chosen, "would_choose": result.would_choose,
                "cost_of_chosen": result.cost,
                "findings": [vars(finding) for finding in result.findings],
            })
        else:
            print_table(
                f"D = {result.chosen:,}: " + ("the decision holds" if result.holds else "decide again"),
                ("condition", "status", "found", "limit", "why"),
                [(f.name, f.status, f.found, f.limit, f.note) for f in result.findings], left=5,
            )
            if result.would_choose is not None and result.cost is not None:
                print(f"on this evidence: D = {result.would_choose:,}; {result.chosen:,} gives up {result.cost:.1%}")
        if not result.holds:
            raise typer.Exit(1)
