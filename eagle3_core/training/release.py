"""``eagle3 runs export``: a run's drafter as an engine loads it, with where it came from, held to the lint."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import canonical_json, read_json, write_text
from eagle3_core.training import run_folder
from eagle3_core.training.config import load_config

CONSUMERS = ("vllm", "sglang", "speculators")


def release(
    run: Path, out: Path, *, checkpoint: str = "best", consumer: str = "vllm", force: bool = False
) -> tuple[Path, list[str]]:
    """Write config.json, model.safetensors, the run's config and decision; returns the folder and lint warnings.

    ``best`` falls back to the latest where nothing was validated. Raises
    Eagle3Error while the run is alive, on a lint error, and when ``out`` exists.
    """
    import torch
    from safetensors.torch import save_file

    from eagle3_core.drafter.checkpoint import aux_layers_of, canonical_key, read_state, spec_of
    from eagle3_core.export.configs import draft_config
    from eagle3_core.inspect.read import inspect_path
    from eagle3_core.inspect.rules import lint
    from eagle3_core.specs.presets import resolve_target

    if consumer not in CONSUMERS:
        raise Eagle3Error("--for", found=repr(consumer), expected=", ".join(CONSUMERS))
    status = run_folder.read_status(run)
    if status.state in ("starting", "running"):
        raise Eagle3Error("is still running", where=run, fix="stop it first: eagle3 runs stop")
    if out.exists() and not force:
        raise Eagle3Error("already exists", where=out, fix="pass --force to replace it")
    if out.exists() and not (out / "training.yaml").is_file():
        raise Eagle3Error("is not an export of a run", where=out, fix="choose another --out: it is not replaced")
    if checkpoint == "best" and not (run / "checkpoints" / "best").is_file():
        checkpoint = "latest"
    source = run_folder.checkpoint_named(run, checkpoint)
    config = read_json(source / "config.json")
    if not isinstance(config, dict):
        raise Eagle3Error("is not a drafter's config", where=source / "config.json")
    state = {canonical_key(key): value for key, value in read_state(source).items()}
    spec, _, _ = spec_of(config, state, source)
    target = resolve_target(load_config(run / "config.yaml").model.target)
    written = draft_config(consumer, target, spec)
    aux = aux_layers_of(config, source)
    if aux is not None:
        # As draft_config counts them: SGLang names the layer, the others the state behind it.
        if consumer == "sglang":
            written["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(aux)
        else:
            written["eagle_aux_hidden_state_layer_ids"] = [layer + 1 for layer in aux]
    written["torch_dtype"] = str(state["fc.weight"].dtype).removeprefix("torch.")
    if "d2t" in state and "t2d" not in state:
        ids = state["d2t"] + torch.arange(len(state["d2t"]))
        state["t2d"] = torch.zeros(spec.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    if consumer == "speculators":
        state = {key.replace("midlayer.", "layers.0."): value for key, value in state.items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name[:60]}.", dir=out.parent))
    try:
        save_file({k: v.contiguous() for k, v in state.items()}, part / "model.safetensors", metadata={"format": "pt"})
        write_text(part / "config.json", canonical_json(written))
        shutil.copyfile(run / "config.yaml", part / "training.yaml")
        if (run / "decision.json").is_file():
            shutil.copyfile(run / "decision.json", part / "decision.json")
        findings = lint(inspect_path(part), consumer)
        wrong = next((f for f in findings if f.severity == "error"), None)
        if wrong is not None:
            raise Eagle3Error(f"{consumer} would not load this ({wrong.rule})", where=source, found=wrong.what,
                              fix=wrong.fix)
        part.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        part.rename(out)
    except OSError as error:
        raise Eagle3Error("cannot be written", where=out, found=error.strerror) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    said = [f"from {source.name} of {run.name}, {status.state} at step {status.step}"]
    return out, [*said, *(f"{f.severity}: {f.what}" for f in findings)]
