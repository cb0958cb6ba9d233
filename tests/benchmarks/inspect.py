"""``eagle3 inspect`` on a 5 GB checkpoint: time and peak memory of the whole process, and of the reading alone.

The file is sparse: a real header of Kimi-K2.5's dimensions, a real mapping, and holes for the weights.

    python -m tests.benchmarks.inspect
"""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

H, V, D, HEADS, HEAD_DIM, WIDE = 7168, 163_840, 32_000, 64, 128, 18_432


def write_sparse(folder: Path) -> int:
    """A checkpoint in SpecForge's layout; returns its size in bytes."""
    shapes = {
        "fc.weight": (H, 3 * H), "norm.weight": (H,), "lm_head.weight": (D, H), "embed_tokens.weight": (V, H),
        "midlayer.hidden_norm.weight": (H,), "midlayer.input_layernorm.weight": (H,),
        "midlayer.post_attention_layernorm.weight": (H,), "midlayer.mlp.gate_proj.weight": (WIDE, H),
        "midlayer.mlp.up_proj.weight": (WIDE, H), "midlayer.mlp.down_proj.weight": (H, WIDE),
        "midlayer.self_attn.o_proj.weight": (H, HEADS * HEAD_DIM),
        **{f"midlayer.self_attn.{n}_proj.weight": (HEADS * HEAD_DIM, 2 * H) for n in "qkv"},
    }
    ids = np.arange(D) * 5
    stored = {"d2t": ("I64", ids - np.arange(D)), "t2d": ("BOOL", np.isin(np.arange(V), ids))}
    header, at, tail = {}, 0, b""
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    for name, (dtype, array) in stored.items():
        data = array.tobytes()
        header[name] = {"dtype": dtype, "shape": [len(array)], "data_offsets": [at, at + len(data)]}
        at, tail = at + len(data), tail + data
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.seek(8 + len(raw) + at - len(tail))
        file.write(tail)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": H, "vocab_size": V, "draft_vocab_size": D,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD_DIM,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}}))
    return 8 + len(raw) + at


READ = """
import sys, time
from eagle3_core.inspect.read import inspect_path
from eagle3_core.inspect.rules import lint
start = time.perf_counter()
lint(inspect_path(sys.argv[1]))
print(time.perf_counter() - start)
"""


def main(rounds: int = 7) -> None:
    with tempfile.TemporaryDirectory() as name:
        size = write_sparse(Path(name))
        whole, alone = [], []
        for _ in range(rounds):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-m", "eagle3_core.cli.main", "inspect", name], check=True,
                           stdout=subprocess.DEVNULL)
            whole.append(time.perf_counter() - start)
            done = subprocess.run([sys.executable, "-c", READ, name], check=True, capture_output=True, text=True)
            alone.append(float(done.stdout))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
          f"median of {rounds}")
    print(f"checkpoint of {size / 2**30:.2f} GiB")
    print(f"reading and lint       {statistics.median(alone) * 1e3:8.1f} ms")
    print(f"the whole command      {statistics.median(whole) * 1e3:8.1f} ms")
    print(f"peak of any process    {peak:8.1f} MB")


if __name__ == "__main__":
    main()
