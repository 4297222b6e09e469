"""Of a message that is still being typed: the tokens that further typing won't change."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile

from engine.contract import Message

# The last word and what separates it from the one before: either may yet grow, and
# tokens reach over both, as in a word with the space before it.
_UNFINISHED = re.compile(r"\W*\w*\Z")
# A stored message's end looks like a finished word; any word serves to tell them apart.
_PROBE = "a"


def stable_tokens(
    encode_chat: Callable[[tuple[Message, ...]], list[int]],
    messages: tuple[Message, ...],
    draft: str,
) -> list[int]:
    """The tokens that begin the next prompt, whatever is typed behind `draft`.

    They are what two prompts have in common: one that ends a word earlier, and one
    that goes on there. So the end of the user's turn, which both have at different
    places, is left out, and nothing need be known of the chat template.

    Args:
        encode_chat: Renders and tokenises turns.
        messages: The turns before.
        draft: The user's next message so far; may be empty.

    Raises:
        InvalidRequest: what `encode_chat` refuses.
    """
    typed = draft.rstrip()
    finished = _UNFINISHED.sub("", typed)
    whole = encode_chat((*messages, Message("user", typed or _PROBE)))
    shorter = encode_chat((*messages, Message("user", finished)))
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(whole, shorter, strict=False))
    return [token for token, _ in pairs]
