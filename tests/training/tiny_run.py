"""A run of a few thousand weights on features of a random Llama, for tests; run as a script, it trains or resumes.

    python tests/training/tiny_run.py FOLDER [section.key=value ...]   start in FOLDER/run, or resume what is there
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from eagle3_core.files import canonical_json, write_text
from eagle3_core.training.config import TrainConfig, load_config

VOCAB, WIDTH = 96, 32


def write_target(folder: Path) -> None:
    """Embedding, head and final norm are all that training on features reads."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    write_text(folder / "config.json", canonical_json({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": WIDTH,
        "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "float32"}))
    generator = torch.Generator().manual_seed(1)
    save_file({"model.embed_tokens.weight": torch.randn(VOCAB, WIDTH, generator=generator) * 0.3,
               "lm_head.weight": torch.randn(VOCAB, WIDTH, generator=generator) * 0.6,
               "model.norm.weight": torch.ones(WIDTH)}, folder / "model.safetensors")


def write_features(folder: Path, documents: int = 12) -> None:
    generator = torch.Generator().manual_seed(2)
    folder.mkdir(parents=True)
    for index in range(documents):
        length = 20 + 3 * index
        mask = torch.ones(length, dtype=torch.int64)
        mask[:4] = 0
        torch.save({
            "input_ids": torch.randint(0, VOCAB, (length,), generator=generator), "loss_mask": mask,
            "hidden_state": torch.randn(1, length, WIDTH, generator=generator),
            "aux_hidden_state": torch.randn(1, length, 3 * WIDTH, generator=generator)}, folder / f"data_{index}.ckpt")


def lay_out(root: Path) -> None:
    write_target(root / "target")
    write_features(root / "features")


def tiny_config(root: Path, *overrides: str, out: str = "run") -> TrainConfig:
    defaults = {
        "model": {"target": str(root / "target")},
        "data": {"features": [str(root / "features")], "batch_tokens": 96, "heldout": 0.2},
        "loss": {"share": 0.8}, "optim": {"steps": 12, "lr": 3e-3},
        "run": {"out": str(root / out), "eval_every": 6, "save_every": 2, "log_every": 4, "threads": 1},
    }
    return load_config(None, overrides, defaults)


if __name__ == "__main__":
    from eagle3_core.training.trainer import resume, train

    place = Path(sys.argv[1])
    config = tiny_config(place, *sys.argv[2:])
    if (config.run.out / "run.json").exists():
        resume(config.run.out)
    else:
        train(config)
