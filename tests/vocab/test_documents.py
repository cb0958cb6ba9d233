"""Documents by themselves: a stable sample, and how many of them a list serves badly."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tables import make_counts, random_counts

from eagle3_core.cli.coverage import coverage_rows
from eagle3_core.corpus.counting import count
from eagle3_core.corpus.counts import FOLDS, TokenCounts, write_counts
from eagle3_core.corpus.documents import (
    Documents,
    DocumentsMeta,
    read_documents,
    sample_documents,
    write_documents,
)
from eagle3_core.corpus.tokenizer import Tokenizer, load_tokenizer
from eagle3_core.errors import Eagle3Error
from eagle3_core.vocab.documents import document_coverage, documents_below
from eagle3_core.vocab.outlook import outlook
from eagle3_core.vocab.ranking import rank

sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
from tiny import TEXT, make_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    lines = [json.dumps({"text": f"{TEXT[i % 6]} {i} " * (1 + i % 3), "source": "ab"[i % 2]}) for i in range(120)]
    (folder / "a.jsonl").write_text("\n".join(lines[:70]) + "\nnot json\n")
    (folder / "b.jsonl").write_text("\n".join(lines[70:]))
    return folder


def _sample(corpus: Path, names: list[str], tokenizer: Tokenizer, n: int) -> Documents:
    return sample_documents([corpus / name for name in names], tokenizer, tokens="all", domain_field="source",
                            per_domain=n)


def test_the_sample_does_not_depend_on_the_order_of_files(corpus: Path, tokenizer: Tokenizer) -> None:
    first = _sample(corpus, ["a.jsonl", "b.jsonl"], tokenizer, 15)
    second = _sample(corpus, ["b.jsonl", "a.jsonl"], tokenizer, 15)
    assert first.frame.equals(second.frame)
    assert first.frame["domain"].value_counts().sort("domain")["count"].to_list() == [15, 15]
    assert first.meta.documents == {"a": 60, "b": 60}


def test_a_sample_of_everything_adds_up_to_the_counts(corpus: Path, tokenizer: Tokenizer) -> None:
    sample = _sample(corpus, ["a.jsonl", "b.jsonl"], tokenizer, 1_000)
    counts = count([corpus], tokenizer, tokens="all", domain_field="source", processes=1, max_bad=0.1)
    total = np.zeros_like(counts.counts)
    for domain, fold, _, ids, repeats in sample.frame.iter_rows():
        total[counts.domains.index(domain), fold, ids] += np.array(repeats)
    assert np.array_equal(total, counts.counts)


def test_a_sample_reads_back_and_other_files_are_refused(corpus: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    sample = _sample(corpus, ["a.jsonl"], tokenizer, 5)
    write_documents(sample, tmp_path / "x.documents.parquet")
    again = read_documents(tmp_path / "x.documents.parquet")
    assert again.frame.equals(sample.frame)
    assert again.meta == sample.meta
    write_counts(make_counts([[1, 2]]), tmp_path / "x.counts.parquet")
    for name in ("x.counts.parquet", "missing", "text"):
        (tmp_path / "text").write_text("hello")
        with pytest.raises(Eagle3Error, match=name):
            read_documents(tmp_path / name)


def _documents(rows: list[tuple[str, int, dict[int, int]]], vocab: int) -> Documents:
    frame = pl.DataFrame(
        [{"domain": d, "fold": f, "hash": bytes([i] * 16), "id": list(bag), "count": list(bag.values())}
         for i, (d, f, bag) in enumerate(rows)],
        schema={"domain": pl.String, "fold": pl.UInt8, "hash": pl.Binary, "id": pl.List(pl.UInt32),
                "count": pl.List(pl.UInt32)})
    meta = DocumentsMeta(tool_version="t", tokenizer="tiny", tokenizer_sha256="0" * 64, vocab_size=vocab, tokens="all",
                         documents={})
    return Documents(frame, meta)


def test_each_document_is_measured_under_the_ranking_of_the_folds_it_is_not_in() -> None:
    table = np.zeros((1, FOLDS, 4), dtype=np.int64)
    # Token 3 is frequent in fold 0 alone: its own documents must not profit from that.
    table[0, :, :3] = [9, 5, 2]
    table[0, 0, 3] = 1_000
    counts = make_counts(table)
    documents = _documents([("d0", 0, {3: 8, 0: 2}), ("d0", 1, {3: 8, 0: 2})], 4)
    coverage = document_coverage(counts, documents, [2, 3])
    assert coverage.tolist() == [[0.2, 0.2], [1.0, 1.0]]


def test_shares_below_the_levels_are_counted_by_domain() -> None:
    counts = make_counts([[100, 50, 10, 0]])
    documents = _documents([("a", 1, {0: 94, 3: 6}), ("a", 2, {0: 89, 3: 11}), ("b", 3, {0: 100})], 4)
    frame = documents_below(counts, documents, [2])
    assert frame["domain"].to_list() == ["a", "b", "all domains"]
    assert frame["below_95"].to_list() == pytest.approx([1.0, 0.0, 2 / 3])
    assert frame["below_90"].to_list() == pytest.approx([0.5, 0.0, 1 / 3])


def test_documents_of_another_tokenizer_are_refused() -> None:
    with pytest.raises(Eagle3Error, match="another tokenizer"):
        documents_below(make_counts([[1, 2, 3, 4]], sha="1" * 64), _documents([("a", 0, {0: 1})], 4), [2])


def test_documents_agree_with_the_table_when_every_fold_is_one_document() -> None:
    counts: TokenCounts = random_counts(3, domains=1, vocab=90)
    rows = [("d0", f, {int(v): int(counts.counts[0, f, v]) for v in np.flatnonzero(counts.counts[0, f])})
            for f in range(FOLDS)]
    coverage = document_coverage(counts, _documents(rows, 90), [64])
    from eagle3_core.vocab.coverage import coverage_table

    row = coverage_table(counts, [64]).row(0, named=True)
    assert coverage.min() == pytest.approx(row["coverage_low"])
    assert coverage.max() == pytest.approx(row["coverage_high"])


def test_an_outlook_needs_tokens_in_every_fold() -> None:
    with pytest.raises(Eagle3Error, match="too few documents"):
        outlook(make_counts([[1, 1, 1]]), [2])


def test_the_commands_rows_have_the_promised_keys_and_all_extras(tmp_path: Path) -> None:
    counts = random_counts(1, domains=2, vocab=90)
    write_counts(counts, tmp_path / "c.parquet")
    (tmp_path / "force.json").write_text(json.dumps([89, "t88"]))
    rows = coverage_rows(tmp_path / "c.parquet", "64,full", force_file=tmp_path / "force.json",
                         pad_from=tmp_path / "c.parquet", matrix=True, compare=True)
    assert [r["draft_vocab"] for r in rows] == [64, 90]
    for key in ("coverage_heldout", "coverage_in_sample", "worst_domain", "domains", "unseen_mass"):
        assert key in rows[0]
    assert set(rows[0]["matrix"]) == {"d0", "d1"}
    assert set(rows[0]["rankings"]) == {"pooled", "balanced", "worst", "robust"}
    assert rows[0]["rankings"]["pooled"]["gain:d0"] == 0
    assert rows[0]["forced_cost"] >= 0
    json.dumps(rows, allow_nan=False)
    assert rank(counts, extra_forced=[89, 88]).order[:2].tolist() == sorted(
        [88, 89], key=lambda v: (-counts.total[v], v))


@pytest.mark.parametrize("text", ['{"a": 1}', "[90]", "[-1]", '["nowhere"]', "[true]", "[1.5]"])
def test_a_bad_list_of_forced_tokens_is_refused(tmp_path: Path, text: str) -> None:
    write_counts(random_counts(1, vocab=90), tmp_path / "c.parquet")
    (tmp_path / "force.json").write_text(text)
    with pytest.raises(Eagle3Error, match=r"force\.json"):
        coverage_rows(tmp_path / "c.parquet", "64", force_file=tmp_path / "force.json")
