"""Named targets: ``presets.csv``, one row a model, each with the source of its figures."""

from __future__ import annotations

import csv
import functools
from pathlib import Path

from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.specs.target import TargetSpec, target_from_config

_FILE = Path(__file__).with_name("presets.csv")


@functools.cache
def presets() -> dict[str, TargetSpec]:
    """All presets by name, in file order."""
    with _FILE.open(newline="") as file:
        return {row["name"]: _spec(row) for row in csv.DictReader(file)}


def _spec(row: dict[str, str]) -> TargetSpec:
    def optional(key: str) -> int | None:
        return int(row[key]) if row[key] else None

    return TargetSpec(
        name=row["name"],
        hidden_size=int(row["hidden_size"]),
        vocab_size=int(row["vocab_size"]),
        num_layers=int(row["num_layers"]),
        num_heads=int(row["num_heads"]),
        num_kv_heads=int(row["num_kv_heads"]),
        head_dim=int(row["head_dim"]),
        intermediate_size=int(row["intermediate_size"]),
        num_experts=optional("num_experts"),
        experts_per_token=optional("experts_per_token"),
        moe_intermediate_size=optional("moe_intermediate_size"),
        num_shared_experts=optional("num_shared_experts"),
        kv_lora_rank=optional("kv_lora_rank"),
        q_lora_rank=optional("q_lora_rank"),
        tie_word_embeddings=row["tie_word_embeddings"] == "true",
        source=f"{row['model']}: {row['source']}",
        # No preset says these: they are TargetSpec's defaults, and an export must not pass them off as known.
        assumed=(*row["assumed"].split(), "rope", "max_position_embeddings", "eos_token_ids"),
    )


def resolve_target(name_or_path: str) -> TargetSpec:
    """``--target``: a preset's name, a ``config.json``, or a model folder.

    Raises Eagle3Error with the nearest preset when it is none of these.
    """
    if name_or_path in presets():
        return presets()[name_or_path]
    path = Path(name_or_path)
    if path.exists():
        return target_from_config(path)
    raise Eagle3Error("--target is neither a preset nor a file", found=repr(name_or_path),
                      expected="a preset name, a config.json or a model folder",
                      fix=suggest(name_or_path.lower(), presets()))
