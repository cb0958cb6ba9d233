"""Whole-or-nothing writing, one-line errors, evidence marks."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.evidence import EVIDENCE, weakest
from eagle3_core.files import atomic_path, canonical_json, read_json, write_text


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")
    with pytest.raises(RuntimeError), atomic_path(file) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")
    with pytest.raises(Eagle3Error, match="--force"):
        write_text(file, "new", force=False)
    write_text(file, "new")
    assert file.read_text() == "new"


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Eagle3Error, match="cannot be written"):
        write_text(tmp_path / "file" / "below", "x")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000])
def test_broken_json_is_one_line_naming_the_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(Eagle3Error, match=r"x\.json") as error:
        read_json(file)
    assert "\n" not in str(error.value)


def test_json_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(tmp_path / "x.json") == {"a": 1}


def test_canonical_json_has_no_nan_and_one_spelling() -> None:
    assert canonical_json({"b": 1, "a": "é"}) == '{\n  "a": "é",\n  "b": 1\n}\n'
    with pytest.raises(ValueError):
        canonical_json(float("nan"))


def test_an_error_cannot_forge_a_second_line() -> None:
    line = str(Eagle3Error("bad", where="a\nerror: all is well\x1b[2J", found="\u202eevil"))
    assert "\n" not in line
    assert "\x1b" not in line
    assert "\u202e" not in line


def test_the_nearest_name_is_suggested_only_when_near() -> None:
    assert suggest("kimi-k25", ["kimi-k2.5", "qwen3-8b"]) == "did you mean kimi-k2.5?"
    assert suggest("zzz", ["kimi-k2.5"]) is None


def test_a_figure_is_no_stronger_than_its_weakest_input() -> None:
    for a, b in itertools.product(EVIDENCE, EVIDENCE):
        if "derived" not in (a, b):
            assert EVIDENCE.index(weakest(a, b)) == max(EVIDENCE.index(a), EVIDENCE.index(b))
    assert weakest("derived", "measured") == "measured"
    assert weakest("derived") == "derived"
