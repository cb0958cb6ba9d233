"""Conversations: one shape from many, rendered by the target's chat template, with the assistant's part told apart.

The drafter proposes what the target generates, so by default only those tokens
are counted. Where the template marks them with ``{% generation %}`` it is
believed. Elsewhere each assistant turn is rendered as it was generated: the
conversation up to it with the generation prompt, and the same with the turn. The
second must begin with the first; what it adds is the assistant's, up to its
end-of-turn token. Templates that drop reasoning from earlier turns (Qwen3) thus
count each turn as the target wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_core.corpus.tokenizer import Tokenizer

Message = dict[str, Any]
Segment = tuple[str, bool]
"""A stretch of rendered text, and whether the assistant wrote it."""

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant",
          "model": "assistant", "assistant": "assistant", "system": "system", "developer": "developer", "tool": "tool",
          "function": "tool", "function_call": "assistant", "observation": "tool"}
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class BadDocument(Exception):
    """This document cannot be used; the message says why. The reader counts and records it."""


def messages_of(value: Mapping[str, Any]) -> list[Message] | None:
    """The conversation of a JSON record, or None when it holds none. Raises BadDocument when it is malformed."""
    for key in ("messages", "conversations", "conversation"):
        if isinstance(value.get(key), (list, tuple)):
            return [_message(item) for item in value[key]]
    if "prompt" in value and ("response" in value or "completion" in value):
        prompt, answer = value["prompt"], value.get("response", value.get("completion"))
        asked = [_message(m) for m in prompt] if isinstance(prompt, list) else [_text_message("user", prompt)]
        said = [_message(m) for m in answer] if isinstance(answer, list) else [_text_message("assistant", answer)]
        return asked + said
    return None


def _text_message(role: str, text: Any) -> Message:
    if not isinstance(text, str):
        raise BadDocument(f"{role} text is {type(text).__name__}, not text")
    return {"role": role, "content": text}


def _message(item: Any) -> Message:
    if not isinstance(item, Mapping):
        raise BadDocument(f"a message is {type(item).__name__}, not an object")
    role = item.get("role", item.get("from"))
    if not isinstance(role, str) or role not in _ROLES:
        raise BadDocument(f"unknown role {role!r:.40}")
    message: Message = {"role": _ROLES[role]}
    content = item.get("content", item.get("value"))
    message["content"] = _content(content)
    for key in ("tool_calls", "tool_call_id", "name"):
        if item.get(key):
            message[key] = item[key]
    reasoning = item.get("reasoning_content", item.get("reasoning", item.get("thinking")))
    if isinstance(reasoning, str) and reasoning:
        message["reasoning_content"] = reasoning
    if content is None and not message.get("tool_calls") and "reasoning_content" not in message:
        raise BadDocument(f"a {message['role']} message has no content")
    return message


def _content(content: Any) -> str:
    """Text of a message; of multi-part content the text parts, images and sound left out."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        parts = []
        for part in content:
            if isinstance(part, str):
                parts.append(part)
            elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
                parts.append(part["text"])
            elif not isinstance(part, Mapping):
                raise BadDocument(f"a content part is {type(part).__name__}")
        return "".join(parts)
    raise BadDocument(f"content is {type(content).__name__}, not text")


def texts(messages: Sequence[Message], tokenizer: Tokenizer, kind: str, tools: Any = None) -> list[str]:
    """The stretches of rendered text to encode: the assistant's, the prompt's, or all of it in one.

    ``kind`` is ``assistant``, ``prompt`` or ``all``. Raises BadDocument when the
    template refuses the conversation or the parts cannot be told apart. Without
    a template the contents stand alone.
    """
    if not messages:
        raise BadDocument("the conversation is empty")
    if tokenizer.template is None:
        wanted = {"assistant": (True,), "prompt": (False,), "all": (True, False)}[kind]
        return [m["content"] for m in messages if m["content"] and (m["role"] == "assistant") in wanted]
    if kind == "all":
        return [_render(messages, tokenizer, tools)[0]]
    if _GENERATION.search(tokenizer.template):
        segments = _by_template(messages, tokenizer, tools)
    else:
        segments = _by_turns(messages, tokenizer, tools, with_prompts=kind == "prompt")
    return [text for text, said in segments if text and said == (kind == "assistant")]


def segments(messages: Sequence[Message], tokenizer: Tokenizer, tools: Any = None) -> list[Segment]:
    """The whole conversation as rendered, in stretches that the assistant wrote or did not. Raises BadDocument."""
    if not messages:
        raise BadDocument("the conversation is empty")
    if tokenizer.template is None:
        return [(m["content"], m["role"] == "assistant") for m in messages if m["content"]]
    if _GENERATION.search(tokenizer.template):
        return _by_template(messages, tokenizer, tools)
    return _by_turns(messages, tokenizer, tools, with_prompts=True)


def prompt_of(messages: Sequence[Message], tokenizer: Tokenizer, tools: Any = None) -> str:
    """The rendered conversation up to where the assistant would answer. Raises BadDocument."""
    if not messages:
        raise BadDocument("the conversation is empty")
    if tokenizer.template is None:
        return "".join(m["content"] for m in messages)
    return _render(messages, tokenizer, tools, add_generation_prompt=True)[0]


def _render(messages: Sequence[Message], tokenizer: Tokenizer, tools: Any, **options: Any) -> Any:
    import jinja2
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, spans = render_jinja_template(
            conversations=[list(messages)], chat_template=tokenizer.template, tools=tools or None,
            **tokenizer.special, **options,
        )
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise BadDocument(f"the chat template refuses it: {str(error)[:100]}") from None
    return rendered[0], spans


def _by_template(messages: Sequence[Message], tokenizer: Tokenizer, tools: Any) -> list[Segment]:
    text, spans = _render(messages, tokenizer, tools, return_assistant_tokens_mask=True)
    segments: list[Segment] = []
    at = 0
    for start, end in spans[0]:
        segments += [(text[at:start], False), (text[start:end], True)]
        at = end
    return [*segments, (text[at:], False)]


def _by_turns(
    messages: Sequence[Message], tokenizer: Tokenizer, tools: Any, *, with_prompts: bool
) -> list[Segment]:
    segments: list[Segment] = []
    done = ""
    index = 0
    while index < len(messages):
        if messages[index]["role"] != "assistant":
            index += 1
            continue
        after_turn = index + 1
        while after_turn < len(messages) and messages[after_turn]["role"] == "assistant":
            after_turn += 1
        before = _render(messages[:index], tokenizer, tools, add_generation_prompt=True)[0] if index else ""
        after = _render(messages[:after_turn], tokenizer, tools)[0]
        if not after.startswith(before):
            raise BadDocument("the chat template changes the prompt once the assistant has answered")
        said = _until_end_of_turn(after[len(before) :], tokenizer)
        if with_prompts:
            if not before.startswith(done):
                raise BadDocument("the chat template rewrites earlier turns, so the prompt's part cannot be told")
            segments.append((before[len(done) :], False))
            done = before + said
        segments.append((said, True))
        index = after_turn
    if with_prompts:
        whole = _render(messages, tokenizer, tools)[0]
        segments.append((whole[len(done) :] if whole.startswith(done) else "", False))
    return segments


def _until_end_of_turn(text: str, tokenizer: Tokenizer) -> str:
    """Generation stops at the end-of-turn token; the line break after it is the template's."""
    shown = text.rstrip()
    return shown if shown.endswith(tokenizer.ends) else text
