"""``eagle3 tradeoff``: the whole table, the recommendation and the verdict."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json, print_table


def plain(value: Any) -> Any:
    """JSON has no NaN or infinity: such a figure is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def register(app: typer.Typer) -> None:
    @app.command()
    def tradeoff(
        target: options.Target,
        counts: options.Counts = None,
        latency: options.Latency = None,
        acceptance: options.Acceptance = None,
        sizes: options.Sizes = "auto",
        size: options.Size = None,
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
        max_cost: float = typer.Option(0.02, "--max-cost", min=0, max=1,
                                       help="For the range of sizes that cost at most this share."),
        as_json: options.Json = False,
    ) -> None:
        """What each draft-vocabulary size buys and costs, and which one to take."""
        from eagle3_core.cli.inputs import build_inputs
        from eagle3_core.decide.conclude import constraints_of
        from eagle3_core.decide.confidence import confidence, confidence_text
        from eagle3_core.decide.questions import answers, answers_text
        from eagle3_core.decide.recommend import recommend, speedup_text, verdict
        from eagle3_core.decide.tradeoff import tradeoff as make_table
        from eagle3_core.specs.sizes import check_sizes, parse_sizes

        inputs = build_inputs(
            target, counts, latency, acceptance, k=k, draft_tp=draft_tp, target_tp=target_tp, batch=batch, dtype=dtype,
            engine=engine, context=context, ranking=ranking, weights=weights, force=not no_force, decode_ms=decode_ms,
            verify_ms=verify_ms, locked=locked, stand_in=stand_in, force_ids=force_ids, pad_from=pad_from,
            topk=topk, draft_tokens=draft_tokens, mix=mix, max_head_gb=max_head_gb, min_worst=min_worst,
        )
        vocab = inputs.target.vocab_size
        wanted = set(parse_sizes(sizes, vocab)) | ({size} if size else set()) | ({locked} if locked else set())
        table = make_table(inputs, check_sizes(wanted, vocab))
        result = recommend(table, tolerance=inputs.tolerance, constraints=constraints_of(inputs))
        sentence = verdict(result, table)
        sure = confidence(table, result.size, k=k, tolerance=inputs.tolerance)
        asked = answers(inputs, table, max_cost=max_cost)
        if as_json:
            print_json({
                "verdict": sentence,
                "recommendation": {key: plain(value) for key, value in dataclasses.asdict(result).items()},
                "confidence": dataclasses.asdict(sure),
                "answers": dataclasses.asdict(asked),
                "table": [{key: plain(value) for key, value in row.items()} for row in table.iter_rows(named=True)],
            })
            return
        print(sentence)
        for line in (confidence_text(sure, inputs.tolerance), *answers_text(asked)):
            print(line)
        shown = table.iter_rows(named=True) if len(table) <= 16 else (
            row for row in table.iter_rows(named=True)
            if row["draft_vocab"] in {result.size, result.best_size, size, locked, 32_000, vocab}
            or (row["draft_vocab"] & (row["draft_vocab"] - 1)) == 0
        )
        print_table(
            f"{inputs.target.name}: K {k}, draft TP {draft_tp}, batch {batch}, {inputs.dtype}, {engine}",
            ("D", "coverage", "worst domain", "lm_head", "step ms", "tau", "speedup, range", "vs best", "evidence"),
            [
                (f"{r['draft_vocab']:,}", f"{r['coverage']:.2%}", f"{r['worst_domain']} {r['worst_coverage']:.1%}",
                 f"{r['lm_head_params'] / 1e6:,.1f}M", f"{r['step_ms']:.3g}", f"{r['tau']:.2f}", speedup_text(r),
                 f"{r['vs_best']:+.1%}", r["speedup_evidence"])
                for r in shown
            ],
        )
