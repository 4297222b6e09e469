"""Changing a conversation: a script is run, its refusal is told, its quota kept up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.redis_client import redis_errors
from app.sessions.quota import StorageQuota, StoredSize
from app.sessions.refusals import refuse
from app.sessions.scripts import Scripts


@dataclass(frozen=True, slots=True)
class Done:
    """A script has changed something.

    Attributes:
        version: The conversation's, afterwards.
        size: What it takes now.
        rest: What else the script said.
    """

    version: int
    size: StoredSize
    rest: list[Any]


@dataclass(frozen=True, slots=True)
class Declined:
    """A script has changed nothing, for a reason that its caller deals with."""

    word: str
    rest: list[Any]


class SessionWriter:
    """See the module.

    Args:
        scripts: The Lua.
        quota: What owners may store.
    """

    def __init__(self, scripts: Scripts, quota: StorageQuota) -> None:
        self._scripts = scripts
        self._quota = quota

    async def run(
        self,
        script: str,
        session_id: str,
        *args: str | bytes | float,
        item_id: str | None = None,
        origin: str = "",
        is_noted: bool = True,
    ) -> Done:
        """Change a conversation.

        Args:
            script: Its name.
            session_id: Which conversation.
            args: The script's own.
            item_id: The item that a refusal is about.
            origin: Who changes it, as listeners are told.
            is_noted: Whether the quota is told what the conversation takes now.

        Raises:
            ReparteeError: what the script refused, or Redis failed.
        """
        reply = await self.offer(
            script, session_id, *args, item_id=item_id, origin=origin, is_noted=is_noted
        )
        if isinstance(reply, Declined):
            raise AssertionError(f"{script} declined: {reply.word!r}")
        return reply

    async def offer(
        self,
        script: str,
        session_id: str,
        *args: str | bytes | float,
        may: frozenset[str] = frozenset(),
        item_id: str | None = None,
        after: str | None = None,
        origin: str = "",
        is_noted: bool = True,
    ) -> Done | Declined:
        """As `run`, where some refusals are the caller's own to deal with.

        Args:
            script: Its name.
            session_id: Which conversation.
            args: The script's own.
            may: Those refusals.
            item_id: The item that another refusal is about.
            after: The place that it is about.
            origin: Who changes it, as listeners are told.
            is_noted: As there.
        """
        with redis_errors(script):
            word, *rest = await self._scripts.run(script, session_id, *args, origin=origin)
        if word in may:
            return Declined(word, rest)
        if word != "ok":
            refuse([word, *rest], session_id, item_id, after)
        version, owner, num_bytes, num_items, *rest = rest
        size = StoredSize(owner, num_bytes, num_items)
        if is_noted:
            await self._quota.note(session_id, size, version)
        return Done(version, size, rest)
