"""The shared options: one name and one meaning in every command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[str, typer.Option("--target", help="Preset name, config.json or model folder.")]
Tokenizer = Annotated[str | None, typer.Option("--tokenizer", help="Tokenizer folder or file.")]
Counts = Annotated[Path | None, typer.Option("--counts", help="Token counts (*.counts.parquet).")]
Latency = Annotated[str | None, typer.Option(
    "--latency", help="Latency profile (*.latency.json), or a device name for the roofline model.")]
Acceptance = Annotated[str | None, typer.Option(
    "--acceptance", help="Acceptance file (*.acceptance.json), or alpha as one number or a comma list.")]
Size = Annotated[int | None, typer.Option("--size", help="Draft vocabulary D.")]
Sizes = Annotated[str, typer.Option("--sizes", help="Comma list of D; 'full' and 'auto' are understood.")]
K = Annotated[int, typer.Option("--k", min=1, max=32, help="Draft length.")]
DraftTP = Annotated[int, typer.Option("--draft-tp", min=1, help="Tensor parallel degree of the drafter.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Sequences decoded together.")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, bfloat16, float16, fp8 or int8.")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
For = Annotated[str, typer.Option("--for", help="Comma list of trainers and engines.")]
Out = Annotated[Path | None, typer.Option("--out", help="Where to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Ranking = Annotated[str, typer.Option("--ranking", help="pooled, balanced, weights, worst or robust.")]
Weights = Annotated[str | None, typer.Option("--weights", help="Domain weights for --ranking weights: code=2,zh=1.")]
NoForce = Annotated[bool, typer.Option("--no-force", help="Do not force special, end-of-turn and byte tokens in.")]
ForceIds = Annotated[Path | None, typer.Option(
    "--force-ids", help="JSON list of ids or token texts that every size must hold.")]
PadFrom = Annotated[Path | None, typer.Option(
    "--pad-from", help="Counts of the same tokenizer that say which never seen ids are likeliest.")]
TargetTP = Annotated[int, typer.Option("--target-tp", min=1, help="Tensor parallel degree of the target.")]
Engine = Annotated[str, typer.Option("--engine", help="sglang or vllm.")]
Context = Annotated[int, typer.Option("--context", min=1, help="Tokens in the KV caches.")]
DecodeMs = Annotated[float | None, typer.Option("--decode-ms", help="The target's plain decode step, ms.")]
VerifyMs = Annotated[float | None, typer.Option("--verify-ms", help="The target's verify pass over K + 1 tokens, ms.")]
Locked = Annotated[int | None, typer.Option("--locked", help="Fine-tuning from a checkpoint of this D.")]
StandIn = Annotated[bool, typer.Option("--stand-in", help="Accept another tokenizer's counts, marked modelled.")]
Topk = Annotated[int, typer.Option("--topk", min=1, help="Candidates a node of the draft tree; 1 is a chain.")]
DraftTokens = Annotated[int | None, typer.Option(
    "--draft-tokens", help="Tokens verified a round, the last known one included. Default: K + 1.")]
Mix = Annotated[str | None, typer.Option(
    "--mix", help="Share of served tokens by domain, combined harmonically: code=0.7,zh=0.3.")]
MaxHeadGb = Annotated[float | None, typer.Option("--max-head-gb", help="Largest lm_head, GB (1e9 bytes).")]
MinWorst = Annotated[float | None, typer.Option(
    "--min-worst", min=0, max=1, help="Smallest held-out coverage of the worst domain, as a share.")]
