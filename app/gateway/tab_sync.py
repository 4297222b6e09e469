"""What other sockets of a conversation do, shown on this one.

Each change of the conversation comes with its version, made here or on any gateway. The
socket's own are known by their origin and shown by whoever made them. A version that is
missing means that something was not heard of: the client then gets the whole
conversation anew.

A client applies events one after the other, so they have to come in the order of the
versions, its own among them: what it did itself is told when its turn is, and what came
after a response's end waits until that end has been told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
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
# How long an own change waits for its turn, and for its answer when its turn has come.
TURN_WAIT_S = 2.0
# How long what comes after a response's end waits for that end.
END_WAIT_S = 10.0
REMEMBERED_DELETES = 16
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
        show: Sends the frames of the whole conversation.
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
        show: Callable[[Sequence[bytes]], Awaitable[None]],
        start: Callable[[RunningResponse], RunningResponse],
        running: Callable[[str], RunningResponse | None],
    ) -> None:
        self._subscription = subscription
        self._conversation = conversation
        self._wire = wire
        self._writer = writer
        self._responses = responses
        self._show_pages = show
        self._start = start
        self._running = running
        self._version = conversation.version
        self._tasks: set[asyncio.Task[None]] = set()
        # Responses that are looked for, and of these the ones that have ended meanwhile.
        self._attaching: dict[str, asyncio.Task[None]] = {}
        self._over: set[str] = set()
        # Responses that this socket asked for and does not follow yet.
        self._asked: set[str] = set()
        # Own changes that wait for their turn, and the one whose turn it is.
        self._own: dict[int, tuple[list[bytes], asyncio.Event]] = {}
        self._due: int | None = None
        self._shown: list[str] = []
        self._latest: RunningResponse | None = None
        # Items deleted of late: what answers were to follow, and follow now.
        self._deleted: list[tuple[str, str | None]] = []
        self._is_resyncing = False

    def open(self) -> None:
        """Show changes from the version that the client was greeted with."""
        self._version = self._conversation.version
        self._conversation.let_go()
        self._subscription.listen(self._take, self._take_version)

    def close(self) -> None:
        """The socket is gone."""
        self._subscription.hold()
        for task in tuple(self._tasks):
            task.cancel()
        # It belongs to the socket, which would wait for the garbage collector.
        self._start = _start_nothing

    def asks(self, response_id: str) -> None:
        """The socket is about to begin a response, and will follow it."""
        self._asked.add(response_id)

    def asked(self, response_id: str) -> None:
        """It follows that response now, or nothing came of it."""
        self._asked.discard(response_id)

    def note(self, running: RunningResponse) -> None:
        """The socket follows a response, and will show its end."""
        self._shown = [*self._shown, running.response_id][-REMEMBERED_RESPONSES:]
        if running.conversation is not None:
            self._latest = running
            for deleted in self._deleted:
                running.view.lose_previous(*deleted)

    async def in_order(self, version: int | None, frames: list[bytes]) -> None:
        """Send what tells of a change made by this socket, in its turn.

        Args:
            version: The conversation's after the change; None if nothing was changed.
            frames: What tells of it.
        """
        if version is not None and version == self._due:
            self._due = None
            self._writer.send_all(frames)
            self._subscription.listen(self._take, self._take_version)
            return
        if version is None or version <= self._version or not self._subscription.is_live:
            self._writer.send_all(frames)
            if version is not None and version <= self._version:
                # The client was shown a later state meanwhile, and this leads it back.
                self._resync()
            return
        told = asyncio.Event()
        self._own[version] = frames, told
        try:
            async with asyncio.timeout(TURN_WAIT_S):
                await told.wait()
        except TimeoutError:
            # The feed was lost meanwhile; once it is back, the versions will differ.
            self._tell_own(version)

    def _tell_own(self, version: int) -> None:
        frames, told = self._own.pop(version, ([], None))
        self._writer.send_all(frames)
        if told is not None:
            told.set()

    def _take(self, change: Change) -> None:
        if change.version <= self._version:
            return
        if change.version > self._version + 1 and not isinstance(change.what, SessionDeleted):
            self._resync()
            return
        self._version = change.version
        if isinstance(change.what, ItemDeleted):
            self._lose(change.what)
        if isinstance(change.what, ResponseEnded):
            self._ended(change.what.response_id)
        elif change.origin != self._conversation.origin:
            self._show(change.what)
        elif not isinstance(change.what, ResponseBegan):
            self._take_own(change.version)

    def _lose(self, deleted: ItemDeleted) -> None:
        """An answer that was to follow this item follows what was before it."""
        gone = deleted.item_id, deleted.previous_item_id
        self._deleted = [*self._deleted, gone][-REMEMBERED_DELETES:]
        if self._latest is not None and not self._latest.ended.is_set():
            self._latest.view.lose_previous(*gone)

    def _take_own(self, version: int) -> None:
        """Tell of an own change, or wait until the socket has heard of its success."""
        if version in self._own:
            self._tell_own(version)
            return
        self._due = version
        self._subscription.hold()
        self._spawn(self._give_up(version))

    async def _give_up(self, version: int) -> None:
        await asyncio.sleep(TURN_WAIT_S)
        if self._due == version:
            # The change was made, and its answer lost.
            self._due = None
            self._resync()

    def _take_version(self, version: int) -> None:
        if version > self._version:
            self._resync()

    def _show(self, what: What) -> None:
        match what:
            case ItemAdded(item=None) | SettingsChanged(None):
                self._resync()
            case ItemAdded(item, previous_item_id, title) if item is not None:
                self._writer.send_all(
                    self._wire.created_item(shown_item(item), previous_item_id, title)
                )
            case ItemDeleted(item_id, _):
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
            case Renamed(title):
                self._send("repartee.session.title", title=title)
            case SessionDeleted():
                self._send("repartee.session.deleted", session_id=self._wire.session_id)
                self._writer.close(DELETED_CODE, DELETED_REASON)

    def _send(self, kind: str, **fields: object) -> None:
        self._writer.send(self._wire.event(kind, fields))

    def _follow(self, active: ActiveResponse) -> None:
        """Show a response that began elsewhere, as soon as a worker has it."""
        self._attaching[active.response_id] = self._spawn(self._attach(active))

    async def _attach(self, active: ActiveResponse) -> None:
        try:
            answer = await self._find(active.response_id)
        except ReparteeError as error:
            logger.warning("response %s is not followed: %s", active.response_id, error)
            self._resync()
            return
        finally:
            self._attaching.pop(active.response_id, None)
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
        attaching, running = self._attaching.get(response_id), self._running(response_id)
        if attaching is not None:
            self._over.add(response_id)
            self._wait_for_end(response_id, attaching)
        elif running is not None:
            self._wait_for_end(response_id, None)
        elif response_id not in self._shown and response_id not in self._asked:
            # What this socket asks for, it either follows yet, or is told why it came to nothing.
            self._resync()

    async def _end_of(self, response_id: str, attaching: asyncio.Task[None] | None) -> None:
        if attaching is not None:
            await asyncio.wait({attaching})
        running = self._running(response_id)
        if running is not None:
            await running.ended.wait()

    def _wait_for_end(self, response_id: str, attaching: asyncio.Task[None] | None) -> None:
        """Take no change until the response's end was told."""
        self._subscription.hold()
        self._spawn(self._go_on_after_end(response_id, attaching))

    async def _go_on_after_end(
        self, response_id: str, attaching: asyncio.Task[None] | None
    ) -> None:
        try:
            async with asyncio.timeout(END_WAIT_S):
                await self._end_of(response_id, attaching)
        except TimeoutError:
            self._resync()
            return
        if not self._is_resyncing:
            self._subscription.listen(self._take, self._take_version)

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
            self._version, self._due = conversation.version, None
            for version in sorted(each for each in self._own if each <= self._version):
                self._tell_own(version)
            self._wire.settings = conversation.settings
            frames = self._wire.resynced(conversation.opened_items(), conversation.title)
            conversation.let_go()
            await self._show_pages(frames)
            self._show_active(conversation.active)
        self._is_resyncing = False
        self.open()

    def _show_active(self, active: ActiveResponse | None) -> None:
        if active is None:
            return
        response_id = active.response_id
        running = self._running(response_id)
        if running is not None:
            running.show_again()
        elif response_id in self._shown:
            # Its end was shown, and is not stored yet; the client has forgotten the answer.
            self._shown.remove(response_id)
        elif response_id not in self._attaching and response_id not in self._asked:
            self._follow(active)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _start_nothing(running: RunningResponse) -> RunningResponse:
    """The socket is gone."""
    return running


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
