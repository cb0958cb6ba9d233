"""Counting: the same as a plain loop, whatever the format; which tokens; bad input; resuming."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import tokenizers
import torch
import zstandard
from safetensors.torch import save_file
from tiny import MARKED, make_tokenizer, write_lines

from eagle3_core.corpus.counting import count
from eagle3_core.corpus.counts import FOLDS, merge_counts, read_counts, write_counts
from eagle3_core.corpus.tokenizer import Tokenizer, load_tokenizer
from eagle3_core.errors import Eagle3Error


def histogram(ids: list[int], vocab: int) -> np.ndarray:
    return np.bincount(np.asarray(ids, dtype=np.int64), minlength=vocab)


CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hello there"}, {"role": "user", "content": "again"},
        {"role": "assistant", "content": "the cat sat"}]


def test_a_ten_line_loop_gives_the_same_counts_on_the_sample(samples: Path, tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    got = count([samples / "chats.jsonl"], tokenizer, domain_field="source", processes=2)
    backend = tokenizers.Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    from jinja2 import Environment

    template = Environment().from_string(tokenizer.template or "")
    want: dict[str, Counter[int]] = {}
    for line in (samples / "chats.jsonl").open(encoding="utf-8"):
        row = json.loads(line)
        for i, message in enumerate(row["messages"]):
            if message["role"] == "assistant":
                prompt = template.render(messages=row["messages"][:i], add_generation_prompt=True)
                full = template.render(messages=row["messages"][: i + 1])
                assert full.startswith(prompt)
                ids = backend.encode(full[len(prompt) :].rstrip(), add_special_tokens=False).ids
                want.setdefault(row["source"], Counter()).update(ids)
    assert got.domains == tuple(sorted(want))
    for index, name in enumerate(got.domains):
        np.testing.assert_array_equal(got.by_domain[index], histogram(list(want[name].elements()), got.vocab_size))


@pytest.mark.parametrize("name", ["en_chat", "math", "code", "zh"])
def test_a_plain_loop_gives_the_same_counts_on_reference_text(shared: Path, tokenizer_folder: Path, name: str) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    source = shared / "corpora" / f"{name}.jsonl.gz"
    few = []
    with gzip.open(source, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file):
            if number % 20 == 0:
                few.append(json.loads(line)["text"])
    backend = tokenizers.Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    want = np.zeros(tokenizer.size, dtype=np.int64)
    for text in few:
        want += histogram(backend.encode(text, add_special_tokens=False).ids, tokenizer.size)
    from eagle3_core.corpus.pieces import PieceEncoder

    assert tokenizer.spec is not None
    encoder, pieces, ids = PieceEncoder(tokenizer.spec), Counter[str](), Counter[int]()
    for text in few:
        encoder.count(text, pieces, ids)
    for piece, repeats in pieces.items():
        for token_id in encoder.ids_of_piece(piece):
            ids[token_id] += repeats
    np.testing.assert_array_equal(histogram(list(ids.elements()), tokenizer.size), want)


def test_only_what_the_assistant_generates_is_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    got = count([write_lines(tmp_path / "a.jsonl", [{"messages": CHAT}])], tokenizer, processes=1)
    # By hand: two turns, each up to its end-of-turn token; no header, no line break after it.
    want = [i for text in ("hello there<|im_end|>", "the cat sat<|im_end|>") for i in tokenizer.encode([text])[0]]
    np.testing.assert_array_equal(got.total, histogram(want, tokenizer.size))


def test_prompt_and_assistant_add_up_to_all_but_template_line_breaks(tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = [write_lines(tmp_path / "a.jsonl", [{"messages": CHAT}])]
    parts = {kind: count(data, tokenizer, tokens=kind, processes=1).tokens for kind in ("assistant", "prompt", "all")}
    assert parts["assistant"] > 0
    assert parts["prompt"] > 0
    # Each of the two turns ends with a line break that belongs to neither.
    assert parts["assistant"] + parts["prompt"] <= parts["all"] <= parts["assistant"] + parts["prompt"] + 2


def test_tool_turns_count_the_call_and_not_the_result(tokenizer: Tokenizer, tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "hello", "arguments": {}}}
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "the mat"}, {"role": "assistant", "content": "the cat"}]
    got = count([write_lines(tmp_path / "a.jsonl", [{"messages": messages}])], tokenizer, processes=1)
    texts = ("<tool_call>hello</tool_call><|im_end|>", "the cat<|im_end|>")
    want = [i for text in texts for i in tokenizer.encode([text])[0]]
    np.testing.assert_array_equal(got.total, histogram(want, tokenizer.size))


def test_a_template_with_generation_marks_is_believed(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(make_tokenizer(tmp_path / "marked", template=MARKED))
    got = count([write_lines(tmp_path / "a.jsonl", [{"messages": CHAT}])], tokenizer, processes=1)
    want = [i for text in ("hello there<|im_end|>", "the cat sat<|im_end|>") for i in tokenizer.encode([text])[0]]
    np.testing.assert_array_equal(got.total, histogram(want, tokenizer.size))


SAME = [
    {"messages": CHAT},
    {"conversations": [{"from": {"system": "system", "user": "human", "assistant": "gpt"}[m["role"]],
                        "value": m["content"]} for m in CHAT]},
    {"messages": [m | {"content": [{"type": "text", "text": m["content"]}, {"type": "image_url", "image_url": "x"}]}
                  for m in CHAT]},
    {"prompt": CHAT[:-1], "response": CHAT[-1]["content"]},
]


def test_every_spelling_of_a_conversation_counts_alike(tokenizer: Tokenizer, tmp_path: Path) -> None:
    results = [count([write_lines(tmp_path / f"{i}.jsonl", [row])], tokenizer, processes=1).total
               for i, row in enumerate(SAME)]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


IDS, MASK = [5, 6, 7, 7], [0, 1, 1, 1]


def containers(folder: Path) -> list[Path]:
    """The same ids and mask in every container that trainers write."""
    folder.mkdir()
    row = {"input_ids": IDS, "loss_mask": MASK}
    ids, mask = torch.tensor(IDS), torch.tensor(MASK)
    paths = [write_lines(folder / "a.jsonl", [row]), folder / "b.jsonl.gz", folder / "c.jsonl.zst", folder / "d.json",
             folder / "e.parquet", folder / "f.arrow", folder / "g.ckpt", folder / "h.pt", folder / "hs_0.safetensors",
             folder / "i.ckpt.gz"]
    line = (json.dumps(row) + "\n").encode()
    paths[1].write_bytes(gzip.compress(line))
    paths[2].write_bytes(zstandard.compress(line))
    paths[3].write_text(json.dumps([row]))
    pl.DataFrame({"input_ids": [IDS], "loss_mask": [MASK]}).write_parquet(paths[4])
    table = pa.table({"input_ids": [IDS], "loss_mask": [MASK]})
    with pa.OSFile(str(paths[5]), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    torch.save({"input_ids": ids, "loss_mask": mask, "hidden_state": torch.randn(1, 4, 8),
                "aux_hidden_state": torch.randn(1, 4, 24)}, paths[6])
    torch.save({"input_ids": ids, "loss_mask": mask, "hidden_states": torch.randn(4, 8),
                "aux_hidden_states": torch.randn(4, 24), "conversation_id": "x"}, paths[7])
    save_file({"token_ids": ids, "loss_mask": mask, "hidden_states": torch.randn(4, 4, 8)}, paths[8])
    paths[9].write_bytes(gzip.compress(paths[6].read_bytes()))
    return paths


def test_every_container_of_ids_counts_alike(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for path in containers(tmp_path / "x"):
        got = count([path], tokenizer, processes=1)
        np.testing.assert_array_equal(got.total, histogram([6, 7, 7], tokenizer.size), err_msg=path.name)


def test_bare_id_columns_and_frequencies_are_counted_whole(tokenizer: Tokenizer, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(IDS))
    pl.DataFrame({"ids": IDS}).write_parquet(tmp_path / "b.parquet")
    torch.save({5: 1, 6: 1, 7: 2}, tmp_path / "token_freq.pt")
    for name in ("a.npy", "b.parquet", "token_freq.pt"):
        got = count([tmp_path / name], tokenizer, processes=1)
        np.testing.assert_array_equal(got.total, histogram(IDS, tokenizer.size), err_msg=name)


def test_a_mixed_folder_is_the_sum_of_its_files(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    paths = [p for p in containers(folder) if p.suffix != ".safetensors"]
    (folder / "README.rst").write_text("not data")
    got = count([folder], tokenizer, processes=2)
    # The speculators dump repeats its arrow rows and is left out beside them.
    np.testing.assert_array_equal(got.total, len(paths) * histogram([6, 7, 7], tokenizer.size))


def test_duplicates_fall_in_one_fold_and_order_does_not_matter(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = [{"text": f"the cat number {i % 40}"} for i in range(400)]
    forward = count([write_lines(tmp_path / "a.jsonl", rows)], tokenizer, processes=1)
    backward = count([write_lines(tmp_path / "b.jsonl", rows[::-1])], tokenizer, processes=2)
    np.testing.assert_array_equal(forward.counts, backward.counts)
    assert sum(forward.meta.documents[0]) == 400
    # Forty distinct documents, ten copies each: every fold holds a multiple of ten.
    assert all(n % 10 == 0 for n in forward.meta.documents[0])
    assert len(forward.meta.documents[0]) == FOLDS


def test_domains_come_from_file_names_or_a_field(tokenizer: Tokenizer, tmp_path: Path) -> None:
    a = write_lines(tmp_path / "code_1.jsonl", [{"text": "def add"}])
    b = write_lines(tmp_path / "chat_1.jsonl", [{"text": "hello there"}])
    assert count([a, b], tokenizer, domains={"c": "code*", "d": "chat*"}, processes=1).domains == ("c", "d")
    with pytest.raises(Eagle3Error, match=r"chat_1\.jsonl: belongs to no --domain"):
        count([a, b], tokenizer, domains={"c": "code*"}, processes=1)
    c = write_lines(tmp_path / "x.jsonl", [{"text": "a", "source": "s1"}, {"text": "b", "source": "s2"}])
    assert count([c], tokenizer, domain_field="source", processes=1).domains == ("s1", "s2")


def test_v_comes_from_the_target_and_padding_rows_are_kept(tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = [write_lines(tmp_path / "a.jsonl", [{"text": "hello"}])]
    got = count(data, tokenizer, vocab_size=tokenizer.size + 64, processes=1)
    assert got.vocab_size == tokenizer.size + 64
    assert got.role.to_list()[-64:] == ["padding"] * 64
    with pytest.raises(Eagle3Error, match="longer than the target"):
        count(data, tokenizer, vocab_size=tokenizer.size - 1, processes=1)


BAD = {
    "not_json": b"{\n", "not_object": b"[1]\n", "no_fields": b"{}\n", "bad_utf8": b'{"text": "\xff"}\n',
    "nan": b'{"input_ids": [1, NaN]}\n', "fraction": b'{"input_ids": [1.5]}\n',
    "too_large": b'{"input_ids": [99999999]}\n',
    "negative": b'{"input_ids": [-1]}\n', "mask": b'{"input_ids": [1], "loss_mask": [1, 1]}\n',
    "role": b'{"messages": [{"role": "king", "content": "x"}]}\n', "no_content": b'{"messages": [{"role": "user"}]}\n',
    "deep": b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"\n", "empty_chat": b'{"messages": []}\n',
}


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_line_is_kept_aside_with_its_place(tokenizer: Tokenizer, tmp_path: Path, name: str) -> None:
    data, out = tmp_path / "a.jsonl", tmp_path / "x.counts.parquet"
    data.write_bytes(b'{"text": "hello"}\n' + BAD[name] + b'{"text": "there"}\n')
    got = count([data], tokenizer, processes=1, max_bad=0.5, out=out)
    assert got.meta.rejected == 1
    rejected = json.loads((tmp_path / "x.counts.parquet.rejected.jsonl").read_text())
    assert (rejected["file"], rejected["line"]) == ("a.jsonl", 2)
    assert rejected["reason"]
    with pytest.raises(Eagle3Error, match=r"1 of 3 records are bad, first a\.jsonl line 2"):
        count([data], tokenizer, processes=1, max_bad=0.01)


def test_byte_order_mark_crlf_and_blank_lines_are_harmless(tokenizer: Tokenizer, tmp_path: Path) -> None:
    plain = write_lines(tmp_path / "a.jsonl", [{"text": "hello"}, {"text": "there"}])
    odd = tmp_path / "b.jsonl"
    odd.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n\r\n"))
    np.testing.assert_array_equal(*(count([p], tokenizer, processes=1).counts for p in (plain, odd)))


def test_an_empty_document_counts_as_one_without_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    got = count([write_lines(tmp_path / "a.jsonl", [{"text": ""}, {"text": "hi"}])], tokenizer, processes=1)
    assert sum(got.meta.documents[0]) == 2
    assert got.tokens == len(tokenizer.encode(["hi"])[0])


@pytest.mark.slow
def test_a_hundred_megabytes_on_one_line_are_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    repeats = 20_000_000
    with path.open("w") as file:
        file.write('{"text": "' + "hello " * repeats + '"}\n')
    got = count([path], tokenizer, processes=1)
    # The split takes the space with the word that follows; the last one stands alone.
    one = histogram(tokenizer.encode(["hello"])[0].tolist(), tokenizer.size)
    word = histogram(tokenizer.encode([" hello"])[0].tolist(), tokenizer.size)
    space = histogram(tokenizer.encode([" "])[0].tolist(), tokenizer.size)
    np.testing.assert_array_equal(got.total, one + (repeats - 1) * word + space)


def test_a_cut_off_gzip_names_the_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "hello"}\n' * 1000)[:-20])
    with pytest.raises(Eagle3Error, match=r"a\.jsonl\.gz: is cut off"):
        count([path], tokenizer, processes=1)


def test_no_data_is_an_error_and_not_an_empty_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    for data in ([tmp_path / "a.jsonl"], [tmp_path / "missing"], [tmp_path / "*.csv"]):
        with pytest.raises(Eagle3Error):
            count(data, tokenizer, processes=1)


def test_resuming_reads_finished_files_no_more(tokenizer: Tokenizer, tmp_path: Path) -> None:
    files = [write_lines(tmp_path / f"{i}.jsonl", [{"text": f"hello {i}"}] * 20) for i in range(3)]
    out = tmp_path / "x.counts.parquet"
    whole = count(files, tokenizer, processes=1)

    class Stop(Exception):
        pass

    def stop_after_two(done: int, total: int) -> None:
        if done > total / 2:
            raise Stop

    with pytest.raises(Stop):
        count(files, tokenizer, processes=1, out=out, progress=stop_after_two)
    assert len(list((tmp_path / ".x.counts.parquet.parts").glob("0*.json"))) == 2
    got = count(files, tokenizer, processes=1, out=out, resume=True)
    np.testing.assert_array_equal(got.counts, whole.counts)
    assert not (tmp_path / ".x.counts.parquet.parts").exists()


def test_a_counts_file_reads_back_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    got = count([write_lines(tmp_path / "a.jsonl", [{"text": "hello there"}])], tokenizer, processes=1)
    write_counts(got, tmp_path / "x.counts.parquet")
    back = read_counts(tmp_path / "x.counts.parquet")
    np.testing.assert_array_equal(back.counts, got.counts)
    assert back.meta == got.meta
    assert back.token.to_list() == got.token.to_list()
    assert back.role.to_list() == got.role.to_list()


def test_merging_adds_one_tokenizers_counts_and_refuses_others(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = [{"text": "hello there"}, {"text": "the cat"}]
    a, b = (count([write_lines(tmp_path / f"{i}.jsonl", [row])], tokenizer, processes=1) for i, row in enumerate(rows))
    both = count([write_lines(tmp_path / "ab.jsonl", rows)], tokenizer, processes=1)
    merged = merge_counts([a, b])
    np.testing.assert_array_equal(merged.counts, both.counts)
    assert merged.meta.documents == both.meta.documents
    other = load_tokenizer(make_tokenizer(tmp_path / "other", vocab=300))
    with pytest.raises(Eagle3Error, match="cannot be merged"):
        merge_counts([a, count([write_lines(tmp_path / "c.jsonl", rows)], other, processes=1)])
    prompts = count([write_lines(tmp_path / "d.jsonl", rows)], tokenizer, tokens="prompt", processes=1)
    with pytest.raises(Eagle3Error, match="different tokens"):
        merge_counts([a, prompts])


def test_damaged_counts_files_give_one_line(tokenizer: Tokenizer, tmp_path: Path) -> None:
    got = count([write_lines(tmp_path / "a.jsonl", [{"text": "hello there"}])], tokenizer, processes=1)
    write_counts(got, tmp_path / "good.parquet")
    whole = (tmp_path / "good.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.parquet").write_text("hello")
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    for name in ("cut", "text", "other", "missing"):
        with pytest.raises(Eagle3Error, match=rf"{name}\.parquet") as error:
            read_counts(tmp_path / f"{name}.parquet")
        assert "\n" not in str(error.value)
