"""Facts, lint and coverage as plain values: what ``--json`` prints and the page shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from eagle3_core.inspect.coverage import MappingCoverage, Moved, size_standing
from eagle3_core.inspect.facts import Facts
from eagle3_core.inspect.rules import Finding, who_could_load


def dimensions(facts: Facts) -> dict[str, int | str | None]:
    """Label -> value, None where it is not known."""
    layers = facts.aux_layers
    return {
        "D": facts.draft_vocab_size, "V": facts.vocab_size, "hidden size": facts.hidden_size,
        "target's hidden size": facts.target_hidden_size, "heads": facts.whole("num_attention_heads"),
        "key/value heads": facts.whole("num_key_value_heads"), "head dimension": facts.head_dim,
        "intermediate size": facts.rows("midlayer.mlp.gate_proj.weight") or facts.whole("intermediate_size"),
        "dtype": facts.dtype,
        "aux layers": None if layers is None else f"{list(layers.ids)} at {layers.place}",
    }


def facts_dict(facts: Facts) -> dict[str, Any]:
    mapping = facts.mapping
    return {
        "path": facts.path, "kind": facts.kind, "what": facts.what, "project": facts.project or None,
        "container": facts.container or None,
        "dimensions": {name: value for name, value in dimensions(facts).items() if value is not None},
        "parameters": {
            "trainable": facts.parameters("trainable"), "frozen": facts.parameters("frozen"),
            "shared_with_target": facts.parameters("shared with the target"),
            "parts": [asdict(part) for part in facts.parts],
        } if facts.parts else None,
        "mapping": None if mapping is None else {
            "source": mapping.source, "form": mapping.form, "d2t_dtype": mapping.d2t_dtype or None,
            "has_t2d": mapping.t2d is not None,
            "order": None if mapping.ids is None else "ascending" if (mapping.ids[1:] > mapping.ids[:-1]).all()
            else "another (ModelOpt's and token maps are by frequency)",
        },
        "size": asdict(size_standing(facts)) if facts.draft_vocab_size is not None else None,
        "run": None if facts.run is None else asdict(facts.run),
        "serving": [asdict(s) for s in facts.serving],
        "who_could_load": [asdict(row) for row in who_could_load(facts)] if facts.kind != "token counts" else [],
        "evidence": list(facts.evidence), "notes": list(facts.notes),
    }


def findings_list(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [asdict(f) for f in findings]


def coverage_dict(found: MappingCoverage) -> dict[str, Any]:
    return {
        "draft_vocab": found.draft_vocab, "tokens": found.tokens, "coverage": found.coverage,
        "best_heldout": found.best_heldout, "best_in_sample": found.best_in_sample,
        "worst_domain": found.worst_domain, "worst_coverage": found.worst_coverage, "unseen_ids": found.unseen,
        "domains": found.by_domain.to_dicts(), "lost": found.lost.to_dicts(),
        "forced_missing": found.forced_missing.to_dicts(), "evidence": "measured",
    }


def moved_dict(found: Moved, limit: int = 200) -> dict[str, Any]:
    return {"same": found.same, "moved": found.moved, "lost": found.lost.tolist()[:limit],
            "new": found.new.tolist()[:limit], "rows": found.rows.head(limit).to_dicts()}
