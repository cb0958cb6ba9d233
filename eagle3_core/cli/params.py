"""``eagle3 params``: parameters, bytes and training memory at each size. Arithmetic only."""

from __future__ import annotations

from typing import Any

import typer

from eagle3_core.cli import options
from eagle3_core.cli.output import print_json, print_table


def params_rows(target: str, sizes: str, dtype: str = "bfloat16") -> list[dict[str, Any]]:
    """One row a size; the function behind the command."""
    from eagle3_core.specs.drafter import drafter_for
    from eagle3_core.specs.parameters import count_parameters, dtype_bytes, training_memory
    from eagle3_core.specs.presets import resolve_target
    from eagle3_core.specs.sizes import parse_sizes

    spec = resolve_target(target)
    rows = []
    for size in parse_sizes(sizes, spec.vocab_size):
        counts = count_parameters(drafter_for(spec, size))
        memory = training_memory(counts, dtype)
        rows.append({
            "draft_vocab": size,
            "lm_head": counts.lm_head,
            "trainable": counts.trainable,
            "total": counts.total,
            "lm_head_bytes": counts.lm_head * dtype_bytes(dtype),
            "optimizer_bytes": memory.optimizer + memory.masters,
            "training_bytes": memory.total,
        })
    return rows


def register(app: typer.Typer) -> None:
    @app.command()
    def params(
        target: options.Target,
        sizes: options.Sizes = "32000,full",
        dtype: options.Dtype = "bfloat16",
        tokens: int | None = typer.Option(None, "--tokens", min=1, help="Also size a hidden-state dump of this many."),
        as_json: options.Json = False,
    ) -> None:
        """Parameter counts, bytes and training memory at each draft-vocabulary size."""
        from eagle3_core.specs.parameters import hidden_state_bytes
        from eagle3_core.specs.presets import resolve_target

        rows = params_rows(target, sizes, dtype)
        if as_json:
            print_json(rows)
            return
        print_table(
            f"{resolve_target(target).name}, {dtype}: parameters and GiB (derived)",
            ("D", "lm_head", "trainable", "total", "lm_head GiB", "optimizer GiB", "training GiB"),
            [
                (
                    *(f"{row[key]:,}" for key in ("draft_vocab", "lm_head", "trainable", "total")),
                    *(f"{row[key] / 2**30:.2f}" for key in ("lm_head_bytes", "optimizer_bytes", "training_bytes")),
                )
                for row in rows
            ],
        )
        if tokens:
            dump = hidden_state_bytes(tokens, resolve_target(target).hidden_size, dtype)
            print(f"hidden states of {tokens:,} tokens: {dump / 2**30:,.1f} GiB ({dtype}, derived)")
