"""The commands beside the files: training and serving, with the K, tree and TP that were decided.

Serving engines read D from the draft checkpoint, so a serving line carries K and
TP only; trainers take D from the config and the mapping file.
"""

from __future__ import annotations

import shlex

import yaml

from eagle3_core.export.configs import check_consumer
from eagle3_core.specs.drafter import DrafterSpec
from eagle3_core.specs.target import TargetSpec


def launch_commands(
    consumer: str, target: TargetSpec, drafter: DrafterSpec, *, k: int, draft_tp: int = 1, target_tp: int = 1,
    topk: int = 1, draft_tokens: int | None = None,
) -> dict[str, str]:
    """File name -> text: a shell script, and a training config where the consumer trains."""
    check_consumer(consumer)
    model = shlex.quote(target.name)
    size = drafter.draft_vocab_size
    full = size == drafter.vocab_size
    head = "#!/bin/sh\nset -eu\n"
    if consumer == "sglang":
        note = "# One chain of K drafts: topk 1, and K + 1 draft tokens with the bonus.\n" if topk == 1 else ""
        return {"serve.sh": head + note + (
            f"python -m sglang.launch_server --model-path {model} \\\n"
            "  --speculative-algorithm EAGLE3 --speculative-draft-model-path \"$1\" \\\n"
            f"  --speculative-num-steps {k} --speculative-eagle-topk {topk} "
            f"--speculative-num-draft-tokens {draft_tokens or k + 1} \\\n"
            f"  --tp {target_tp}\n"
            + ("" if full else "# Do not add --speculative-use-rejection-sampling: SGLang refuses it with D < V.\n")
        )}
    if consumer == "vllm":
        tp = draft_tp if draft_tp in (1, target_tp) else 1
        settings = f'"num_speculative_tokens":{k},"draft_tensor_parallel_size":{tp}'
        config = '{"method":"eagle3","model":"\'"$1"\'",' + settings + "}"
        return {"serve.sh": head + (
            f"vllm serve {model} --tensor-parallel-size {target_tp} \\\n  --speculative-config '{config}'\n"
            + ("" if topk == 1 else "# vLLM drafts a chain: the tree that was decided is not served here.\n")
            + ("" if tp == draft_tp else f"# vLLM allows draft TP 1 or {target_tp}; {draft_tp} was asked for.\n")
        )}
    if consumer == "specforge":
        config = {
            "model": {"target_model_path": target.name, "draft_model_config": "config.json",
                      "vocab_mapping_path": "vocab_mapping.pt", "torch_dtype": "bfloat16"},
            "data": {"hidden_states_path": "hidden_states", "max_length": 2048},
            "training": {"strategy": "eagle3", "num_epochs": 10, "batch_size": 1, "learning_rate": 1e-4,
                         "ttt_length": 7},
            "run_id": f"eagle3-d{size}",
            "output_dir": "runs",
        }
        return {
            "run.yaml": yaml.safe_dump(config, sort_keys=False),
            "train.sh": head + "specforge train --config run.yaml\n",
        }
    if consumer == "speculators":
        return {"train.sh": head + (
            "# $1 is the folder that speculators prepare-data wrote.\n"
            f"speculators train --verifier-name-or-path {model} --data-path \"$1\" \\\n"
            "  --speculator-type eagle3 --save-path runs --ttt-steps 3 --epochs 5 --lr 1e-4"
            + ("\n" if full else (
                f" \\\n  --draft-vocab-size {size} --d2t-path d2t-{size}.npy --t2d-path t2d-{size}.npy\n"))
        )}
    if consumer == "modelopt":
        recipe = {"eagle": {"eagle_architecture_config": {"draft_vocab_size": size}}}
        if not full:
            recipe["data"] = {"draft_vocab_cache": "d2t.pt"}  # type: ignore[assignment]
        return {
            "eagle3.yaml": yaml.safe_dump(recipe, sort_keys=False),
            "train.sh": head + f"python main.py --config eagle3.yaml model.model_name_or_path={model}\n",
        }
    return {"train.sh": head + (
        "# EAGLE reads cache.pt from the working directory and never checks it: run from this folder.\n"
        f"deepspeed main.py --deepspeed_config ds_config.json --basepath {model} --configpath config.json\n"
    )}
