"""How fast text and ids become counts, against plain encoding on the same cores in the same run.

    python -m tests.benchmarks.counting TOKENIZER TEXT.jsonl.gz...

Text: every line's ``text``, from JSONL files to exact counts on two processes,
reading and parsing included, against ``encode_batch_fast`` of ``tokenizers`` and
``encode_ordinary_batch`` of ``tiktoken`` on two threads with the texts in memory.
Ids: 200 million in rows of 2,048 with a mask, in arrow files as trainers keep them,
against a ``Counter`` of the masked ids per sample read with ``datasets``, timed on 2 million and scaled.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from eagle3_core.cli.output import print_table
from eagle3_core.corpus.counting import count
from eagle3_core.corpus.tokenizer import Tokenizer, load_tokenizer
from eagle3_core.errors import Eagle3Error

REPEATS = 3
IDS, SLICE, SAMPLE = 204_800_000, 2_048_000, 2_048


def timed(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def text_rows(tokenizer: Tokenizer, folder: Path, sources: list[Path], where: Path) -> list[tuple[str, ...]]:
    """Rows of the table for text, after a check that the counts are those of plain encoding."""
    import tiktoken
    import tokenizers

    spec = tokenizer.spec
    if spec is None:
        raise Eagle3Error("is not counted by pieces", where=tokenizer.name, found="; ".join(tokenizer.notes))
    texts: list[str] = []
    for source in sources:
        with gzip.open(source, "rt", encoding="utf-8") as file:
            texts += [json.loads(line)["text"] for line in file]
    # One file a process at least, so that no process waits for another's file.
    data = []
    for part in range(2):
        data.append(where / f"part{part}.jsonl")
        data[-1].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[part::2]), encoding="utf-8")
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain = tiktoken.Encoding("plain", pat_str=spec.stages[0], mergeable_ranks=dict(spec.ranks), special_tokens={})
    want = np.zeros(tokenizer.size, dtype=np.int64)
    for item in backend.encode_batch_fast(texts, add_special_tokens=False):
        want += np.bincount(item.ids, minlength=tokenizer.size)
    got = count(data, tokenizer, tokens="all", processes=2)
    if not np.array_equal(got.total, want):
        raise Eagle3Error("counts differ from plain encoding", where=tokenizer.name)
    ours = timed(lambda: count(data, tokenizer, tokens="all", processes=2))
    fast = timed(lambda: backend.encode_batch_fast(texts, add_special_tokens=False))
    tik = timed(lambda: plain.encode_ordinary_batch(texts, num_threads=2))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    return [
        (f"{megabytes:.1f} MB of text, tokenizers", f"{ours:.2f}", f"{fast:.2f}", f"{fast / ours:.2f}", "3"),
        (f"{megabytes:.1f} MB of text, tiktoken", f"{ours:.2f}", f"{tik:.2f}", f"{tik / ours:.2f}", "1.2"),
    ]


def ids_row(tokenizer: Tokenizer, where: Path) -> tuple[str, ...]:
    """Rows of 2,048 ids with a mask of two turns, as trainers keep them, in arrow files; both sides read the files."""
    from datasets import Dataset

    random = np.random.default_rng(0)
    pool = (random.zipf(1.2, 4 * SLICE) % tokenizer.size).astype(np.int32)
    # Prompt, answer, prompt, answer: 60 % of a row is the assistant's.
    turns = np.repeat([False, True, False, True], [409, 614, 410, 615])
    files = []
    for part in range(IDS // (10 * SLICE)):
        files.append(where / f"ids{part}.arrow")
        starts = random.integers(0, 3 * SLICE, 10)
        values = np.concatenate([pool[start : start + SLICE] for start in starts.tolist()])
        offsets = np.append(np.arange(0, len(values), SAMPLE), len(values)).astype(np.int32)
        table = pa.table({
            "input_ids": pa.ListArray.from_arrays(offsets, values),
            "loss_mask": pa.ListArray.from_arrays(offsets, np.tile(turns, len(values) // SAMPLE)),
        })
        with pa.OSFile(str(files[-1]), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)
    ours = timed(lambda: count(files, tokenizer, processes=2))
    rows = Dataset.from_file(str(files[0])).with_format("numpy").select(range(SLICE // SAMPLE))

    def plain() -> None:
        total: Counter[int] = Counter()
        for row in rows:
            total.update(Counter(row["input_ids"][row["loss_mask"]].tolist()))  # type: ignore[index]

    slow = timed(plain) * IDS / SLICE
    return (f"{IDS:,} ids in rows of {SAMPLE:,}", f"{ours:.2f}", f"{slow:.2f}", f"{slow / ours:.1f}", "30")


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit((__doc__ or "").strip())
    os.environ["RAYON_NUM_THREADS"] = "2"
    folder = Path(sys.argv[1])
    tokenizer = load_tokenizer(folder)
    with tempfile.TemporaryDirectory() as temporary:
        where = Path(temporary)
        rows = text_rows(tokenizer, folder, [Path(name) for name in sys.argv[2:]], where)
        rows.append(ids_row(tokenizer, where))
    print_table(
        f"{tokenizer.name} on {platform.processor() or platform.machine()}, {os.cpu_count()} cores: "
        f"medians of {REPEATS}, seconds",
        ("work", "ours", "plain", "times faster", "target"), rows, left=1,
    )


if __name__ == "__main__":
    main()
