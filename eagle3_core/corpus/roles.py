"""What each token id is for, from the tokenizer's and the model's own configuration files.

Roles, strongest first: ``eos`` and ``end_of_turn`` (generation and tokenizer
config, chat template), ``tool_call``, ``chat_control``, ``byte_fallback`` (the 256
single-byte tokens), ``special``, ``added``, ``padding`` (no token at this id).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3_core.files import read_json

END_OF_TURN = re.compile(
    r"<\|im_end\|>|<\|eot_id\|>|<\|eom_id\|>|<end_of_turn>|<turn\|>|<\|end\|>|<\|return\|>|<\|call\|>|\[EOS\]|\[EOT\]|</s>"
    r"|<\|end_of_turn\|>|<\|endofturn\|>|<\uff5cend\u2581of\u2581sentence\uff5c>|<\|endoftext\|>|<\|end_of_text\|>|<eos>"
)
TOOL_CALL = re.compile(r"tool|function_call|python_tag", re.IGNORECASE)
CHAT_CONTROL = re.compile(
    r"im_start|start_header|end_header|start_of_turn|im_(user|assistant|system|middle)|think|channel|message"
    r"|<\|(start|user|assistant|system|observation)\|>|\[/?INST\]|<\uff5c(User|Assistant)\uff5c>", re.IGNORECASE
)


def assign_roles(
    tokens: Sequence[bytes], added: Mapping[int, tuple[str, bool]], eos: Iterable[int]
) -> list[str]:
    """One role per id. ``added``: id -> (text, special); ``tokens``: bytes per id, empty where there is none."""
    roles = ["" if token else "padding" for token in tokens]
    for token_id, token in enumerate(tokens):
        if len(token) == 1 and token_id not in added:
            roles[token_id] = "byte_fallback"
    for token_id, (text, special) in added.items():
        if TOOL_CALL.search(text):
            roles[token_id] = "tool_call"
        elif CHAT_CONTROL.search(text):
            roles[token_id] = "chat_control"
        else:
            roles[token_id] = "special" if special else "added"
        if END_OF_TURN.fullmatch(text):
            roles[token_id] = "end_of_turn"
    for token_id in eos:
        if 0 <= token_id < len(roles):
            roles[token_id] = "eos"
    return roles


def eos_ids(folder: Path, text_to_id: Mapping[str, int]) -> tuple[int, ...]:
    """End-of-sequence ids named by generation_config.json, config.json and tokenizer_config.json of ``folder``."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            value = read_json(folder / name).get("eos_token_id")
            found += value if isinstance(value, list) else [value] if isinstance(value, int) else []
    config = tokenizer_config(folder)
    eos = config.get("eos_token")
    text = eos.get("content") if isinstance(eos, dict) else eos
    if isinstance(text, str) and text in text_to_id:
        found.append(text_to_id[text])
    return tuple(dict.fromkeys(found))


def tokenizer_config(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    value = read_json(file) if file.is_file() else {}
    return value if isinstance(value, dict) else {}


def chat_template(folder: Path) -> str | None:
    """The folder's chat template: its own file first, then the config's (the ``default`` one of several)."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    if (folder / "chat_template.json").is_file():
        value = read_json(folder / "chat_template.json").get("chat_template")
    else:
        value = tokenizer_config(folder).get("chat_template")
    if isinstance(value, list):
        named = {item["name"]: item["template"] for item in value if isinstance(item, dict)}
        value = named.get("default") or next(iter(named.values()), None)
    return value if isinstance(value, str) else None


def special_texts(folder: Path) -> dict[str, str]:
    """bos_token, eos_token and the like as text, which chat templates refer to."""
    out = {}
    for key, value in tokenizer_config(folder).items():
        if key.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                out[key] = text
    file = folder / "special_tokens_map.json"
    if file.is_file():
        for key, value in json.loads(file.read_text()).items():
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                out.setdefault(key, text)
    return out
