"""The same counts from every engine and place: Ray, byte ranges, URLs; merged on the command line."""

from __future__ import annotations

import gzip
import json
import os
import signal
import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import psutil
import pytest
from tiny import write_lines
from typer.testing import CliRunner

from eagle3_core.cli.main import app
from eagle3_core.corpus import ray_engine
from eagle3_core.corpus.counting import count
from eagle3_core.corpus.counts import read_counts, write_counts
from eagle3_core.corpus.readers import can_be_split, lines_between
from eagle3_core.corpus.tokenizer import Tokenizer
from eagle3_core.errors import Eagle3Error

WORDS = ["the cat sat", "on the mat", "def add(a, b):", "2 + 2 = 4", "ünïcode, 中文 and more", "x" * 400]


def corpus(folder: Path, lines: int, bad: tuple[int, ...] = ()) -> Path:
    path = folder / "chats.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for i in range(lines):
            if i in bad:
                file.write("{not json\n")
            elif i % 11 == 3:
                file.write("\n")
            else:
                row = {"text": f"{WORDS[i % len(WORDS)]} {i}", "source": ("code", "chat")[i % 2]}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


@pytest.mark.parametrize("size", [64, 999, 1 << 20])
def test_byte_ranges_hold_every_line_once(tmp_path: Path, size: int) -> None:
    path = corpus(tmp_path, 300)
    whole = [r.raw for r in lines_between(path, 0, path.stat().st_size)]
    ranges = range(0, path.stat().st_size, size)
    assert [r.raw for start in ranges for r in lines_between(path, start, start + size)] == whole
    assert len(whole) == sum(1 for line in path.read_bytes().splitlines() if line)


def test_only_plain_lines_are_split(tmp_path: Path) -> None:
    assert can_be_split(tmp_path / "a.jsonl")
    assert not can_be_split(tmp_path / "a.jsonl.gz")
    assert not can_be_split(tmp_path / "a.parquet")


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    yield ray
    ray.shutdown()


def equal(a, b) -> None:
    np.testing.assert_array_equal(a.counts, b.counts)
    assert a.token.equals(b.token)
    assert a.role.equals(b.role)
    assert a.meta.model_copy(update={"created": ""}) == b.meta.model_copy(update={"created": ""})


def test_ray_counts_what_one_process_counts_to_the_byte(cluster, tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = corpus(tmp_path, 400, bad=(57, 333))
    other = tmp_path / "b.jsonl.gz"
    other.write_bytes(gzip.compress(b'{"text": "zipped", "source": "chat"}\n'))
    options = {"tokens": "all", "domain_field": "source", "max_bad": 0.02}
    here = count([path, other], tokenizer, processes=1, out=tmp_path / "here.parquet", **options)
    there = count([path, other], tokenizer, engine="ray", out=tmp_path / "there.parquet", **options)
    equal(here, there)
    for name, got in (("here", here), ("there", there)):
        write_counts(got.__class__(got.counts, got.token, got.role, got.meta.model_copy(update={"created": "-"})),
                     tmp_path / f"{name}.counts.parquet")
    assert (tmp_path / "here.counts.parquet").read_bytes() == (tmp_path / "there.counts.parquet").read_bytes()


def test_bad_lines_of_a_range_keep_their_line_numbers(
    cluster, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine.RayEngine.__init__, "__defaults__", (2_000,))
    path = corpus(tmp_path, 400, bad=(57, 333))
    out = tmp_path / "there.parquet"
    there = count([path], tokenizer, tokens="all", engine="ray", out=out, max_bad=0.02)
    rejected = [json.loads(line) for line in (tmp_path / "there.parquet.rejected.jsonl").read_text().splitlines()]
    assert [row["line"] for row in rejected] == [58, 334]
    equal(count([path], tokenizer, tokens="all", processes=1, max_bad=0.02), there)


def test_a_killed_worker_is_replaced_and_nothing_is_lost(
    cluster, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine.RayEngine.__init__, "__defaults__", (200_000,))
    path = corpus(tmp_path, 60_000)
    killed: list[int] = []
    done = threading.Event()

    def kill_one() -> None:
        while not done.is_set() and not killed:
            for process in psutil.process_iter(["name", "cmdline"]):
                line = " ".join(process.info["cmdline"] or [])
                if line.startswith("ray::count_shard") and process.ppid() in raylets:
                    os.kill(process.pid, signal.SIGKILL)
                    killed.append(process.pid)
                    return
            time.sleep(0.005)

    me = psutil.Process()
    raylets = {child.pid for child in me.children(recursive=True) if "raylet" in child.name()}
    killer = threading.Thread(target=kill_one)
    killer.start()
    there = count([path], tokenizer, tokens="all", engine="ray")
    done.set()
    killer.join()
    assert killed, "no worker was caught at work"
    equal(count([path], tokenizer, tokens="all", processes=1), there)


def test_a_file_behind_a_url_counts_as_the_same_file_here(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = corpus(tmp_path, 50)
    store = fsspec.filesystem("memory")
    store.pipe("/bucket/data/chats.jsonl", path.read_bytes())
    store.pipe("/bucket/data/readme.bin", b"not data")
    options = {"tokens": "all", "processes": 1}
    here = count([path], tokenizer, **options)
    for url in ("memory://bucket/data/chats.jsonl", "memory://bucket/data", "memory://bucket/data/*.jsonl"):
        equal(count([url], tokenizer, **options), here)
    with pytest.raises(Eagle3Error, match="no such data"):
        count(["memory://bucket/none"], tokenizer, **options)


def test_a_scheme_without_its_package_is_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(Eagle3Error, match="nosuchscheme://"):
        count(["nosuchscheme://bucket/a.jsonl"], tokenizer)


def test_an_unknown_engine_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(Eagle3Error, match="--engine"):
        count([corpus(tmp_path, 5)], tokenizer, engine="spark")  # type: ignore[arg-type]


def test_the_merge_command_adds_and_never_overwrites(tokenizer: Tokenizer, tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        path = write_lines(tmp_path / f"{name}.jsonl", [{"text": f"{name} the cat"}])
        files.append(tmp_path / f"{name}.counts.parquet")
        write_counts(count([path], tokenizer, tokens="all", processes=1), files[-1])
    out = tmp_path / "all.counts.parquet"
    result = CliRunner().invoke(app, ["merge", *map(str, files), "--out", str(out), "--json"], catch_exceptions=False)
    assert json.loads(result.stdout)["documents"] == 2
    np.testing.assert_array_equal(read_counts(out).counts, sum(read_counts(f).counts for f in files))
    again = CliRunner().invoke(app, ["merge", *map(str, files), "--out", str(out)])
    assert isinstance(again.exception, Eagle3Error)
    assert "already exists" in str(again.exception)
