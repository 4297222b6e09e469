"""Prompts for the benchmarks: distinct, and of a known length in tokens."""

from __future__ import annotations

from itertools import count

_THINGS = (
    "a small harbour",
    "the first snow",
    "an old library",
    "a mountain train",
    "the night market",
    "a stone bridge",
    "a quiet garden",
    "the long road",
    "a river town",
    "the winter sea",
    "a paper boat",
    "the tall clock",
    "an empty house",
    "a field of rye",
    "the red kite",
    "a broken lamp",
)
_WORDS = (
    "river",
    "stone",
    "light",
    "wind",
    "bridge",
    "garden",
    "winter",
    "market",
    "paper",
    "road",
)
_SHORT = (
    "Hi",
    "Yes",
    "No",
    "Why",
    "How",
    "Who",
    "What",
    "When",
    "Where",
    "Please",
    "Thanks",
    "Hello",
)

_numbers = count()


def chat_prompt() -> str:
    """A fresh prompt of 40 to 45 tokens with the packaged model's template."""
    number = next(_numbers)
    thing = _THINGS[number % len(_THINGS)]
    return f"Tell me in {number % 90 + 10} words about {thing}."


def short_prompt() -> str:
    """One token of the user's, 31 with the packaged model's template."""
    return _SHORT[next(_numbers) % len(_SHORT)]


def long_prompt(num_tokens: int) -> str:
    """About `num_tokens` tokens, unlike any other from the first of the user's words on."""
    number = next(_numbers)
    # The template and the closing question take about 40 tokens, each word one.
    words = [_WORDS[(number * 7 + i * i + i // 3) % len(_WORDS)] for i in range(num_tokens - 42)]
    return f"{number} " + " ".join(words) + ". How many words are there?"
