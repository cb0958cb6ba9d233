"""Training configuration: layering, round trip, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_core.errors import Eagle3Error
from eagle3_core.training.config import dump_config, load_config

BASE = {"model": {"target": "smollm2-135m", "draft_vocab": 8192}, "data": {"features": ["hs"]}, "run": {"out": "run"}}


def test_overrides_beat_the_file_which_beats_the_options(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("optim: {lr: 2.0e-3, epochs: 4}\nloss: {steps: 5}\n")
    config = load_config(file, ("optim.lr=5e-4", "loss.kind=lk"), {**BASE, "optim": {"lr": 1.0}})
    assert (config.optim.lr, config.optim.epochs, config.loss.steps, config.loss.kind) == (5e-4, 4, 5, "lk")


def test_a_dumped_config_reads_back_the_same(tmp_path: Path) -> None:
    config = load_config(None, (), BASE)
    (tmp_path / "run.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "run.yaml") == config


@pytest.mark.parametrize(("override", "message"), [
    ("optim.learning_rate=1", "optim.learning_rate"),
    ("loss.step=3", "did you mean steps"),
    ("loss.steps=9", "loss.steps"),
    ("nonsense", "section.key=value"),
    ("optim.lr=.nan", "optim.lr"),
    ("data.text=[a.jsonl]", "one of them"),
])
def test_a_bad_key_is_refused_by_name(override: str, message: str) -> None:
    with pytest.raises(Eagle3Error, match=message):
        load_config(None, (override,), BASE)


def test_a_file_that_is_no_config_gives_one_line(tmp_path: Path) -> None:
    for text in ("- a\n- b\n", "a: [", "just text"):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(Eagle3Error, match=r"x\.yaml") as error:
            load_config(tmp_path / "x.yaml", (), BASE)
        assert "\n" not in str(error.value)
