"""The training loop: lost to no kill, the same in two processes, stopped with one line."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eagle3_core.acceptance.events import read_series
from eagle3_core.acceptance.record import read_acceptance
from eagle3_core.drafter.checkpoint import read_drafter, read_state
from eagle3_core.errors import Eagle3Error
from eagle3_core.training import run_folder
from eagle3_core.training.target_weights import read_target_weights
from eagle3_core.training.trainer import Trainer, resume, train
from eagle3_core.training.validate import measure_checkpoint
from tests.training.tiny_run import VOCAB, lay_out, tiny_config


def quiet(line: str) -> None:
    pass


def losses(folder: Path) -> dict[int, float]:
    return {r["step"]: r["loss"] for r in run_folder.read_metrics(folder) if r.get("event", "train") == "train"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("training")
    lay_out(root)
    train(tiny_config(root, out="whole"), say=quiet)
    return root


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_run_learns_is_validated_and_leaves_checkpoints_metrics_and_events(place: Path) -> None:
    run = place / "whole"
    curve = losses(run)
    assert list(curve) == list(range(1, 13))
    assert curve[12] < curve[1]
    evals = [r for r in run_folder.read_metrics(run) if r.get("event") == "eval"]
    assert [r["step"] for r in evals] == [6, 12]
    alpha = evals[-1]["alpha"]
    # tau is the sum of cumulative products, bonus token included.
    assert evals[-1]["tau"] == pytest.approx(1 + alpha[0] + alpha[0] * alpha[1] + alpha[0] * alpha[1] * alpha[2])
    (events,) = (run / "tensorboard").iterdir()
    assert read_series(events)["train/loss"][12] == pytest.approx(curve[12], rel=1e-6)
    assert run_folder.read_status(run).state == "finished"
    loaded = read_drafter(run_folder.checkpoint_named(run), embedding=read_target_weights(place / "target").embedding)
    assert loaded.mapping.draft_vocab_size == VOCAB


def test_a_checkpoint_is_measured_again_to_the_figures_of_the_run(place: Path) -> None:
    file = measure_checkpoint(place / "whole")
    assert file == place / "whole" / "acceptance" / "step-00000012.acceptance.json"
    evals = [r for r in run_folder.read_metrics(place / "whole") if r.get("event") == "eval"]
    assert list(read_acceptance(file).points[-1].alpha) == evals[-1]["alpha"]
    with pytest.raises(Eagle3Error, match="no checkpoint step-7"):
        measure_checkpoint(place / "whole", "step-7")


def test_tensorboard_itself_reads_the_events(place: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    (events,) = (place / "whole" / "tensorboard").iterdir()
    read = [value.tag for event in loader.EventFileLoader(str(events)).Load() for value in event.summary.value]
    assert read.count("train/loss") == 12


def test_stopping_and_resuming_gives_the_same_numbers_bit_for_bit(place: Path) -> None:
    config = tiny_config(place, out="stopped")
    run = config.run.out

    class Halt(Exception):
        pass

    taken = Trainer.take_step
    for kill_at in (3, 5, 10):
        def halting(self: Trainer, at: int = kill_at) -> dict:
            if self.step == at:
                raise Halt
            return taken(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "take_step", halting)
            with pytest.raises(Halt):
                resume(run, say=quiet) if (run / "run.json").exists() else train(config, say=quiet)
    resume(run, say=quiet)
    assert losses(run) == losses(place / "whole")
    ours, whole = (read_state(run_folder.checkpoint_named(r)) for r in (run, place / "whole"))
    assert all(torch.equal(ours[name], whole[name]) for name in whole)


def test_twenty_random_kills_lose_nothing(place: Path) -> None:
    """SIGKILL between any two instructions of the run, in processes of their own, and one that is left alone."""
    out = place / "killed"
    chance = random.Random(7)
    script = (
        "import os, signal, sys, threading, random\n"
        "from pathlib import Path\n"
        "from eagle3_core.training.trainer import resume, train\n"
        "from tests.training.tiny_run import tiny_config\n"
        "root, seeds = Path(sys.argv[1]), sys.argv[2].split(',')\n"
        "config = tiny_config(root, out='killed')\n"
        # The imports are paid once; every life is a fork of this process, killed after a random time.
        "for seed in seeds:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        wait = float(seed)\n"
        "        if wait >= 0:\n"
        "            signal.setitimer(signal.ITIMER_REAL, wait)\n"
        "            signal.signal(signal.SIGALRM, signal.SIG_DFL)\n"
        "        begun = (config.run.out / 'run.json').exists()\n"
        "        try:\n"
        "            resume(config.run.out) if begun else train(config)\n"
        "        finally:\n"
        "            os._exit(0)\n"
        "    _, status = os.waitpid(child, 0)\n"
        "    print('life', os.WIFSIGNALED(status), flush=True)\n"
    )
    waits = [f"{chance.uniform(0.05, 0.7):.3f}" for _ in range(24)] + ["-1"]
    done = subprocess.run(
        [sys.executable, "-c", script, str(place), ",".join(waits)], capture_output=True, text=True, timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    assert run_folder.read_status(out).state == "finished"
    assert losses(out) == losses(place / "whole")
    assert done.stdout.count("life True") >= 20, done.stdout[-2000:]


def in_two_processes(place: Path, out: str, *overrides: str) -> Path:
    script = Path(__file__).with_name("tiny_run.py")
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script), str(place),
         "optim.accumulate=2", *overrides, f"run.out={place / out}"],
        check=True, capture_output=True, timeout=300, cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])})
    return place / out


@pytest.fixture(scope="module")
def one_process(place: Path) -> Path:
    config = tiny_config(place, "optim.accumulate=2", out="one")
    train(config, say=quiet)
    return config.run.out


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_give_the_curve_of_one(place: Path, one_process: Path, parallel: str) -> None:
    run = in_two_processes(place, parallel, f"run.parallel={parallel}")
    one, two = losses(one_process), losses(run)
    assert list(one) == list(two)
    assert max(abs(one[step] - two[step]) for step in one) < 1e-4
    ours, theirs = (read_state(run_folder.checkpoint_named(r)) for r in (run, one_process))
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-3)
    alphas = [next(r["alpha"] for r in reversed(run_folder.read_metrics(r)) if r.get("event") == "eval")
              for r in (run, one_process)]
    assert alphas[0] == pytest.approx(alphas[1], abs=0.02)


def test_a_shared_out_run_goes_on_from_its_checkpoint_alone_or_shared_out(place: Path, one_process: Path) -> None:
    """Weights and moments are whole on disk: another number of processes takes them up."""
    run = in_two_processes(place, "half", "run.parallel=fsdp", "optim.steps=12", "run.keep=20")
    for folder in run_folder.checkpoints(run):
        if folder.name > "step-00000006":
            shutil.rmtree(folder)
    (run / "checkpoints" / "latest").unlink()
    again = place / "alone"
    shutil.copytree(run, again)
    in_two_processes(place, "half", "run.parallel=fsdp")
    resume(again, say=quiet)
    one = losses(one_process)
    for folder in (run, again):
        assert max(abs(one[step] - loss) for step, loss in losses(folder).items()) < 1e-4
        assert run_folder.read_status(folder).state == "finished"


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_checkpoint(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(place, out="nan")
    taken = Trainer.take_step

    def poisoned(self: Trainer) -> dict:
        if self.step == 5:
            with torch.no_grad():
                self.parameters[0].fill_(float("nan"))
        return taken(self)

    monkeypatch.setattr(Trainer, "take_step", poisoned)
    with pytest.raises(Eagle3Error, match="not finite at step 6"):
        train(config, say=quiet)
    status = run_folder.read_status(config.run.out)
    assert (status.state, "not finite" in status.message) == ("failed", True)
    assert run_folder.checkpoint_named(config.run.out).name == "step-00000004"


def test_changed_data_and_a_missing_shard_are_refused(tmp_path: Path) -> None:
    lay_out(tmp_path)
    config = tiny_config(tmp_path, "optim.steps=2")
    train(config, say=quiet)
    shard = tmp_path / "features" / "data_3.ckpt"
    value = torch.load(shard, weights_only=True)
    value["input_ids"][5] += 1
    torch.save(value, shard)
    with pytest.raises(Eagle3Error, match="the data changed under this run"):
        resume(config.run.out, say=quiet)
    shard.unlink()
    with pytest.raises(Eagle3Error, match=r"the data changed under this run.*documents 11.*expected 12"):
        resume(config.run.out, say=quiet)


def test_a_full_disk_stops_the_run_with_one_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(place, out="full")
    appended = run_folder.append_metrics

    def full(folder: Path, record: dict) -> None:
        if record["step"] == 5:
            raise OSError(28, "No space left on device")
        appended(folder, record)

    monkeypatch.setattr(run_folder, "append_metrics", full)
    with pytest.raises(Eagle3Error, match="cannot be written, found No space left on device"):
        train(config, say=quiet)
    assert run_folder.checkpoint_named(config.run.out).name == "step-00000004"


def test_a_stop_request_is_obeyed_after_the_step(place: Path) -> None:
    config = tiny_config(place, out="asked")

    def say(line: str) -> None:
        if line.startswith("step 4/"):
            run_folder.request_stop(config.run.out)

    train(config, say=say)
    status = run_folder.read_status(config.run.out)
    assert (status.state, status.step) == ("stopped", 4)
    resume(config.run.out, say=quiet)
    assert losses(config.run.out) == losses(place / "whole")


def test_a_checkpoints_vocabulary_is_inherited_and_moved_only_when_asked(place: Path, tmp_path: Path) -> None:
    import numpy as np

    from eagle3_core.vocab.formats import write_mapping
    from eagle3_core.vocab.mapping import mapping_from_ids

    write_mapping("safetensors", mapping_from_ids(np.arange(10, 80), VOCAB), tmp_path)
    (mapping,) = tmp_path.glob("*.safetensors")
    origin = run_folder.checkpoint_named(place / "whole")
    common = ("optim.steps=1", "optim.lr=1e-12", f"model.checkpoint={origin}")
    said: list[str] = []
    train(tiny_config(place, *common, out="inherited"), say=said.append)
    assert said[0].startswith("draft vocabulary inherited: D = 96")
    with pytest.raises(Eagle3Error, match="another draft vocabulary than the checkpoint's"):
        train(tiny_config(place, *common, f"model.mapping={mapping}", out="refused"), say=quiet)
    train(tiny_config(place, *common, f"model.mapping={mapping}", "model.remap=true", out="moved"), say=quiet)
    before, after = read_state(origin), read_state(run_folder.checkpoint_named(place / "moved"))
    torch.testing.assert_close(after["lm_head.weight"], before["lm_head.weight"][10:80])


def test_tuning_the_head_leaves_the_rest_of_the_checkpoint(place: Path) -> None:
    origin = run_folder.checkpoint_named(place / "whole")
    train(tiny_config(place, f"model.checkpoint={origin}", "model.trainable=head", "optim.steps=3", out="tuned"),
          say=quiet)
    before, after = read_state(origin), read_state(run_folder.checkpoint_named(place / "tuned"))
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"lm_head.weight"}


@pytest.mark.parametrize("options", [
    ("loss.kind=kl", "loss.steps=1"), ("loss.kind=hard_ce", "optim.schedule=linear"), ("loss.kind=lk", "loss.steps=5"),
    ("model.head=target_frozen", "optim.checkpoint_activations=true"), ("model.head=target_trained", "loss.steps=7"),
    ("optim.dtype=bfloat16",),
])
def test_every_option_trains(place: Path, options: tuple[str, ...]) -> None:
    config = tiny_config(place, "optim.steps=3", *options, out="-".join(options).replace(".", "_"))
    train(config, say=quiet)
    assert run_folder.read_status(config.run.out).state == "finished"

