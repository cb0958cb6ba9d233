"""Masked against retrained: the three ways to a size, resumed, on a run of a few thousand weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from eagle3_core.corpus.counts import write_counts
from eagle3_core.drafter.checkpoint import read_drafter
from eagle3_core.errors import Eagle3Error
from eagle3_core.training import run_folder
from eagle3_core.training.experiment import Budget, masked_vs_retrained
from eagle3_core.training.target_weights import read_target_weights
from eagle3_core.training.trainer import Trainer
from tests.training.tiny_run import VOCAB, lay_out
from tests.vocab.tables import make_counts

BUDGET = Budget(steps=6, tune_steps=2, batch_tokens=96, share=0.7)


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("experiment")
    lay_out(root)
    # Rank r is id V - 1 - r: a draft vocabulary of 64 holds the ids from 32 on.
    write_counts(make_counts(np.arange(1, VOCAB + 1)[None, :] * 100), root / "t.counts.parquet")
    return root


def run(place: Path, out: str, sizes: tuple[int, ...] = (64, 80, VOCAB), budget: Budget = BUDGET) -> pl.DataFrame:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return masked_vs_retrained(place / "target", place / "t.counts.parquet", place / "features", place / out,
                                   vocab_size=VOCAB, sizes=sizes, seeds=(0,), budget=budget, say=quiet)
    finally:
        torch.set_num_threads(before)


def test_every_way_is_measured_and_a_killed_experiment_goes_on_to_the_same_numbers(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(place, "whole")
    assert [tuple(row) for row in whole.select("draft_vocab", "way").iter_rows()] == [
        (64, "restricted"), (64, "trained"), (64, "tuned"), (80, "restricted"), (80, "trained"), (80, "tuned"),
        (VOCAB, "trained")]
    assert whole.filter(way="tuned")["steps"].to_list() == [2, 2]
    assert whole["tokens"].min() > 0  # type: ignore[operator]

    class Killed(Exception):
        pass

    taken, seen = Trainer.take_step, []

    def dying(self: Trainer) -> dict:
        seen.append(self.step)
        if len(seen) in (4, 9, 17):
            raise Killed
        return taken(self)

    monkeypatch.setattr(Trainer, "take_step", dying)
    for _ in range(3):
        with pytest.raises(Killed):
            run(place, "killed")
    monkeypatch.setattr(Trainer, "take_step", taken)
    assert_frame_equal(run(place, "killed"), whole, check_exact=True)


def test_a_tuned_drafter_is_the_full_one_restricted_with_other_head_rows(place: Path) -> None:
    run(place, "whole")
    embedding = read_target_weights(place / "target").embedding
    full, tuned = (read_drafter(run_folder.checkpoint_named(place / "whole" / name), embedding=embedding)
                   for name in (f"trained-{VOCAB}-seed0", "tuned-64-seed0"))
    assert tuned.mapping.target_ids.tolist() == list(range(32, VOCAB))
    theirs, ours = full.drafter.state_dict(), tuned.drafter.state_dict()
    changed = {name for name in ours if name not in ("d2t", "lm_head.weight")
               and not torch.equal(ours[name], theirs[name])}
    assert not changed
    # Two steps at a rate of 2e-4 leave each row near the one it came from.
    assert (ours["lm_head.weight"] - theirs["lm_head.weight"][32:]).abs().max() < 1e-2


def test_another_budget_and_sizes_that_ask_nothing_are_refused(place: Path) -> None:
    run(place, "whole")
    with pytest.raises(Eagle3Error, match="another budget"):
        run(place, "whole", budget=Budget(steps=7, tune_steps=2, batch_tokens=96, share=0.7))
    with pytest.raises(Eagle3Error, match="--sizes"):
        run(place, "none", sizes=(VOCAB,))
