"""What a run starts from: target tensors, documents, draft vocabulary, and the drafter before its first step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from eagle3_core.drafter.checkpoint import read_drafter, read_state
from eagle3_core.drafter.model import Drafter
from eagle3_core.drafter.rope import rope_of
from eagle3_core.errors import Eagle3Error
from eagle3_core.specs.drafter import drafter_for
from eagle3_core.training.config import TrainConfig
from eagle3_core.training.data import OnlineSource
from eagle3_core.training.features import FeatureSet, open_features
from eagle3_core.training.target_weights import TargetWeights, read_target_weights
from eagle3_core.vocab.mapping import VocabMapping, mapping_from_ids

if TYPE_CHECKING:
    from eagle3_core.vocab.ranking import Ranking


@dataclass(frozen=True)
class Start:
    """``ranking`` orders the smaller sizes that are measured; None without counts."""

    weights: TargetWeights
    source: FeatureSet | OnlineSource
    drafter: Drafter
    mapping: VocabMapping
    aux_layers: tuple[int, int, int]
    ranking: Ranking | None
    notes: tuple[str, ...]


def prepare(config: TrainConfig) -> Start:
    """Raises Eagle3Error when target, data, counts, mapping and checkpoint do not belong together."""
    weights = read_target_weights(config.model.target)
    spec = weights.spec
    source, aux = _source(config, weights)
    ranking, given = _given_mapping(config, spec.vocab_size)
    if config.model.checkpoint is not None:
        drafter, mapping, notes, aux = _from_checkpoint(config, weights, given, aux)
    else:
        mapping = given or mapping_from_ids(np.arange(spec.vocab_size), spec.vocab_size)
        drafter, notes = _fresh(config, weights, mapping), ()
    drafter.requires_grad_(config.model.trainable == "all")
    drafter.embed_tokens.requires_grad_(False)
    drafter.lm_head.requires_grad_(True)
    if config.model.head == "target_frozen":
        drafter.lm_head.requires_grad_(False)
    return Start(weights, source, drafter.float().train(), mapping, aux, ranking, notes)


def load_weights(drafter: Drafter, checkpoint: Path) -> None:
    """Put a checkpoint of the same run into ``drafter``."""
    weights = read_state(checkpoint)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])


def _source(
    config: TrainConfig, weights: TargetWeights
) -> tuple[FeatureSet | OnlineSource, tuple[int, int, int]]:
    aux = config.model.aux_layers or weights.spec.aux_layers
    if config.data.features:
        features = open_features(config.data.features)
        width = features.load(0).last.shape[1]
        if width != weights.spec.hidden_size:
            raise Eagle3Error("the hidden states are another target's", where=features.files[0], found=f"width {width}",
                              expected=f"{weights.spec.hidden_size} of {weights.spec.name}")
        return features, aux
    from eagle3_core.corpus.tokenizer import load_tokenizer
    from eagle3_core.cost.verify import load_target
    from eagle3_core.drafter.target import Target
    from eagle3_core.extract.documents import encode_documents

    target = Target(load_target(config.model.target, "float32", "cpu"), aux)
    texts, _ = encode_documents(config.data.text, load_tokenizer(config.model.target),
                                vocab_size=weights.spec.vocab_size, max_length=config.data.max_length)
    return OnlineSource(target, texts), aux


def _given_mapping(config: TrainConfig, vocab_size: int) -> tuple[Ranking | None, VocabMapping | None]:
    size = config.model.draft_vocab
    if config.model.counts is not None:
        from eagle3_core.corpus.counts import read_counts
        from eagle3_core.vocab.ranking import mapping_at, rank

        counts = read_counts(config.model.counts)
        if counts.vocab_size != vocab_size:
            raise Eagle3Error("counts and target have different vocabularies", where=config.model.counts,
                              found=f"V = {counts.vocab_size:,}", expected=f"V = {vocab_size:,}")
        ranking = rank(counts, config.model.ranking)
        return ranking, mapping_at(ranking, size or vocab_size)
    if config.model.mapping is not None:
        from eagle3_core.vocab.formats import read_mapping

        mapping = read_mapping(config.model.mapping, None, vocab_size).ascending()[0]
        if size not in (None, mapping.draft_vocab_size):
            raise Eagle3Error("model.draft_vocab and the mapping differ", where=config.model.mapping,
                              found=f"D = {mapping.draft_vocab_size:,}", expected=f"D = {size:,}")
        return None, mapping
    if size not in (None, vocab_size) and config.model.checkpoint is None:
        raise Eagle3Error("which tokens are in the draft vocabulary is not said", found=f"D = {size:,}",
                          expected="model.counts or model.mapping")
    return None, None


def _fresh(config: TrainConfig, weights: TargetWeights, mapping: VocabMapping) -> Drafter:
    import dataclasses

    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    spec = dataclasses.replace(drafter_for(weights.spec, mapping.draft_vocab_size),
                               **{flag: getattr(config.model, flag) for flag in flags})
    rope = rope_of(weights.spec.rope, weights.spec.max_position_embeddings, where=config.model.target)
    drafter = Drafter(spec, rope).reset(config.run.seed)
    drafter.d2t.copy_(torch.from_numpy(mapping.d2t.copy()))
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(weights.embedding)
        if config.model.head != "fresh":
            drafter.lm_head.weight.copy_(weights.head[drafter.target_ids])
    return drafter


def _from_checkpoint(
    config: TrainConfig, weights: TargetWeights, given: VocabMapping | None, aux: tuple[int, int, int]
) -> tuple[Drafter, VocabMapping, tuple[str, ...], tuple[int, int, int]]:
    folder = Path(str(config.model.checkpoint))
    loaded = read_drafter(folder, embedding=weights.embedding, head=weights.head, dtype="float32")
    if loaded.aux_layers is not None and loaded.aux_layers != aux:
        if config.model.aux_layers is not None:
            raise Eagle3Error("the checkpoint reads other feature layers", where=folder, found=list(loaded.aux_layers),
                              expected=list(aux))
        aux = loaded.aux_layers
    held, drafter = loaded.mapping, loaded.drafter
    size = config.model.draft_vocab
    if given is None and size not in (None, held.draft_vocab_size):
        raise Eagle3Error("the checkpoint's draft vocabulary is inherited", where=folder,
                          found=f"D = {held.draft_vocab_size:,}", expected=f"D = {size:,}",
                          fix="give model.counts or model.mapping and model.remap=true")
    if given is None or given == held:
        return drafter, held, (f"draft vocabulary inherited: D = {held.draft_vocab_size:,}, {folder.name}",), aux
    if not config.model.remap:
        raise Eagle3Error("another draft vocabulary than the checkpoint's", where=folder,
                          found=f"D = {given.draft_vocab_size:,}", expected=f"its own, D = {held.draft_vocab_size:,}",
                          fix="--remap moves the rows by token id")
    moved, fresh = remap(drafter, held, given, weights, config)
    note = f"lm_head moved by token id: {given.draft_vocab_size - fresh:,} rows kept, {fresh:,} new"
    return moved, given, (note,), aux


def remap(
    old: Drafter, held: VocabMapping, given: VocabMapping, weights: TargetWeights, config: TrainConfig
) -> tuple[Drafter, int]:
    """``old`` with ``given``'s rows: those it has move by target id, the others start as ``model.head`` says."""
    new = Drafter(old.spec.with_draft_vocab(given.draft_vocab_size), old.rope, window=old.window).reset(config.run.seed)
    state = {name: value for name, value in old.state_dict().items() if name not in ("lm_head.weight", "d2t")}
    new.load_state_dict(state, strict=False)
    row_of = torch.full((held.vocab_size,), -1, dtype=torch.int64)
    row_of[torch.from_numpy(held.target_ids.copy())] = torch.arange(held.draft_vocab_size)
    ids = torch.from_numpy(given.target_ids.copy())
    have = row_of[ids] >= 0
    with torch.no_grad():
        if config.model.head != "fresh":
            new.lm_head.weight.copy_(weights.head[ids])
        new.lm_head.weight[have] = old.lm_head.weight[row_of[ids[have]]]
        new.d2t.copy_(torch.from_numpy(given.d2t.copy()))
    return new, int((~have).sum())
