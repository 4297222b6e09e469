"""How many tokens a request will come to, before anybody has counted them."""

from __future__ import annotations

from collections.abc import Iterable

from engine.contract import Message, SamplingParams

# UTF-8 bytes of a token, and tokens around a turn: about what English text has.
BYTES_PER_TOKEN = 4
TOKENS_PER_TURN = 4
# Of an answer that names no bound.
EXPECTED_ANSWER_TOKENS = 1024


def foreseen_tokens(
    messages: Iterable[Message], sampling: SamplingParams, context_window: int
) -> int:
    """Tokens of prompt and answer, for a charge that is put right at the end.

    Args:
        messages: The prompt's turns.
        sampling: Its `max_tokens` bounds the answer.
        context_window: Tokens that prompt and answer cannot exceed.
    """
    prompt = sum(
        TOKENS_PER_TURN + len(message.content.encode(errors="replace")) // BYTES_PER_TOKEN
        for message in messages
    )
    answer = EXPECTED_ANSWER_TOKENS if sampling.max_tokens is None else sampling.max_tokens
    return min(prompt + answer, context_window)
