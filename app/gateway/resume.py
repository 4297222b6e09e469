"""Taking up the response that runs in a conversation opened again."""

from __future__ import annotations

import logging

from app.gateway.conversation import Conversation
from app.gateway.responses import Answer, Responses
from engine.contract import Event, NotFound

logger = logging.getLogger(__name__)


async def running_answer(
    conversation: Conversation, responses: Responses
) -> tuple[Answer, list[Event]] | None:
    """The conversation's running response and its events so far, if one still runs.

    Afterwards `conversation` shows what holds: an answer that ended in between is among
    its items, and a response that left no trace no longer blocks it.
    """
    while conversation.active is not None:
        response_id = conversation.active.response_id
        try:
            answer = await responses.attach(response_id)
        except NotFound:
            logger.warning("response %s of a conversation is gone", response_id)
            await conversation.forget_response(response_id)
            continue
        events = answer.drain_pending()
        if not answer.is_ended:
            return answer, events
        # The store takes the answer from the log.
        await conversation.reload()
    return None


async def resume_state(
    conversation: Conversation,
    responses: Responses,
    response_id: str | None,
    *,
    has_place: bool,
) -> str | None:
    """What became of the response that a client comes back for.

    Args:
        conversation: As it was opened, with what runs in it.
        responses: The way to the engine.
        response_id: Which response, if the client says so.
        has_place: Whether it named a place in it.

    Returns:
        live, finished or gone; None for a client that comes back for none.
    """
    active = conversation.active
    if response_id is None:
        if not has_place:
            return None
        return "live" if active is not None else "finished"
    if active is not None and active.response_id == response_id:
        return "live"
    if any(item.response_id == response_id for item in conversation.items):
        return "finished"
    try:
        answer = await responses.attach(response_id)
    except NotFound:
        return "gone"
    # It ended and left nothing, or what it left has been taken out.
    await answer.detach()
    return "finished"
