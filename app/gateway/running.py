"""One response under way in a conversation, from the engine to a socket and the store.

It goes on when its socket is gone: a generation belongs to its conversation. What it
came to is stored before the socket hears of the end.
"""

from __future__ import annotations

import asyncio
import logging

from app.gateway.conversation import Conversation
from app.gateway.responses import Answer
from app.gateway.writer import SocketWriter
from app.protocol.realtime.response import ResponseView, item_status
from app.sessions import end_reason
from engine.contract import Cursor, Delta, Event, Failed, Finished, ReparteeError

logger = logging.getLogger(__name__)

STORE_TRIES = 4
STORE_RETRY_S = 0.5


class RunningResponse:
    """See the module.

    Args:
        view: How the socket sees it.
        answer: Its events.
        conversation: Where it belongs; None for a response outside any.
        writer: The socket.
    """

    def __init__(
        self,
        view: ResponseView,
        answer: Answer,
        conversation: Conversation | None,
        writer: SocketWriter,
    ) -> None:
        self.view = view
        self.answer = answer
        self.conversation = conversation
        self.is_cancelling = False
        self.ended = asyncio.Event()
        self._writer: SocketWriter | None = writer
        self._texts: list[str] = []
        self._last = Cursor(0, 0)

    @property
    def response_id(self) -> str:
        """The response's id."""
        return self.view.response_id

    def detach(self) -> None:
        """The socket is gone; nothing is sent any more."""
        self._writer = None

    def take_back(self, events: list[Event], after: Cursor | None) -> None:
        """Show a client that returns what it missed.

        Args:
            events: The response's events so far, none of them terminal.
            after: The last place that the client saw, if it says so. A place that is not
                in the log is as good as none: the client gets the whole text then.
        """
        deltas = [event for event in events if isinstance(event, Delta)]
        self._texts = [delta.text for delta in deltas]
        last = Cursor(events[-1].epoch, events[-1].seq) if events else Cursor(0, 0)
        self._last = last
        places = [Cursor(event.epoch, event.seq) for event in events]
        writer = self._writer
        if writer is None:
            return
        if after is None or after not in places:
            writer.send(self.view.resumed("".join(self._texts), last))
            return
        writer.send(self.view.resumed(None, after))
        missed = "".join(delta.text for delta in deltas if delta.seq > after.seq)
        if missed:
            writer.send_text(self.view, missed, last)

    def show_again(self) -> None:
        """Show a client that was told to forget everything what there is of it."""
        if self._writer is not None:
            self._writer.send(self.view.resumed("".join(self._texts), self._last))

    async def follow(self) -> None:
        """Pass every event on; returns after the terminal one."""
        self.answer.deliver(self._pass_text)
        try:
            async for event in self.answer:
                if isinstance(event, Delta):
                    self._pass_text(event)
                elif isinstance(event, Finished | Failed):
                    await self._finish(event)
        finally:
            self.ended.set()

    def _pass_text(self, event: Delta) -> None:
        if not event.text:
            return
        self._texts.append(event.text)
        cursor = self._last = Cursor(event.epoch, event.seq)
        writer = self._writer
        if writer is None:
            return
        if self.view.is_open:
            writer.send_text(self.view, event.text, cursor)
        else:
            writer.send_all([*self.view.opening(), self.view.delta(event.text, cursor)])

    async def _finish(self, event: Finished | Failed) -> None:
        if isinstance(event, Failed):
            logger.warning("response %s failed: %s", self.response_id, event.error)
        text = "".join(self._texts)
        if self.conversation is not None:
            await self._store(self.conversation, event, text)
        if self._writer is not None:
            self._writer.send_all(self.view.ended(event, text))

    async def _store(self, conversation: Conversation, event: Finished | Failed, text: str) -> None:
        kept = text if self.view.has_item(event, text) else None
        for number in range(1, STORE_TRIES + 1):
            try:
                await conversation.finish(
                    self.response_id, kept, item_status(event), end_reason(event)
                )
                return
            except ReparteeError as error:
                logger.warning("response %s is not stored yet: %s", self.response_id, error)
                if number < STORE_TRIES:
                    await asyncio.sleep(STORE_RETRY_S * number)
        logger.error("response %s could not be stored", self.response_id)
