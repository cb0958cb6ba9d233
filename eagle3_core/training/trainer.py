"""The training loop: packed rows to steps to checkpoints, continued bit for bit after a kill.

What a step does depends on weights, optimizer moments and its number alone: the
order of the data, the positions judged and the learning rate are functions of the
number, and nothing else is random. So a checkpoint is weights, moments and a number.
"""

from __future__ import annotations

import copy
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eagle3_core.acceptance.record import write_acceptance
from eagle3_core.drafter.checkpoint import write_drafter
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import read_json, write_text
from eagle3_core.training import run_folder
from eagle3_core.training.config import TrainConfig, dump_config, load_config
from eagle3_core.training.data import Packed, Split, pack, rows_of_epoch, split
from eagle3_core.training.features import FeatureSet
from eagle3_core.training.objective import Objective, target_argmax
from eagle3_core.training.parallel import Group, average_gradients, join, leave, share_out, shares_of, whole
from eagle3_core.training.scalars import ScalarFile
from eagle3_core.training.start import Start, load_weights, prepare
from eagle3_core.training.validate import validate

Say = Callable[[str], None]


def train(config: TrainConfig, *, command: list[str] | None = None, say: Say | None = None) -> Path:
    """A new run in ``config.run.out``. Raises Eagle3Error with the last good checkpoint kept."""
    return _run(config, command or sys.argv, say, resumed=False)


def resume(folder: Path, *, command: list[str] | None = None, say: Say | None = None) -> Path:
    """Continue from the newest checkpoint, or from the start where there is none yet."""
    run_folder.read_status(folder)
    config = load_config(folder / "config.yaml")
    config = config.model_copy(update={"run": config.run.model_copy(update={"out": folder})})
    return _run(config, command or sys.argv, say, resumed=True)


def _run(config: TrainConfig, command: list[str], say: Say | None, *, resumed: bool) -> Path:
    folder = config.run.out
    group = join(config.run.parallel)
    try:
        if group.leads:
            if resumed:
                run_folder.claim_run(folder, command)
                run_folder.mend_metrics(folder)
            else:
                run_folder.create_run(folder, dump_config(config), command)
        group.wait()
        try:
            trainer = Trainer(config, group, say or (lambda line: print(line, flush=True)))
            trainer.run()
        except OSError as error:
            raise Eagle3Error("cannot be written", where=error.filename or folder, found=error.strerror) from None
        return folder
    except Eagle3Error as error:
        if group.leads and (folder / "run.json").is_file():
            _tell_failure(folder, error)
        raise
    finally:
        leave()


def _tell_failure(folder: Path, error: Eagle3Error) -> None:
    facts = read_json(folder / "run.json")
    if facts.get("pid") != os.getpid():
        return  # Another process runs it; its state is not ours to write.
    status = run_folder.read_status(folder)
    try:
        run_folder.write_state(folder, "failed", status.step, status.steps, str(error))
    except Eagle3Error:
        # A full disk: the process ends, and is then shown as dead.
        return


class Trainer:
    def __init__(self, config: TrainConfig, group: Group, say: Say) -> None:
        self.config, self.group, self.folder = config, group, config.run.out
        self.say: Say = say if group.leads else (lambda line: None)
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        if config.optim.accumulate % group.size:
            raise Eagle3Error("optim.accumulate counts packed rows a step over all processes",
                              found=config.optim.accumulate, expected=f"a multiple of {group.size} processes")
        torch.manual_seed(config.run.seed)
        self.start: Start = prepare(config)
        for note in self.start.notes:
            self.say(note)
        self.split: Split = split(self.start.source, config.data.heldout, config.data.max_length)
        self._check_data()
        saved = self._saved()
        if saved is not None:
            load_weights(self.start.drafter, run_folder.checkpoint_named(self.folder))
        self.objective = Objective(
            self.start.drafter, self.start.weights.head.float(), config.loss,
            dtype=getattr(torch, config.optim.dtype), recompute=config.optim.checkpoint_activations)
        self.judged = self.objective
        if group.size > 1 and config.run.parallel == "fsdp":
            # The leader judges and saves a whole drafter; the one that trains is in pieces.
            if group.leads:
                self.judged = copy.deepcopy(self.objective).requires_grad_(False)
            share_out(self.objective)
        if config.optim.compile:
            self.start.drafter.midlayer.compile()
        self.parameters = [p for p in self.start.drafter.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=config.optim.lr, betas=config.optim.betas,
                                           weight_decay=config.optim.weight_decay, fused=True)
        self.inside = torch.zeros(self.start.weights.spec.vocab_size, dtype=torch.bool)
        self.inside[self.start.drafter.target_ids] = True
        self.partial = not bool(self.inside.all())
        self._outside: dict[int, Tensor] = {}
        self._epoch: tuple[int, list[list[int]]] = (-1, [])
        per_epoch = len(self._rows(0)) // config.optim.accumulate
        if per_epoch == 0:
            raise Eagle3Error("too little data for one step", found=f"{len(self._rows(0))} packed rows",
                              expected=f"at least {config.optim.accumulate}", fix="lower data.batch_tokens")
        self.per_epoch = per_epoch
        self.steps = config.optim.steps or config.optim.epochs * per_epoch
        self.step, self.tokens, self.best = 0, 0, -math.inf
        if saved is not None:
            self.optimizer.load_state_dict(shares_of(saved["optimizer"], self.parameters))
            self.step, self.tokens, self.best = saved["step"], saved["tokens"], saved["best"]
            torch.set_num_threads(saved["threads"])
            self.say(f"resumed at step {self.step} of {self.steps}")

    def _check_data(self) -> None:
        """Record what the run trains on, or compare with what was recorded."""
        source = self.start.source
        now: dict[str, Any] = {"documents": len(source), "sha256": self.split.sha256}
        if isinstance(source, FeatureSet):
            now["files_sha256"] = source.fingerprint()
        before = read_json(self.folder / "run.json").get("data")
        if before is not None:
            for key, value in now.items():
                if before.get(key) != value:
                    raise Eagle3Error("the data changed under this run", where=self.folder,
                                      found=f"{key} {str(value)[:16]}", expected=str(before.get(key))[:16],
                                      fix="restore the data, or start a new run from the checkpoint")
        elif self.group.leads:
            from eagle3_core.vocab.formats import write_mapping

            write_mapping("safetensors", self.start.mapping, self.folder / "mapping")
            if self.config.run.decision is not None:
                write_text(self.folder / "decision.json", self.config.run.decision.read_text())
            run_folder.claim_run(self.folder, read_json(self.folder / "run.json")["command"], data=now)

    def _saved(self) -> dict[str, Any] | None:
        """Moments and counters of the newest checkpoint."""
        if not run_folder.checkpoints(self.folder):
            return None
        file = run_folder.checkpoint_named(self.folder) / "training_state.pt"
        return torch.load(file, map_location="cpu", weights_only=True)

    def _gather(self) -> None:
        """Bring the judged drafter up to date where it is not the one that trains."""
        if self.config.run.parallel != "fsdp" or self.group.size == 1:
            return
        state = whole(self.start.drafter.state_dict())
        if self.group.leads:
            self.judged.drafter.load_state_dict(state)

    def save(self) -> None:
        self._gather()
        optimizer = whole(self.optimizer.state_dict())
        if self.group.leads:
            with run_folder.new_checkpoint(self.folder, self.step) as part:
                write_drafter(part, self.judged.drafter, self.start.weights.spec, aux_layers=self.start.aux_layers)
                torch.save({"optimizer": optimizer, "step": self.step, "tokens": self.tokens,
                            "best": self.best, "threads": torch.get_num_threads()}, part / "training_state.pt")
            run_folder.prune_checkpoints(self.folder, self.config.run.keep)
        self.group.wait()

    def _rows(self, epoch: int) -> list[list[int]]:
        if self._epoch[0] != epoch:
            self._epoch = epoch, rows_of_epoch(self.split.train, self.split.lengths, self.config.data.batch_tokens,
                                               self.config.run.seed, epoch)
        return self._epoch[1]

    def _packed(self, step: int, number: int) -> Packed:
        """Row ``number`` of a step."""
        # Epochs differ by a row or two, as packing falls out; the shortest decides none of them.
        rows = self._rows(step // self.per_epoch)
        chosen = rows[(step % self.per_epoch * self.config.optim.accumulate + number) % len(rows)]
        documents = [self.start.source.load(index) for index in chosen]
        excluded = None
        if self.partial and self.config.loss.outside == "masked":
            missing = [i for i in chosen if i not in self._outside]
            if missing:
                full = pack([documents[chosen.index(i)] for i in missing], 1, max_length=self.config.data.max_length,
                            norm=self.start.weights.norm, eps=self.start.weights.spec.rms_norm_eps)
                outside = ~self.inside[target_argmax(full.last, self.start.weights.head.float())]
                parts = outside.split([self.split.lengths[i] for i in missing])
                # One bool a token: kept for later epochs, because it costs a full head to make.
                self._outside |= {i: part.clone() for i, part in zip(missing, parts, strict=True)}
            excluded = [self._outside[i] for i in chosen]
        row = pack(documents, self.config.loss.steps, max_length=self.config.data.max_length,
                   norm=self.start.weights.norm, eps=self.start.weights.spec.rms_norm_eps,
                   loss_on=self.config.data.loss_on, excluded=excluded)
        if self.config.loss.share < 1:
            # By step and row, so that a resumed run and any number of processes draw the same positions.
            draw = np.random.default_rng([self.config.run.seed, step, number]).random(row.weights.shape[1])
            row.weights.mul_(torch.from_numpy(draw < self.config.loss.share))
        return row

    def rate(self, step: int) -> float:
        """Learning rate of step ``step``, counted from 0."""
        optim = self.config.optim
        warm = round(optim.warmup * self.steps)
        if step < warm:
            return optim.lr * (step + 1) / warm
        done = (step - warm) / max(self.steps - warm, 1)
        shape = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}[optim.schedule]
        return optim.lr * (optim.final_lr + (1 - optim.final_lr) * shape)

    def take_step(self) -> dict[str, Any]:
        """One optimizer step. Raises Eagle3Error before weights change when loss or gradient is not finite."""
        mine = range(self.group.rank, self.config.optim.accumulate, self.group.size)
        rows = [self._packed(self.step, number) for number in mine]
        count = self.group.sum(torch.stack([row.weights[0].sum() for row in rows]).sum())
        sums = torch.zeros(3, self.config.loss.steps)
        tokens = torch.tensor(float(sum(row.ids.numel() for row in rows)))
        for row in rows:
            result = self.objective(row)
            (result.total / count.clamp_min(1)).backward()
            sums += torch.stack([result.loss, result.hits, result.weight]).detach().float()
        average_gradients(self.objective, self.group)
        self.group.sum(sums)
        loss = float(sums[0] @ self.objective.step_weights / count.clamp_min(1))
        norm = float(whole(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.optim.clip)))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise Eagle3Error(f"loss or gradient is not finite at step {self.step + 1}", where=self.folder,
                              found=f"loss {loss}, gradient norm {norm}",
                              fix="lower optim.lr; the last checkpoint is kept")
        rate = self.rate(self.step)
        for entry in self.optimizer.param_groups:
            entry["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += int(self.group.sum(tokens))
        weight = sums[2].clamp_min(1)
        return {"step": self.step, "loss": loss, "loss_by_step": (sums[0] / weight).tolist(),
                "hit_inside": (sums[1] / weight).tolist(), "lr": rate, "grad_norm": norm, "tokens": self.tokens}

    def run(self) -> None:
        run, lead = self.config.run, self.group.leads
        scalars = ScalarFile(self.folder / "tensorboard") if lead else None
        if lead:
            run_folder.write_state(self.folder, "running", self.step, self.steps)
        began, before = time.monotonic(), self.tokens
        while self.step < self.steps:
            figures = self.take_step()
            if lead and scalars is not None:
                spent = time.monotonic() - began
                self._record(scalars, "train", figures | {"tokens_per_s": round((self.tokens - before) / spent, 1)})
                if self.step % run.log_every == 0:
                    run_folder.write_state(self.folder, "running", self.step, self.steps)
                    self.say(f"step {self.step}/{self.steps}  loss {figures['loss']:.4f}  "
                             f"{(self.tokens - before) / spent:,.0f} tokens/s")
            last = self.step == self.steps
            stopping = self.group.any(lead and run_folder.stop_requested(self.folder))
            if last or self.step % run.eval_every == 0:
                sized = last or bool(run.acceptance_every and self.step % run.acceptance_every == 0)
                better = self._validate(scalars, sized)
            else:
                better = False
            if last or stopping or better or self.step % run.save_every == 0:
                self.save()
                if better and lead:
                    write_text(self.folder / "checkpoints" / "best", f"step-{self.step:08d}\n")
            if stopping and not last:
                if lead:
                    run_folder.write_state(self.folder, "stopped", self.step, self.steps, "stopped as asked")
                    self.say(f"stopped as asked after step {self.step}")
                return
        if lead:
            run_folder.write_state(self.folder, "finished", self.step, self.steps)

    def _validate(self, scalars: ScalarFile | None, sized: bool) -> bool:
        """Figures of the held-out documents; True when tau is the best so far."""
        better = False
        self._gather()
        if self.group.leads and scalars is not None:
            chosen = self.split.heldout[: self.config.data.eval_documents]
            figures, record = validate(
                self.judged, self.start, chosen, max_length=self.config.data.max_length,
                loss_on=self.config.data.loss_on, every_size=sized,
                sizes=self.config.run.acceptance_sizes, ranking=self.config.model.ranking)
            self._record(scalars, "eval", {"step": self.step, "tokens": self.tokens, **figures})
            self.say(f"step {self.step}  tau {figures['tau']:.3f}  alpha "
                     + " ".join(f"{a:.3f}" for a in figures["alpha"]))
            if record is not None:
                write_acceptance(record, self.folder / "acceptance" / f"step-{self.step:08d}.acceptance.json")
            better = figures["tau"] > self.best
            self.best = max(self.best, figures["tau"])
        return self.group.any(better)

    def _record(self, scalars: ScalarFile, event: str, figures: dict[str, Any]) -> None:
        run_folder.append_metrics(self.folder, figures if event == "train" else {"event": event, **figures})
        flat: dict[str, float] = {}
        for name, value in figures.items():
            if name == "step":
                continue
            items = enumerate(value, 1) if isinstance(value, list) else [("", value)]
            flat |= {f"{event}/{name}" + (f"_{i}" if i else ""): float(v) for i, v in items}
        scalars.write(self.step, flat)

