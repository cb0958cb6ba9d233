"""The roofline against arithmetic shown here and figures of measured GEMMs."""

from __future__ import annotations

import dataclasses

import pytest

from eagle3_core.cost.hardware import devices, resolve_latency
from eagle3_core.cost.roofline import gemm_ms, padded_rows, roofline_step
from eagle3_core.cost.step import step_latency
from eagle3_core.cost.target_time import distinct_experts, target_times
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.drafter import drafter_for
from eagle3_core.specs.presets import presets
from tests.benchmarks.latency_model import LIMIT, gemm_errors, reference, summary

H200 = devices()["h200"]
KIMI = presets()["kimi-k2.5"]


@pytest.mark.parametrize(("hidden", "rows", "tp", "microseconds"), [
    (7_168, 32_000, 1, 115), (7_168, 65_536, 1, 232), (7_168, 163_840, 1, 578), (7_168, 32_000, 8, 16.4),
    (7_168, 163_840, 8, 74.3), (4_096, 32_000, 1, 66.5), (4_096, 128_256, 1, 259.7), (5_120, 248_320, 1, 625.4),
])
def test_head_times_on_an_h200_are_its_fit(hidden: int, rows: int, tp: int, microseconds: float) -> None:
    """t0 2.3 us and 0.85 of 4.8 TB/s: 2.3 + rows * H * 2 / TP / 4.08e6 us."""
    found = gemm_ms(H200, rows / tp, hidden, batch=1, bytes_per_weight=2) * 1e3
    assert found == pytest.approx(2.3 + rows * hidden * 2 / tp / 4.08e6, rel=1e-9)
    assert found == pytest.approx(microseconds, rel=0.01)


def test_measured_head_gemms_lie_within_six_percent_on_every_fitted_gpu(shared) -> None:
    table = summary(gemm_errors(reference(shared)))
    assert set(table["gpu"]) >= {"A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "B200-SXM-180GB"}
    assert (table["points"] >= 20).all()
    assert (table["mean_abs"] <= LIMIT).all(), table


def test_engines_pad_the_head_their_own_way() -> None:
    assert padded_rows(32_000, 1, "sglang") == 32_000
    assert padded_rows(32_000, 8, "sglang") == padded_rows(32_000, 8, "vllm") == 32_000
    assert padded_rows(32_000, 6, "sglang") == 32_256  # the next multiple of 64 * 6
    assert padded_rows(32_000, 6, "vllm") == 32_004
    assert padded_rows(100, 1, "sglang") == 128


def test_vllm_pays_for_v_below_the_full_vocabulary_and_only_there() -> None:
    small = drafter_for(KIMI, 32_000)
    vllm, sglang = (roofline_step(H200, small, batch=32, engine=e).sampling for e in ("vllm", "sglang"))
    # [32, V] fp32 written once and read once, beyond what both do with D logits.
    assert vllm - sglang >= 32 * 4 * 2 * KIMI.vocab_size / 4.8e12 * 1e3
    full = drafter_for(KIMI, KIMI.vocab_size)
    assert roofline_step(H200, full, engine="vllm").sampling == roofline_step(H200, full, engine="sglang").sampling


def test_a_sharded_drafter_reads_an_eighth_and_pays_collectives() -> None:
    one, eight = (roofline_step(H200, drafter_for(KIMI, 32_000), draft_tp=tp) for tp in (1, 8))
    assert one.collective == 0
    assert eight.collective > 0.02
    assert eight.layer < one.layer / 4
    with pytest.raises(Eagle3Error, match="does not divide"):
        roofline_step(H200, drafter_for(KIMI, 32_000), draft_tp=7)


def test_kimis_head_saves_half_a_percent_of_a_round_sharded_and_four_unsharded() -> None:
    """31.6 ms round at batch 8 and chain 3 (SpecBundle); three heads of 32,000 rows instead of 163,840."""
    def saved(tp: int) -> float:
        full, cut = (gemm_ms(H200, rows / tp, 7_168, batch=8, bytes_per_weight=2) for rows in (163_840, 32_000))
        return 3 * (full - cut) / 31.6

    assert saved(8) == pytest.approx(0.006, abs=0.0006)
    assert saved(1) == pytest.approx(0.044, abs=0.001)


def test_kernels_outside_graphs_wait_between_launches() -> None:
    drafter = drafter_for(KIMI, 32_000)
    assert roofline_step(H200, drafter, graphs=True).launch == 0
    assert 0.01 < roofline_step(H200, drafter, graphs=False).launch < 0.18


def test_uniform_routing_reaches_the_experts_of_its_closed_form() -> None:
    """MoESD 2505.19645; Kimi-K2: 384 experts, 8 a token: 31, 59 and 188 at 4, 8 and 32 tokens."""
    for tokens, experts in ((1, 8), (4, 31), (8, 59), (32, 188)):
        assert distinct_experts(384, 8, tokens, 0.0) == pytest.approx(experts, abs=0.6)


def test_overlapping_routing_is_near_what_was_measured() -> None:
    """Cohere: 8, 22, 36 and 56 distinct experts at 1, 4, 8 and 16 tokens, 256 experts, 8 a token."""
    for tokens, experts in ((1, 8), (4, 22), (8, 36), (16, 56)):
        assert distinct_experts(256, 8, tokens) == pytest.approx(experts, rel=0.15)


def test_verifying_costs_a_dense_target_little_and_a_mixture_more() -> None:
    dense = target_times(H200, presets()["llama-3.1-70b"], k=3, target_tp=4)
    mixture = target_times(H200, presets()["qwen3-235b-a22b"], k=3, target_tp=4, batch=8)
    assert 1.0 <= dense.verify_ratio < 1.1
    assert 1.2 < mixture.verify_ratio < 2.2
    assert dense.evidence == "modelled"


def test_a_modelled_device_is_marked_and_its_band_is_wider_where_constants_are_assumed() -> None:
    drafter = drafter_for(presets()["qwen3-8b"], 32_000)
    fitted = step_latency(H200, drafter, (32_000,)).row(0, named=True)
    assumed = step_latency(devices()["mi300x"], drafter, (32_000,)).row(0, named=True)
    assert fitted["latency_evidence"] == assumed["latency_evidence"] == "modelled"
    width = [(r["step_high_ms"] - r["step_low_ms"]) / r["step_ms"] for r in (fitted, assumed)]
    assert width[1] > width[0]


def test_a_users_device_comes_from_a_toml_file(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nbandwidth_tbps = 2.0\nefficiency = 0.5\noverhead_us = 10\nbf16_tflops = 100\n')
    gpu = resolve_latency(str(path))
    # 1e9 bytes at 1 TB/s effective and 10 us a kernel.
    assert gemm_ms(gpu, 500_000, 1_000, batch=1, bytes_per_weight=2) == pytest.approx(1.0 + 0.01)
    path.write_text('name = "mine"\nbandwith_tbps = 2.0\n')
    with pytest.raises(Eagle3Error, match=r"bandwith_tbps.*did you mean bandwidth_tbps"):
        resolve_latency(str(path))
    for text in ('name = "m"\nbandwidth_tbps = -2\nefficiency = 0.5\noverhead_us = 1\nbf16_tflops = 1\n', "= nothing"):
        path.write_text(text)
        with pytest.raises(Eagle3Error, match=r"mine\.toml"):
            resolve_latency(str(path))


def test_every_device_of_the_table_names_its_source() -> None:
    assert {"a100", "h100", "h200", "b200", "gb200", "mi300x", "l40s", "rtx-4090", "rtx-pro-6000"} <= set(devices())
    for gpu in devices().values():
        assert gpu.source
        assert gpu.fit in ("published", "assumed")
        assert dataclasses.replace(gpu).memory_gib > 0
