"""Documents as token ids with the mask of what the drafter will have to propose, from any data a reader knows.

    ids   int64 [S]
    mask  bool  [S]   True where the assistant wrote the token (plain text: everywhere)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eagle3_core.corpus.chat import BadDocument, prompt_of, segments
from eagle3_core.corpus.counting import domain_of
from eagle3_core.corpus.readers import Document, document_of, expand, records_of
from eagle3_core.corpus.tokenizer import Tokenizer
from eagle3_core.errors import Eagle3Error


@dataclass(frozen=True, eq=False)
class Encoded:
    name: str
    ids: np.ndarray
    mask: np.ndarray
    domain: str = "all"


@dataclass(frozen=True)
class Rejected:
    file: str
    line: int
    why: str


def encode_documents(
    data: Sequence[str | Path], tokenizer: Tokenizer, *, vocab_size: int, max_length: int = 2048,
    fmt: str | None = None, domains: Mapping[str, str] | None = None, domain_field: str | None = None,
    prompts: bool = False, limit: int | None = None,
) -> tuple[list[Encoded], list[Rejected]]:
    """All documents, cut at ``max_length`` tokens, and the records that could not be used.

    ``prompts`` keeps only what comes before the last assistant turn, for the
    target to answer; a prompt longer than ``max_length`` is rejected, not cut.
    """
    made: list[Encoded] = []
    rejected: list[Rejected] = []
    for file in expand(data):
        domain = domain_of(file, domains)
        for record in records_of(file, fmt):
            if limit is not None and len(made) >= limit:
                return made, rejected
            try:
                document = document_of(record, vocab_size=vocab_size, domain_field=domain_field)
                ids, mask = _encode(document, tokenizer, prompts=prompts)
                if prompts and len(ids) > max_length:
                    raise BadDocument(f"the prompt has {len(ids)} tokens, more than {max_length}")
            except BadDocument as error:
                rejected.append(Rejected(file.name, record.line, str(error)))
                continue
            ids, mask = ids[:max_length], mask[:max_length]
            if len(ids) < 2 or not (prompts or mask.any()):
                rejected.append(Rejected(file.name, record.line, "nothing for the drafter to propose"))
                continue
            made.append(Encoded(f"{file.name}:{record.line}", ids, mask, document.domain or domain))
    if not made:
        why = f"{rejected[0].file} line {rejected[0].line}: {rejected[0].why}" if rejected else "no records"
        raise Eagle3Error("no usable documents", where=", ".join(map(str, data))[:120], found=why)
    return made, rejected


def _encode(document: Document, tokenizer: Tokenizer, *, prompts: bool) -> tuple[np.ndarray, np.ndarray]:
    if document.weights is not None:
        raise BadDocument("is a histogram, not text")
    if document.ids is not None:
        ids = document.ids.astype(np.int64)
        mask = np.ones(len(ids), dtype=bool) if document.mask is None else np.asarray(document.mask, dtype=bool)
        if prompts:
            first = int(np.argmax(mask)) if mask.any() else len(ids)
            return ids[:first], mask[:first]
        return ids, mask
    if document.messages is None:
        ids = tokenizer.encode([document.text or ""])[0].astype(np.int64)
        return ids, np.ones(len(ids), dtype=bool)
    if prompts:
        messages = list(document.messages)
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
        ids = tokenizer.encode([prompt_of(messages, tokenizer, document.tools)])[0].astype(np.int64)
        return ids, np.zeros(len(ids), dtype=bool)
    parts = [(text, said) for text, said in segments(document.messages, tokenizer, document.tools) if text]
    encoded = tokenizer.encode([text for text, _ in parts])
    ids = np.concatenate([np.asarray(part, dtype=np.int64) for part in encoded] or [np.zeros(0, dtype=np.int64)])
    mask = np.repeat([said for _, said in parts], [len(part) for part in encoded]).astype(bool)
    return ids, mask
