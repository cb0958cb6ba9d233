from __future__ import annotations

import json

import numpy as np
import pytest

from eagle3_core.corpus.tokenizer import Tokenizer
from eagle3_core.errors import Eagle3Error
from eagle3_core.extract.documents import encode_documents

TEMPLATE = ("{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }};\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


def _tokenizer(template=TEMPLATE):
    """One id a byte; ``;`` ends a turn."""
    return Tokenizer(
        name="bytes", token_bytes=tuple(bytes([i]) for i in range(256)),
        roles=tuple("end_of_turn" if i == ord(";") else "text" for i in range(256)),
        encode=lambda texts: [np.frombuffer(t.encode(), dtype=np.uint8).astype(np.int64) for t in texts],
        template=template)


def _file(tmp_path, *records):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"},
                     {"role": "user", "content": "more"}, {"role": "assistant", "content": "no"}], "topic": "t"}


def _text(document, keep=None):
    ids = document.ids if keep is None else document.ids[document.mask == keep]
    return bytes(ids.astype(np.uint8)).decode()


def test_the_whole_conversation_is_kept_and_the_assistants_part_marked(tmp_path):
    path = _file(tmp_path, CHAT)
    (document,), rejected = encode_documents([path], _tokenizer(), vocab_size=256, domain_field="topic")
    assert _text(document) == "<user>hi;\n<assistant>ho;\n<user>more;\n<assistant>no;\n"
    assert _text(document, True) == "ho;no;"
    assert document.domain == "t"
    assert rejected == []


def test_prompts_end_where_the_assistant_would_answer(tmp_path):
    (document,), _ = encode_documents([_file(tmp_path, CHAT)], _tokenizer(), vocab_size=256, prompts=True)
    assert _text(document) == "<user>hi;\n<assistant>ho;\n<user>more;\n<assistant>"
    assert not document.mask.any()


def test_documents_are_cut_prompts_are_not(tmp_path):
    path = _file(tmp_path, CHAT)
    (document,), _ = encode_documents([path], _tokenizer(), vocab_size=256, max_length=30)
    assert len(document.ids) == 30
    with pytest.raises(Eagle3Error, match="more than 30"):
        encode_documents([path], _tokenizer(), vocab_size=256, max_length=30, prompts=True)


def test_bad_records_are_listed_and_the_rest_used(tmp_path):
    path = _file(tmp_path, CHAT, {"nothing": 1}, {"text": "plain"}, {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]},
                 {"input_ids": [1, 2, 300]})
    documents, rejected = encode_documents([path], _tokenizer(), vocab_size=256)
    assert [len(d.ids) for d in documents][1:] == [5, 3]
    assert documents[2].mask.tolist() == [False, True, True]
    assert [r.line for r in rejected] == [2, 5]


def test_without_a_template_the_contents_stand_in_order(tmp_path):
    (document,), _ = encode_documents([_file(tmp_path, CHAT)], _tokenizer(None), vocab_size=256)
    assert _text(document) == "hihomoreno"
    assert _text(document, True) == "hono"


def test_a_limit_stops_early(tmp_path):
    documents, _ = encode_documents([_file(tmp_path, CHAT, CHAT, CHAT)], _tokenizer(), vocab_size=256, limit=2)
    assert len(documents) == 2
