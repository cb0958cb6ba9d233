"""The training configuration: one pydantic model, from defaults, a YAML file, and dotted overrides.

``eagle3 train --config run.yaml optim.lr=5e-4 data.max_length=2048``: later
beats earlier. Unknown keys are refused with the nearest known one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.files import read_bytes, reason


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(_Section):
    target: str
    """Preset, config.json or model folder; a folder with weights for online features."""
    draft_vocab: int | None = Field(default=None, ge=1)
    """D; taken from the mapping or the checkpoint where one is given."""
    counts: Path | None = None
    """Token counts the draft vocabulary is ranked on."""
    ranking: str = "pooled"
    mapping: Path | None = None
    """A mapping file instead of counts."""
    checkpoint: Path | None = None
    """Start from this drafter. Its mapping is inherited and its size is locked."""
    remap: bool = False
    """Allow another mapping than the checkpoint's: lm_head rows move by target id, new rows start fresh."""
    head: Literal["fresh", "target_frozen", "target_trained"] = "fresh"
    """lm_head: random, or the target's own rows held frozen (as speculators) or trained on."""
    trainable: Literal["all", "head"] = "all"
    """``head``: only lm_head's rows move; the rest stays as the checkpoint has it."""
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    aux_layers: tuple[int, int, int] | None = None
    """0-based layers whose output is read; default (1, n//2 - 1, n - 4)."""

    @model_validator(mode="after")
    def _one_source(self) -> ModelConfig:
        if self.mapping and self.counts:
            raise ValueError("give model.counts or model.mapping, not both")
        if self.counts and self.draft_vocab is None:
            raise ValueError("model.draft_vocab is needed with model.counts")
        if self.trainable == "head" and self.head == "target_frozen":
            raise ValueError("model.trainable=head and model.head=target_frozen leave nothing to train")
        return self


class DataConfig(_Section):
    features: tuple[Path, ...] = ()
    """Folders of hidden states (SpecForge, speculators or ours)."""
    text: tuple[Path, ...] = ()
    """Chat files, run through the target in this process (online)."""
    max_length: int = Field(default=2048, ge=8)
    batch_tokens: int = Field(default=2048, ge=8)
    """Tokens packed into one row; documents never attend to each other."""
    heldout: float = Field(default=0.05, gt=0, lt=0.9)
    """Share of documents kept for validation, by a stable hash."""
    eval_documents: int = Field(default=64, ge=1)
    """Held-out documents judged at each evaluation, at most."""
    loss_on: Literal["assistant", "all"] = "assistant"

    @model_validator(mode="after")
    def _some_data(self) -> DataConfig:
        if bool(self.features) == bool(self.text):
            raise ValueError("give data.features or data.text, one of them")
        return self


class LossConfig(_Section):
    kind: Literal["soft_ce", "kl", "hard_ce", "lk"] = "soft_ce"
    steps: int = Field(default=3, ge=1, le=7)
    """Unrolled draft steps (training-time test)."""
    step_weight: float = Field(default=0.8, gt=0, le=1)
    """Weight of step k is step_weight ** k."""
    outside: Literal["masked", "renormalised"] = "masked"
    """Positions whose target argmax is outside the draft vocabulary: left out, or trained on what is inside."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of the positions judged at each step, drawn anew: a full head costs more than the layer below it."""


class OptimConfig(_Section):
    lr: float = Field(default=1e-3, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float = Field(default=0.5, gt=0)
    warmup: float = Field(default=0.03, ge=0, lt=1)
    """Share of the steps."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    final_lr: float = Field(default=0.0, ge=0, le=1)
    """Share of lr at the last step."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps; else ``epochs``."""
    epochs: int = Field(default=1, ge=1)
    accumulate: int = Field(default=1, ge=1)
    """Packed rows an optimizer step, over all processes."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute dtype; masters and moments stay fp32."""
    compile: bool = False
    checkpoint_activations: bool = False


class RunConfig(_Section):
    out: Path
    seed: int = 0
    log_every: int = Field(default=10, ge=1)
    eval_every: int = Field(default=100, ge=1)
    save_every: int = Field(default=100, ge=1)
    acceptance_every: int | None = Field(default=None, ge=1)
    """Steps between one-pass acceptance evaluations at every smaller size; None for the end only."""
    acceptance_sizes: tuple[int, ...] = ()
    """Sizes it is measured at besides the run's own; empty for up to 24 in log steps."""
    keep: int = Field(default=2, ge=1)
    """Checkpoints kept beside the best one."""
    threads: int | None = Field(default=None, ge=1)
    parallel: Literal["none", "ddp", "fsdp"] = "none"
    """Under torchrun: ``ddp`` keeps whole weights everywhere, ``fsdp`` (FSDP2) shares them and the moments out."""
    decision: Path | None = None
    """The decision record this run comes from; copied into the run."""


class TrainConfig(_Section):
    model: ModelConfig
    data: DataConfig
    loss: LossConfig = LossConfig()
    optim: OptimConfig = OptimConfig()
    run: RunConfig


def load_config(
    path: str | Path | None = None, overrides: tuple[str, ...] = (), defaults: dict[str, Any] | None = None
) -> TrainConfig:
    """Merge ``defaults`` (from command-line options), the YAML file and dotted overrides, then check.

    Raises Eagle3Error naming the file or override and the key.
    """
    value: dict[str, Any] = {}
    _merge(value, defaults or {})
    if path is not None:
        try:
            read = yaml.safe_load(read_bytes(path, limit=1 << 20).decode())
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise Eagle3Error("is not YAML", where=path, found=reason(error)) from None
        if not isinstance(read, dict):
            raise Eagle3Error("is not a training config", where=path, found=type(read).__name__,
                              expected="sections model, data, loss, optim, run")
        _merge(value, read)
    for override in overrides:
        key, found, text = override.partition("=")
        if not found:
            raise Eagle3Error("override", found=repr(override), expected="section.key=value")
        _set(value, key.split("."), _scalar(text), override)
    try:
        return TrainConfig.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        fix = suggest(str(first["loc"][-1]), _known(first["loc"])) if first["type"] == "extra_forbidden" else None
        raise Eagle3Error(f"config key {key or '(root)'}", where=path, found=first["msg"], fix=fix) from None


def dump_config(config: TrainConfig) -> str:
    """The whole configuration as YAML that ``load_config`` reads back to the same value."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _scalar(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    # YAML 1.1 reads 5e-4 as text; a number is what was meant.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _merge(into: dict[str, Any], other: dict[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, dict) else value


def _set(into: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    for key in keys[:-1]:
        into = into.setdefault(key, {})
        if not isinstance(into, dict):
            raise Eagle3Error("override", found=repr(override), expected="section.key=value")
    into[keys[-1]] = value


def _known(loc: tuple[int | str, ...]) -> list[str]:
    fields = TrainConfig.model_fields
    for part in loc[:-1]:
        annotation = fields[str(part)].annotation if str(part) in fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        fields = annotation.model_fields
    return list(fields)
