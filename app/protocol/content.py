"""Message content: a string, or an array of text parts joined with nothing between."""

from __future__ import annotations

from collections.abc import Collection

from app.protocol.fields import Fields, join, missing, wrong_type
from engine.contract import ContextLengthExceeded, InvalidRequest, Message, ModelCard

# What a stored message takes besides its text.
STORED_ITEM_BYTES = 512


def read_content(value: object, path: str, part_types: Collection[str]) -> str:
    """Whole text of a message.

    Args:
        value: The decoded `content`.
        path: Its path in the request.
        part_types: Part types that carry text.

    Raises:
        InvalidRequest: naming the content or the part.
    """
    if isinstance(value, str):
        return value
    if value is None:
        raise missing(path)
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of parts", value)
    return "".join(_read_part(part, join(path, i), part_types) for i, part in enumerate(value))


def _read_part(value: object, path: str, part_types: Collection[str]) -> str:
    part = Fields.of(value, path)
    kind = part.required_string("type")
    if kind not in part_types:
        raise InvalidRequest(
            f"{path} has type {kind[:40]!r}; this server reads only "
            f"{', '.join(sorted(part_types))}.",
            code="unsupported_content",
            param=path,
        )
    return part.required_string("text")


def check_stored_size(num_items: int, num_bytes: int, card: ModelCard, param: str) -> None:
    """Refuse a stored conversation that cannot fit the window, without reading it.

    Args:
        num_items: Messages.
        num_bytes: Of all of them as JSON; escapes at most double a text that anybody writes.
        card: The model.
        param: What to name.

    Raises:
        ContextLengthExceeded: with a lower bound of the length, and the limit.
    """
    text_bytes = max(0, num_bytes - num_items * STORED_ITEM_BYTES) // 2
    _check_at_least(num_items + text_bytes // card.max_token_bytes, card, param)


def stored_text_bound(card: ModelCard) -> int:
    """Bytes of texts, as stored, beyond which `check_stored_size` refuses a conversation."""
    return 2 * card.max_token_bytes * (card.context_window + 1)


def check_size(messages: Collection[Message], card: ModelCard, param: str) -> None:
    """Refuse a prompt that cannot fit the window, without tokenising it.

    A text of b bytes has at least b / max_token_bytes tokens, and a turn at least one.

    Raises:
        ContextLengthExceeded: with a lower bound of the length, and the limit.
    """
    num_bytes = sum(len(message.content.encode()) for message in messages)
    _check_at_least(len(messages) + num_bytes // card.max_token_bytes, card, param)


def _check_at_least(at_least: int, card: ModelCard, param: str) -> None:
    if at_least > card.context_window:
        raise ContextLengthExceeded(
            f"{param} has at least {at_least} tokens; the window of {card.id} "
            f"holds {card.context_window}.",
            param=param,
        )
