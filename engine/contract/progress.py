"""How far a response has come, by its events: where another worker goes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """What earlier leases made of an answer.

    Attributes:
        next_seq: seq of the next event.
        prompt_tokens: From Accepted; None if there was none yet.
        tokens: Ids of the answer's tokens, in order. Their text may reach beyond what
            was sent, never the other way round.
        num_chars: Characters of text that were sent.
        num_tokens: Tokens that were counted with them.
    """

    next_seq: int
    prompt_tokens: int | None
    tokens: tuple[int, ...]
    num_chars: int
    num_tokens: int
