"""Measured latency: every part at every size, honest marks, dtypes that torch has kernels for, checkpoints' shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from eagle3_core.cli.main import app
from eagle3_core.cost.measure import Plan, auto_sizes, measure_latency
from eagle3_core.cost.parts import Parts, Shapes
from eagle3_core.cost.profile import LatencyProfile, read_profile, write_profile
from eagle3_core.cost.step import step_latency
from eagle3_core.cost.weights import Weight, check_kernels, make_weight
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.drafter import DrafterSpec

CPU = torch.device("cpu")
SPEC = DrafterSpec(hidden_size=64, target_hidden_size=64, vocab_size=4096, draft_vocab_size=2048, num_heads=4,
                   num_kv_heads=2, head_dim=16, intermediate_size=96)
SIZES = (1024, 2048, 4096)
PARTS = {"argmax", "topk", "softmax", "map", "step", "lm_head"}


@pytest.fixture(scope="module")
def profile() -> LatencyProfile:
    return measure_latency(SPEC, "tiny", Plan(sizes=SIZES, batches=(1, 4), context=32, seconds=3.0), device="cpu")


def test_every_part_is_there_at_every_size_and_batch(profile: LatencyProfile) -> None:
    for batch in (1, 4):
        held = {(p.component, p.draft_vocab) for p in profile.points if p.batch == batch}
        assert {("fc", None), ("layer", None), ("norm", None)} <= held
        assert {(part, size) for part in PARTS for size in SIZES} <= held
    assert {p.mode for p in profile.points} == {"eager"}
    assert profile.dtype == "float32"
    assert profile.bandwidth_gbps > 0.1


def test_figures_are_quantiles_of_enough_repeats(profile: LatencyProfile) -> None:
    for point in profile.points:
        t = point.timing
        assert 0 < t.q05_ms <= t.median_ms <= t.q95_ms
        assert t.repeats >= 5
        assert t.outliers <= t.repeats
        if point.component == "lm_head":
            # D rows of H fp32 numbers, read once.
            assert point.bytes == point.draft_vocab * 64 * 4
        if point.bandwidth_share is not None and point.bandwidth_share < 0.7:
            assert point.note, point


def test_a_head_that_fits_the_cache_is_shown_both_ways(profile: LatencyProfile) -> None:
    cached = {p.draft_vocab for p in profile.points if p.component == "lm_head_cached"}
    assert cached == set(SIZES)  # 1 MB at most
    assert all("cache" in p.note for p in profile.points if p.component == "lm_head_cached")


def test_a_size_between_points_lies_between_their_times_and_is_marked(profile: LatencyProfile) -> None:
    table = step_latency(profile, SPEC, [1024, 1536, 2048], dtype="float32")
    first, between, last = table["lm_head_ms"].to_list()
    assert between == pytest.approx((first + last) / 2)  # half way, and linear
    assert table["interpolated"].to_list() == [False, True, False]
    assert table["latency_evidence"].to_list() == ["measured"] * 3
    beyond = step_latency(profile, SPEC.with_draft_vocab(512), [512], dtype="float32")
    assert beyond["latency_evidence"].to_list() == ["modelled"]


def test_a_profile_reads_back_the_same(profile: LatencyProfile, tmp_path: Path) -> None:
    write_profile(profile, tmp_path / "a.latency.json")
    assert read_profile(tmp_path / "a.latency.json") == profile


def test_sizes_that_do_not_fit_are_named_and_none_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3_core.cost import measure

    base = 600 * 2**20
    monkeypatch.setattr(measure, "free_bytes", lambda device: base + 1_000_000)
    got = measure_latency(SPEC, "tiny", Plan(sizes=SIZES, context=32, seconds=0.5), device="cpu")
    # Layer, fc and cache: (38,912 + 12,288 + 4,096) * 4 = 221,184 bytes. Head and three rows of logits: 1,097,728
    # bytes at 4,096 and half of it at 2,048.
    assert [line.partition(":")[0] for line in got.skipped] == ["D = 4,096"]
    monkeypatch.setattr(measure, "free_bytes", lambda device: base)
    with pytest.raises(Eagle3Error, match="no size fits"):
        measure_latency(SPEC, "tiny", Plan(sizes=SIZES, context=32, seconds=0.5), device="cpu")


def test_auto_sizes_hold_powers_of_two_the_inherited_size_and_v() -> None:
    assert auto_sizes(49_152) == (1024, 2048, 4096, 8192, 16_384, 32_000, 32_768, 49_152)
    assert auto_sizes(8192) == (1024, 2048, 4096, 8192)


def test_int8_rows_multiply_as_their_floats_do() -> None:
    weight = make_weight(48, 64, "int8", CPU)
    assert weight.scales is not None
    x = torch.randn(3, 64)
    want = x @ (weight.values.float() * weight.scales[:, None]).T
    torch.testing.assert_close(weight(x), want, atol=1e-3, rtol=1e-2)
    torch.testing.assert_close(weight.cut(8, 16)(x), want[:, 8:16], atol=1e-3, rtol=1e-2)
    plain = make_weight(48, 64, "float32", CPU)
    torch.testing.assert_close(plain.cut(8, 16)(x), x @ plain.values[8:16].T)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_other_dtypes_are_measured_with_their_own_bytes(kind: str) -> None:
    got = measure_latency(SPEC, "tiny", Plan(sizes=(1024,), context=16, seconds=0.5), device="cpu", dtype=kind)
    head = next(p for p in got.points if p.component == "lm_head")
    assert head.bytes == 1024 * 64 * {"bfloat16": 2, "int8": 1}[kind]
    assert got.dtype == kind


def test_a_dtype_without_a_kernel_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Eagle3Error, match="float12"):
        measure_latency(SPEC, "tiny", Plan(sizes=(1024,)), device="cpu", dtype="float12")

    def none(self: Weight, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel image\nmore")

    monkeypatch.setattr(Weight, "__call__", none)
    with pytest.raises(Eagle3Error, match="no fp8 kernel") as error:
        check_kernels("fp8", CPU)
    assert "\n" not in str(error.value)


def test_a_shard_has_its_part_of_heads_and_rows() -> None:
    shapes = Shapes.of(SPEC, 2)
    assert (shapes.heads, shapes.kv_heads, shapes.intermediate) == (2, 1, 48)
    parts = Parts(shapes, 512, device=CPU, dtype="float32", context=8, cache_bytes=1 << 16)
    (first, *_) = [call() for call in parts.lm_head(3, 512)]
    assert first.shape == (3, 512)  # type: ignore[attr-defined]
    with pytest.raises(Eagle3Error, match="--draft-tp"):
        measure_latency(SPEC, "tiny", Plan(sizes=(1024,), draft_tp=3), device="cpu")


def drafter_folder(folder: Path, vocab: int = 49_152, hidden: int = 576) -> Path:
    """A checkpoint of SmolLM2-135M's width with a layer of another shape, its head at D = 1,536."""
    folder.mkdir()
    heads, kv, width, ffn = 4, 1, 32, 128
    shapes = {"fc.weight": (64, 3 * hidden), "midlayer.self_attn.q_proj.weight": (heads * width, 128),
              "midlayer.self_attn.k_proj.weight": (kv * width, 128), "midlayer.mlp.gate_proj.weight": (ffn, 64),
              "lm_head.weight": (1536, 64)}
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({
        "vocab_size": vocab, "draft_vocab_size": 1536, "num_attention_heads": heads, "rms_norm_eps": 1e-5}))
    return folder


def test_the_shape_of_a_checkpoint_is_what_runs(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, [
        "measure", "latency", "--target", "smollm2-135m", "--drafter", str(drafter_folder(tmp_path / "d")), "--sizes",
        "1024", "--batch", "1", "--context", "16", "--seconds", "2", "--out", str(tmp_path / "a.latency.json")],
        catch_exceptions=False)
    assert run.exit_code == 0
    got = read_profile(tmp_path / "a.latency.json")
    assert (got.drafter.hidden_size, got.drafter.intermediate_size, got.drafter.num_heads) == (64, 128, 4)
    # Its own D is measured beside those asked for.
    assert {p.draft_vocab for p in got.points if p.component == "lm_head"} == {1024, 1536}


@pytest.mark.parametrize(("vocab", "hidden", "word"), [(50_000, 576, "V"), (49_152, 512, "hidden size")])
def test_another_targets_checkpoint_is_refused(tmp_path: Path, vocab: int, hidden: int, word: str) -> None:
    folder = drafter_folder(tmp_path / "d", vocab, hidden)
    with pytest.raises(Eagle3Error, match=word):
        CliRunner().invoke(app, ["measure", "latency", "--target", "smollm2-135m", "--drafter", str(folder),
                                 "--out", str(tmp_path / "a.latency.json")], catch_exceptions=False)
