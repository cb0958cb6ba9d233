"""The inspection page: its parts without a browser, then what a user does with it in one."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from eagle3_core.app import inspect_page as page
from eagle3_core.app.sources import DATA_VARIABLE
from eagle3_core.app.state import parse_query
from eagle3_core.errors import Eagle3Error
from eagle3_core.vocab.mapping import VocabMapping

sys.path.insert(0, str(Path(__file__).parents[1] / "inspect"))

from small import V, small

QWEN, SIZE = 151_936, 4096


def qwen_mapping(folder: Path) -> Path:
    """Every 37th id of Qwen3's vocabulary, whose counts are bundled, in SpecForge's file."""
    from eagle3_core.vocab.formats import write_mapping

    folder.mkdir(parents=True, exist_ok=True)
    return write_mapping("specforge", VocabMapping(np.arange(SIZE) * 37, QWEN), folder)[0]


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    monkeypatch.delenv(page.ANY_PATH, raising=False)
    return tmp_path


def test_what_lies_in_the_data_folders_is_offered_by_relative_name(data):
    small().write(data / "drafters" / "a")
    qwen_mapping(data / "maps")
    (data / "leak").symlink_to("/etc")
    assert {"drafters/a", "maps/vocab_mapping.pt"} <= set(page.found())
    assert not any(name.startswith("leak") for name in page.found())


def test_only_the_data_folders_are_read_unless_the_server_is_for_this_machine_alone(
        data, tmp_path_factory, monkeypatch):
    outside = small().write(tmp_path_factory.mktemp("outside"))
    for name in (str(outside), "/etc/passwd", "../outside", "upload~../..", "upload~"):
        with pytest.raises(Eagle3Error):
            page.resolve(name)
    shown, problem = page.render(page.Asked(str(outside)))
    assert shown == ""
    assert problem is not None
    assert str(outside) not in problem
    monkeypatch.setenv(page.ANY_PATH, "1")
    assert "An EAGLE-3 drafter" in page.render(page.Asked(str(outside)))[0]


def test_uploaded_files_make_one_checkpoint_and_names_cannot_lead_elsewhere(data):
    folder = small("specforge").write(data / "source")
    files = [SimpleNamespace(name=f"../../{p.name}", contents=p.read_bytes()) for p in folder.iterdir()]
    name = page.received(files)
    assert re.fullmatch(r"upload~[0-9a-f]{24}", name)
    assert sorted(p.name for p in page.resolve(name).iterdir()) == ["config.json", "model.safetensors"]
    assert page.received(files[::-1]) == name
    for bad in ("..", ".hidden", "a\nb", ""):
        with pytest.raises(Eagle3Error):
            page.received([SimpleNamespace(name=bad, contents=b"")])


def test_a_broken_upload_is_told_without_the_servers_paths(data):
    name = page.received([SimpleNamespace(name="model.safetensors", contents=b"nonsense")])
    shown, problem = page.render(page.Asked(name))
    assert shown == ""
    assert problem is not None
    assert problem.startswith("model.safetensors: is not a safetensors file")


def test_the_page_escapes_whatever_a_file_says(data):
    s = small("speculators")
    s.config["speculators_config"]["verifier"]["name_or_path"] = "<script>alert(1)</script>"
    s.write(data / "hostile")
    shown = page.render(page.Asked("hostile"))[0]
    assert "<script>" not in shown
    assert "&lt;script&gt;alert(1)" in shown


def test_a_link_restores_the_state_and_junk_gives_the_default():
    asked = page.Asked("a/b", "qwen3", "vllm")
    assert page.asked_in(asked.query()) == asked
    assert page.asked_in({"path": "x\ny", "consumer": "nobody", "counts": "y" * 999}) == page.Asked()
    assert page.Asked().query() == {}


def test_the_baseline_link_carries_size_target_and_counts(data):
    qwen_mapping(data / "maps")
    shown = page.render(page.Asked("maps/vocab_mapping.pt"))[0]
    found = re.search(r'href="/choose/\?([^"]+)"', shown)
    assert found is not None
    query = dict(pair.split("=") for pair in found[1].replace("&amp;", "&").split("&"))
    state, notices = parse_query(query)
    assert notices == ()
    assert (state.d, state.locked, state.counts) == (SIZE, SIZE, "qwen3")
    from eagle3_core.app.sources import catalogue, get_target

    assert get_target(catalogue(), state.target).vocab_size == QWEN


def test_a_drafters_own_config_is_not_taken_for_its_target(data):
    from eagle3_core.app.sources import catalogue
    from eagle3_core.inspect.read import inspect_path

    s = small()
    facts = inspect_path(s.write(data / "drafter"))
    assert page.baseline(facts, "", catalogue()) is None
    del s.config["draft_vocab_size"]
    small_target = {**s.config, "num_hidden_layers": 4}
    (data / "target").mkdir()
    (data / "target" / "config.json").write_text(json.dumps(small_target))
    assert page.baseline(facts, "", catalogue()) == "/choose/?target=target&locked=128&d=128"


def test_the_picture_shows_where_ids_are_kept(data):
    from eagle3_core.inspect.read import inspect_path

    s = small()
    half = np.arange(0, V // 2, 5)
    s.tensors["d2t"], s.tensors["t2d"] = half - np.arange(len(half)), np.isin(np.arange(V), half)
    drawn = page.picture(inspect_path(s.write(data / "half")), None)
    assert drawn is not None
    shares = np.array(drawn["id"])
    # Every fifth id of the lower half: 0.2 there, none above.
    assert shares[: len(shares) // 2].mean() == pytest.approx(0.2, abs=0.01)
    assert shares[len(shares) // 2 + 1 : -1].max() == 0
    assert drawn["rank"] is None


def test_the_rank_picture_is_full_for_the_best_mapping(data, samples):
    from eagle3_core.corpus.counts import read_counts
    from eagle3_core.inspect.facts import Facts, MappingFacts
    from eagle3_core.vocab.ranking import rank

    counts = read_counts(samples / "qwen3.counts.parquet")
    best = np.sort(rank(counts, force=False).ids(8192))
    mask = np.isin(np.arange(QWEN), best)
    facts = Facts("m", "mapping", "m", mapping=MappingFacts("m", "absolute", best, "int64", mask))
    drawn = page.picture(facts, counts)
    assert drawn is not None
    assert drawn["ranked"] == "Of the 8,192 most frequent ids 100% are kept."
    shares = [r["share"] for r in drawn["rank"]]
    assert shares[0] == 1
    assert shares[-1] == 0
    assert shares == sorted(shares, reverse=True)


def open_page(window: Page, server, query: str = "") -> Page:
    window.goto(f"{server.url}/inspect/{query}", wait_until="commit")
    expect(window.get_by_role("textbox", name="Path of a checkpoint")).to_be_visible(timeout=40_000)
    return window


@pytest.mark.browser
def test_a_path_shows_facts_lint_and_coverage_and_goes_on_to_the_main_app(server, window):
    qwen_mapping(server.data / "inspect-maps")
    shown = open_page(window(), server, "?path=inspect-maps/vocab_mapping.pt")
    expect(shown.locator(".e3-inspect .verdict")).to_contain_text("as SpecForge writes it", timeout=30_000)
    expect(shown.locator("[data-part=dimensions]")).to_contain_text("151,936")
    expect(shown.get_by_label("Coverage", exact=True)).to_contain_text("tokens; the best 4,096 ids have")
    expect(shown.locator("ol.lint")).to_contain_text("not in the draft vocabulary")
    expect(shown.get_by_role("img", name=re.compile("4,096 of 151,936 target ids are kept"))).to_be_visible()
    expect(shown.get_by_role("link", name="Inspect")).to_have_attribute("aria-current", "page")
    shown.get_by_role("link", name="Use this as the baseline").click()
    expect(shown).to_have_url(re.compile(r"/choose/\?.*locked=4096"))
    expect(shown.locator(".verdict").first).to_be_visible(timeout=30_000)


@pytest.mark.browser
def test_a_typed_path_of_this_machine_and_another_consumer_change_the_page(server, window, tmp_path):
    folder = small("modelopt").write(tmp_path / "drafter")
    shown = open_page(window(), server)
    expect(shown.get_by_text("Give a path or drop files")).to_be_visible()
    field = shown.get_by_role("textbox", name="Path of a checkpoint")
    field.fill(str(folder))
    field.press("Enter")
    expect(shown.locator(".e3-inspect .verdict")).to_contain_text("ModelOpt's layout", timeout=30_000)
    expect(shown).to_have_url(re.compile("path="))
    shown.get_by_role("combobox", name="Judge for").select_option("specforge")
    expect(shown.locator("ol.lint")).to_contain_text("d2t without t2d")
    expect(shown.locator(".lint .error").first).to_be_visible()
    shown.reload()
    expect(shown.locator("ol.lint")).to_contain_text("d2t without t2d", timeout=40_000)


@pytest.mark.browser
def test_dropped_files_are_inspected_together_and_a_bad_path_is_one_line(server, window, tmp_path):
    broken = small("sglang")
    broken.config["tie_word_embeddings"] = True
    folder = broken.write(tmp_path / "drafter")
    shown = open_page(window(), server, "?path=/nowhere/at-all")
    expect(shown.get_by_text("/nowhere/at-all: no such file")).to_be_visible(timeout=30_000)
    shown.locator("input[type=file]").first.set_input_files([folder / "config.json", folder / "model.safetensors"])
    expect(shown.locator("ol.lint")).to_contain_text("tie_word_embeddings is true", timeout=30_000)
    expect(shown).to_have_url(re.compile("upload"))


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_without_scrolling_sideways(server, window, scheme):
    small().write(server.data / "inspect-phone")
    shown = window(width=390, scheme=scheme)
    shown.goto(f"{server.url}/inspect/?path=inspect-phone", wait_until="commit")
    expect(shown.locator(".e3-inspect .verdict")).to_be_visible(timeout=40_000)
    assert shown.evaluate("document.querySelector('.e3-inspect').scrollWidth <= window.innerWidth")


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_on_a_page_with_findings(server, window, scheme):
    from axe_playwright_python.sync_playwright import Axe

    broken = small()
    broken.config |= {"tie_word_embeddings": True, "norm_before_residual": True}
    broken.write(server.data / "inspect-axe")
    shown = open_page(window(scheme=scheme), server, "?path=inspect-axe")
    expect(shown.locator("ol.lint .error")).to_be_visible(timeout=30_000)
    # The page gives marimo's own controls their names once it has come to rest.
    expect(shown.locator("input[type=file]:not([aria-label])")).to_have_count(0)
    serious = [(v["id"], [n["html"][:120] for n in v["nodes"]][:3]) for v in Axe().run(shown).response["violations"]
               if v["impact"] in ("serious", "critical")]
    assert not serious, serious


def test_the_notebook_runs_without_a_browser_and_without_torch():
    import subprocess

    code = (
        "import sys, importlib.util\n"
        "from eagle3_core.resources import apps_folder\n"
        "spec = importlib.util.spec_from_file_location('inspect_checkpoint', apps_folder() / 'inspect_checkpoint.py')\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "module.app.run()\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120,
                          env={**os.environ})
    assert done.returncode == 0, done.stderr
