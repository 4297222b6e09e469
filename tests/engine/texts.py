"""Texts that tokenizers trip over."""

from __future__ import annotations

import random

PIECES = (
    "Hello", " world", "the", " a", "  ", "\n", "\n\n", "\t", " \n ", "1234567", "3.14", "'s",
    "n't", "don't", "<", "|", ">", "<|", "|>", "<|im", "_start", "</s>", "[INST]", "::", "...",
    "🙂", "👩\u200d👧", "🇨🇿", "Příliš žluťoučký", "日本語", "ไทย", "नमस्ते", "مرحبا",
    "e\u0301", "\u00a0", "\u200b", "\ufeff", "\ufdd0", "\ufffd", "\x00", "\x04", "\x7f",
    "\U0001d518\U0001d52b", "\U000e0041", "def f(x):\n    return x", "assistant\n", "user\n",
    "system", "{{ x }}", "{% y %}", "%s", "\\n", "\r\n", "aaaaaaaaaaaaaaaa",
)  # fmt: skip


def random_texts(count: int, seed: int = 0, extra: tuple[str, ...] = ()) -> list[str]:
    """Texts of 0 to 12 pieces each."""
    draw = random.Random(seed)
    pieces = PIECES + extra
    return ["".join(draw.choices(pieces, k=draw.randrange(13))) for _ in range(count)]
