"""Held-out documents, judged as a server would.

    alpha_k            conditional acceptance of draft k; a target token outside the draft vocabulary is a miss
    alpha_inside_k     teacher-forced share right among positions whose target token is inside (what trainers report)
    tau                1 + alpha_1 + alpha_1 alpha_2 + ...: tokens a round, bonus included
    loss_k             the training loss of step k
    tau_at             tau at every smaller size, from the same forward, where a ranking is known
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from eagle3_core.acceptance.measure import auto_sizes
from eagle3_core.acceptance.one_pass import TextFeatures, evaluate, row_order
from eagle3_core.acceptance.record import AcceptanceRecord, write_acceptance
from eagle3_core.acceptance.summarise import record_of
from eagle3_core.drafter.target import TargetHead
from eagle3_core.training import run_folder
from eagle3_core.training.config import load_config
from eagle3_core.training.data import Source, pack, split
from eagle3_core.training.objective import Objective, target_argmax
from eagle3_core.training.start import Start, load_weights, prepare


def validate(
    objective: Objective, start: Start, chosen: Sequence[int], *, max_length: int, loss_on: str,
    every_size: bool = False, sizes: Sequence[int] = (), ranking: str = "pooled",
) -> tuple[dict[str, Any], AcceptanceRecord | None]:
    """Figures for metrics.jsonl, and with ``every_size`` the acceptance record, at ``sizes`` or a log grid."""
    drafter, steps = objective.drafter, objective.loss.steps
    head = start.weights.head.float()
    totals = torch.zeros(3, steps)
    inside = torch.zeros(len(head), dtype=torch.bool)
    inside[drafter.target_ids] = True
    was_training = drafter.training
    drafter.eval()
    try:
        with torch.no_grad():
            for index in chosen:
                document = start.source.load(index)
                row = pack([document], steps, max_length=max_length, norm=start.weights.norm,
                           eps=start.weights.spec.rms_norm_eps, loss_on=loss_on)
                row.weights.masked_fill_(~inside[target_argmax(row.last, head)], 0.0)
                result = objective(row)
                totals += torch.stack([result.loss, result.hits, result.weight]).float()
            vocab, trained = start.weights.spec.vocab_size, start.mapping.draft_vocab_size
            measured: tuple[int, ...] = (trained,)
            order = start.mapping.target_ids
            if every_size and start.ranking is not None:
                measured = auto_sizes(trained, vocab, min(1024, trained))
                if sizes:
                    measured = tuple(sorted({trained, *(size for size in sizes if size < trained)}))
                order = start.ranking.order
            else:
                # One size: the order of the rows is of no consequence, but it must name every id once.
                rest = (~inside).nonzero().squeeze(1)
                order = torch.cat([drafter.target_ids, rest]).numpy()
            tally = evaluate(_texts(start, chosen, max_length, loss_on), drafter, TargetHead(head),
                             {ranking: row_order(drafter.target_ids, order, measured)}, depth=steps)[0]
    finally:
        drafter.train(was_training)
    record = record_of(tally, target=start.weights.spec.name, drafter="in training", vocab_size=vocab,
                       trained_draft_vocab=trained, source="held-out documents of the run")
    last = record.points[-1]
    weight = totals[2].clamp_min(1)
    figures: dict[str, Any] = {
        "alpha": list(last.alpha), "alpha_inside": (totals[1] / weight).tolist(),
        "teacher_forced": list(last.teacher_forced or ()), "tau": last.tau, "tau_low": last.tau_low,
        "tau_high": last.tau_high, "coverage": last.coverage, "loss": (totals[0] / weight).tolist(),
        "documents": len(chosen), "positions": record.tokens,
    }
    return figures, record if every_size else None


def measure_checkpoint(folder: Path, which: str = "latest", sizes: Sequence[int] = ()) -> Path:
    """One-pass acceptance of a run's checkpoint on the documents that the run held out; returns the file written.

    Raises Eagle3Error for a folder without such a checkpoint, or whose data is gone.
    """
    config = load_config(folder / "config.yaml")
    checkpoint = run_folder.checkpoint_named(folder, which)
    start = prepare(config)
    load_weights(start.drafter, checkpoint)
    parts = split(start.source, config.data.heldout, config.data.max_length)
    objective = Objective(start.drafter, start.weights.head.float(), config.loss)
    _, record = validate(objective, start, parts.heldout, max_length=config.data.max_length,
                         loss_on=config.data.loss_on, every_size=True, sizes=sizes, ranking=config.model.ranking)
    assert record is not None
    file = folder / "acceptance" / f"{checkpoint.name}.acceptance.json"
    write_acceptance(record, file)
    return file


def _texts(start: Start, chosen: Sequence[int], max_length: int, loss_on: str) -> Iterator[TextFeatures]:
    source: Source = start.source
    for index in chosen:
        document = source.load(index)
        last = document.last[:max_length].float()
        if not document.post_norm:
            last = F.rms_norm(last, (last.shape[-1],), start.weights.norm.float(), start.weights.spec.rms_norm_eps)
        mask = document.mask[:max_length]
        yield TextFeatures(document.name, "all", document.ids[:max_length],
                           mask if loss_on == "assistant" else torch.ones_like(mask),
                           document.aux[:max_length].float(), last)
