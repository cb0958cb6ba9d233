"""Every rule has a checkpoint that breaks it and one that does not; the right answer is in how it was broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from small import EOS, IDS, LAYERS, H, Small, V, small

from eagle3_core.errors import Eagle3Error
from eagle3_core.inspect.facts import Serving
from eagle3_core.inspect.read import inspect_path
from eagle3_core.inspect.rule_list import RULES
from eagle3_core.inspect.rules import CONSUMERS, lint, who_could_load
from eagle3_core.specs.target import TargetSpec

TARGET = TargetSpec(name="the-target", hidden_size=H, vocab_size=V, num_layers=LAYERS, num_heads=2, num_kv_heads=1,
                    head_dim=8, intermediate_size=24, eos_token_ids=(EOS,), dtype="float32")


def with_ids(ids: np.ndarray, *, mask: bool = True) -> Callable[[Small], None]:
    def change(s: Small) -> None:
        s.tensors["d2t"] = ids - np.arange(len(ids))
        if mask:
            s.tensors["t2d"] = np.isin(np.arange(V), ids)

    return change


def tensors(**changes: object) -> Callable[[Small], None]:
    """Replace or (None) remove tensors; ``__`` stands for a dot."""
    def change(s: Small) -> None:
        for name, value in changes.items():
            key = name.replace("__", ".")
            if value is None:
                del s.tensors[key]
            else:
                s.tensors[key] = np.asarray(value)

    return change


def config(**changes: object) -> Callable[[Small], None]:
    def change(s: Small) -> None:
        for name, value in changes.items():
            if value is None:
                del s.config[name]
            else:
                s.config[name] = value

    return change


def nested(**changes: object) -> Callable[[Small], None]:
    return lambda s: s.config["transformer_layer_config"].update(changes)


def files(**texts: str) -> Callable[[Small], None]:
    return lambda s: s.files.update({name.replace("__", "."): text for name, text in texts.items()})


def both(*changes: Callable[[Small], None]) -> Callable[[Small], None]:
    def change(s: Small) -> None:
        for one in changes:
            one(s)

    return change


SWAPPED = IDS.copy()
SWAPPED[[3, 7]] = SWAPPED[[7, 3]]
TWICE = IDS.copy()
TWICE[5] = TWICE[4]
OUTSIDE = IDS.copy()
OUTSIDE[-1] = V
NO_EOS = np.r_[IDS[:-1], EOS + 5]
FULL_HEAD = np.zeros((V, H), np.float32)
ROUNDED = np.r_[np.arange(0, 300, 3), np.arange(100, 128) + 520 + 4 * np.arange(28)]
"""Offsets 520, 524, ... 628: multiples of 4, as bf16 keeps between 512 and 1024."""
LOW = np.unique(np.r_[np.arange(300), np.arange(310, 1270, 20), EOS])
MASK_ONE_MORE = np.isin(np.arange(V), [*IDS, 5])
MASK_OTHER = np.isin(np.arange(V), [5, *IDS[1:]])
SGLANG = "python -m sglang.launch_server --speculative-num-steps {} --speculative-eagle-topk {} " \
         "--speculative-num-draft-tokens {}\n"

BROKEN: list[tuple[str, str, Callable[[Small], None], str]] = [
    # rule, judged for, what is broken, part of what is said
    ("id-out-of-range", "sglang", with_ids(OUTSIDE), "draft 127 to 1,280"),
    ("id-out-of-range", "vllm", tensors(d2t=np.r_[-1, (IDS - np.arange(128))[1:]]), "draft 0 to -1"),
    ("id-twice", "sglang", with_ids(TWICE), "1 target ids are mapped more than once: 40"),
    ("d2t-float", "vllm", tensors(d2t=(IDS - np.arange(128)).astype(np.float32)), "d2t is float32"),
    ("d2t-shape", "sglang", tensors(d2t=np.zeros((128, 1), np.int64)), "[128, 1]"),
    ("pair-disagrees", "specforge", tensors(t2d=MASK_OTHER), "1 ids of d2t are not in t2d: 0"),
    ("mask-sum", "specforge", tensors(t2d=MASK_ONE_MORE), "t2d marks 129 ids, d2t has 128"),
    ("pair-incomplete", "sglang", tensors(d2t=None), "t2d without d2t"),
    ("mask-missing", "specforge", tensors(t2d=None), "d2t without t2d"),
    ("mask-missing", "speculators", tensors(t2d=None), "d2t without t2d"),
    ("unsorted", "specforge", with_ids(SWAPPED), "70 stands before 40"),
    ("d2t-absent", "sglang", tensors(d2t=None, t2d=None), "no d2t though D = 128 < V = 1,280"),
    ("d2t-absent", "vllm", tensors(d2t=None, t2d=None), "no d2t"),
    ("d2t-for-full-vocabulary", "vllm", both(tensors(lm_head__weight=FULL_HEAD), config(draft_vocab_size=V),
                                             with_ids(np.arange(V))), "D = V = 1,280"),
    ("layout", "speculators", tensors(midlayer__mlp__up_proj__weight=np.zeros((24, H), np.float32)),
     "keys begin with midlayer."),
    ("layout", "modelopt", tensors(t2d=np.isin(np.arange(V), IDS)), "refuses the key t2d"),
    ("layout", "specforge", config(architectures=["LlamaForCausalLM"]), "architectures"),
    ("draft-size-missing", "vllm", config(draft_vocab_size=None), "lm_head has 128 rows of V = 1,280"),
    ("draft-size-missing", "sglang", both(config(draft_vocab_size=None), tensors(d2t=None, t2d=None),
                                          tensors(lm_head__weight=FULL_HEAD)), "reads without a default"),
    ("draft-size-differs", "vllm", config(draft_vocab_size=192), "192 draft_vocab_size, 128 rows of lm_head"),
    ("vocab-is-draft-size", "speculators", nested(vocab_size=128), "is D = 128, but V = 1,280"),
    ("vocab-differs", "sglang", config(vocab_size=1281), "1,281 vocab_size"),
    ("head-missing", "sglang", tensors(lm_head__weight=None), "no lm_head though D = 128"),
    ("tied-head", "specforge", config(tie_word_embeddings=True), "tie_word_embeddings is true"),
    ("tied-head", "speculators", nested(tie_word_embeddings=True), "tie_word_embeddings is true"),
    ("norm-tensor-missing", "vllm", config(norm_before_fc=True), "no tensor input_norm.weight"),
    ("norm-tensor-missing", "sglang", config(eagle_config={"fc_norm": True}), "no tensor fc_norm.0.weight"),
    ("norm-flag-missing", "vllm", tensors(input_norm__weight=np.ones(3 * H, np.float32)), "norm_before_fc is not set"),
    ("norm-flag-missing", "sglang", tensors(fc_norm__0__weight=np.ones(H, np.float32)), "fc_norm is not set"),
    ("hidden-size", "sglang", config(hidden_size=32), "H = 16 rows, but 32 config's hidden_size"),
    ("hidden-size", "vllm", tensors(fc__weight=np.zeros((H, 50), np.float32)), "not three features"),
    ("hidden-size", "vllm", tensors(lm_head__weight=np.zeros((128, 24), np.float32)), "24 columns of lm_head"),
    ("hidden-size", "vllm", tensors(fc__weight=np.zeros((H, 60), np.float32)), "width 20, the target the-target"),
    ("prefix-map", "sglang", with_ids(np.arange(128)), "first 128 ids"),
    ("eos-uncovered", "sglang", with_ids(NO_EOS), "token 1,270"),
    ("padded-ids", "sglang", both(with_ids(LOW), tensors(lm_head__weight=np.zeros((len(LOW), H), np.float32)),
                                  config(draft_vocab_size=len(LOW))), "0..299"),
    ("bf16-rounded", "sglang", with_ids(ROUNDED), "28 different offsets"),
    ("aux-absent", "vllm", config(eagle_aux_hidden_state_layer_ids=None), "no eagle_aux"),
    ("aux-absent", "sglang", config(eagle_config={}), "no eagle_aux"),
    ("aux-convention", "vllm", both(config(eagle_aux_hidden_state_layer_ids=None),
                                    config(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 17, 32]})),
     "[2, 18, 33]"),
    ("aux-convention", "sglang", config(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}), "[1, 17, 32]"),
    ("norm-before-residual", "sglang", config(norm_before_residual=True), "norm_before_residual"),
    ("norm-output-meaning", "sglang", config(norm_output=True), "norm_output is true"),
    ("head-padding", "vllm", both(with_ids(IDS[IDS != 40]), config(draft_vocab_size=127),
                                  tensors(lm_head__weight=np.zeros((127, H), np.float32))), "padded to 128"),
    ("draft-tokens", "sglang", files(serve__sh=SGLANG.format(3, 1, 5)), "3 steps of a chain make 4 tokens"),
    ("draft-tokens", "sglang", files(serve__sh=SGLANG.format(2, 2, 9)), "more than a tree of 2 steps and topk 2"),
    ("draft-tokens", "sglang", files(serve__sh="x --speculative-eagle-topk 4\n"), "without --speculative-num-steps"),
    ("rejection-sampling", "sglang", files(serve__sh="x --speculative-use-rejection-sampling\n"), "with D < V"),
    ("dtype-differs", "vllm", lambda s: s.tensors.update({k: v.astype(np.float16) for k, v in s.tensors.items()
                                                          if v.dtype == np.float32}), "float16, the target is float32"),
]
LAYOUTS = ("sglang", "vllm", "specforge", "speculators", "modelopt", "eagle")


@pytest.mark.parametrize("consumer", LAYOUTS)
def test_a_sound_checkpoint_of_each_layout_passes_without_a_word(tmp_path, consumer):
    assert lint(inspect_path(small(consumer).write(tmp_path), target=TARGET), consumer) == []
    assert [f for f in lint(inspect_path(tmp_path, target=TARGET)) if f.severity == "error"] == []


@pytest.mark.parametrize(("rule", "consumer", "change", "said"), BROKEN)
def test_a_broken_checkpoint_is_told_what_is_wrong_and_how_to_mend_it(tmp_path, rule, consumer, change, said):
    broken = small(consumer)
    change(broken)
    found = [f for f in lint(inspect_path(broken.write(tmp_path), target=TARGET), consumer) if f.rule == rule]
    assert len(found) == 1, found
    assert said in f"{found[0].where} {found[0].what}"
    assert found[0].consumers == (consumer,)
    assert found[0].why
    assert found[0].fix
    assert found[0].severity == next(r.severity for r in RULES if r.id == rule)


def test_every_rule_is_broken_by_a_test_and_named_once():
    assert {rule.id for rule in RULES} == {rule for rule, *_ in BROKEN}
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert set(rule.consumers or ()) <= set(CONSUMERS), rule.id
        assert all("#" in link for link in rule.links)


@pytest.mark.parametrize(("consumer", "change"), [
    ("sglang", with_ids(SWAPPED)),  # engines add arange and take any order
    ("modelopt", with_ids(SWAPPED, mask=False)),
    ("vllm", tensors(t2d=None)),
    ("sglang", config(eagle_config={"eagle_aux_hidden_state_layer_ids": [5, 11, 20]})),  # nobody's default
    ("sglang", files(serve__sh=SGLANG.format(3, 1, 4))),
    ("sglang", files(serve__sh=SGLANG.format(2, 2, 7))),  # 1 + 2 + 4 tokens
    ("sglang", files(serve__sh="# do not add --speculative-use-rejection-sampling\n")),
    ("vllm", both(config(norm_before_fc=True), tensors(input_norm__weight=np.ones(3 * H, np.float32)))),
    ("sglang", both(config(use_aux_norm=True), tensors(fc_norm__0__weight=np.ones(H, np.float32)))),
    ("vllm", both(tensors(lm_head__weight=FULL_HEAD, d2t=None, t2d=None), config(draft_vocab_size=V))),
    ("vllm", both(tensors(lm_head__weight=FULL_HEAD, d2t=None, t2d=None), config(draft_vocab_size=None))),
    ("vllm", config(norm_before_residual=True)),
])
def test_what_this_consumer_takes_is_not_reproached(tmp_path, consumer, change):
    good = small(consumer)
    change(good)
    assert lint(inspect_path(good.write(tmp_path), target=TARGET), consumer) == []


def test_vllm_with_two_numbers_of_draft_tokens_is_warned(tmp_path):
    good = small("speculators")
    good.files["serve.sh"] = """vllm serve m --speculative-config '{"num_speculative_tokens":5}'\n"""
    found = lint(inspect_path(good.write(tmp_path)), "vllm")
    assert [f.rule for f in found] == ["draft-tokens"]
    assert "3 in config.json" in found[0].what
    assert "5 in serve.sh" in found[0].what


def test_settings_given_by_hand_are_judged_like_those_of_a_script(tmp_path):
    facts = inspect_path(small().write(tmp_path))
    assert [f.rule for f in lint(facts, "sglang", serving=Serving(steps=3, topk=1, draft_tokens=8))] == ["draft-tokens"]
    assert lint(facts, "sglang", serving=Serving(steps=3, topk=1, draft_tokens=4)) == []


def test_tensor_parallel_asks_for_a_multiple_of_64_times_it(tmp_path):
    facts = inspect_path(small().write(tmp_path))
    assert lint(facts, "sglang", tp=2) == []
    found = lint(facts, "sglang", tp=4)
    assert [(f.rule, f.what) for f in found] == [("head-padding", "128 is no multiple of 256: padded to 256 rows")]


def test_without_a_consumer_those_are_judged_that_the_layout_is_for(tmp_path):
    facts = inspect_path(small("modelopt").write(tmp_path))
    assert facts.project == "modelopt"
    # vLLM reads ModelOpt's ids one layer off (vllm#43671); SGLang and ModelOpt read them as meant.
    assert [(f.rule, f.consumers) for f in lint(facts)] == [("aux-convention", ("vllm",))]


def test_who_could_load_follows_from_each_ones_errors(tmp_path):
    rows = {r.consumer: r for r in who_could_load(inspect_path(small("modelopt").write(tmp_path)))}
    assert {name for name, row in rows.items() if row.loads} == {"sglang", "vllm", "modelopt"}
    assert "GGUF" in rows["llama.cpp"].reason
    assert rows["specforge"].errors == 2  # key names, and no t2d


def test_an_unknown_consumer_is_refused_with_the_nearest_name(tmp_path):
    facts = inspect_path(small().write(tmp_path))
    with pytest.raises(Eagle3Error, match="did you mean sglang"):
        lint(facts, "sglan")


def test_counts_decide_what_is_padding_and_what_ends_a_turn(tmp_path, small_counts):
    facts = inspect_path(small().write(tmp_path))
    assert lint(facts, "sglang", counts=small_counts(seen=IDS)) == []
    found = lint(facts, "sglang", counts=small_counts(seen=IDS[:100], roles={7: "end_of_turn"}))
    assert {f.rule: f.what for f in found} == {
        "padded-ids": "28 of 128 ids never occur in the counts",
        "eos-uncovered": "token 7 (an end of turn in the counts) is not in the draft vocabulary",
    }


def test_a_finding_is_told_once_for_all_whom_it_hurts(tmp_path):
    broken = small("specforge")
    tensors(d2t=None, t2d=None)(broken)
    found = [f for f in lint(inspect_path(broken.write(tmp_path))) if f.rule == "d2t-absent"]
    assert [f.consumers for f in found] == [("specforge", "sglang", "vllm")]
    assert dataclasses.asdict(found[0])["links"]
