"""From a create to an answer: what it continues, its prompt, its record, the engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.auth import Principal
from app.gateway.responses import Responses
from app.gateway.responses_recorder import RecordedAnswer, Replay
from app.protocol.content import check_size
from app.protocol.fields import missing
from app.protocol.ids import new_id
from app.protocol.responses.items import InputItem
from app.protocol.responses.objects import ended_object, leaves_output, response_head
from app.protocol.responses.request import ResponsesRequest
from app.sessions.stored import ResponseEnd, ResponseStore, StoredResponse
from engine.contract import (
    Conflict,
    Event,
    Failed,
    Finished,
    FinishReason,
    Message,
    NotFound,
    ReparteeError,
    Usage,
    Warm,
)

logger = logging.getLogger(__name__)

API = "responses"


@dataclass(frozen=True, slots=True)
class Parent:
    """What a response continues.

    Attributes:
        chain: The id under which the engine knows the chain.
        before: The stored responses at its end, first to last.
        messages: All its turns.
        is_loose: The last response is not stored, so whoever continues it has to keep
            the turns itself.
    """

    chain: str
    before: tuple[str, ...]
    messages: tuple[Message, ...]
    is_loose: bool = False


@dataclass(slots=True)
class Making:
    """A response under way.

    Attributes:
        record: What is known of it.
        messages: The turns up to its own, without instructions.
        answer: Its events after the first.
        first: The first event, which is no failure.
        is_stored: Whether it is kept.
    """

    record: StoredResponse
    messages: tuple[Message, ...]
    answer: RecordedAnswer | Replay
    first: Event
    is_stored: bool

    @property
    def response_id(self) -> str:
        """The response's id."""
        return self.record.response_id

    def after(self, end: ResponseEnd) -> Parent:
        """What a response that continues it starts from."""
        turns = (*self.messages, *_turn(end.text))
        if not self.is_stored:
            return Parent(self.record.chain, (), turns, is_loose=True)
        return Parent(self.record.chain, (*self.record.before, self.response_id), turns)


class ResponseMaker:
    """Makes responses.

    Args:
        responses: The way to the engine.
        store: Keeps those that are to be kept.
    """

    def __init__(self, responses: Responses, store: ResponseStore) -> None:
        self.responses = responses
        self.store = store

    async def parent(self, response_id: str, principal: Principal) -> Parent:
        """What a stored response is, for one that continues it.

        Raises:
            NotFound: it, or one before it, is gone.
            Conflict: it still runs.
        """
        try:
            previous = await self.store.load(response_id, principal.owner)
            chain = await self.store.chain(previous)
        except NotFound as error:
            raise NotFound(
                f"Previous response with id {response_id!r:.140} not found.",
                code="previous_response_not_found",
                param="previous_response_id",
            ) from error
        if any(each.end is None for each in chain):
            raise Conflict(
                f"The previous response {response_id!r:.140} has not ended yet.",
                code="previous_response_not_ended",
                param="previous_response_id",
            )
        messages: list[Message] = []
        for each in chain:
            messages += [Message(role, content) for role, content in each.loose]
            messages += [InputItem.from_wire(wire).message for wire in each.input]
            messages += _turn("" if each.end is None else each.end.text)
        before = (*previous.before, previous.response_id)
        return Parent(previous.chain, before, tuple(messages))

    async def make(
        self,
        request: ResponsesRequest,
        principal: Principal,
        parent: Parent | None,
        *,
        is_chained: bool = False,
    ) -> Making:
        """Begin a response; returns once its prompt is accepted.

        Args:
            request: What is asked for.
            principal: Who asks.
            parent: What it continues.
            is_chained: One that is not stored may be continued too.

        Raises:
            ReparteeError: it was refused; nothing is left of it.
        """
        history = () if parent is None else parent.messages
        messages = (*history, *(item.message for item in request.input))
        prompt = (*_system(request.instructions), *messages)
        if not messages and not (request.is_warm_up and prompt):
            raise missing("input")
        check_size(prompt, request.card, "input")
        record = self._record(request, principal, parent)
        if request.is_warm_up:
            return await self._warm_up(record, request, messages, prompt, principal.tenant)
        keeps = self.store if request.is_stored else None
        if keeps is not None:
            await keeps.create(record)
        try:
            answer = await self.responses.submit(
                record.response_id,
                api=API,
                model=request.card.id,
                messages=prompt,
                sampling=request.sampling,
                principal=principal,
                conversation_id=record.chain if request.is_stored or is_chained else None,
            )
            recorded = RecordedAnswer(answer, self.responses, keeps)
            first = await self._first(recorded)
        except Exception:
            if keeps is not None:
                await self._drop(record)
            raise
        if keeps is not None:
            self.responses.spawn(self._trim(record.tenant))
        return Making(record, messages, recorded, first, request.is_stored)

    async def _first(self, answer: RecordedAnswer) -> Event:
        try:
            first = await anext(answer)
        except BaseException:
            answer.leave()
            raise
        if isinstance(first, Failed):
            raise first.error
        return first

    async def _trim(self, tenant: str) -> None:
        try:
            await self.store.trim(tenant)
        except ReparteeError as error:
            logger.warning("responses of %s are not trimmed yet: %s", tenant, error)

    async def _drop(self, record: StoredResponse) -> None:
        try:
            await self.store.delete(record.response_id, record.tenant)
        except NotFound:
            return

    async def _warm_up(
        self,
        record: StoredResponse,
        request: ResponsesRequest,
        messages: tuple[Message, ...],
        prompt: tuple[Message, ...],
        tenant: str,
    ) -> Making:
        """Let the engine compute a prompt; there is no answer to wait for."""
        now = time.time()
        warm = Warm(
            conversation_id=record.chain,
            model=request.card.id,
            messages=prompt,
            draft="",
            tenant=tenant,
            created_at=now,
        )
        await self.responses.engine.warm(warm)
        nothing = Finished(record.response_id, 1, 1, FinishReason.STOP, Usage(0, 0))
        end = ResponseEnd(nothing, "", now)
        if request.is_stored:
            await self.store.create(replace(record, end=end))
            self.responses.spawn(self._trim(record.tenant))
        answer = Replay(record.response_id, end)
        return Making(record, messages, answer, await anext(answer), request.is_stored)

    def _record(
        self, request: ResponsesRequest, principal: Principal, parent: Parent | None
    ) -> StoredResponse:
        response_id = new_id("resp_")
        loose = parent.messages if parent is not None and parent.is_loose else ()
        return StoredResponse(
            response_id=response_id,
            tenant=principal.owner,
            head=response_head(response_id, request, time.time()),
            input=[item.to_wire() for item in request.input],
            chain=response_id if parent is None else parent.chain,
            before=() if parent is None else parent.before,
            loose=[(message.role, message.content) for message in loose],
            deadline_at=self.responses.next_deadline(),
            is_warm_up=request.is_warm_up,
        )


def shown_end(record: StoredResponse, end: ResponseEnd) -> dict[str, Any]:
    """A response that is over, as the wire shows it."""
    has_output = not record.is_warm_up and leaves_output(end.event, end.text)
    return ended_object(
        record.head, end.event, end.text, has_output=has_output, ended_at=end.ended_at
    )


def _system(instructions: str | None) -> Sequence[Message]:
    return (Message("system", instructions),) if instructions else ()


def _turn(text: str) -> Sequence[Message]:
    return (Message("assistant", text),) if text else ()
