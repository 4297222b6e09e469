"""The one response that may write to a conversation, from its beginning to its end.

Should the gateway that followed it die, whoever next loads the conversation, or begins
another response in it, writes the answer from the response's log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
from redis.asyncio import Redis

from app.redis_client import redis_errors
from app.routing.log import ResponseLog
from app.sessions import keys
from app.sessions.index import SessionIndex
from app.sessions.reader import SessionReader, active_of
from app.sessions.records import ActiveResponse, Begun, Item, StoredTurns, TurnBound
from app.sessions.refusals import no_session
from app.sessions.unseen import unseen_answer
from app.sessions.writer import Declined, Done, SessionWriter
from engine.contract import Conflict

logger = logging.getLogger(__name__)

_FIELDS = (
    "active",
    "active_item",
    "active_after",
    "active_until",
    "active_since",
    "active_asked",
)
NO_TURNS = TurnBound(-1, 0)
_MAY_BE_BUSY = frozenset({"busy"})
_MAY_HAVE_ENDED = frozenset({"not_active", "gone"})


class RunningResponses:
    """See the module. Every method raises `Unavailable` if Redis fails.

    Args:
        redis: A pooled client.
        reader: Reads conversations.
        writer: Changes them.
        index: Each tenant's list.
    """

    def __init__(
        self, redis: Redis, reader: SessionReader, writer: SessionWriter, index: SessionIndex
    ) -> None:
        self._redis = redis
        self._reader = reader
        self._writer = writer
        self._index = index
        self._log = ResponseLog(redis)

    async def begin(
        self,
        session_id: str,
        response_id: str,
        *,
        item_id: str,
        deadline_at: float,
        event_id: str | None = None,
        answers: str | None = None,
        asked: Mapping[str, Any] | None = None,
        origin: str = "",
        turns: TurnBound = NO_TURNS,
    ) -> Begun:
        """Make a response the one that may write to the conversation.

        Args:
            session_id: Where.
            response_id: Which; repeating the call for the same one changes nothing.
            item_id: The item that the answer will become.
            deadline_at: Unix seconds; a response past it no longer blocks others.
            event_id: The client's id of the request: repeated after its answer, with
                nothing added since, it begins nothing.
            answers: The item that it is to answer, without which nothing begins; None
                takes the conversation as it is.
            asked: What it is asked to be: whoever else shows it, shows that.
            origin: Who begins it, as listeners are told.
            turns: The conversation's items are read with it, if they take at most this.

        Raises:
            NotFound: no such conversation, or no such item to answer.
            Conflict: another response is running.
            InvalidRequest: the request was answered before.
        """
        reply = await self.when_idle(
            "begin_response",
            session_id,
            response_id,
            item_id,
            deadline_at,
            keys.DEADLINE_GRACE_S,
            event_id or "",
            answers or "",
            orjson.dumps(asked or {}),
            turns.text_bytes,
            turns.item_bytes,
            item_id=answers,
            origin=origin,
        )
        previous, *read = reply.rest
        return Begun(previous or None, StoredTurns.of_reply(read))

    async def finish(
        self, session_id: str, response_id: str, item: Item | None, *, status: str | None = None
    ) -> bool:
        """End the running response and keep its answer at its place.

        Args:
            session_id: Where.
            response_id: Which.
            item: The answer; None keeps nothing.
            status: The item's status, if other than its own.

        Returns:
            False if it wasn't running any more: it has been ended before, or the
            conversation is gone. Nothing was changed then.
        """
        body: str | bytes = ""
        if item is not None:
            item = replace(
                item,
                status=status or item.status,
                created_at=item.created_at or time.time(),
                response_id=response_id,
            )
            body = orjson.dumps(item.to_wire())
        item_id = item.item_id if item is not None else ""
        reply = await self._writer.offer(
            "finish_response", session_id, response_id, item_id, body, may=_MAY_HAVE_ENDED
        )
        if isinstance(reply, Declined):
            return False
        await self._index.note(reply.size.owner, session_id)
        return True

    async def active(self, session_id: str) -> ActiveResponse | None:
        """The running response, if any.

        Raises:
            NotFound: no such conversation.
        """
        with redis_errors("active response"):
            reply: list[Any] = await self._redis.hmget(
                keys.of(session_id)[0], ("created_at", *_FIELDS)
            )
        exists, *values = reply
        if exists is None:
            raise no_session(session_id)
        if values[0] is None:
            return None
        active = active_of(
            {name.encode(): value for name, value in zip(_FIELDS, values, strict=True)}
        )
        if active is not None and await self.reconcile(session_id, active):
            return None
        return active

    async def reconcile(self, session_id: str, active: ActiveResponse) -> bool:
        """End a running response whose log has ended, whose time is over, or that nobody
        knows.

        Returns:
            Whether the conversation has changed.
        """
        now = time.time()
        over = now > active.deadline_at + keys.DEADLINE_GRACE_S
        with redis_errors("session reconcile"):
            if not over and now > active.began_at + keys.SUBMIT_GRACE_S:
                over = not await self._log.has_trace(active.response_id)
            ended = await unseen_answer(self._log, active, is_over=over)
        if ended is None:
            return False
        logger.info("response %s of %s ended unseen", active.response_id, session_id)
        return await self.finish(session_id, active.response_id, ended.item)

    async def when_idle(
        self,
        script: str,
        session_id: str,
        *args: str | bytes | float,
        item_id: str | None,
        origin: str,
    ) -> Done:
        """Run a script that a running response refuses.

        Raises:
            Conflict: one is running.
        """

        async def attempt() -> Done | Declined:
            return await self._writer.offer(
                script, session_id, *args, may=_MAY_BE_BUSY, item_id=item_id, origin=origin
            )

        reply = await attempt()
        if isinstance(reply, Declined):
            active = (await self._reader.read(session_id)).active
            if active is None or await self.reconcile(session_id, active):
                reply = await attempt()
        if isinstance(reply, Declined):
            raise Conflict(
                f"The conversation already has an active response: {reply.rest[0]}. "
                "Wait until it is done, or cancel it."
            )
        return reply

    async def forget_logs(self, response_ids: list[str]) -> None:
        """Drop the logs of answers whose conversation is gone."""
        with redis_errors("session delete"):
            await self._log.forget(response_ids)
