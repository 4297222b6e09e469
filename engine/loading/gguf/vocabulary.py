"""The tokenizer in a GGUF file's metadata."""

from __future__ import annotations

from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from engine.loading.bytes_map import SPACE_MARK, byte_level_bytes, sentencepiece_bytes
from engine.loading.errors import ModelFileError
from engine.loading.gguf.reader import GgufFile
from engine.tokenizer import ControlToken, Tokenizer

# Token types in `tokenizer.ggml.token_type`.
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _gpt2() -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]


def _digits_apart() -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Digits(individual_digits=True), *_gpt2()]


def _by_pattern(pattern: str) -> list[pre_tokenizers.PreTokenizer]:
    return [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


# How text is cut before merging, by `tokenizer.ggml.pre`.
_CUTS = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _digits_apart,
    "llama-bpe": lambda: _by_pattern(_LLAMA3),
    "llama3": lambda: _by_pattern(_LLAMA3),
    "qwen2": lambda: _by_pattern(_QWEN2),
    "deepseek-r1-qwen": lambda: _by_pattern(_QWEN2),
}
_IGNORE_MERGES = ("llama-bpe", "llama3")
_COMPOSED = ("qwen2", "deepseek-r1-qwen")
# Canonical composition leaves a third of the bytes at worst (Hangul letters).
_COMPOSED_SHRINK = 3


def read_tokenizer(file: GgufFile, vocab_size: int) -> Tokenizer:
    """Build the tokenizer.

    Args:
        file: The file.
        vocab_size: Rows of the embedding.

    Raises:
        ModelFileError: when it is missing, damaged or of a kind that isn't supported.
    """
    vocabulary = _Vocabulary(file, vocab_size)
    model = file.metadata.get("tokenizer.ggml.model")
    try:
        if model == "gpt2":
            return _byte_level(vocabulary)
        if model == "llama":
            return _sentencepiece(vocabulary)
    except ModelFileError:
        raise
    # The library raises plain Exception for a vocabulary that contradicts itself.
    except Exception as error:
        raise ModelFileError(file.path, f"has a damaged tokenizer ({error})") from error
    raise ModelFileError(
        file.path, f"tokenizer model {model!r:.80} is not supported; supported are gpt2, llama"
    )


class _Vocabulary:
    """Tokens, types and special ids, checked against each other."""

    def __init__(self, file: GgufFile, vocab_size: int) -> None:
        self._file = file
        self.vocab_size = vocab_size
        self.tokens: list[str] = self._strings("tokens")
        if not 1 <= len(self.tokens) <= vocab_size:
            raise self.fail(f"has {len(self.tokens)} tokens and {vocab_size} embedding rows")
        types = self.numbers("token_type", "iu")
        self.controls = [
            ControlToken(index, self.tokens[index])
            for index in np.flatnonzero((types == _CONTROL) | (types == _UNKNOWN)).tolist()
        ]
        self.user_defined = [self.tokens[i] for i in np.flatnonzero(types == _USER_DEFINED)]
        self.unused = set(np.flatnonzero(types == _UNUSED).tolist())

    def fail(self, problem: str) -> ModelFileError:
        return ModelFileError(self._file.path, problem)

    def get(self, name: str, default: Any = None) -> Any:
        return self._file.metadata.get(f"tokenizer.ggml.{name}", default)

    def _strings(self, name: str) -> list[str]:
        value = self.get(name)
        if not isinstance(value, list):
            raise self.fail(f"metadata tokenizer.ggml.{name} is missing or no list of strings")
        return value

    def numbers(self, name: str, kinds: str) -> np.ndarray:
        """One number a token."""
        value = self.get(name)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            raise self.fail(f"metadata tokenizer.ggml.{name} is missing or no list of numbers")
        if len(value) != len(self.tokens):
            raise self.fail(f"has {len(self.tokens)} tokens and {len(value)} {name} values")
        return value

    def merges(self) -> list[tuple[str, str]]:
        pairs = [tuple(merge.split(" ", 1)) for merge in self._strings("merges")]
        if any(len(pair) != 2 for pair in pairs):
            raise self.fail("metadata tokenizer.ggml.merges holds an entry without a space")
        return pairs  # type: ignore[return-value]

    def text_vocab(self) -> dict[str, int]:
        """Ids of the tokens that text can become."""
        controls = {control.id for control in self.controls}
        return {
            token: index
            for index, token in enumerate(self.tokens)
            if index not in controls and index not in self.unused
        }

    def special_id(self, name: str) -> int | None:
        value = self.get(f"{name}_token_id")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise self.fail(
                f"metadata tokenizer.ggml.{name}_token_id is {value!r:.40}; "
                f"there are {len(self.tokens)} tokens"
            )
        return value

    def finish(
        self, backend: tokenizers.Tokenizer, token_bytes: list[bytes], shrink: int
    ) -> Tokenizer:
        # Matched whole before anything else, as text.
        backend.add_tokens([AddedToken(text, normalized=False) for text in self.user_defined])
        for control in self.controls:
            token_bytes[control.id] = b""
        ends = {self.special_id(name) for name in ("eos", "eot", "eom")} - {None}
        named = {
            f"{name}_token": self.tokens[index]
            for name, key in (
                ("bos", "bos"),
                ("eos", "eos"),
                ("unk", "unknown"),
                ("pad", "padding"),
            )
            if (index := self.special_id(key)) is not None
        }
        return Tokenizer(
            backend,
            token_bytes,
            self.controls,
            vocab_size=self.vocab_size,
            end_ids={end for end in ends if end is not None},
            named=named,
            shrink=shrink,
        )


def _byte_level(vocabulary: _Vocabulary) -> Tokenizer:
    cut = vocabulary.get("pre", "default")
    if cut not in _CUTS:
        raise vocabulary.fail(
            f"pre-tokenizer {cut!r:.80} is not supported; supported are {', '.join(_CUTS)}"
        )
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary.text_vocab(),
            merges=vocabulary.merges(),
            ignore_merges=cut in _IGNORE_MERGES,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(_CUTS[cut]())
    if cut in _COMPOSED:
        backend.normalizer = normalizers.NFC()
    user_defined = set(vocabulary.user_defined)
    token_bytes = [
        token.encode() if token in user_defined else byte_level_bytes(token)
        for token in vocabulary.tokens
    ]
    return vocabulary.finish(backend, token_bytes, _COMPOSED_SHRINK if cut in _COMPOSED else 1)


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    vocab = vocabulary.text_vocab()
    scores = vocabulary.numbers("scores", "f")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges_by_score(vocab, scores),
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    if vocabulary.get("add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE_MARK))
    backend.normalizer = normalizers.Sequence(steps)
    return vocabulary.finish(backend, list(map(sentencepiece_bytes, vocabulary.tokens)), 1)


def _merges_by_score(vocab: dict[str, int], scores: np.ndarray) -> list[tuple[str, str]]:
    """SentencePiece's order of merging as a list: the likeliest result first."""
    merges: list[tuple[float, int, int, str, str]] = []
    for token, index in vocab.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                merges.append((-float(scores[index]), vocab[left], vocab[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]
