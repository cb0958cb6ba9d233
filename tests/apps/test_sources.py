"""What may be loaded, by which name, and what a bad file gets told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from eagle3_core.app.screen import screen_of
from eagle3_core.app.sources import add_upload, catalogue, get_counts
from eagle3_core.app.state import EXAMPLES, AppState
from eagle3_core.errors import Eagle3Error


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_shows_without_notices(name):
    screen = screen_of(EXAMPLES[name], catalogue())
    assert screen.notices == ()
    assert screen.payload["rows"]


def test_an_upload_is_found_by_its_name_in_another_window(samples: Path):
    mine, kind, name = add_upload(catalogue(), "mine.counts.parquet", (samples / "smollm2.counts.parquet").read_bytes())
    assert kind == "counts"
    assert name in mine.counts
    assert name not in catalogue().counts  # never listed to others
    assert get_counts(catalogue(), name).vocab_size == 49_152
    other = screen_of(AppState(target="smollm2-135m", counts=name), catalogue())
    assert other.notices == ()


@pytest.mark.parametrize(("file", "content", "said"), [
    ("cut.counts.parquet", b"PAR1 and nothing more", "not a readable parquet"),
    ("notes.json", b"this is text", "is not JSON"),
    ("list.json", b"[1, 2]", ""),
    ("a.txt", b"hello", "no known kind"),
    ("x.latency.json", b'{"bandwidth_gbps": "fast"}', "field"),
    ("deep.json", b"[" * 100_000, "is not JSON"),
])
def test_a_bad_file_is_refused_in_one_line_by_its_own_name(file, content, said):
    before = catalogue()
    with pytest.raises(Eagle3Error) as caught:
        add_upload(before, file, content)
    text = str(caught.value)
    assert file in text
    assert said in text
    assert "\n" not in text
    assert "/tmp" not in text


def test_hostile_names_become_one_printable_line(samples: Path):
    name = "../../etc/\x1b[31m\u202e\n<script>.latency.json"
    content = (samples / "smollm2-135m.cpu.latency.json").read_bytes()
    _, kind, label = add_upload(catalogue(), name, content)
    assert kind == "latency"
    assert label.isprintable()
    assert "/" not in label


def test_no_link_leads_out_of_a_data_folder(tmp_path: Path, samples: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.latency.json").write_bytes((samples / "smollm2-135m.cpu.latency.json").read_bytes())
    inside = tmp_path / "inside"
    inside.mkdir()
    os.symlink(outside / "secret.latency.json", inside / "secret.latency.json")
    (inside / "own.latency.json").write_bytes((samples / "smollm2-135m.cpu.latency.json").read_bytes())
    assert set(catalogue((inside,)).latency) == {"own"}


def test_a_profile_of_another_model_gives_way_and_says_so():
    screen = screen_of(AppState(target="qwen3-8b", latency="smollm2-135m.cpu"), catalogue())
    assert "smollm2-135m" in screen.notices[0]
    assert "h200" in screen.notices[0]


def test_the_payload_is_strict_json():
    for state in EXAMPLES.values():
        json.loads(screen_of(state, catalogue()).payload_json(), parse_constant=lambda name: pytest.fail(name))
