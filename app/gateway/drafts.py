"""What a person is typing, on its way to the engine: the latest only, and not too often.

The engine computes the prompt while it is typed. All of this is a hint: it is never
answered, and what goes wrong with it changes nothing but the time to the first token.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from app.auth import Principal
from app.gateway.conversation import Conversation
from app.gateway.responses import Responses
from engine.contract import Message, ReparteeError, Warm

logger = logging.getLogger(__name__)

# Between two drafts of one conversation; those that come sooner take each other's place.
MIN_INTERVAL_S = 0.15


class Drafts:
    """One socket's.

    Args:
        conversation: Where the message will go.
        responses: The way to the engine.
        principal: Whose socket it is.
    """

    def __init__(
        self, conversation: Conversation, responses: Responses, principal: Principal
    ) -> None:
        self._conversation = conversation
        self._responses = responses
        self._principal = principal
        self._latest: tuple[str, Callable[[], None] | None] | None = None
        self._task: asyncio.Task[None] | None = None

    def offer(self, text: str, on_taken: Callable[[], None] | None = None) -> None:
        """Take the draft as it stands now.

        Args:
            text: All of it.
            on_taken: Called once it is with a worker; not if it never gets there.
        """
        self._latest = text, on_taken
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send(), name="drafts")

    def drop(self) -> None:
        """Forget what was not sent yet: the message itself is here, or the socket gone."""
        self._latest = None

    def stop(self) -> None:
        """The socket is gone."""
        self.drop()
        if self._task is not None:
            self._task.cancel()

    async def release(self) -> None:
        """The person left: nothing need be kept for them."""
        try:
            await self._responses.engine.release(self._conversation.session_id)
        except ReparteeError as error:
            logger.debug("%s not released: %s", self._conversation.session_id, error)

    async def _send(self) -> None:
        while self._latest is not None:
            (text, on_taken), self._latest = self._latest, None
            try:
                is_taken = await self._warm(text)
                if is_taken and on_taken is not None:
                    on_taken()
            except ReparteeError as error:
                logger.debug("draft of %s not sent: %s", self._conversation.session_id, error)
            await asyncio.sleep(MIN_INTERVAL_S)

    async def _warm(self, text: str) -> bool:
        conversation = self._conversation
        instructions = conversation.settings.instructions
        messages = [Message("system", instructions)] if instructions else []
        warm = Warm(
            conversation_id=conversation.session_id,
            model=conversation.card.id,
            messages=(*messages, *await conversation.messages()),
            draft=text,
            tenant=self._principal.tenant,
            created_at=time.time(),
        )
        return await self._responses.engine.warm(warm)
