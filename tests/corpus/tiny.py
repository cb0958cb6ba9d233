"""A tiny real tokenizer: byte-level BPE with the split of Qwen3, special tokens and a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from eagle3_core.corpus.tokenizer import QWEN_PATTERN

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
CHATML = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{%- if m.tool_calls %}<tool_call>{{ m.tool_calls[0].function.name }}</tool_call>{% endif %}<|im_end|>\n"
    "{%- endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template like ChatML's, without generation marks: ``{%-`` eats the line break before it."""
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)
TEXT = [
    "the cat sat on the mat and the dog ran after the cat", "def add(a, b):\n    return a + b\n",
    "1 + 1 = 2, 2 + 2 = 4",
    "你好，世界。今天天气很好。", "El gato está en la mesa.", "hello there, general greeting",
] * 4


def make_tokenizer(folder: Path, *, template: str | None = CHATML, vocab: int = 400) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN_PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(TEXT, trainer)
    backend.add_special_tokens(SPECIAL[:3])
    backend.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in SPECIAL[3:]])
    backend.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    if template:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
