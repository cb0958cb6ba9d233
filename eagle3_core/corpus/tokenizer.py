"""Opening a tokenizer, whichever file it comes in, without running any code that comes with it.

    tokenizer.json            Hugging Face ``tokenizers`` (a folder with its configs is better: roles, template)
    *.model, *.tiktoken       tiktoken rank files (Kimi, Llama 3, Qwen), special tokens from tokenizer_config.json
    tekken*.json              Mistral tekken
    *.model (protobuf)        SentencePiece
    *.gguf                    the tokenizer inside a GGUF model

A byte-level BPE is counted piece by piece (``pieces.py``); whatever is not falls
back to its own library, and ``Tokenizer.notes`` says so.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_core.corpus.pieces import PROBE, NotPiecewise, PieceEncoder, PieceSpec, byte_level_bytes, spec_from_json
from eagle3_core.corpus.roles import assign_roles, chat_template, eos_ids, special_texts, tokenizer_config
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import read_bytes, read_json, reason

KIMI_PATTERN = "|".join((
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
))
QWEN_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3_PATTERN = QWEN_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
RANK_PATTERNS = {"kimi": KIMI_PATTERN, "qwen": QWEN_PATTERN, "llama": LLAMA3_PATTERN}
"""Split patterns of the published rank files, which do not hold their own."""


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """An opened tokenizer. ``encode`` takes text to ids; added tokens in the text are recognised, none are put in."""

    name: str
    token_bytes: tuple[bytes, ...]
    """Bytes of each id; empty where the id stands for nothing."""
    roles: tuple[str, ...]
    encode: Callable[[Sequence[str]], list[np.ndarray]]
    spec: PieceSpec | None = None
    """Set where counting by pieces is exact."""
    template: str | None = None
    special: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(self.token_bytes)

    @functools.cached_property
    def ends(self) -> tuple[str, ...]:
        """Texts of the tokens that end a turn."""
        return tuple(token.decode("utf-8", "replace") for token, role in zip(self.token_bytes, self.roles, strict=True)
                     if role in ("eos", "end_of_turn"))

    @functools.cached_property
    def sha256(self) -> str:
        """Identity: the id -> bytes table. Two files with the same table count alike."""
        digest = hashlib.sha256()
        for token in self.token_bytes:
            digest.update(len(token).to_bytes(4, "big") + token)
        return digest.hexdigest()


def load_tokenizer(source: str | Path) -> Tokenizer:
    """Open a tokenizer folder or file. Raises Eagle3Error saying what was found and what is understood."""
    path = Path(source)
    if not path.exists():
        raise Eagle3Error("no such tokenizer", where=path, expected="a folder or file on this machine")
    file = _main_file(path) if path.is_dir() else path
    folder = path if path.is_dir() else path.parent
    name = _name(folder if path.is_dir() else file)
    if file.suffix == ".gguf":
        return _from_gguf(file, name)
    if file.name.startswith("tekken"):
        return _from_tekken(file, name)
    if file.suffix == ".json":
        return _from_json(file.read_text(encoding="utf-8"), folder, name, file)
    if _is_rank_file(file):
        return _from_ranks(file, folder, name)
    return _from_sentencepiece(file, folder, name)


def _main_file(folder: Path) -> Path:
    for pattern in ("tokenizer.json", "tekken*.json", "tiktoken.model", "*.tiktoken", "tokenizer.model", "*.model",
                    "*.gguf"):
        if found := sorted(folder.glob(pattern)):
            return found[0]
    raise Eagle3Error("holds no tokenizer", where=folder,
                      expected="tokenizer.json, tiktoken.model, tekken.json, tokenizer.model or a .gguf")


_UNTELLING = {"models", "model", "package", "tokenizer", "resources", "data", "tiktoken", "snapshots"}


def _name(path: Path) -> str:
    """The nearest part of the path that tells anything."""
    parts = [path.stem if path.is_file() else path.name, *(parent.name for parent in path.resolve().parents)]
    return next((part for part in parts if part and part.split(".")[0].lower() not in _UNTELLING), "tokenizer")


def _from_json(text: str, folder: Path | None, name: str, where: object) -> Tokenizer:
    import tokenizers

    try:
        value = json.loads(text)
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception for whatever it cannot parse
        raise Eagle3Error("is not a tokenizer.json", where=where, found=reason(error)) from None
    backend.no_truncation()
    backend.no_padding()
    vocab = backend.get_vocab(with_added_tokens=True)
    size = max(vocab.values(), default=-1) + 1
    byte_level = any("ByteLevel" in json.dumps(value.get(part)) for part in ("pre_tokenizer", "decoder"))
    added = {token["id"]: (token["content"], bool(token["special"])) for token in value.get("added_tokens", ())}
    table = [b""] * size
    for token, token_id in vocab.items():
        if token_id in added:
            table[token_id] = added[token_id][0].encode()
        else:
            raw = byte_level_bytes(token) if byte_level else None
            table[token_id] = _sentencepiece_bytes(token) if raw is None else raw
    text_to_id = {text: token_id for token_id, (text, _) in added.items()} | vocab
    eos = eos_ids(folder, text_to_id) if folder else ()

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        batch = backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(item.ids, dtype=np.int64) for item in batch]

    spec, notes = _checked_spec(lambda: spec_from_json(value), encode)
    return Tokenizer(
        name=name, token_bytes=tuple(table), roles=tuple(assign_roles(table, added, eos)), encode=encode, spec=spec,
        template=chat_template(folder) if folder else None, special=special_texts(folder) if folder else {},
        notes=notes,
    )


def _checked_spec(
    build: Callable[[], PieceSpec], encode: Callable[[Sequence[str]], list[np.ndarray]]
) -> tuple[PieceSpec | None, tuple[str, ...]]:
    """The piece spec, if it encodes the probe text to the same ids; else None and a note that says why."""
    try:
        spec = build()
    except NotPiecewise as error:
        return None, (f"counted through the tokenizer library, not by pieces: {error}",)
    if PieceEncoder(spec).encode(PROBE) != encode([PROBE])[0].tolist():
        return None, ("counted through the tokenizer library, not by pieces: ids differ on the probe text",)
    return spec, ()


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("\u2581", " ").encode("utf-8", "surrogatepass")


def _is_rank_file(file: Path) -> bool:
    """tiktoken's format: a base64 token, a space and its rank a line."""
    with file.open("rb") as handle:
        first = handle.readline(4096).split()
    if len(first) != 2 or not first[1].isdigit():
        return False
    try:
        base64.b64decode(first[0], validate=True)
    except ValueError:
        return False
    return True


def _from_ranks(file: Path, folder: Path, name: str) -> Tokenizer:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_bytes(file, limit=1 << 28).splitlines(), start=1):
        parts = line.split()
        if not parts:
            continue
        try:
            token, rank = base64.b64decode(parts[0], validate=True), int(parts[1])
        except (ValueError, IndexError):
            raise Eagle3Error(f"line {number} is not a rank", where=file, found=line[:40],
                              expected="base64 and a number") from None
        if rank < 0 or rank >= 1 << 24 or token in ranks:
            raise Eagle3Error(f"line {number}", where=file, found=f"rank {rank}", expected="each token and rank once")
        ranks[token] = rank
    config = tokenizer_config(folder)
    added = {
        int(token_id): (token["content"], bool(token.get("special", True)))
        for token_id, token in config.get("added_tokens_decoder", {}).items()
    }
    pattern = _rank_pattern(file, config)
    spec = PieceSpec((pattern,), ranks, {text: token_id for token_id, (text, _) in added.items()})
    return _from_spec(spec, added, folder, name)


def _rank_pattern(file: Path, config: dict[str, Any]) -> str:
    hints = " ".join((str(file), str(config.get("tokenizer_class", "")), str(config.get("auto_map", "")))).lower()
    for key, pattern in RANK_PATTERNS.items():
        if key in hints:
            return pattern
    if "tiktoken" in str(config.get("tokenizer_class", "")).lower():
        return KIMI_PATTERN
    raise Eagle3Error("does not say which split pattern it was made for", where=file,
                      expected=f"a file or folder name with one of {', '.join(RANK_PATTERNS)}")


def _from_spec(spec: PieceSpec, added: dict[int, tuple[str, bool]], folder: Path, name: str) -> Tokenizer:
    size = max([*spec.ranks.values(), *added], default=-1) + 1
    table = [b""] * size
    for token, token_id in spec.ranks.items():
        table[token_id] = token
    for token_id, (text, _) in added.items():
        table[token_id] = text.encode()
    encoder: list[PieceEncoder] = []

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        if not encoder:
            encoder.append(PieceEncoder(spec))
        return [np.array(encoder[0].encode(text), dtype=np.int64) for text in texts]

    eos = eos_ids(folder, dict(spec.added))
    return Tokenizer(name=name, token_bytes=tuple(table), roles=tuple(assign_roles(table, added, eos)),
                     encode=encode, spec=spec, template=chat_template(folder), special=special_texts(folder))


def _from_tekken(file: Path, name: str) -> Tokenizer:
    value = read_json(file)
    try:
        config = value["config"]
        special_count, size = config["default_num_special_tokens"], config["default_vocab_size"]
        entries = value["vocab"][: size - special_count]
        ranks = {base64.b64decode(entry["token_bytes"]): special_count + entry["rank"] for entry in entries}
        pattern = config["pattern"]
        listed = value.get("special_tokens") or ()
    except (KeyError, TypeError, ValueError) as error:
        raise Eagle3Error("is not a tekken file", where=file, found=f"{type(error).__name__} {error}") from None
    names = {item["rank"]: item["token_str"] for item in listed}
    for token_id, text in enumerate(("<unk>", "<s>", "</s>")):
        names.setdefault(token_id, text)
    added = {token_id: (text, True) for token_id, text in names.items()}
    # Tekken never turns text into special tokens, so none are cut out of it.
    return _from_spec(PieceSpec((pattern,), ranks, {}), added, file.parent, name)


def _from_sentencepiece(file: Path, folder: Path, name: str) -> Tokenizer:
    try:
        import sentencepiece
    except ImportError:
        raise Eagle3Error("needs the sentencepiece package", where=file,
                          fix="pip install 'eagle3-core[sentencepiece]'") from None
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(read_bytes(file, limit=1 << 28))
    except RuntimeError as error:
        raise Eagle3Error("is neither a tiktoken nor a SentencePiece model", where=file,
                          found=reason(error)[:80]) from None
    size = model.GetPieceSize()
    table = [_sentencepiece_bytes(model.IdToPiece(i)) for i in range(size)]
    added = {i: (model.IdToPiece(i), True) for i in range(size) if model.IsControl(i) or model.IsUnknown(i)}
    eos = (*eos_ids(folder, {}), *([model.eos_id()] if model.eos_id() >= 0 else []))

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(ids, dtype=np.int64) for ids in model.Encode(list(texts), out_type=int)]

    return Tokenizer(name=name, token_bytes=tuple(table), roles=tuple(assign_roles(table, added, eos)), encode=encode,
                     template=chat_template(folder), special=special_texts(folder),
                     notes=("counted through the tokenizer library, not by pieces: it is SentencePiece",))


def _from_gguf(file: Path, name: str) -> Tokenizer:
    """Through transformers' converter, which rebuilds the fast tokenizer from the GGUF's own tables."""
    from transformers import AutoTokenizer

    try:
        fast = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True,
                                             trust_remote_code=False)
    except (ValueError, OSError, KeyError, struct.error) as error:
        raise Eagle3Error("holds no tokenizer that transformers understands", where=file,
                          found=reason(error)) from None
    plain = _from_json(fast.backend_tokenizer.to_str(), None, name, file)
    roles = list(plain.roles)
    if fast.eos_token_id is not None:
        roles[fast.eos_token_id] = "eos"
    template = fast.chat_template if isinstance(fast.chat_template, str) else None
    special = {k: v for k, v in fast.special_tokens_map.items() if isinstance(v, str)}
    return Tokenizer(name=plain.name, token_bytes=plain.token_bytes, roles=tuple(roles), encode=plain.encode,
                     spec=plain.spec, template=template, special=special, notes=plain.notes)
