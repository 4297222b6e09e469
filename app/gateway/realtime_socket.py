"""An open Realtime session: client events carried out in order, answers passed on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from app.gateway.conversation import Conversation
from app.gateway.credential_watch import CredentialWatch
from app.gateway.drafts import Drafts
from app.gateway.prompt import prompt_of
from app.gateway.responses import Answer, Responses
from app.gateway.resume import resume_state, running_answer
from app.gateway.running import RunningResponse
from app.gateway.snapshots import Snapshots
from app.gateway.socket_connection import SocketConnection
from app.gateway.socket_route import OpenSocket
from app.gateway.tab_sync import TabSync, response_view
from app.gateway.throttle import Throttle
from app.gateway.writer import SocketWriter
from app.protocol.ids import new_id
from app.protocol.realtime.commands import (
    CancelResponse,
    Command,
    CreateItem,
    CreateResponse,
    DeleteItem,
    InputDraft,
    Ping,
    RenewToken,
    RetrieveItem,
    TruncateConversation,
    TruncateItem,
    UpdateSession,
)
from app.protocol.realtime.response import ResponseView
from app.protocol.realtime.wire import RealtimeWire, Received
from app.sessions.feed import ChangeFeed, Subscription
from engine.contract import (
    Conflict,
    Cursor,
    InvalidRequest,
    Message,
    ReparteeError,
)

logger = logging.getLogger(__name__)

API = "realtime"
# How long a response.create waits for the end of the response before it.
END_WAIT_S = 10.0
MAX_OUT_OF_BAND = 16


class RealtimeSocket(OpenSocket):
    """See the module.

    Args:
        connection: The accepted socket.
        writer: The only way to write to it.
        wire: Reads and renders events.
        conversation: The session.
        responses: The way to the engine.
        watch: Whose socket it is, and for how long.
        throttles: Slow down whoever sends too many events: the socket's, the tenant's.
        subscription: Changes of the session, made here or elsewhere.
        feed: Where they come from.
        snapshots: Sends what the session holds.
    """

    def __init__(
        self,
        connection: SocketConnection,
        writer: SocketWriter,
        wire: RealtimeWire,
        conversation: Conversation,
        responses: Responses,
        watch: CredentialWatch,
        throttles: tuple[Throttle, ...],
        subscription: Subscription,
        feed: ChangeFeed,
        snapshots: Snapshots,
    ) -> None:
        super().__init__(connection, writer, watch, throttles)
        self._wire = wire
        self._conversation = conversation
        self._responses = responses
        self._subscription = subscription
        self._feed = feed
        self._snapshots = snapshots
        self._running: dict[str, RunningResponse] = {}
        self._drafts = Drafts(conversation, responses, watch.principal)
        self._goodbye: tuple[int, str] | None = None
        self._tabs = TabSync(
            *(subscription, conversation, wire, writer, responses),
            show=partial(snapshots.send, connection, writer),
            start=self._start,
            running=self._running.get,
        )

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._conversation.session_id

    @property
    def log_fields(self) -> Mapping[str, str]:  # type: ignore[override]
        """See `OpenSocket`."""
        return {"session_id": self.session_id}

    async def greet(self, after: Cursor | None, response_id: str | None) -> None:
        """Say what the session holds, and take up a response that runs.

        Args:
            after: The last place of that response which the client saw.
            response_id: The response that the client means.
        """
        conversation = self._conversation
        resumed = await running_answer(conversation, self._responses)
        state = await resume_state(
            conversation, self._responses, response_id, has_place=after is not None
        )
        if response_id is not None and state != "live":
            # The place is in another response than the one that runs.
            after = None
        self._wire.settings = conversation.settings
        pages = self._wire.opened(
            conversation.opened_items(), conversation.title, state, self.watch.principal.tier
        )
        conversation.let_go()
        await self._snapshots.send(self._connection, self._writer, pages)
        if resumed is not None and conversation.active is not None:
            answer, events = resumed
            view = response_view(self._wire, conversation.active)
            running = self._start(RunningResponse(view, answer, conversation, self._writer))
            running.take_back(events, after)
        self._tabs.open()
        self.watch.start()

    async def finish(self) -> None:
        """See `OpenSocket`; the conversation's response goes on."""
        try:
            await super().finish()
        finally:
            self._tabs.close()
            self._detach()
            self._drafts.stop()
            if self._subscription.is_only:
                self._responses.spawn(self._drafts.release())
            await self._feed.leave(self._subscription)

    def drain(self, code: int, reason: str) -> None:
        """Close once nothing runs here."""
        self._goodbye = (code, reason)
        if not self._running:
            self.close(code, reason)

    async def carry_out(self, text: str) -> None:
        """See `OpenSocket`."""
        received = self._wire.receive(text)
        if isinstance(received, bytes):
            self._writer.send(received)
        else:
            await self._answer(received)

    async def _answer(self, received: Received) -> None:
        try:
            await self._execute(received)
        except ReparteeError as error:
            self._writer.send(self._wire.error(error, received.event_id))
        except Exception as error:
            logger.exception("%s failed", type(received.command).__name__)
            self._writer.send(self._wire.error(error, received.event_id))

    async def _execute(self, received: Received) -> None:
        command: Command = received.command
        if not isinstance(command, RenewToken | CancelResponse | Ping):
            self.watch.check()
        match command:
            case CreateResponse():
                await self._create_response(command, received.event_id)
            case CancelResponse(response_id):
                await self._cancel_response(response_id)
            case CreateItem():
                await self._create_item(command, received.event_id)
            case RetrieveItem(item_id):
                item = await self._conversation.item(item_id)
                self._send("conversation.item.retrieved", item=item)
            case DeleteItem(item_id):
                version = await self._conversation.delete(item_id)
                frame = self._wire.event("conversation.item.deleted", {"item_id": item_id})
                await self._tabs.in_order(version, [frame])
            case TruncateItem():
                await self._truncate_item(command)
            case TruncateConversation(item_id):
                deleted_ids, version = await self._conversation.truncate_after(item_id)
                frame = self._wire.conversation_truncated(item_id, deleted_ids)
                await self._tabs.in_order(version, [frame])
            case UpdateSession(settings):
                version = await self._conversation.update(settings)
                self._wire.settings = settings
                await self._tabs.in_order(version, [self._wire.updated()])
            case InputDraft(text):
                # While an answer runs, nobody knows yet what the next prompt begins with.
                if self._active() is None:
                    self._drafts.offer(text, self._taken_notice(received.event_id))
            case RenewToken(token):
                self._send("repartee.token.renewed", expires_at=await self.watch.renew(token))
            case Ping():
                self._send("repartee.pong")

    def _taken_notice(self, event_id: str | None) -> Callable[[], None] | None:
        """Tells a client that named its draft that a worker has it."""
        if event_id is None:
            return None
        return lambda: self._send("repartee.input_draft.taken", draft_event_id=event_id)

    def _send(self, kind: str, **fields: object) -> None:
        self._writer.send(self._wire.event(kind, fields))

    async def _create_item(self, command: CreateItem, event_id: str | None) -> None:
        item, added = await self._conversation.add(command.item, command.previous_item_id, event_id)
        frames = self._wire.created_item(item, added.previous_item_id, added.title)
        await self._tabs.in_order(added.version if added.created else None, frames)

    async def _truncate_item(self, command: TruncateItem) -> None:
        version = await self._conversation.truncate(command.item_id, command.text_end)
        frame = self._wire.truncated(command.item_id, command.text_end, command.audio_end_ms)
        await self._tabs.in_order(version, [frame])

    async def _create_response(self, command: CreateResponse, event_id: str | None) -> None:
        self._responses.check_open()
        # Known without Redis, and before the conversation is taken.
        self._responses.limiter.check(self.watch.principal)
        if not command.in_conversation:
            await self._start_out_of_band(command)
            return
        self._drafts.drop()
        before = self._active()
        if before is not None and before.is_cancelling:
            await _end_of(before)
        response_id = new_id("resp_")
        self._tabs.asks(response_id)
        try:
            await self._begin_response(response_id, command, event_id, before)
        finally:
            self._tabs.asked(response_id)

    async def _begin_response(
        self,
        response_id: str,
        command: CreateResponse,
        event_id: str | None,
        before: RunningResponse | None,
    ) -> None:
        begun = await self._conversation.begin(
            response_id,
            self._responses.next_deadline(),
            event_id,
            command.answers,
            {"max_output_tokens": command.sampling.max_tokens, "metadata": command.metadata},
        )
        try:
            messages = await prompt_of(command, self._conversation, begun.turns)
            answer = await self._submit(response_id, command, messages, self._conversation)
        except BaseException:
            await asyncio.shield(self._responses.spawn(self._give_back(response_id)))
            raise
        if before is not None:
            # It has ended for the store; its end goes out before the next one's beginning.
            await _end_of(before)
        self._follow(answer, command, self._conversation, begun.previous_item_id)

    async def _give_back(self, response_id: str) -> None:
        """Nothing came of a response: the conversation is free again."""
        try:
            await self._conversation.finish(response_id, None, "")
        except ReparteeError as error:
            logger.warning("response %s holds its conversation: %s", response_id, error)

    async def _start_out_of_band(self, command: CreateResponse) -> None:
        outside = [r for r in self._running.values() if r.conversation is None]
        if len(outside) >= MAX_OUT_OF_BAND:
            raise Conflict(
                f"At most {MAX_OUT_OF_BAND} responses outside the conversation run at once.",
                code="too_many_responses",
            )
        messages = await prompt_of(command, self._conversation)
        answer = await self._submit(new_id("resp_"), command, messages, None)
        self._follow(answer, command, None, None)

    def _active(self) -> RunningResponse | None:
        return next((r for r in self._running.values() if r.conversation is not None), None)

    async def _submit(
        self,
        response_id: str,
        command: CreateResponse,
        messages: tuple[Message, ...],
        conversation: Conversation | None,
    ) -> Answer:
        return await self._responses.submit(
            response_id,
            api=API,
            model=self._conversation.card.id,
            messages=messages,
            sampling=command.sampling,
            principal=self.watch.principal,
            conversation_id=None if conversation is None else conversation.session_id,
        )

    def _follow(
        self,
        answer: Answer,
        command: CreateResponse,
        conversation: Conversation | None,
        previous_item_id: str | None,
    ) -> None:
        view = ResponseView(
            self._wire,
            answer.request_id,
            in_conversation=conversation is not None,
            previous_item_id=previous_item_id,
            max_output_tokens=command.sampling.max_tokens,
            metadata=command.metadata,
        )
        self._writer.send(view.created(answer.num_ahead()))
        if answer.charge is not None and answer.charge.standing.limits:
            self._send("rate_limits.updated", **answer.charge.standing.event_fields())
        self._start(RunningResponse(view, answer, conversation, self._writer))

    def _start(self, running: RunningResponse) -> RunningResponse:
        self._running[running.response_id] = running
        self._tabs.note(running)
        task = self._responses.spawn(running.follow())
        task.add_done_callback(lambda _: self._forget(running))
        return running

    def _forget(self, running: RunningResponse) -> None:
        self._running.pop(running.response_id, None)
        if self._goodbye is not None and not self._running:
            self.close(*self._goodbye)

    async def _cancel_response(self, response_id: str | None) -> None:
        running = self._active() if response_id is None else self._running.get(response_id)
        if running is not None:
            await self._responses.engine.cancel(running.response_id)
            running.is_cancelling = True
            return
        # It may run for another tab of this conversation.
        active_id = await self._conversation.active_response()
        if active_id is None or response_id not in (None, active_id):
            raise InvalidRequest(
                "There is no active response to cancel.",
                code="response_cancel_not_active",
                param="response_id",
            )
        await self._responses.engine.cancel(active_id)

    def _detach(self) -> None:
        """The socket is gone: the conversation's response goes on, all others end."""
        for running in self._running.values():
            running.detach()
            if running.conversation is None:
                self._responses.spawn(self._cancel_quietly(running.response_id))
        self._goodbye = None

    async def _cancel_quietly(self, response_id: str) -> None:
        try:
            await self._responses.engine.cancel(response_id)
        except ReparteeError as error:
            logger.warning("response %s could not be cancelled: %s", response_id, error)


async def _end_of(running: RunningResponse) -> None:
    """Let a response end that is about to."""
    with suppress(TimeoutError):
        await asyncio.wait_for(running.ended.wait(), END_WAIT_S)
