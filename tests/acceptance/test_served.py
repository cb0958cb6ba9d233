from __future__ import annotations

import json

import pytest

from eagle3_core.acceptance.events import read_scalars
from eagle3_core.acceptance.served import compare, constant_alpha, read_reported
from eagle3_core.errors import Eagle3Error


def _read(tmp_path, text, name="log.txt", **options):
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return read_reported(path, draft_vocab=32000, **options)


VLLM_LINES = """\
INFO 12-01 10:00:01 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.50, Accepted throughput: 30.0 \
tokens/s, Drafted throughput: 60.0 tokens/s, Accepted: 300 tokens, Drafted: 600 tokens, Per-position acceptance rate: \
0.800, 0.500, 0.200, Avg Draft acceptance rate: 50.0%
INFO 12-01 10:00:11 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 1.90, Accepted throughput: 9.0 \
tokens/s, Drafted throughput: 30.0 tokens/s, Accepted: 90 tokens, Drafted: 300 tokens, Per-position acceptance rate: \
0.500, 0.300, 0.100, Avg Draft acceptance rate: 30.0%
"""


def test_vllm_log_lines_are_weighted_by_rounds_and_made_conditional(tmp_path):
    point = _read(tmp_path, VLLM_LINES).points[0]
    # 200 and 100 rounds: r = (0.7, 13/30, 1/6); alpha = r_k / r_(k-1); tau = 1 + sum r.
    assert point.alpha == pytest.approx((0.7, 13 / 21, 5 / 13))
    assert point.tau == pytest.approx(2.3)
    assert point.alpha_low[0] < 0.7 < point.alpha_high[0]


PROMETHEUS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 600.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 400.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.76e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 3000.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 1300.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 500.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 300.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 400.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 100.0
"""


def test_vllm_counters_of_all_engines_add_up(tmp_path):
    record = _read(tmp_path, PROMETHEUS)
    assert record.points[0].alpha == pytest.approx((0.8, 0.5, 0.25))
    assert record.points[0].tau == pytest.approx(2.3)
    assert record.method == "served"
    assert record.notes == ()


def test_a_source_that_contradicts_itself_says_so(tmp_path):
    record = _read(tmp_path, PROMETHEUS.replace("1300.0", "2000.0"))
    assert "contradicts itself" in record.notes[0]


@pytest.mark.parametrize("scale", [1, 100])
def test_vllm_bench_rates_are_read_whether_percent_or_fraction(tmp_path, scale):
    body = {"spec_decode_acceptance_rate": 43.3, "spec_decode_acceptance_length": 2.3, "spec_decode_num_drafts": 1000,
            "spec_decode_draft_tokens": 3000, "spec_decode_accepted_tokens": 1300,
            "spec_decode_per_position_acceptance_rates": [0.8 * scale, 0.4 * scale, 0.1 * scale]}
    assert _read(tmp_path, body, "r.json").points[0].alpha == pytest.approx((0.8, 0.5, 0.25))


def test_small_percentages_are_told_from_fractions_by_the_mean_length(tmp_path):
    body = {"spec_decode_acceptance_length": 1.013, "spec_decode_per_position_acceptance_rates": [0.9, 0.3, 0.1]}
    assert _read(tmp_path, body, "r.json").points[0].tau == pytest.approx(1.013)


SGLANG = """\
[2026-12-01 10:00:00] Decode batch, #running-req: 1, #token: 512, token usage: 0.01, accept len: 2.00, accept rate: \
0.25, cuda graph: True, gen throughput (token/s): 180.0, #queue-req: 0
[2026-12-01 10:00:09] Decode batch, #running-req: 3, #token: 900, token usage: 0.01, accept len: 3.00, accept rate: \
0.50, cuda graph: True, gen throughput (token/s): 300.0, #queue-req: 0
"""


def test_sglang_log_gives_length_with_bonus_and_draft_length_from_the_rate(tmp_path):
    record = _read(tmp_path, SGLANG)
    point = record.points[0]
    assert len(point.alpha) == 4  # (2.00 - 1) / 0.25 and (3.00 - 1) / 0.50
    assert point.tau == pytest.approx(2.75)
    assert record.evidence == "modelled"
    assert "same alpha" in record.notes[-1]


def test_sglang_gauges_give_the_steps(tmp_path):
    text = ('sglang:spec_accept_length{model_name="m"} 2.2\nsglang:spec_accept_rate{model_name="m"} 0.4\n'
            'sglang:spec_num_steps{model_name="m"} 3.0\nsglang:spec_num_draft_tokens{model_name="m"} 4.0\n')
    point = _read(tmp_path, text).points[0]
    assert len(point.alpha) == 3
    assert point.tau == pytest.approx(2.2)


def test_sglang_histograms_of_several_responses_add_up(tmp_path):
    body = [{"text": "x", "meta_info": {"spec_verify_ct": 6, "spec_num_correct_drafts": 8, "spec_accept_length": 2.33,
                                        "spec_correct_drafts_histogram": [2, 1, 2, 1]}},
            {"text": "y", "meta_info": {"spec_verify_ct": 4, "spec_num_correct_drafts": 6, "spec_accept_length": 2.5,
                                        "spec_correct_drafts_histogram": [0, 2, 2]}}]
    point = _read(tmp_path, body, "meta.json").points[0]
    assert point.alpha == pytest.approx((8 / 10, 5 / 8, 1 / 5))  # rounds with at least 1, 2, 3 of 10
    assert point.tau == pytest.approx(1 + 14 / 10)


@pytest.mark.parametrize("body", [
    {"backend": "sglang", "accept_length": 2.5}, {"internal_states": [{"avg_spec_accept_length": 2.5}]},
    {"results": [{"average_acceptance_length": 2.5, "spec_verify_count": 9}]},
])
def test_a_mean_length_alone_needs_k(tmp_path, body):
    with pytest.raises(Eagle3Error, match="--k"):
        _read(tmp_path, body, "b.json")
    point = _read(tmp_path, body, "b.json", k=3).points[0]
    assert point.tau == pytest.approx(2.5)
    with pytest.raises(Eagle3Error, match="does not fit"):
        _read(tmp_path, body, "b.json", k=1)


def test_the_constant_alpha_of_a_length_solves_its_series():
    assert constant_alpha(1 + 0.5 + 0.25 + 0.125, 3) == pytest.approx(0.5)
    assert constant_alpha(1.0, 3) == pytest.approx(0.0, abs=1e-12)
    assert constant_alpha(4.0, 3) == pytest.approx(1.0)


SPECFORGE = """\
2026-12-01 step 50: {'train/acc': 0.41, 'train/acc_0': 0.50, 'train/acc_1': 0.40, 'train/loss': 2.0}
2026-12-01 step 100: {'train/acc_0': 0.60, 'train/acc_1': 0.50, 'train/acc_2': 0.40, 'train/lr': 1e-4}
"""


def test_specforge_console_takes_the_last_step_and_adds_the_bonus(tmp_path):
    record = _read(tmp_path, SPECFORGE)
    assert record.points[0].alpha == pytest.approx((0.6, 0.5, 0.4))
    assert record.points[0].tau == pytest.approx(1 + 0.6 + 0.3 + 0.12)
    assert record.method == "training_log"


def test_specforge_held_out_metrics_come_before_training_ones(tmp_path):
    body = {"train/acc_0": 0.9, "eval/per_position_acc": [0.6, 0.5], "eval/simulated_acc_len": 0.9}
    record = _read(tmp_path, body, "m.json")
    assert record.points[0].alpha == pytest.approx((0.6, 0.5))
    assert not any("simulated" in note for note in record.notes)


def test_speculators_cumulative_accuracy_is_made_conditional_and_multiplied_by_coverage(tmp_path):
    body = {"val/full_acc_0_epoch": 0.6, "val/full_acc_1_epoch": 0.3, "val/full_acc_2_epoch": 0.12, "train/loss": 1.0}
    with pytest.raises(Eagle3Error, match="--coverage"):
        _read(tmp_path, body, "val_metrics.json")
    record = _read(tmp_path, body, "val_metrics.json", coverage=0.9)
    assert record.points[0].alpha == pytest.approx((0.54, 0.45, 0.36))
    assert "0.9000" in record.notes[0]
    assert record.evidence == "modelled"


def test_event_files_are_read_without_tensorboard(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        for step, value in ((10, 0.5), (20, 0.6)):
            writer.add_scalar("train/acc_0", value, step)
            writer.add_scalar("train/acc_1", value / 2, step, new_style=True)
        writer.add_text("note", "hello")
    file = next(tmp_path.glob("*tfevents*"))
    assert read_scalars(file) == pytest.approx({"train/acc_0": 0.6, "train/acc_1": 0.3})
    assert read_reported(file, draft_vocab=8000).points[0].alpha == pytest.approx((0.6, 0.3))
    cut = tmp_path / "cut.tfevents.1"
    cut.write_bytes(file.read_bytes()[:-9])
    assert "train/acc_0" in read_scalars(cut)
    cut.write_bytes(b"not an event file at all")
    with pytest.raises(Eagle3Error, match="event file"):
        read_scalars(cut)


def test_two_sources_that_cannot_both_be_right_are_named(tmp_path):
    one = _read(tmp_path, PROMETHEUS, "a.prom")
    two = _read(tmp_path, {"eval/per_position_acc": [0.95, 0.9, 0.9]}, "b.json")
    assert len(compare([one, two])) == 1
    assert "cannot both be right" in compare([one, two])[0]
    assert compare([one, one]) == []


@pytest.mark.parametrize("text", ["", "hello world", "{}", "[1, 2]", '{"accept_length": null}'])
def test_a_file_without_figures_is_refused(tmp_path, text):
    with pytest.raises(Eagle3Error, match="no acceptance figures"):
        _read(tmp_path, text)


def test_the_size_must_be_said(tmp_path):
    path = tmp_path / "a.prom"
    path.write_text(PROMETHEUS)
    with pytest.raises(Eagle3Error, match="--size"):
        read_reported(path, draft_vocab=None)
