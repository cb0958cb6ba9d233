"""Failures reported in public trackers, each with the small input that shows the idea and the right answer.

The reference stands before each test. What a general test of the same subject
already covers is not repeated: SpecForge#10 (round trips, tests/vocab),
SpecForge#441 (speed of counting, tests/benchmarks).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from small import EOS, IDS, D, H, V, small

from eagle3_core.cost.hardware import devices
from eagle3_core.cost.step import step_latency
from eagle3_core.errors import Eagle3Error
from eagle3_core.export.bundle import bundle_name
from eagle3_core.export.commands import launch_commands
from eagle3_core.export.configs import draft_config
from eagle3_core.export.consumer_files import consumer_files
from eagle3_core.inspect.coverage import coverage_of, moved_rows
from eagle3_core.inspect.facts import Facts, MappingFacts
from eagle3_core.inspect.read import inspect_path
from eagle3_core.inspect.rules import lint
from eagle3_core.specs.drafter import drafter_for
from eagle3_core.specs.presets import presets
from eagle3_core.vocab.coverage import coverage_table, domain_table
from eagle3_core.vocab.formats import mapping_files, read_mapping, write_mapping
from eagle3_core.vocab.mapping import VocabMapping, mapping_from_d2t
from eagle3_core.vocab.ranking import mapping_at, rank

QWEN = presets()["qwen3-8b"]
TINY = dataclasses.replace(QWEN, name="tiny", vocab_size=V, hidden_size=H, num_heads=2, num_kv_heads=1, head_dim=8,
                           intermediate_size=24)


def rules(facts: Facts, consumer: str | None = None, **options) -> set[str]:
    return {f.rule for f in lint(facts, consumer, **options)}


# sgl-project/SpecForge#76: fewer distinct tokens than D.
def test_five_counted_ids_give_a_map_of_eight_with_three_marked_as_padding(small_counts):
    ranking = rank(small_counts(seen=[3, 9, 11, 40, 77]), force=False)
    chosen = mapping_at(ranking, 8)
    assert chosen.draft_vocab_size == 8
    assert {3, 9, 11, 40, 77} < set(chosen.target_ids.tolist())
    assert ranking.padding(8) == 3


# SafeAILab/EAGLE#246: a cache.pt of another size in the working directory.
def test_a_second_map_in_the_same_folder_replaces_the_first(tmp_path):
    for size in (4, 6):
        write_mapping("eagle", VocabMapping(IDS[:size], V), tmp_path)
        assert read_mapping(tmp_path).draft_vocab_size == size


# sgl-project/SpecForge#602: a cache key without D and V.
def test_another_size_has_another_name():
    assert bundle_name("m", 4) != bundle_name("m", 8)
    names = [set(mapping_files("speculators", VocabMapping(IDS[:size], V))) for size in (4, 8)]
    assert not names[0] & names[1]


# vllm-project/speculators#602: leftover maps beside a new corpus.
def test_leftover_maps_are_never_taken_silently(tmp_path, small_counts):
    for size in (4, 8):
        write_mapping("speculators", VocabMapping(IDS[:size], V), tmp_path)
    with pytest.raises(Eagle3Error, match="several mappings"):
        inspect_path(tmp_path)
    old = inspect_path(tmp_path / "d2t-8.npy")
    assert "padded-ids" in rules(old, counts=small_counts(seen=[501, 502, 503]))
    assert coverage_of(old, small_counts(seen=[501, 502, 503])).coverage == 0


# sgl-project/SpecForge#708, #765: a map needs no training run, and another D no new count.
def test_eight_sizes_come_from_one_count_without_a_trainer(small_counts):
    counts = small_counts(seen=IDS)
    table = coverage_table(counts, [8, 16, 32, 48, 64, 96, 112, 128], force=False)
    assert table["coverage"].to_list() == pytest.approx([n / 128 for n in table["draft_vocab"].to_list()])
    files = consumer_files("specforge", TINY, drafter_for(TINY, 64), mapping_at(rank(counts), 64), k=3)
    assert {"config.json", "vocab_mapping.pt"} <= set(files)


# sgl-project/SpecForge#66, sgl-project/sglang#9633, #6783: SGLang's token map from the same counts, at any length.
@pytest.mark.parametrize("size", [3, 64, 100])
def test_every_prefix_of_one_ranking_is_a_token_map_of_absolute_ids(tmp_path, small_counts, size):
    ranking = rank(small_counts(seen=IDS), force=False)
    (file,) = write_mapping("sglang-map", VocabMapping(ranking.ids(size), V), tmp_path)
    assert torch.load(file, weights_only=True).tolist() == ranking.ids(size).tolist()
    assert inspect_path(file).mapping.checked(V).target_ids.tolist() == ranking.ids(size).tolist()  # type: ignore[union-attr]


# sgl-project/SpecForge#341: why 32,000.
def test_head_size_and_step_are_told_for_32000_and_for_all():
    times = step_latency(devices()["h200"], drafter_for(QWEN), [32_000, QWEN.vocab_size])
    # bf16 head of Qwen3-8B, 2 D H: 262 MB and 1,245 MB; at 4.8 TB/s at least 55 and 259 us.
    assert times["lm_head_ms"][0] > 0.055
    assert times["lm_head_ms"][1] > 0.259
    assert times["step_ms"][1] > times["step_ms"][0]


# verl-project/verl-SpeCo#66: no mapping at all, so the default mask 0..D-1.
def test_a_mask_of_the_first_ids_is_suspicious():
    prefix = Facts("m", "mapping", "m", mapping=MappingFacts("m", "offsets", np.zeros(64, np.int64), "int64",
                                                             np.arange(V) < 64))
    assert "prefix-map" in rules(prefix, "specforge")


# vllm-project/vllm-ascend#15788: a pruned head must keep text writable.
def test_end_of_turn_and_byte_tokens_are_in_though_never_counted(small_counts):
    roles = {EOS: "eos", EOS + 1: "end_of_turn", **dict.fromkeys(range(900, 910), "byte_fallback")}
    chosen = set(rank(small_counts(seen=IDS[:100], roles=roles)).ids(20).tolist())
    assert set(roles) <= chosen


# SafeAILab/EAGLE#222: zeros at D = V are the identity.
def test_zero_offsets_at_full_size_are_the_identity():
    assert mapping_from_d2t(np.zeros(6, np.int64), 6).is_identity
    full = Facts("m", "mapping", "m", mapping=MappingFacts("m", "offsets", np.zeros(6, np.int64), "int64",
                                                           np.ones(6, bool)))
    assert rules(full, "specforge") == set()


# sgl-project/SpecForge#534: new data, new d2t, old rows.
def test_fine_tuning_on_a_regenerated_map_names_the_rows_that_change_meaning():
    old, new = (Facts("m", "mapping", "m", mapping=MappingFacts("m", "absolute", np.array(ids), "int64"))
                for ids in ([1, 3, 7], [1, 4, 7]))
    assert moved_rows(old, new).rows.rows() == [(1, 3, 4, None)]


# NVIDIA-NeMo/Automodel#2447: the map stayed in a side file.
def test_a_reduced_checkpoint_without_d2t_fails(tmp_path):
    s = small()
    del s.tensors["d2t"], s.tensors["t2d"]
    assert "d2t-absent" in rules(inspect_path(s.write(tmp_path)), "vllm")


# vllm-project/vllm#18488: full-vocabulary drafts need no map.  vllm#53458, vllm-ascend#15863: and must not have one.
@pytest.mark.parametrize(("with_map", "found"), [(False, set()), (True, {"d2t-for-full-vocabulary"})])
def test_a_full_vocabulary_draft_goes_without_d2t(tmp_path, with_map, found):
    s = small("vllm")
    s.config["draft_vocab_size"] = V
    s.tensors["lm_head.weight"] = np.zeros((V, H), np.float32)
    s.tensors |= {"d2t": np.zeros(V, np.int64), "t2d": np.ones(V, bool)}
    if not with_map:
        del s.tensors["d2t"], s.tensors["t2d"]
    assert rules(inspect_path(s.write(tmp_path)), "vllm") == found


def test_our_export_for_vllm_drops_the_map_at_full_size_and_keeps_it_for_specforge():
    whole = VocabMapping(np.arange(V), V)
    for consumer, has in (("vllm", False), ("specforge", True)):
        names = consumer_files(consumer, TINY, drafter_for(TINY, V), whole, k=3)
        assert any(name.endswith((".pt", ".safetensors")) for name in names) == has


# vllm-project/vllm#18909: the name check missed "model.d2t".
def test_a_map_under_a_prefix_is_found(tmp_path):
    s = small("vllm")
    s.tensors["model.d2t"], s.tensors["model.t2d"] = s.tensors.pop("d2t"), s.tensors.pop("t2d")
    assert rules(inspect_path(s.write(tmp_path)), "vllm") == set()


# vllm-project/vllm-ascend#16166: the argmax index used without its offset.
def test_draft_id_1_of_offsets_1_2_5_is_token_3():
    assert mapping_from_d2t(np.array([1, 2, 5]), 10).target_ids.tolist() == [1, 3, 7]


# openvinotoolkit/openvino.genai#3055: a draft id of D read beyond d2t.
def test_a_draft_id_of_d_is_no_draft_id():
    with pytest.raises(IndexError):
        mapping_from_d2t(np.array([1, 2, 5]), 10).target_ids[3]


# vllm-project/speculators#188: D stored as the decoder's vocab_size.
def test_the_nested_vocab_size_is_the_targets(tmp_path):
    s = small("speculators")
    s.config["transformer_layer_config"]["vocab_size"] = D
    assert "vocab-is-draft-size" in rules(inspect_path(s.write(tmp_path)), "vllm")
    config = draft_config("speculators", QWEN, drafter_for(QWEN, 32_000))
    assert config["transformer_layer_config"]["vocab_size"] == 151_936
    assert config["draft_vocab_size"] == 32_000


# vllm-project/speculators#200, #261: both tensors or neither.
@pytest.mark.parametrize(("lost", "rule"), [("d2t", "pair-incomplete"), ("t2d", "mask-missing")])
def test_half_a_pair_is_an_error(tmp_path, lost, rule):
    s = small("speculators")
    del s.tensors[lost]
    assert rule in rules(inspect_path(s.write(tmp_path)), "speculators")


# sgl-project/SpecForge#139, #140: a tied head is V rows.
def test_tied_embeddings_with_a_reduced_head_are_an_error(tmp_path):
    s = small("specforge")
    s.config["tie_word_embeddings"] = True
    assert rules(inspect_path(s.write(tmp_path)), "specforge") == {"tied-head"}
    for consumer in ("sglang", "vllm", "specforge", "eagle"):
        assert draft_config(consumer, QWEN, drafter_for(QWEN, 32_000))["tie_word_embeddings"] is False


# lightseekorg/TorchSpec: rows picked by the offset (1, 2, 5) in place of the id.
def test_rows_of_the_targets_head_are_taken_by_absolute_id(tmp_path):
    from eagle3_core.drafter.checkpoint import read_drafter

    s = small("modelopt")
    del s.tensors["lm_head.weight"]
    rows = torch.arange(V, dtype=torch.float32)[:, None].expand(V, H)
    loaded = read_drafter(s.write(tmp_path), embedding=torch.zeros(V, H), head=rows)
    assert loaded.drafter.lm_head.weight[:, 0].tolist() == IDS.tolist()


# ModelOpt's d2t: negative offsets, frequency order, no t2d.
def test_frequency_order_is_sorted_with_its_rows(tmp_path):
    mapping = mapping_from_d2t(np.array([7, 2, -1]), 10)
    assert mapping.target_ids.tolist() == [7, 3, 1]
    ascending, rows = mapping.ascending()
    assert (ascending.d2t.tolist(), rows.tolist()) == ([1, 2, 5], [2, 1, 0])
    (file,) = write_mapping("modelopt", mapping, tmp_path)
    facts = inspect_path(file)
    assert "unsorted" not in rules(facts)
    assert {"unsorted", "mask-missing"} <= rules(facts, "specforge")


# sgl-project/sglang#3822, youssofal/MTPLX#317, ggml-org/llama.cpp#25187: the head rules the draft step.
def test_a_quarter_of_the_vocabulary_takes_most_of_the_heads_time_away():
    times = step_latency(devices()["h200"], drafter_for(QWEN), [QWEN.vocab_size // 4, QWEN.vocab_size])
    assert times["lm_head_ms"][0] < 0.4 * times["lm_head_ms"][1]


# vllm-project/vllm#29334: less vocabulary, less acceptance, more speed: the best size lies inside.
def test_speedup_has_its_best_inside(samples):
    from eagle3_core.cli.inputs import build_inputs
    from eagle3_core.decide.tradeoff import tradeoff

    table = tradeoff(build_inputs("qwen3-8b", samples / "qwen3.counts.parquet", "h200", "0.8"),
                     [1024, 32_000, QWEN.vocab_size])
    low, middle, high = table["speedup"].to_list()
    assert middle > max(low, high)


# vllm-project/vllm#25917: a [batch, V] tensor is filled at every step, however small D is.
def test_vllm_pays_for_v_at_any_d():
    base = drafter_for(QWEN)
    few, many = (step_latency(devices()["h200"], dataclasses.replace(base, vocab_size=v, draft_vocab_size=1024), [1024],
                              engine="vllm", batch=64)["sampling_ms"][0] for v in (32_768, 262_144))
    assert many > 2 * few


# vllm-project/vllm#39419, #40612: the gather of logits under tensor parallelism.
def test_a_sharded_drafter_pays_for_gathering_its_logits():
    def collective(tp: int, size: int) -> float:
        return step_latency(devices()["h200"], drafter_for(QWEN), [size], draft_tp=tp)["collective_ms"][0]

    assert collective(1, 32_000) == 0
    assert 0 < collective(8, 32_000) < collective(8, QWEN.vocab_size)


# SGLang's eagle_worker_v2: rejection sampling refuses D < V.
def test_the_launcher_warns_of_rejection_sampling_with_a_reduced_vocabulary(tmp_path):
    reduced = launch_commands("sglang", QWEN, drafter_for(QWEN, 32_000), k=3)["serve.sh"]
    assert "Do not add --speculative-use-rejection-sampling" in reduced
    s = small()
    s.files["serve.sh"] = "sglang --speculative-use-rejection-sampling\n"
    assert rules(inspect_path(s.write(tmp_path)), "sglang") == {"rejection-sampling"}


# sgl-project/SpecForge#580, #581: the compact teacher needs ascending ids.
def test_an_unsorted_map_is_refused_for_specforge():
    with pytest.raises(Eagle3Error, match="ascending"):
        mapping_files("specforge", VocabMapping(np.array([7, 3, 1]), 10))


# vllm-project/vllm#43671: SGLang's ids read without the +1.
def test_layer_ids_are_written_in_each_consumers_own_count():
    target = dataclasses.replace(QWEN, num_layers=36)
    drafter = drafter_for(target, 32_000)
    assert draft_config("vllm", target, drafter)["eagle_aux_hidden_state_layer_ids"] == [2, 18, 33]
    assert draft_config("speculators", target, drafter)["eagle_aux_hidden_state_layer_ids"] == [2, 18, 33]
    assert draft_config("sglang", target, drafter)["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 17, 32]


# vllm-project/vllm#50170: no ids, and the heuristic differs from training.
def test_a_config_without_layer_ids_is_warned_about(tmp_path):
    s = small("vllm")
    del s.config["eagle_aux_hidden_state_layer_ids"]
    assert rules(inspect_path(s.write(tmp_path)), "vllm") == {"aux-absent"}


# vllm-project/vllm#38111: norm_before_fc lost on the way.
@pytest.mark.parametrize(("flag", "tensor", "rule"), [(True, False, "norm-tensor-missing"),
                                                      (False, True, "norm-flag-missing")])
def test_a_norm_and_its_flag_go_together(tmp_path, flag, tensor, rule):
    s = small("speculators")
    s.config["norm_before_fc"] = flag
    if tensor:
        s.tensors["input_norm.weight"] = np.ones(3 * H, np.float32)
    assert rules(inspect_path(s.write(tmp_path)), "vllm") == {rule}


# vllm-project/speculators#1038: the verifier's final norm was not found, and ones were used.
def test_a_verifier_without_its_final_norm_is_refused(tmp_path):
    import json

    from safetensors.torch import save_file

    from eagle3_core.training.target_weights import read_target_weights

    (tmp_path / "config.json").write_text(json.dumps({
        "hidden_size": 8, "vocab_size": 16, "num_hidden_layers": 2, "num_attention_heads": 1}))
    save_file({"model.embed_tokens.weight": torch.zeros(16, 8), "lm_head.weight": torch.zeros(16, 8)},
              tmp_path / "model.safetensors")
    with pytest.raises(Eagle3Error, match="final norm"):
        read_target_weights(tmp_path)


# SpecForge#128, SafeAILab/EAGLE#276, speculators#751, EAGLE#264: low acceptance with fine coverage.
def test_high_coverage_and_low_acceptance_are_told_apart(samples):
    from eagle3_core.cli.inputs import build_inputs
    from eagle3_core.decide.tradeoff import tradeoff

    row = tradeoff(build_inputs("qwen3-8b", samples / "qwen3.counts.parquet", "h200", "0.15"), [32_000]).to_dicts()[0]
    assert row["coverage"] > 0.95
    assert row["tau"] < 1.2


# Hazard without a report: EOS never counted.
def test_an_uncovered_end_of_turn_is_told(tmp_path, small_counts):
    s = small()
    s.config["eos_token_id"] = EOS + 5
    assert rules(inspect_path(s.write(tmp_path)), "sglang") == {"eos-uncovered"}
    assert coverage_of(inspect_path(tmp_path), small_counts(seen=IDS, roles={5: "eos"})).forced_missing.rows() == [
        (5, "t5", "eos", 0)]


# Hazard without a report: a list made from one language, used for another.
def test_another_language_is_measured_by_itself(small_counts):
    # English: ids 0..98 often; the other domain shares one token in ten with it.
    counts = small_counts(domains=("en", "xx"), by_domain=[
        dict.fromkeys(range(100), 990), {0: 10, **dict.fromkeys(range(200, 290), 1)}])
    table = {r["domain"]: r["coverage"] for r in domain_table(counts, 100, force=False).to_dicts()}
    assert table["en"] == pytest.approx(1.0)
    assert table["xx"] == pytest.approx(0.1)


# Hazard without a report: offsets cast to bf16.
def test_rounded_offsets_are_refused(tmp_path):
    d2t = torch.tensor([32001]).to(torch.bfloat16)
    assert d2t.item() == 32000
    torch.save({"d2t": d2t, "t2d": torch.zeros(V, dtype=torch.bool)}, tmp_path / "vocab_mapping.pt")
    assert "d2t-float" in rules(inspect_path(tmp_path / "vocab_mapping.pt"))
    with pytest.raises(Eagle3Error, match="floating point"):
        read_mapping(tmp_path / "vocab_mapping.pt")
