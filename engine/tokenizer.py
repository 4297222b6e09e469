"""Text to token ids and back to bytes, with control tokens out of the text's reach.

The vocabulary that text is encoded with holds no control token at all, so no text
can become one. Control tokens enter a prompt in one way only: `encode_marked` finds
their spellings in what a chat template wrote, and `guard` breaks every spelling in
what a user wrote, before the template sees it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import tokenizers

from engine.turn_memo import Recall

# Control tokens that end an answer in any model that has them, whatever else its
# files declare: some files name only one of two.
END_SPELLINGS = frozenset(
    (
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
    )
)


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that steers the model and is never text.

    Attributes:
        id: Its token id.
        spelling: How templates write it.
        lstrip: Whether it swallows white space before it.
        rstrip: Whether it swallows white space after it.
    """

    id: int
    spelling: str
    lstrip: bool = False
    rstrip: bool = False


class Tokenizer:
    """One model's vocabulary.

    Args:
        backend: Encodes plain text; knows no control token.
        token_bytes: The bytes of each id, b"" for control tokens and unused ids;
            may be shorter than the vocabulary.
        controls: The control tokens.
        vocab_size: Rows of the model's embedding; ids are below it.
        end_ids: Tokens that end an answer, as the model's files declare them.
        named: Spellings that templates ask for by name (`bos_token`, `eos_token`).
        shrink: How many times fewer bytes the backend's normalisation may leave.
        continued: Encodes text behind a control token, where that differs from text
            at the start (SentencePiece's leading space); None means it doesn't.

    Attributes:
        vocab_size: As given.
        named: As given.
        control_ids: Ids of the control tokens.
        eos_ids: Declared ends of an answer and those that go by a known name.
        max_token_bytes: UTF-8 bytes of text that one token stands for at most: a text
            of b bytes has at least b / max_token_bytes tokens.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        token_bytes: Sequence[bytes],
        controls: Sequence[ControlToken],
        *,
        vocab_size: int,
        end_ids: Iterable[int],
        named: Mapping[str, str] | None = None,
        shrink: int = 1,
        continued: tokenizers.Tokenizer | None = None,
    ) -> None:
        self._backend = backend
        self._continued = continued or backend
        self._token_bytes = list(token_bytes)
        # A spelling of one character can't be told apart from text by breaking it.
        self._controls = {c.spelling: c for c in controls if len(c.spelling) > 1}
        self._pattern = _alternatives(self._controls)
        self._heads = frozenset(s[:n] for s in self._controls for n in range(1, len(s)))
        self._tails = frozenset(s[n:] for s in self._controls for n in range(1, len(s)))
        self._longest = max(map(len, self._controls), default=0)
        self.vocab_size = vocab_size
        self.named = dict(named or {})
        self.control_ids = frozenset(control.id for control in controls)
        self.eos_ids = frozenset(end_ids) | {
            control.id for control in controls if control.spelling in END_SPELLINGS
        }
        sizes = chain(map(len, self._token_bytes), (len(s.encode()) for s in self._controls), (1,))
        self.max_token_bytes = max(sizes) * shrink

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. A control token's spelling is text like any other."""
        return _ids(self._backend, text)

    def encode_marked(self, text: str, guard: str = "", recall: Recall | None = None) -> list[int]:
        """Ids of text in which spellings of control tokens mean the tokens.

        Args:
            text: A rendered chat template.
            guard: What `guarded` broke spellings with; taken out of the text.
            recall: Knows what was tokenised before; see `engine.turn_memo`.
        """
        ids: list[int] = []
        is_continued = False

        def piece(part: str) -> Sequence[int]:
            part = part.replace(guard, "") if guard else part
            backend = self._continued if is_continued else self._backend
            if recall is None:
                return _ids(backend, part)
            return recall(is_continued, part, lambda: _ids(backend, part))

        start = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            control = self._controls[match[0]]
            before = text[start : match.start()]
            ids += piece(before.rstrip() if control.lstrip else before)
            ids.append(control.id)
            is_continued = True
            start = match.end()
            if control.rstrip:
                start += len(text) - start - len(text[start:].lstrip())
        ids += piece(text[start:])
        return ids

    def guarded(self, text: str, guard: str) -> str:
        """`text` with `guard` in every control token's spelling, whole or begun.

        A spelling may also be begun at the end of one text and completed by what the
        template or another text puts behind it, hence the guard at the two ends.
        """
        if self._pattern is None:
            return text
        head = guard if self._touches(text[: self._longest], self._tails, at_end=False) else ""
        tail = guard if self._touches(text[-self._longest :], self._heads, at_end=True) else ""
        while self._pattern.search(text):
            text = self._pattern.sub(lambda match: match[0][0] + guard + match[0][1:], text)
        return head + text + tail

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text; b"" for control tokens and unused ids."""
        return self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of all the tokens, bytes that aren't UTF-8 as U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    @staticmethod
    def _touches(text: str, parts: frozenset[str], *, at_end: bool) -> bool:
        """Whether `text` begins or ends with one of `parts`."""
        return any(
            (text[-size:] if at_end else text[:size]) in parts for size in range(1, len(text) + 1)
        )


def _ids(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    """Ids of plain text."""
    return backend.encode(text, add_special_tokens=False).ids if text else []


def _alternatives(spellings: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of the spellings, the longest at each place."""
    ordered = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None
