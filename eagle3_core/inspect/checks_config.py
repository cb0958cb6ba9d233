"""Checks of config.json against the tensors, the target and the launch settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eagle3_core.inspect.facts import Facts
from eagle3_core.inspect.rules import Hit, Subject

STATES = ("vllm", "speculators")
"""They count states: index k is the state after k layers. The others name the layer whose output is read."""
CONFIG = "config.json"


def layout(subject: Subject) -> Iterator[Hit]:
    """Key names and the shape of the config, where the consumer takes one alone."""
    facts, consumer = subject.facts, subject.consumer
    names = set(facts.renamed.values())
    prefix = "layers.0." if consumer in ("speculators", "modelopt") else "midlayer."
    other = {"layers.0.": "midlayer.", "midlayer.": "layers.0."}[prefix]
    if consumer not in ("sglang", "vllm") and any(other in name for name in names):
        yield "weights", f"keys begin with {other}, {consumer} takes {prefix}"
    if consumer == "modelopt" and (extra := sorted({"embed_tokens.weight", "t2d"} & set(facts.tensors))):
        yield "weights", f"ModelOpt refuses the key {extra[0]}"
    if facts.has_config and facts.speculators != (consumer == "speculators") and consumer != "vllm":
        yield CONFIG, ("the decoder's fields are at the root" if consumer == "speculators" else
                       "the decoder's fields are nested in transformer_layer_config")
    kinds = facts.config.get("architectures")
    if consumer == "specforge" and facts.has_config and not facts.speculators and kinds != ["LlamaForCausalLMEagle3"]:
        yield CONFIG, f"architectures is {kinds}, SpecForge takes LlamaForCausalLMEagle3 alone"


def size_missing(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    if not facts.has_config or facts.stated_draft_vocab is not None:
        return
    if facts.reduced and facts.head_rows is not None:
        yield CONFIG, (f"no draft_vocab_size though lm_head has {facts.head_rows:,} rows of V = {facts.vocab_size:,}")
    elif facts.mapping is not None and facts.reduced:
        yield CONFIG, f"no draft_vocab_size though d2t has {facts.draft_vocab_size:,} entries"
    elif subject.consumer == "sglang" and "draft_vocab_size" not in facts.config:
        yield CONFIG, "no field draft_vocab_size, which SGLang reads without a default"


def size_differs(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    sizes = {"draft_vocab_size": facts.stated_draft_vocab, "rows of lm_head": facts.head_rows}
    if facts.mapping is not None and facts.mapping.d2t is not None and facts.mapping.d2t.ndim == 1:
        sizes["entries of d2t"] = int(facts.mapping.d2t.size)
    known = {name: size for name, size in sizes.items() if size is not None}
    if len(set(known.values())) > 1:
        yield CONFIG, "D differs: " + ", ".join(f"{size:,} {name}" for name, size in known.items())


def vocab_is_draft(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    stated, seen = facts.stated_vocab, facts.seen_vocab
    if stated is not None and seen is not None and stated < seen and stated == facts.draft_vocab_size:
        where = "transformer_layer_config.vocab_size" if facts.speculators else "vocab_size"
        yield f"{CONFIG} {where}", f"is D = {stated:,}, but V = {seen:,}"


def vocab_differs(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    found = {"vocab_size": facts.stated_vocab, "rows of embed_tokens": facts.rows("embed_tokens.weight"),
             "the target": facts.target.vocab_size if facts.target else None}
    if facts.mapping is not None and facts.mapping.t2d is not None:
        found["entries of t2d"] = int(facts.mapping.t2d.size)
    known = {name: size for name, size in found.items() if size is not None}
    if len(set(known.values())) > 1 and not list(vocab_is_draft(subject)):
        yield CONFIG, "V differs: " + ", ".join(f"{size:,} {name}" for name, size in known.items())


def head_missing(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    if "fc.weight" in facts.tensors and facts.head_rows is None and facts.reduced:
        yield "weights", f"no lm_head though D = {facts.draft_vocab_size:,} < V = {facts.vocab_size:,}"


def tied(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    if not facts.reduced:
        return
    holders: dict[str, Mapping[str, Any]] = {CONFIG: facts.config}
    if facts.speculators:
        holders[f"{CONFIG} transformer_layer_config"] = facts.layer
    for where, holder in holders.items():
        if holder.get("tie_word_embeddings") is True:
            yield where, f"tie_word_embeddings is true with D = {facts.draft_vocab_size:,} < V = {facts.vocab_size:,}"


_NORMS = {"norm_before_fc": "input_norm.weight", "fc_norm": "fc_norm.0.weight"}


def norm_without_tensor(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    for flag, tensor in _NORMS.items():
        if facts.tensors and facts.flag(flag) and tensor not in facts.tensors:
            yield f"{CONFIG} {flag}", f"is true, but there is no tensor {tensor}"


def tensor_without_norm(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    # SGLang's older name of fc_norm.
    flags = {flag for flag in _NORMS if facts.flag(flag)} | ({"fc_norm"} if facts.flag("use_aux_norm") else set())
    for flag, tensor in _NORMS.items():
        if facts.has_config and tensor in facts.tensors and flag not in flags:
            yield f"weights {tensor}", f"is stored, but {flag} is not set"


def hidden_size(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    wide = facts.columns("fc.weight")
    if wide is not None and wide % 3:
        yield "weights fc.weight", f"reads {wide:,} columns, not three features of one width"
        return
    hidden = facts.hidden_size
    if facts.tensors and hidden is not None:
        seen = {
            "config's hidden_size": facts.whole("hidden_size"), "columns of lm_head": facts.columns("lm_head.weight"),
            "length of norm": facts.rows("norm.weight"),
            "rows of o_proj": facts.rows("midlayer.self_attn.o_proj.weight"),
        }
        q = facts.columns("midlayer.self_attn.q_proj.weight")
        seen["half the columns of q_proj"] = None if q is None else q // 2
        for name, size in seen.items():
            if size is not None and size != hidden:
                yield "weights fc.weight", f"H = {hidden:,} rows, but {size:,} {name}"
    width = facts.target_hidden_size
    stated = facts.config.get("target_hidden_size")
    if wide is not None and isinstance(stated, int) and stated != width:
        yield f"{CONFIG} target_hidden_size", f"is {stated:,}, but fc reads 3 x {width:,}"
    if facts.target is not None and width is not None and width != facts.target.hidden_size:
        yield "weights fc.weight" if wide else CONFIG, (
            f"reads features of width {width:,}, the target {facts.target.name} has {facts.target.hidden_size:,}")


def aux_absent(subject: Subject) -> Iterator[Hit]:
    if subject.facts.has_config and subject.facts.aux_layers is None:
        yield CONFIG, "no eagle_aux_hidden_state_layer_ids"


def defaults(layers: int) -> dict[str, tuple[int, ...]]:
    """The default feature layers of a target of n layers, in both conventions: the same three tensors."""
    outputs = (min(1, layers - 1), max(layers // 2 - 1, 0), max(layers - 4, 0))
    return {"outputs": outputs, "states": tuple(i + 1 for i in outputs)}


def convention_of(facts: Facts) -> str | None:
    """Which convention the ids are in, as far as the default layers give it away; None when nothing does."""
    aux = facts.aux_layers
    if aux is None:
        return None
    first = tuple(sorted(aux.ids))[:3]
    if facts.target is not None:
        named = defaults(facts.target.num_layers)
        return next((name for name, ids in named.items() if ids == first), None)
    # Every project's default starts at the output of layer 1.
    return {1: "outputs", 2: "states"}.get(first[0]) if len(first) == 3 else None


def aux_convention(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    found, wanted = convention_of(facts), "states" if subject.consumer in STATES else "outputs"
    if found is None or found == wanted or facts.aux_layers is None:
        return
    if facts.aux_layers.place == "root" and wanted == "outputs":
        return  # read by vLLM and speculators alone
    shift = 1 if wanted == "states" else -1
    meant = "the state after k layers" if wanted == "states" else "the output of layer k, counted from 0"
    yield CONFIG, (f"aux layer ids {list(facts.aux_layers.ids)}: {subject.consumer} reads {meant}, so the defaults are "
                   f"{[i + shift for i in facts.aux_layers.ids]}")


def norm_before_residual(subject: Subject) -> Iterator[Hit]:
    if subject.facts.flag("norm_before_residual"):
        yield CONFIG, "norm_before_residual is true"


def norm_output(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    if facts.project == "specforge" and facts.flag("norm_output"):
        yield CONFIG, "norm_output is true in SpecForge's layout"


def head_padding(subject: Subject) -> Iterator[Hit]:
    facts, block = subject.facts, 64 * subject.tp
    size = facts.draft_vocab_size
    if facts.kind == "mapping" or size is None or not facts.reduced or size % block == 0:
        return
    yield "D", f"{size:,} is no multiple of {block}: padded to {-(-size // block) * block:,} rows"


def draft_tokens(subject: Subject) -> Iterator[Hit]:
    stated = {}
    for s in subject.serving:
        if s.num_speculative_tokens is not None and subject.consumer == "vllm":
            stated[s.source or "settings"] = s.num_speculative_tokens
        if subject.consumer != "sglang":
            continue
        if s.steps is None:
            if s.topk is not None or s.draft_tokens is not None:
                yield s.source or "settings", "topk or draft tokens are set without --speculative-num-steps"
            continue
        topk = s.topk if s.topk is not None else 1
        if s.draft_tokens is None:
            continue
        if topk == 1 and s.draft_tokens != s.steps + 1:
            yield s.source or "settings", (f"{s.steps} steps of a chain make {s.steps + 1} tokens with the bonus, "
                                           f"but {s.draft_tokens} draft tokens are set")
        elif topk > 1 and s.draft_tokens - 1 > topk + (s.steps - 1) * topk**2:
            yield s.source or "settings", (f"{s.draft_tokens} draft tokens are more than a tree of {s.steps} steps and "
                                           f"topk {topk} has")
    if len(set(stated.values())) > 1:
        yield "settings", "the number of draft tokens differs: " + ", ".join(f"{n} in {w}" for w, n in stated.items())


def rejection_sampling(subject: Subject) -> Iterator[Hit]:
    for s in subject.serving:
        if s.rejection_sampling and subject.facts.reduced:
            yield s.source or "settings", "--speculative-use-rejection-sampling with D < V"


def dtype(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    if facts.target is not None and facts.dtype is not None and facts.tensors and facts.dtype != facts.target.dtype:
        yield "weights", f"{facts.dtype}, the target is {facts.target.dtype}"
