"""What a response reads: its instructions, then the conversation or its own input."""

from __future__ import annotations

from app.gateway.conversation import Conversation
from app.protocol.content import check_size
from app.protocol.realtime.commands import CreateResponse
from app.protocol.realtime.items import ItemReference
from app.sessions import StoredTurns
from engine.contract import InvalidRequest, Message


async def prompt_of(
    command: CreateResponse, conversation: Conversation, turns: StoredTurns | None = None
) -> tuple[Message, ...]:
    """The turns that a response answers, at least one.

    Args:
        command: What it is asked to be.
        conversation: Where.
        turns: The conversation's, if they were read already.

    Raises:
        InvalidRequest: there are none, or more than the window can hold; NotFound for
            an item that is referred to.
    """
    messages: list[Message] = []
    if command.instructions:
        messages.append(Message("system", command.instructions))
    if command.input is None:
        messages += await conversation.messages(turns)
    else:
        for item in command.input:
            if isinstance(item, ItemReference):
                messages.append(await conversation.message(item.item_id, item.param))
            else:
                messages.append(item.message)
    if not messages:
        raise InvalidRequest(
            "There is nothing to answer: the conversation has no messages.",
            code="empty_conversation",
        )
    check_size(messages, conversation.card, "The conversation")
    return tuple(messages)
