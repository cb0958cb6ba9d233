"""The fast way to token counts: split into pre-tokens, count the distinct ones, encode each once.

A histogram does not need the encoding of every occurrence. Where a tokenizer
isolates pieces before merging (byte-level BPE behind Split or ByteLevel
pre-tokenizers) the ids of a text are the ids of its pieces in a row, so
counting distinct pieces first gives exactly the same histogram. A byte-level
``tokenizer.json`` whose vocabulary ids rise in merge order also merges
identically in ``tiktoken``, several times faster than in ``tokenizers``; both
facts are checked on a sample when the tokenizer is opened.

``PieceEncoder.from_spec`` says why when a tokenizer is not of this kind.
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import regex

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What ``ByteLevel`` with ``use_regex`` splits by (openai/gpt-2, encoder.py)."""
DIGITS_PATTERN = r"\p{N}|[^\p{N}]+"
_CACHE_LIMIT = 1_000_000


class NotPiecewise(Exception):
    """This tokenizer cannot be counted piece by piece; the message says why. Caught where it is opened."""


@functools.cache
def byte_characters() -> dict[int, str]:
    """Byte -> the printable character byte-level BPE vocabularies write for it (openai/gpt-2, encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    extra = 0
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


def byte_level_bytes(token: str) -> bytes | None:
    """The bytes a byte-level vocabulary entry stands for, or None when it holds another character."""
    back = _characters_to_bytes()
    try:
        return bytes(back[ch] for ch in token)
    except KeyError:
        return None


@functools.cache
def _characters_to_bytes() -> dict[str, int]:
    return {ch: byte for byte, ch in byte_characters().items()}


@dataclass(frozen=True)
class PieceSpec:
    """What makes a tokenizer piecewise: normalisation, split stages, byte ranks, and tokens cut out beforehand."""

    stages: tuple[str, ...]
    ranks: Mapping[bytes, int]
    added: Mapping[str, int]
    nfc: bool = False


def spec_from_json(value: Mapping[str, Any]) -> PieceSpec:
    """From a parsed ``tokenizer.json``. Raises NotPiecewise with the reason."""
    model = value["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback") or model.get("dropout"):
        raise NotPiecewise("its model is not byte-level BPE")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise NotPiecewise("its BPE marks word parts")
    stages = tuple(_stages(value.get("pre_tokenizer")))
    ranks: dict[bytes, int] = {}
    added_ids = {token["id"] for token in value.get("added_tokens", ())}
    for token, token_id in model["vocab"].items():
        raw = byte_level_bytes(token)
        if raw is None:
            if token_id in added_ids:
                continue
            raise NotPiecewise("its vocabulary is not byte-level")
        ranks[raw] = token_id
    _check_merge_order(model, ranks)
    added = {}
    for token in value.get("added_tokens", ()):
        if token.get("lstrip") or token.get("rstrip") or token.get("single_word"):
            raise NotPiecewise("an added token strips its surroundings")
        added[token["content"]] = token["id"]
    return PieceSpec(stages, ranks, added, _is_nfc(value.get("normalizer")))


def _is_nfc(normalizer: Mapping[str, Any] | None) -> bool:
    if normalizer is None or (normalizer["type"] == "Sequence" and not normalizer["normalizers"]):
        return False
    if normalizer["type"] == "NFC":
        return True
    raise NotPiecewise(f"its normaliser is {normalizer['type']}")


def _stages(pre: Mapping[str, Any] | None) -> Iterable[str]:
    if pre is None:
        raise NotPiecewise("it has no pre-tokenizer")
    parts = pre["pretokenizers"] if pre["type"] == "Sequence" else [pre]
    for part in parts:
        kind = part["type"]
        if kind == "Split" and part["behavior"] == "Isolated" and not part["invert"] and "Regex" in part["pattern"]:
            yield part["pattern"]["Regex"]
        elif kind == "Digits" and part.get("individual_digits"):
            yield DIGITS_PATTERN
        elif kind == "ByteLevel" and not part.get("add_prefix_space"):
            if part.get("use_regex", True):
                yield GPT2_PATTERN
        else:
            raise NotPiecewise(f"its pre-tokenizer has a {kind} step")


def _check_merge_order(model: Mapping[str, Any], ranks: Mapping[bytes, int]) -> None:
    """tiktoken merges by the rank of the result, ``tokenizers`` by the place of the merge: they must rise together."""
    before = -1
    for merge in model["merges"]:
        left, right = merge if isinstance(merge, list) else merge.split(" ", 1)
        raw = byte_level_bytes(left + right)
        rank = ranks.get(raw) if raw is not None else None
        if rank is None or rank < before:
            raise NotPiecewise("its ids do not rise in merge order")
        before = rank


class PieceEncoder:
    """Splits and encodes by pieces. Not shared between processes; each builds its own from the spec."""

    def __init__(self, spec: PieceSpec) -> None:
        import tiktoken

        self.spec = spec
        self._splits = [_compile(stage) for stage in spec.stages]
        longest_first = sorted(spec.added, key=len, reverse=True)
        self._added = regex.compile("|".join(map(regex.escape, longest_first))) if longest_first else None
        # A pattern that takes any piece whole: it was split already, and looking again could split it otherwise.
        encoding = tiktoken.Encoding("pieces", pat_str=r"[\s\S]+", mergeable_ranks=dict(spec.ranks), special_tokens={})
        self._encode = encoding._core_bpe.encode_single_piece
        self._ids: dict[str, list[int]] = {}

    def ids_of_piece(self, piece: str) -> list[int]:
        ids = self._ids.get(piece)
        if ids is None:
            raw = piece.encode("utf-8", "surrogatepass")
            rank = self.spec.ranks.get(raw)
            ids = [rank] if rank is not None else self._encode(raw)
            if len(self._ids) >= _CACHE_LIMIT:
                self._ids.clear()
            self._ids[piece] = ids
        return ids

    def segments(self, text: str) -> Iterable[str | int]:
        """The text cut at added tokens: strings, and the ids of the tokens between them."""
        if self._added is None:
            yield text
            return
        at = 0
        for match in self._added.finditer(text):
            if match.start() > at:
                yield text[at : match.start()]
            yield self.spec.added[match[0]]
            at = match.end()
        if at < len(text):
            yield text[at:]

    def pieces(self, segment: str) -> list[str]:
        if self.spec.nfc and not segment.isascii():
            segment = unicodedata.normalize("NFC", segment)
        parts = [segment]
        for split in self._splits:
            parts = split(parts[0]) if len(parts) == 1 else [piece for part in parts for piece in split(part)]
        return parts

    def count(self, text: str, pieces: Counter[str], ids: Counter[int]) -> None:
        """Add the text's pieces and added tokens to the counters."""
        for segment in self.segments(text):
            if isinstance(segment, int):
                ids[segment] += 1
            else:
                pieces.update(self.pieces(segment))

    def encode(self, text: str) -> list[int]:
        out: list[int] = []
        for segment in self.segments(text):
            if isinstance(segment, int):
                out.append(segment)
            else:
                for piece in self.pieces(segment):
                    out += self.ids_of_piece(piece)
        return out


def _compile(pattern: str) -> Callable[[str], list[str]]:
    """A splitter that keeps matches and what lies between them, as ``Isolated`` does."""
    # In these engines \s is the White_Space property; Python's also takes U+001C to U+001F.
    compiled = regex.compile(pattern.replace(r"\s", r"\p{White_Space}").replace(r"\S", r"\P{White_Space}"), regex.V1)

    def split(text: str) -> list[str]:
        found = compiled.findall(text)
        if sum(map(len, found)) == len(text):
            return found
        out, at = [], 0
        for match in compiled.finditer(text):
            start, end = match.span()
            if start > at:
                out.append(text[at:start])
            if end > start:
                out.append(match[0])
            at = max(at, end)
        if at < len(text):
            out.append(text[at:])
        return out

    return split


PROBE = (
    "Hello, world! It's 12,345.67 dollars\u2014don't you think?\n\n\tdef f(x):\n        return x**2  # caf\u00e9"
    " cafe\u0301\r\n\u4f60\u597d\uff0c\u4e16\u754c\u30022024\u5e741\u6708 \u3053\u3093\u306b\u3061\u306f"
    " \uc548\ub155 \u0645\u0631\u062d\u0628\u0627 \u041f\u0440\u0438\u0432\u0435\u0442 \u0e2a\u0e27\u0e31"
    " \U0001f469\u200d\U0001f4bb\U0001f1fa\U0001f1f8 \u00a0\u2003\u3000 x\u001cy \u2028z   \n  \n a\u0300\u0301b"
    " \u00bd\u2167\u0663 __init__ ALLCaps camelCase /usr/bin I'LL WE'VE they'd 'S ''quote'' ... !!! ==> \\n"
    " <|not_special|> <html>&amp;</html> {\"k\": [1, 2.5e-3]}\n"
)
"""A text that meets every branch of the common split patterns, for checking two encoders against each other."""
