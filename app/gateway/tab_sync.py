"""What other sockets of a conversation do, shown on this one.

Each change of the conversation comes with its version, made here or on any gateway. The
socket's own are known by their origin and shown by whoever made them. A version that is
missing means that something was not heard of: the client then gets the whole
conversation anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from app.gateway.conversation import Conversation, shown_item
from app.gateway.responses import Answer, Responses
from app.gateway.running import RunningResponse
from app.gateway.writer import SocketWriter
from app.protocol.realtime.response import ResponseView
from app.protocol.realtime.settings import SessionSettings
from app.protocol.realtime.wire import RealtimeWire
from app.sessions import ActiveResponse
from app.sessions.changes import (
    Change,
    ItemAdded,
    ItemCut,
    ItemDeleted,
    Renamed,
    ResponseBegan,
    ResponseEnded,
    SessionDeleted,
    SettingsChanged,
    Truncated,
    What,
)
from app.sessions.feed import Subscription
from engine.contract import NotFound, ReparteeError

logger = logging.getLogger(__name__)

DELETED_CODE = 1000
DELETED_REASON = "the session was deleted"
# A response is announced before a worker has it: how often it is looked for, and how long.
ATTACH_FIRST_S = 0.02
ATTACH_MAX_S = 0.5
ATTACH_TRIES = 12
# Responses whose end, heard of late, is no news.
REMEMBERED_RESPONSES = 32


class TabSync:
    """One socket's.

    Args:
        subscription: Where changes come from.
        conversation: The session.
        wire: Renders events.
        writer: The socket.
        responses: The way to the engine.
        start: Follows a response on the socket.
        running: Finds a response that the socket follows now.
    """

    def __init__(
        self,
        subscription: Subscription,
        conversation: Conversation,
        wire: RealtimeWire,
        writer: SocketWriter,
        responses: Responses,
        start: Callable[[RunningResponse], RunningResponse],
        running: Callable[[str], RunningResponse | None],
    ) -> None:
        self._subscription = subscription
        self._conversation = conversation
        self._wire = wire
        self._writer = writer
        self._responses = responses
        self._start = start
        self._running = running
        self._version = conversation.version
        self._tasks: set[asyncio.Task[None]] = set()
        # Responses that are looked for, and of these the ones that have ended meanwhile.
        self._attaching: set[str] = set()
        self._over: set[str] = set()
        self._shown: deque[str] = deque(maxlen=REMEMBERED_RESPONSES)
        self._is_resyncing = False

    def open(self) -> None:
        """Show changes from the version that the client was greeted with."""
        self._version = self._conversation.version
        self._subscription.listen(self._take, self._take_version)

    def close(self) -> None:
        """The socket is gone."""
        self._subscription.hold()
        for task in tuple(self._tasks):
            task.cancel()

    def note(self, response_id: str) -> None:
        """The socket follows a response, and will show its end."""
        self._shown.append(response_id)

    def _take(self, change: Change) -> None:
        if change.version <= self._version:
            return
        if change.version > self._version + 1 and not isinstance(change.what, SessionDeleted):
            self._resync()
            return
        self._version = change.version
        if change.origin != self._conversation.origin:
            self._show(change.what)

    def _take_version(self, version: int) -> None:
        if version != self._version:
            self._resync()

    def _show(self, what: What) -> None:
        match what:
            case ItemAdded(item=None) | SettingsChanged(None):
                self._resync()
            case ItemAdded(item, previous_item_id, title) if item is not None:
                self._writer.send_all(
                    self._wire.created_item(shown_item(item), previous_item_id, title)
                )
            case ItemDeleted(item_id):
                self._send("conversation.item.deleted", item_id=item_id)
            case ItemCut(item_id, num_chars):
                self._writer.send(self._wire.truncated(item_id, num_chars))
            case Truncated(item_id, deleted_ids):
                self._writer.send(self._wire.conversation_truncated(item_id, deleted_ids))
            case SettingsChanged(settings) if settings is not None:
                self._wire.settings = SessionSettings.from_dict(settings)
                self._conversation.settings = self._wire.settings
                self._writer.send(self._wire.updated())
            case ResponseBegan(active):
                self._follow(active)
            case ResponseEnded(response_id):
                self._ended(response_id)
            case Renamed(title):
                self._send("repartee.session.title", title=title)
            case SessionDeleted():
                self._send("repartee.session.deleted", session_id=self._wire.session_id)
                self._writer.close(DELETED_CODE, DELETED_REASON)

    def _send(self, kind: str, **fields: object) -> None:
        self._writer.send(self._wire.event(kind, fields))

    def _follow(self, active: ActiveResponse) -> None:
        """Show a response that began elsewhere, as soon as a worker has it."""
        self._attaching.add(active.response_id)
        self._spawn(self._attach(active))

    async def _attach(self, active: ActiveResponse) -> None:
        try:
            answer = await self._find(active.response_id)
        except ReparteeError as error:
            logger.warning("response %s is not followed: %s", active.response_id, error)
            self._resync()
            return
        finally:
            self._attaching.discard(active.response_id)
            self._over.discard(active.response_id)
        if answer is not None:
            view = response_view(self._wire, active)
            self._writer.send(view.created())
            self._start(RunningResponse(view, answer, self._conversation, self._writer))

    async def _find(self, response_id: str) -> Answer | None:
        """The response's answer; None if it ended and no worker ever had it.

        Raises:
            ReparteeError: there is no trace of it, or Redis failed.
        """
        delay_s = ATTACH_FIRST_S
        for _ in range(ATTACH_TRIES):
            is_over = response_id in self._over
            try:
                return await self._responses.attach(response_id)
            except NotFound:
                if is_over:
                    return None
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, ATTACH_MAX_S)
        raise NotFound("It left no trace.")

    def _ended(self, response_id: str) -> None:
        """A response that is followed shows its own end; another has left something."""
        if response_id in self._attaching:
            self._over.add(response_id)
        elif response_id not in self._shown:
            self._resync()

    def _resync(self) -> None:
        """Show the client the whole conversation as it stands."""
        if self._is_resyncing:
            return
        self._is_resyncing = True
        self._subscription.hold()
        self._spawn(self._show_all())

    async def _show_all(self) -> None:
        conversation = self._conversation
        try:
            await conversation.reload()
        except NotFound:
            self._show(SessionDeleted())
            return
        except ReparteeError as error:
            # The version is as old as before: the next change leads here again.
            logger.warning("%s is not shown anew: %s", conversation.session_id, error)
            conversation.version = self._version
        else:
            self._wire.settings = conversation.settings
            frames = self._wire.resynced(conversation.opened_items(), conversation.title)
            self._writer.send_all(frames)
            self._show_active(conversation.active)
        self._is_resyncing = False
        self.open()

    def _show_active(self, active: ActiveResponse | None) -> None:
        if active is None:
            return
        running = self._running(active.response_id)
        if running is not None:
            running.show_again()
        elif active.response_id not in self._attaching:
            self._follow(active)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def response_view(wire: RealtimeWire, active: ActiveResponse) -> ResponseView:
    """A response of the conversation as a socket shows it that did not ask for it."""
    return ResponseView(
        wire,
        active.response_id,
        in_conversation=True,
        previous_item_id=active.previous_item_id,
        max_output_tokens=active.asked.get("max_output_tokens"),
        metadata=active.asked.get("metadata"),
    )
