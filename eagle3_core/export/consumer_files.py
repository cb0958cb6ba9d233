"""Everything one consumer needs for a decision, as bytes: config, mapping, commands."""

from __future__ import annotations

from eagle3_core.export.commands import launch_commands
from eagle3_core.export.configs import draft_config
from eagle3_core.files import canonical_json
from eagle3_core.specs.drafter import DrafterSpec
from eagle3_core.specs.target import TargetSpec
from eagle3_core.vocab.formats import mapping_files
from eagle3_core.vocab.mapping import VocabMapping

MAPPING_FORMAT = {"specforge": "specforge", "sglang": "safetensors", "vllm": "safetensors",
                  "speculators": "speculators", "modelopt": "modelopt", "eagle": "eagle"}
"""Which file carries the mapping. Engines read d2t from the draft checkpoint itself; the tensors come as a file."""
FULL_KEEPS_D2T = ("sglang", "specforge", "eagle")
"""With D = V: SpecForge's exporter insists on d2t and t2d; vLLM refuses a checkpoint that has them."""


MISSING = (
    "There is no mapping here: the counts were another tokenizer's, whose ids mean nothing to this target.\n"
    "Count the target's own tokens (eagle3 count --tokenizer ...) and export again before training.\n"
)
INCOMPLETE = (
    "config.json is not complete: the target was named by a preset, which does not say its rotary base, longest\n"
    "position or special ids. Export again with --target PATH, the model's own config.json, before training.\n"
)


def consumer_files(
    consumer: str, target: TargetSpec, drafter: DrafterSpec, mapping: VocabMapping | None, *, k: int, draft_tp: int = 1,
    target_tp: int = 1, ranked: VocabMapping | None = None, topk: int = 1, draft_tokens: int | None = None,
) -> dict[str, bytes]:
    """Relative file name -> bytes, the same for the same inputs.

    ``mapping`` is ascending; ``ranked`` has the same ids in ranking order, which ModelOpt keeps. Without
    a mapping a note says why there is none: configs and commands alone are not enough to train.
    """
    files = {"config.json": canonical_json(draft_config(consumer, target, drafter, k=k)).encode()}
    commands = launch_commands(consumer, target, drafter, k=k, draft_tp=draft_tp, target_tp=target_tp, topk=topk,
                               draft_tokens=draft_tokens)
    files |= {name: text.encode() for name, text in commands.items()}
    if "rope" in target.assumed:
        files["CONFIG_INCOMPLETE.txt"] = INCOMPLETE.encode()
    if mapping is None:
        if drafter.draft_vocab_size < drafter.vocab_size:
            files["MAPPING_MISSING.txt"] = MISSING.encode()
        return files
    if mapping.draft_vocab_size < mapping.vocab_size or consumer in FULL_KEEPS_D2T:
        chosen = ranked if consumer == "modelopt" and ranked is not None else mapping
        files |= mapping_files(MAPPING_FORMAT[consumer], chosen)
    return files
