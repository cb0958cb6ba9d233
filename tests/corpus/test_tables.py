"""Tables of ids, counted in stretches by workers: the same as a loop over their rows, and whatever happens to them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import write_lines

from eagle3_core.corpus import id_tables
from eagle3_core.corpus.chat import segments
from eagle3_core.corpus.counting import count
from eagle3_core.corpus.tokenizer import Tokenizer
from eagle3_core.errors import Eagle3Error

Rows = list[tuple[list[int], list[int]]]


def rows_of(tokenizer: Tokenizer, number: int = 300) -> Rows:
    random = np.random.default_rng(0)
    made = []
    for _ in range(number):
        length = int(random.integers(0, 40))
        made.append((random.integers(0, tokenizer.size, length).tolist(), random.integers(0, 2, length).tolist()))
    # A duplicate, so that folds by content can be seen.
    return [*made, made[7]]


def arrow(path: Path, rows: Rows, batch: int = 64, *, stream: bool = True, mask: str = "loss_mask") -> Path:
    table = pa.table({"input_ids": [ids for ids, _ in rows], mask: [mask for _, mask in rows],
                      "hidden_states": [[0.5, 0.25]] * len(rows)})
    opened = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, opened(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


def parquet(path: Path, rows: Rows, group: int = 50) -> Path:
    pq.write_table(pa.table({"input_ids": [ids for ids, _ in rows], "loss_mask": [mask for _, mask in rows]}), path,
                   row_group_size=group)
    return path


def by_rows(path: Path, rows: Rows) -> Path:
    return write_lines(path, [{"input_ids": ids, "loss_mask": mask} for ids, mask in rows])


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("kind", ["assistant", "prompt", "all"])
def test_a_ten_line_loop_over_the_rows_gives_the_same_counts(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, processes: int
) -> None:
    monkeypatch.setattr(id_tables, "SPAN_IDS", 1000)
    rows = rows_of(tokenizer)
    want: Counter[int] = Counter()
    for ids, mask in rows:
        for token, said in zip(ids, mask, strict=True):
            if kind == "all" or (said == 1) == (kind == "assistant"):
                want[token] += 1
    lines = count([by_rows(tmp_path / "rows.jsonl", rows)], tokenizer, tokens=kind, processes=1)  # type: ignore[arg-type]
    for path in (arrow(tmp_path / "a.arrow", rows), arrow(tmp_path / "b.arrow", rows, stream=False),
                 arrow(tmp_path / "c.arrow", rows, mask="assistant_masks"), parquet(tmp_path / "d.parquet", rows)):
        spans = id_tables.spans_of(path)
        assert spans is not None
        assert len(spans) > 2
        got = count([path], tokenizer, tokens=kind, processes=processes)  # type: ignore[arg-type]
        assert {i: n for i, n in enumerate(got.total.tolist()) if n} == dict(want), path.name
        # Folds too are those of the same rows in lines.
        np.testing.assert_array_equal(got.counts, lines.counts, err_msg=path.name)
        assert got.meta.documents == lines.meta.documents


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_arrays_of_every_width_count_alike(tokenizer: Tokenizer, tmp_path: Path, dtype: str) -> None:
    ids = np.arange(600).reshape(30, 20) % tokenizer.size
    np.save(tmp_path / "a.npy", ids.astype(dtype))
    got = count([tmp_path / "a.npy"], tokenizer, processes=2)
    np.testing.assert_array_equal(got.total, np.bincount(ids.ravel(), minlength=tokenizer.size))
    assert sum(map(sum, got.meta.documents)) == 30


def test_a_bare_column_is_one_document_however_it_is_cut(tokenizer: Tokenizer, tmp_path: Path) -> None:
    ids = np.arange(3000, dtype=np.int32) % tokenizer.size
    table = pa.table({"ids": ids})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)
    np.save(tmp_path / "c.npy", ids)
    got = [count([tmp_path / name], tokenizer, processes=1) for name in ("a.parquet", "b.arrow", "c.npy")]
    for one in got:
        np.testing.assert_array_equal(one.counts, got[0].counts)
        assert sum(map(sum, one.meta.documents)) == 1


def test_bad_rows_of_a_table_keep_their_places(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = rows_of(tokenizer)
    good = rows.copy()
    rows[70] = ([1, tokenizer.size, 2], [1, 1, 1])
    rows[130] = ([1, 2], [1, 1, 1])
    rows[200] = ([-1], [1])
    for index in (200, 130, 70):
        del good[index]
    want = count([by_rows(tmp_path / "good.jsonl", good)], tokenizer, processes=1)
    for path in (arrow(tmp_path / "a.arrow", rows), parquet(tmp_path / "b.parquet", rows)):
        out = tmp_path / f"{path.name}.counts.parquet"
        got = count([path], tokenizer, processes=2, out=out, max_bad=0.05)
        np.testing.assert_array_equal(got.counts, want.counts, err_msg=path.name)
        kept = [json.loads(line) for line in (tmp_path / f"{out.name}.rejected.jsonl").open()]
        assert [(row["line"], row["reason"].split()[0]) for row in kept] == [
            (71, "id"), (131, "loss_mask"), (201, "id")], path.name


def test_a_damaged_table_gives_one_line(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for path in (arrow(tmp_path / "a.arrow", rows_of(tokenizer)), parquet(tmp_path / "b.parquet", rows_of(tokenizer))):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(Eagle3Error, match=path.name):
            count([path], tokenizer, processes=2)


def test_a_multi_turn_tool_conversation_has_the_mask_made_by_hand(tokenizer: Tokenizer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "hello", "arguments": {}}}
    messages = [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "the mat"},
        {"role": "assistant", "content": "the cat"}, {"role": "user", "content": "again"},
        {"role": "assistant", "content": "the dog"},
    ]
    by_hand = [
        ("<|im_start|>system\nbe brief<|im_end|><|im_start|>user\nhello<|im_end|><|im_start|>assistant\n", False),
        ("<tool_call>hello</tool_call><|im_end|>", True),
        ("<|im_start|>tool\nthe mat<|im_end|><|im_start|>assistant\n", False),
        ("the cat<|im_end|>", True),
        ("<|im_start|>user\nagain<|im_end|><|im_start|>assistant\n", False),
        ("the dog<|im_end|>", True),
    ]
    made = [(text, said) for text, said in segments(messages, tokenizer) if text.strip()]
    assert [(text.replace("\n", ""), said) for text, said in made] == [
        (text.replace("\n", ""), said) for text, said in by_hand]


def started(tokenizer_folder: Path, data: Path, out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "eagle3_core.cli.main", "count", str(data), "--tokenizer", str(tokenizer_folder),
         "--tokens", "all", "--processes", "2", "--out", str(out)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def wait_for(condition, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def test_interrupted_it_leaves_no_half_file_and_resumes(
    tokenizer: Tokenizer, tokenizer_folder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(40):
        write_lines(data / f"{number:02}.jsonl",
                    [{"text": f"{number} the cat sat on {line} mats"} for line in range(8000)])
    out = tmp_path / "x.counts.parquet"
    parts = tmp_path / ".x.counts.parquet.parts"
    process = started(tokenizer_folder, data, out)
    wait_for(lambda: len(list(parts.glob("0*.json"))) >= 2)
    # As a terminal does it: to every process of the group.
    import os

    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert errors.strip().endswith(b"interrupted")
    assert not out.exists()
    assert 2 <= len(list(parts.glob("0*.json"))) < 40
    assert not list(parts.glob("*.part"))
    got = count([data], tokenizer, tokens="all", processes=2, out=out, resume=True)
    whole = count([data], tokenizer, tokens="all", processes=2)
    np.testing.assert_array_equal(got.counts, whole.counts)
    assert not parts.exists()


def peak_rss(process: subprocess.Popen[bytes]) -> int:
    """Largest sum of resident bytes over a process and its children; pages they share count more than once."""
    peak, root = 0, psutil.Process(process.pid)
    while process.poll() is None:
        held = 0
        try:
            for one in (root, *root.children(recursive=True)):
                held += one.memory_info().rss
        except psutil.NoSuchProcess:
            continue
        peak = max(peak, held)
        time.sleep(0.05)
    return peak


@pytest.mark.parametrize("kind", ["lines", "table"])
def test_two_processes_stay_under_a_gigabyte_and_a_half(tokenizer_folder: Path, tmp_path: Path, kind: str) -> None:
    random = np.random.default_rng(0)
    if kind == "table":
        path = tmp_path / "big.arrow"
        values = (random.zipf(1.3, 100_000_000) % 256).astype(np.int32)
        table = pa.table({"input_ids": pa.ListArray.from_arrays(np.arange(0, len(values) + 1, 2000, dtype=np.int32),
                                                                values)})
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)
    else:
        path = tmp_path / "big.jsonl"
        words = [f"w{number}" for number in range(50_000)]
        with path.open("w") as file:
            for _ in range(6000):
                chosen = " ".join(words[i] for i in random.integers(0, len(words), 1500))
                file.write(json.dumps({"text": chosen}) + "\n")
        assert path.stat().st_size > 40e6
    process = started(tokenizer_folder, path, tmp_path / "x.counts.parquet")
    peak = peak_rss(process)
    assert process.returncode == 0
    assert peak < 1.5e9
