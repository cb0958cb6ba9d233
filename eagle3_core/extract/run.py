"""Hidden states of a target on disk, as SpecForge and speculators read them: sharded, resumable, sized beforehand.

    specforge     rows_{a}-{b}/data_{i}.ckpt   input_ids [S], loss_mask [S] int64, aux_hidden_state [1,S,3Ht],
                                               hidden_state [1,S,Ht] after the final norm; 2,000 files a folder
    speculators   hs_{i}.safetensors           token_ids [S], hidden_states [S,4,Ht]: three features, then the last
                                               state before the final norm; masks in an arrow dataset beside

A token takes 4 Ht numbers and 16 bytes (specforge) or 8 (speculators), whatever D
is: at Ht = 4096 in bf16 that is 32.8 kB, so 28 M tokens are 924 GB. The size is
known before anything is written, and a disk that is too small is refused.

Feature layers are 0-based layers whose output is read (SpecForge's convention);
``extract.json`` says so. ``progress.jsonl`` grows by a line a document; a run that
was killed continues after the last whole one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from eagle3_core.errors import Eagle3Error
from eagle3_core.extract.documents import Encoded
from eagle3_core.extract.dump import DOCUMENTS
from eagle3_core.files import atomic_path, canonical_json, read_json, write_text

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3_core.drafter.target import Target

FORMATS = ("specforge", "speculators")
PER_FOLDER = 2000
FILE_OVERHEAD = {"specforge": 2000, "speculators": 400}
ID_BYTES = {"specforge": 16, "speculators": 8}
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
HEADROOM = 1.02
IDENTITY, PROGRESS = "extract.json", "progress.jsonl"


@dataclass(frozen=True)
class Generation:
    """The target answers the prompts itself, in batches. Temperature 0 is greedy."""

    max_new: int = 256
    temperature: float = 0.0
    batch: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Plan:
    """``tokens`` and ``bytes`` are exact for given text, an upper bound when the target generates."""

    documents: int
    tokens: int
    bytes: int
    free: int
    exact: bool


def bytes_per_token(hidden: int, fmt: str, dtype: str) -> int:
    return 4 * hidden * ITEM_BYTES[dtype] + ID_BYTES[fmt]


def plan(documents: Sequence[Encoded], hidden: int, out: Path, *, fmt: str, dtype: str,
         generation: Generation | None = None) -> Plan:
    """What the run will write. Raises Eagle3Error for an unknown format or dtype."""
    if fmt not in FORMATS:
        raise Eagle3Error("--format", found=repr(fmt), expected=", ".join(FORMATS))
    if dtype not in ITEM_BYTES:
        raise Eagle3Error("--dtype", found=repr(dtype), expected=", ".join(ITEM_BYTES))
    tokens = sum(len(d.ids) for d in documents)
    if generation is not None:
        tokens += generation.max_new * len(documents)
    size = tokens * bytes_per_token(hidden, fmt, dtype) + len(documents) * FILE_OVERHEAD[fmt]
    near = out.absolute()
    while not near.exists():
        near = near.parent
    return Plan(len(documents), tokens, size, shutil.disk_usage(near).free, generation is None)


def check_room(planned: Plan, out: Path, written: int = 0) -> None:
    """Raises Eagle3Error when what is left to write does not fit the disk."""
    needed = round((planned.bytes - written) * HEADROOM)
    if needed > planned.free:
        raise Eagle3Error("the disk is too small", where=out,
                          found=f"{planned.free / 1e9:,.1f} GB free",
                          expected=f"{needed / 1e9:,.1f} GB for {planned.tokens:,} tokens",
                          fix="extract fewer documents, or train online")


def extract(
    target: Target, documents: Sequence[Encoded], out: str | Path, *, fmt: str = "specforge", dtype: str = "bfloat16",
    target_name: str = "target", generation: Generation | None = None, compress: bool = False,
    eos: Sequence[int] = (), progress: Callable[[float, float], None] | None = None,
) -> int:
    """Run the target over the documents and write what it saw; returns the number of documents written now.

    Raises Eagle3Error when the folder holds another extraction, or the disk is too small.
    """
    out = Path(out)
    planned = plan(documents, target.hidden_size, out, fmt=fmt, dtype=dtype, generation=generation)
    identity = _identity(target, documents, fmt, dtype, target_name, generation, compress)
    done = _open(out, identity)
    check_room(planned, out, sum(f.stat().st_size for f in out.rglob("*") if f.is_file()) if out.exists() else 0)
    write_text(out / IDENTITY, canonical_json(identity))
    wanted = [i for i in range(len(documents)) if i not in done]
    weight = [len(d.ids) + (generation.max_new if generation else 0) for d in documents]
    total, finished = sum(weight), sum(weight[i] for i in done)
    with open(out / PROGRESS, "a", encoding="utf-8") as log:
        for index, document in _texts(target, documents, wanted, generation, eos):
            name = _write(target, document, index, out, fmt, dtype, compress)
            entry = {"index": index, "file": name, "name": document.name, "domain": document.domain,
                     "tokens": len(document.ids), "spans": _spans(document.mask)}
            log.write(json.dumps(entry) + "\n")
            log.flush()
            done[index] = entry
            finished += weight[index]
            if progress is not None:
                progress(finished, total)
    _finish(out, [done[i] for i in range(len(documents))], fmt)
    return len(wanted)


def _identity(
    target: Target, documents: Sequence[Encoded], fmt: str, dtype: str, name: str, generation: Generation | None,
    compress: bool,
) -> dict[str, Any]:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(len(document.ids).to_bytes(8, "big") + document.ids.astype("<i8").tobytes()
                      + document.mask.astype(np.uint8).tobytes())
    return {
        "format_version": 1, "format": fmt, "dtype": dtype, "target": name, "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size, "aux_layers": list(target.aux_layers),
        "aux_layers_are": "0-based layers whose output is read", "compress": compress,
        "documents": len(documents), "documents_sha256": digest.hexdigest(),
        "generation": asdict(generation) if generation else None,
    }


def _open(out: Path, identity: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Documents already written. A half-written last line of the log is dropped."""
    if not out.exists() or not any(out.iterdir()):
        out.mkdir(parents=True, exist_ok=True)
        return {}
    if not (out / IDENTITY).is_file():
        raise Eagle3Error("is not empty and holds no extraction of this tool", where=out, fix="choose a new folder")
    before = read_json(out / IDENTITY)
    for key, value in identity.items():
        if before.get(key) != value:
            raise Eagle3Error(f"holds another extraction: {key.replace('_', ' ')}", where=out,
                              found=str(before.get(key))[:60], expected=str(value)[:60], fix="choose a new folder")
    done: dict[int, dict[str, Any]] = {}
    log = out / PROGRESS
    lines = log.read_bytes().split(b"\n") if log.is_file() else []
    whole = []
    for line in lines[:-1]:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            break
        whole.append(line)
        if (out / entry["file"]).is_file():
            done[entry["index"]] = entry
    if log.is_file():
        write_text(log, b"".join(line + b"\n" for line in whole).decode())
    return done


def _texts(
    target: Target, documents: Sequence[Encoded], wanted: Sequence[int], generation: Generation | None,
    eos: Sequence[int],
) -> Iterator[tuple[int, Encoded]]:
    if generation is None:
        yield from ((index, documents[index]) for index in wanted)
        return
    # Batches are those of the whole run, so that a resumed run samples the same texts.
    order = sorted(range(len(documents)), key=lambda i: (len(documents[i].ids), i))
    missing = set(wanted)
    for start in range(0, len(order), generation.batch):
        batch = order[start : start + generation.batch]
        if missing.isdisjoint(batch):
            continue
        answers = answer(target, [documents[i].ids for i in batch], generation, eos, seed=generation.seed + start)
        for index, said in zip(batch, answers, strict=True):
            if index in missing:
                prompt = documents[index]
                mask = np.concatenate([np.zeros(len(prompt.ids), dtype=bool), np.ones(len(said), dtype=bool)])
                yield index, Encoded(prompt.name, np.concatenate([prompt.ids, said]), mask, prompt.domain)


def answer(
    target: Target, prompts: Sequence[np.ndarray], generation: Generation, eos: Sequence[int], *, seed: int
) -> list[np.ndarray]:
    """What the target says to each prompt, end-of-turn token included, by transformers' generate on a padded batch."""
    import torch

    longest = max(len(p) for p in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros(len(prompts), longest, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, longest - len(prompt) :] = 1
    options: dict[str, Any] = {"max_new_tokens": generation.max_new, "do_sample": generation.temperature > 0,
                               "pad_token_id": eos[0] if eos else 0, "eos_token_id": list(eos) or None,
                               "top_k": 0, "top_p": 1.0}
    if generation.temperature > 0:
        options["temperature"] = generation.temperature
        torch.manual_seed(seed)
    else:
        options |= {"temperature": None, "top_k": None, "top_p": None}
    with torch.inference_mode():
        made = target.model.generate(ids.to(target.device), attention_mask=mask.to(target.device), **options)
    answers = []
    for row in made[:, longest:].cpu().numpy():
        ends = np.flatnonzero(np.isin(row, list(eos)))
        answers.append(row[: ends[0] + 1] if len(ends) else row)
    return answers


def _write(target: Target, document: Encoded, index: int, out: Path, fmt: str, dtype: str, compress: bool) -> str:
    import torch

    ids = torch.from_numpy(np.ascontiguousarray(document.ids))
    with torch.inference_mode():
        seen = target.forward(ids[None].to(target.device))
    kind = getattr(torch, dtype)

    def stored(tensor: Tensor) -> Tensor:
        return tensor.detach().to(kind).cpu().contiguous().clone()

    if fmt == "speculators":
        from safetensors.torch import save_file

        name = f"hs_{index}.safetensors"
        width = target.hidden_size
        states = torch.cat([seen.aux[0].reshape(len(ids), 3, width), seen.before_norm[0][:, None]], dim=1)
        with atomic_path(out / name) as part:
            save_file({"token_ids": ids, "hidden_states": stored(states)}, part)
        return name
    start = index // PER_FOLDER * PER_FOLDER
    name = f"rows_{start}-{start + PER_FOLDER}/data_{index}.ckpt" + (".gz" if compress else "")
    value = {"input_ids": ids, "loss_mask": torch.from_numpy(document.mask.astype(np.int64)),
             "hidden_state": stored(seen.last), "aux_hidden_state": stored(seen.aux)}
    with atomic_path(out / name) as part:
        # Through a stream: given a path, torch writes the temporary file's name into the archive.
        if compress:
            with open(part, "wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as stream:
                torch.save(value, cast(BinaryIO, stream))
        else:
            with open(part, "wb") as stream:
                torch.save(value, stream)
    return name


def _spans(mask: np.ndarray) -> list[list[int]]:
    """[start, end) of every stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return edges.reshape(-1, 2).tolist()


def _finish(out: Path, entries: Sequence[dict[str, Any]], fmt: str) -> None:
    keep = ("file", "name", "domain", "tokens")
    lines = "".join(json.dumps({k: e[k] for k in keep}, ensure_ascii=False) + "\n" for e in entries)
    write_text(out / DOCUMENTS, lines)
    if fmt == "speculators":
        _write_arrow(out, entries)


def _write_arrow(out: Path, entries: Sequence[dict[str, Any]]) -> None:
    """input_ids, loss_mask and seq_len, row i beside hs_i.safetensors, as ``datasets.load_from_disk`` opens it."""
    import pyarrow as pa
    from safetensors.torch import load_file

    ids, masks = [], []
    for entry in entries:
        row = load_file(out / entry["file"])["token_ids"].numpy()
        mask = np.zeros(len(row), dtype=np.int64)
        for start, end in entry["spans"]:
            mask[start:end] = 1
        ids.append(row)
        masks.append(mask)
    schema = pa.schema([("input_ids", pa.list_(pa.int64())), ("loss_mask", pa.list_(pa.int64())),
                        ("seq_len", pa.int64())])
    table = pa.table({"input_ids": ids, "loss_mask": masks, "seq_len": [len(row) for row in ids]}, schema=schema)
    name = "data-00000-of-00001.arrow"
    with atomic_path(out / name) as part, pa.OSFile(str(part), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table)
    sequence = {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"}
    features = {"input_ids": sequence, "loss_mask": sequence, "seq_len": {"dtype": "int64", "_type": "Value"}}
    write_text(out / "dataset_info.json", canonical_json(
        {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}))
    write_text(out / "state.json", canonical_json(
        {"_data_files": [{"filename": name}], "_fingerprint": "0" * 16, "_format_columns": None, "_format_kwargs": {},
         "_format_type": None, "_output_all_columns": False, "_split": None}))
