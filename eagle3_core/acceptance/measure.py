"""``eagle3 measure acceptance``: a drafter checkpoint, its target, and text, to acceptance at every size.

The text is chat or plain text, run through the target here, or a folder of
hidden states, for which only three tensors of the target are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_core.acceptance.record import AcceptanceRecord
from eagle3_core.corpus.counts import TokenCounts
from eagle3_core.errors import Eagle3Error
from eagle3_core.vocab.ranking import rank

if TYPE_CHECKING:
    from eagle3_core.acceptance.one_pass import TextFeatures

GRID = 24
"""Sizes that ``auto`` measures at most."""


def auto_sizes(trained: int, vocab_size: int, smallest: int = 1024) -> tuple[int, ...]:
    """At most 24 sizes in log steps of 64 rows up to the drafter's own, with 32,000 where it is inside."""
    from eagle3_core.specs.sizes import INHERITED

    low = min(smallest, trained)
    ratio = (trained / low) ** (1 / (GRID - 2))
    sizes = {min(trained, max(low, round(low * ratio**i / 64) * 64)) for i in range(GRID - 1)} | {low, trained}
    if low < INHERITED < trained and len(sizes) < GRID:
        sizes.add(INHERITED)
    return tuple(sorted(sizes))


def measure_acceptance(
    drafter: str | Path, target: str | Path, data: Sequence[str | Path], counts: TokenCounts, *, sizes: str = "auto",
    temperatures: Sequence[float] = (0.0,), depth: int = 5, rankings: Sequence[str] = ("pooled",), force: bool = True,
    tokenizer: str | None = None, max_length: int = 2048, limit: int | None = None,
    domains: Mapping[str, str] | None = None, domain_field: str | None = None, dtype: str = "float32",
    trained_by: str | None = None, progress: Callable[[float, float], None] | None = None,
) -> list[AcceptanceRecord]:
    """One record for each ranking and temperature, rankings outermost, all from one forward.

    Raises Eagle3Error when target, drafter, counts and data do not belong together.
    """
    from eagle3_core.acceptance.one_pass import evaluate, row_order
    from eagle3_core.acceptance.summarise import record_of
    from eagle3_core.drafter.checkpoint import aux_layers_of, read_drafter
    from eagle3_core.files import read_json
    from eagle3_core.specs.sizes import parse_sizes

    config = Path(drafter) / "config.json"
    aux = aux_layers_of(read_json(config), config.parent)
    source = open_text(target, data, aux_layers=aux, tokenizer=tokenizer, max_length=max_length, limit=limit,
                       domains=domains, domain_field=domain_field, dtype=dtype)
    loaded = read_drafter(drafter, embedding=source.embedding, head=source.head.weight, dtype=dtype,
                          trained_by=trained_by)
    spec, trained = loaded.drafter.spec, loaded.mapping.draft_vocab_size
    vocab = source.head.weight.shape[0]
    for name, found in (("drafter", spec.vocab_size), ("counts", counts.vocab_size)):
        if found != vocab:
            raise Eagle3Error(f"{name} and target have different vocabularies", where=drafter,
                              found=f"V = {found:,}", expected=f"V = {vocab:,}")
    wanted = auto_sizes(trained, vocab) if sizes == "auto" else parse_sizes(sizes, vocab)
    if wanted[-1] > trained:
        raise Eagle3Error("the drafter cannot be measured above its own size", where=drafter,
                          found=f"D = {wanted[-1]:,}", expected=f"at most {trained:,}",
                          fix="give --sizes up to that, or train at a larger D")
    if wanted[-1] != trained:
        # The full drafter is the reference of C_acc and rescue.
        wanted = (*wanted, trained)
    orders = {
        name: row_order(loaded.drafter.target_ids, rank(counts, name, force=force).order, wanted) for name in rankings
    }
    done = 0

    def tell(document: TextFeatures) -> None:
        nonlocal done
        done += len(document.ids)
        if progress is not None:
            progress(done, source.tokens)

    tallies = evaluate(source.documents(), loaded.drafter, source.head, orders, temperatures=temperatures, depth=depth,
                       progress=tell)
    return [
        record_of(tally, target=source.name, drafter=Path(drafter).name, vocab_size=vocab, trained_draft_vocab=trained,
                  source=", ".join(Path(str(item)).name for item in data), notes=(*source.notes, *loaded.notes))
        for tally in tallies
    ]


class TextSource:
    """Documents with the target's features, made as they are read."""

    def __init__(self, name: str, head: Any, embedding: Any, tokens: int, make: Callable[[], Iterator[TextFeatures]],
                 notes: tuple[str, ...] = ()) -> None:
        self.name, self.head, self.embedding, self.tokens, self.notes = name, head, embedding, tokens, notes
        self.documents = make


def open_text(
    target: str | Path, data: Sequence[str | Path], *, aux_layers: tuple[int, int, int] | None,
    tokenizer: str | None = None, max_length: int = 2048, limit: int | None = None,
    domains: Mapping[str, str] | None = None, domain_field: str | None = None, dtype: str = "float32",
) -> TextSource:
    """Hidden-state folders are read; anything else is tokenized and run through the target."""
    folders = [Path(item) for item in data]
    dumps = [_is_dump(folder) for folder in folders]
    if any(dumps) and not all(dumps):
        raise Eagle3Error("mixes hidden states and text", where=folders[dumps.index(False)], fix="measure them apart")
    if all(dumps):
        return _from_dump(target, folders, dtype, limit)
    return _from_text(target, data, aux_layers, tokenizer, max_length, limit, domains, domain_field, dtype)


def _is_dump(folder: Path) -> bool:
    return folder.is_dir() and any(next(folder.glob(p), None) is not None for p in (
        "**/data_*.ckpt", "**/data_*.ckpt.gz", "**/hs_*.safetensors", "**/*.pt"))


def _from_dump(target: str | Path, folders: list[Path], dtype: str, limit: int | None) -> TextSource:
    import torch
    import torch.nn.functional as F

    from eagle3_core.acceptance.one_pass import TextFeatures
    from eagle3_core.drafter.target import TargetHead
    from eagle3_core.extract.dump import domains_of
    from eagle3_core.files import read_json
    from eagle3_core.training.features import open_features
    from eagle3_core.training.target_weights import read_target_weights

    weights = read_target_weights(target)
    kind = getattr(torch, dtype)
    config = read_json(Path(target) / "config.json")
    text = config.get("text_config") or config
    softcap = text.get("final_logit_softcapping")
    scale = float(text.get("logit_scale") or 1.0) / float(text.get("logits_scaling") or 1.0)
    head = TargetHead(weights.head.to(kind), None, scale, softcap)
    features = open_features(folders)
    if limit is not None:
        features = features.subset(range(min(limit, len(features))))
    names = domains_of(folders, features.files)

    def make() -> Iterator[TextFeatures]:
        for index in range(len(features)):
            document = features.load(index)
            last = document.last.to(kind)
            if not document.post_norm:
                last = F.rms_norm(last.float(), (last.shape[-1],), weights.norm.float(),
                                  weights.spec.rms_norm_eps).to(kind)
            yield TextFeatures(document.name, names[index], document.ids, document.mask, document.aux.to(kind), last)

    # Lengths are not known before the files are read; documents stand in for tokens in the progress bar.
    tokens = sum(file.stat().st_size for file in features.files) // max(8 * weights.spec.hidden_size, 1)
    return TextSource(weights.spec.name, head, weights.embedding.to(kind), tokens, make)


def _from_text(
    target: str | Path, data: Sequence[str | Path], aux_layers: tuple[int, int, int] | None, tokenizer: str | None,
    max_length: int, limit: int | None, domains: Mapping[str, str] | None, domain_field: str | None, dtype: str,
) -> TextSource:
    import torch

    from eagle3_core.acceptance.one_pass import TextFeatures
    from eagle3_core.corpus.tokenizer import load_tokenizer
    from eagle3_core.cost.verify import load_target
    from eagle3_core.drafter.target import Target
    from eagle3_core.extract.documents import encode_documents

    model = Target(load_target(target, dtype, "cpu"), aux_layers)
    encoded, rejected = encode_documents(
        data, load_tokenizer(tokenizer or target), vocab_size=model.vocab_size, max_length=max_length, limit=limit,
        domains=domains, domain_field=domain_field)
    notes = (f"{len(rejected)} records could not be used, first {rejected[0].file} line {rejected[0].line}: "
             f"{rejected[0].why}",) if rejected else ()

    def make() -> Iterator[TextFeatures]:
        for document in encoded:
            ids = torch.from_numpy(document.ids)
            with torch.inference_mode():
                seen = model.forward(ids[None])
            yield TextFeatures(document.name, document.domain, ids, torch.from_numpy(document.mask), seen.aux[0],
                               seen.last[0])

    return TextSource(Path(target).name, model.head, model.embedding, sum(len(d.ids) for d in encoded), make, notes)
