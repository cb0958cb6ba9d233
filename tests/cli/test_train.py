"""``eagle3 train`` from the command line: configuration, one line for what is wrong, and a run end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from eagle3_core.cli.main import app
from eagle3_core.errors import Eagle3Error
from tests.training.tiny_run import lay_out

runner = CliRunner()


def arguments(root: Path) -> list[str]:
    return ["train", "--data", str(root / "features"), "--target", str(root / "target"), "--out", str(root / "run")]


def test_the_dumped_configuration_reads_back_and_later_settings_win(tmp_path: Path) -> None:
    lay_out(tmp_path)
    first = runner.invoke(app, [*arguments(tmp_path), "--dump-config", "--steps", "7", "optim.lr=5e-4"])
    file = tmp_path / "run.yaml"
    file.write_text(first.stdout)
    assert (yaml.safe_load(first.stdout)["optim"]["steps"], yaml.safe_load(first.stdout)["optim"]["lr"]) == (7, 5e-4)
    again = runner.invoke(app, ["train", "--config", str(file), "--dump-config"])
    assert again.stdout == first.stdout


@pytest.mark.parametrize(("extra", "said"), [
    (["optim.learning=1"], "config key optim.learning"), (["loss.kind=mse"], "config key loss.kind"),
    (["data.batch_tokens=8", "optim.accumulate=99"], "too little data for one step"),
    (["model.draft_vocab=64"], "which tokens are in the draft vocabulary is not said"),
])
def test_what_cannot_be_trained_is_said_in_one_line(tmp_path: Path, extra: list[str], said: str) -> None:
    lay_out(tmp_path)
    result = runner.invoke(app, [*arguments(tmp_path), *extra])
    assert isinstance(result.exception, Eagle3Error)
    assert said in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_run_ends_with_its_figures_as_json(tmp_path: Path) -> None:
    lay_out(tmp_path)
    result = runner.invoke(app, [*arguments(tmp_path), "--json", "--steps", "2", "data.batch_tokens=96"])
    assert result.exit_code == 0, result.exception
    told = json.loads(result.stdout)
    assert (told["state"], told["step"]) == ("finished", 2)
    assert told["eval"]["tau"] >= 1
    refused = runner.invoke(app, arguments(tmp_path))
    assert "already holds a run" in str(refused.exception)
