"""Tokenizers from GGUF metadata: each way of cutting, and SentencePiece's order of merging."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from engine.loading import open_checkpoint
from engine.loading.gguf import vocabulary
from engine.tokenizer import Tokenizer
from tests.engine.loading.tiny_gguf import HIDDEN, TOKENS, tiny_gguf
from tests.engine.texts import random_texts


def tokenizer_of(path: Path, changes: dict[str, Any], num_tokens: int = len(TOKENS)) -> Tokenizer:
    embedding = ((num_tokens, HIDDEN), 0, bytes(4 * num_tokens * HIDDEN))
    path.write_bytes(tiny_gguf(changes, tensors={"token_embd.weight": embedding}))
    return open_checkpoint(path).tokenizer()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("llama-bpe", TikTokenConverter("unused").pattern),
        ("qwen2", PRETOKENIZE_REGEX),
    ],
)
def test_text_is_cut_as_in_transformers(name: str, pattern: str) -> None:
    expected = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    ours = vocabulary._CUTS[name]()[0]
    for text in random_texts(300, 11):
        assert ours.pre_tokenize_str(text) == expected.pre_tokenize_str(text)


@pytest.mark.parametrize("name", vocabulary._CUTS)
def test_every_cut_keeps_every_byte(name: str, path: Path) -> None:
    tokenizer = tokenizer_of(path, {"tokenizer.ggml.pre": name})
    for text in random_texts(100, 12):
        ids = tokenizer.encode(text)
        whole = tokenizer.decode(ids)
        if name in ("qwen2", "deepseek-r1-qwen"):
            assert whole == text.replace("e\u0301", "\u00e9")
        else:
            assert whole == text


def test_composing_is_counted_in_the_bound_on_bytes(path: Path) -> None:
    tokenizer = tokenizer_of(path, {"tokenizer.ggml.pre": "qwen2"})
    # Three letters of three bytes each become one of three.
    text = "\u1112\u1161\u11ab" * 10
    assert len(tokenizer.encode(text)) == 30
    assert len(text.encode()) / tokenizer.max_token_bytes <= 30


def test_user_defined_tokens_are_text_and_matched_whole(path: Path) -> None:
    changes = {
        "tokenizer.ggml.tokens": [*TOKENS[:-1], "<tool>", "!!"],
        "tokenizer.ggml.token_type": [3] * 3 + [1] * 256 + [4, 1],
        "tokenizer.ggml.merges": ["! !"],
    }
    tokenizer = tokenizer_of(path, changes, len(TOKENS) + 1)
    ids = tokenizer.encode("x<tool>!!")
    assert ids == [3 + ord("x"), 259, 260]
    assert tokenizer.decode(ids) == "x<tool>!!"
    assert 259 not in tokenizer.control_ids


def test_ends_of_an_answer(path: Path) -> None:
    assert tokenizer_of(path, {}).eos_ids == {0, 2}
    assert tokenizer_of(path, {"tokenizer.ggml.eot_token_id": 9}).eos_ids == {0, 2, 9}


# Pieces with their scores; a higher score merges first.
PIECES = {
    "\u2581": -1.0, "a": -2.0, "b": -3.0, "c": -4.0, "ab": -9.0, "bc": -5.0, "abc": -20.0,
    "\u2581a": -6.0, "\u2581ab": -7.0, "\u2581\u2581": -8.0, "cc": -10.0, "aa": -11.0,
    "aaaa": -12.0, "ř": -13.0,
}  # fmt: skip
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
SPM = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": SPM_TOKENS,
    "tokenizer.ggml.scores": [0.0] * 259 + list(PIECES.values()),
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
    "tokenizer.ggml.unknown_token_id": 0,
}


def sentencepiece_reference(text: str) -> list[int]:
    """SentencePiece's own rule, plainly: join the best-scored neighbours until none joins."""
    parts = list("\u2581" + text.replace(" ", "\u2581"))
    while True:
        joined = [a + b for a, b in pairwise(parts)]
        known = [(PIECES[piece], -i) for i, piece in enumerate(joined) if piece in PIECES]
        if not known:
            break
        place = -max(known)[1]
        parts[place : place + 2] = ["".join(parts[place : place + 2])]
    ids = []
    for part in parts:
        if part in PIECES:
            ids.append(SPM_TOKENS.index(part))
        else:
            ids += [3 + byte for byte in part.encode()]
    return ids


def test_sentencepiece(path: Path) -> None:
    tokenizer = tokenizer_of(path, SPM, len(SPM_TOKENS))
    texts = ["a", "abc", "aab cc", "  a  b", "aaaaaaa bcbc", "ř🙂\n", "cab ab", "<s>a</s>"]
    for text in [*texts, "abcabc ccc aaab" * 5]:
        ids = tokenizer.encode(text)
        assert ids == sentencepiece_reference(text), text
        assert tokenizer.decode(ids) == " " + text
        assert not tokenizer.control_ids & set(ids)
    assert tokenizer.eos_ids == {2}
    assert tokenizer.encode("") == []
    assert tokenizer.encode_marked("<s>a</s>") == [1, SPM_TOKENS.index("\u2581a"), 2]


def test_sentencepiece_without_a_leading_space(path: Path) -> None:
    changes = SPM | {"tokenizer.ggml.add_space_prefix": False}
    tokenizer = tokenizer_of(path, changes, len(SPM_TOKENS))
    assert tokenizer.encode("a b") == [SPM_TOKENS.index(piece) for piece in ("a", "\u2581", "b")]
