"""Conversations: one shape from many, rendered by the target's chat template, with the assistant's part marked.

The drafter proposes what the target generates, so by default only those tokens
are counted. Where the template marks them with ``{% generation %}`` it is
believed. Elsewhere the part a turn adds to the rendered conversation before it
(generation prompt included) is the assistant's, checked to be a true extension:
templates that rewrite earlier turns fail the check and the line is rejected.
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


def render(messages: Sequence[Message], tokenizer: Tokenizer, tools: Any = None) -> list[Segment]:
    """The conversation as the target sees it, cut where the speaker changes.

    Raises BadDocument when the template refuses it or rewrites earlier turns.
    Without a template the contents stand alone, one segment a message.
    """
    if not messages:
        raise BadDocument("the conversation is empty")
    if tokenizer.template is None:
        return [(m["content"], m["role"] == "assistant") for m in messages if m["content"]]
    if _GENERATION.search(tokenizer.template):
        return _by_template(messages, tokenizer, tools)
    return _by_prefixes(messages, tokenizer, tools)


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
    segments.append((text[at:], False))
    return [segment for segment in segments if segment[0]]


def _by_prefixes(messages: Sequence[Message], tokenizer: Tokenizer, tools: Any) -> list[Segment]:
    segments: list[Segment] = []
    done = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or (index and messages[index - 1]["role"] == "assistant"):
            continue
        last = index
        while last + 1 < len(messages) and messages[last + 1]["role"] == "assistant":
            last += 1
        before = _render(messages[:index], tokenizer, tools, add_generation_prompt=True)[0] if index else ""
        after = _render(messages[: last + 1], tokenizer, tools)[0]
        if not before.startswith(done) or not after.startswith(before):
            raise BadDocument("the chat template rewrites earlier turns, so the assistant's part cannot be told")
        segments += [(before[len(done) :], False), (after[len(before) :], True)]
        done = after
    whole = _render(messages, tokenizer, tools)[0]
    if not whole.startswith(done):
        raise BadDocument("the chat template rewrites earlier turns, so the assistant's part cannot be told")
    segments.append((whole[len(done) :], False))
    return [segment for segment in segments if segment[0]]
