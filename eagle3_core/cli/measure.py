"""``eagle3 measure latency``: draft-step times on this machine, as a file to carry elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from eagle3_core.cli import options
from eagle3_core.cli.measure_acceptance import register_on
from eagle3_core.cli.output import print_json, print_table, progress_bar
from eagle3_core.errors import Eagle3Error

QUICK_SECONDS = 40.0


def parse_batches(text: str) -> tuple[int, ...]:
    try:
        batches = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        batches = ()
    if not batches or batches[0] < 1:
        raise Eagle3Error("--batch", found=repr(text), expected="whole numbers above 0, such as 1,8,32")
    return batches


def drafter_shape(path: Path, target: Any) -> Any:
    """A checkpoint's dimensions. Raises Eagle3Error where it was made for another target."""
    from eagle3_core.drafter.checkpoint import read_spec

    spec = read_spec(path)
    for field, found, expected in (("V", spec.vocab_size, target.vocab_size),
                                   ("target hidden size", spec.target_hidden_size, target.hidden_size)):
        if found != expected:
            raise Eagle3Error(f"the drafter's {field} is not {target.name}'s", where=path, found=f"{found:,}",
                              expected=f"{expected:,}")
    return spec


def profile_rows(profile: Any) -> list[tuple[str, ...]]:
    return [
        (p.component, "" if p.draft_vocab is None else f"{p.draft_vocab:,}", str(p.batch), p.mode,
         f"{p.timing.median_ms:.3f}", f"{p.timing.q05_ms:.3f}", f"{p.timing.q95_ms:.3f}",
         "" if p.bandwidth_share is None else f"{p.bandwidth_share:.0%}", p.note)
        for p in profile.points
    ]


def register(app: typer.Typer) -> None:
    measure = typer.Typer(no_args_is_help=True, help="Measure on this machine.")
    app.add_typer(measure, name="measure")
    register_on(measure)

    @measure.command()
    def latency(
        target: options.Target,
        out: options.Out = None,
        drafter: Path | None = typer.Option(None, "--drafter", help="Checkpoint whose shapes are run; default: the "
                                                                    "shape that trainers derive from the target."),
        sizes: options.Sizes = "auto",
        device: str = typer.Option("auto", "--device", help="auto, cpu, cuda or mps."),
        dtype: options.Dtype = "auto",
        batch: str = typer.Option("1,2,4,8,16,32,64", "--batch", help="Comma list of batch sizes."),
        draft_tp: options.DraftTP = 1,
        context: int = typer.Option(1024, "--context", min=1, help="Tokens in the drafter's KV cache."),
        seconds: float = typer.Option(300.0, "--seconds", min=1, help="Time budget."),
        quick: bool = typer.Option(False, "--quick", help="Batch 1 only, under a minute."),
        verify: str | None = typer.Option(None, "--verify", help="Also time the target: its folder or .gguf."),
        as_json: options.Json = False,
    ) -> None:
        """Run the drafter's parts in torch at each size; write a *.latency.json."""
        from eagle3_core.cost.measure import Plan, auto_sizes, measure_latency
        from eagle3_core.cost.profile import write_profile
        from eagle3_core.specs.drafter import drafter_for
        from eagle3_core.specs.presets import resolve_target
        from eagle3_core.specs.sizes import parse_sizes

        if out is None:
            raise Eagle3Error("--out is missing", expected="where to write, such as mine.latency.json")
        spec = resolve_target(target)
        shape = drafter_for(spec) if drafter is None else drafter_shape(drafter, spec)
        wanted = auto_sizes(spec.vocab_size) if sizes == "auto" else parse_sizes(sizes, spec.vocab_size)
        if drafter is not None:
            wanted = tuple(sorted({*wanted, shape.draft_vocab_size}))
        plan = Plan(sizes=wanted, batches=(1,) if quick else parse_batches(batch), context=context,
                    draft_tp=draft_tp, seconds=QUICK_SECONDS if quick else seconds)
        with progress_bar("draft step") as advance:
            profile = measure_latency(shape, spec.name, plan, device=device, dtype=dtype, progress=advance)
        if verify is not None:
            from eagle3_core.cost.verify import load_target, measure_target

            with progress_bar("target") as advance:
                model = load_target(verify, profile.dtype, device)
                points = measure_target(model, context=context, seconds=20.0 if quick else 60.0, progress=advance)
            profile = profile.model_copy(update={"target_points": tuple(points)})
        write_profile(profile, out)
        if as_json:
            print_json(profile.model_dump(mode="json"))
            return
        print_table(
            f"{profile.target} drafter on {profile.device.name}, {profile.dtype}, "
            f"{profile.bandwidth_gbps:.1f} GB/s read (measured)",
            ("part", "D", "batch", "mode", "median ms", "5 %", "95 %", "of ceiling", "note"),
            profile_rows(profile), left=1,
        )
        for point in profile.target_points:
            print(f"target, {point.tokens} new tokens: {point.timing.median_ms:.1f} ms "
                  f"({point.timing.q05_ms:.1f} to {point.timing.q95_ms:.1f})")
        for line in (*profile.skipped, *profile.notes):
            print(f"note: {line}")
        if profile.disturbed:
            print("note: the machine was busy; the profile is marked disturbed, measure again when it is idle")
        print(f"wrote {out}")
