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
