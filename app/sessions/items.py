"""A conversation's items: put in, read, cut, taken out."""

from __future__ import annotations

import time
from dataclasses import replace

import orjson

from app.sessions import keys
from app.sessions.index import SessionIndex
from app.sessions.quota import StorageQuota
from app.sessions.reader import SessionReader
from app.sessions.records import AddedItem, Item
from app.sessions.running import RunningResponses
from app.sessions.titles import default_title
from app.sessions.writer import Declined, SessionWriter
from engine.contract import Conflict, InvalidRequest

# Attempts of a read-change-write that another writer came between.
_REPLACE_TRIES = 5
_MAY_BE_KNOWN = frozenset({"known"})
_MAY_BE_STALE = frozenset({"stale"})


class SessionItems:
    """See the module. Every method raises `Unavailable` if Redis fails.

    Args:
        reader: Reads conversations.
        writer: Changes them.
        running: Their running responses.
        index: Each tenant's list.
        quota: What owners may store.
    """

    def __init__(
        self,
        reader: SessionReader,
        writer: SessionWriter,
        running: RunningResponses,
        index: SessionIndex,
        quota: StorageQuota,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._running = running
        self._index = index
        self._quota = quota

    async def add(
        self,
        session_id: str,
        item: Item,
        *,
        tenant: str = "",
        after: str | None = None,
        event_id: str | None = None,
        expected_version: int | None = None,
        origin: str = "",
    ) -> AddedItem:
        """Put an item in.

        Args:
            session_id: Where.
            item: What; its id must be new, or the same item's.
            tenant: Whose the conversation is.
            after: The item before it; `root` for the front, None for the end.
            event_id: The client's id of the send: a repeated one adds nothing.
            expected_version: Refuse if the conversation has changed since.
            origin: Who adds it, as listeners are told.

        Raises:
            NotFound: no such conversation, or no such item as `after`.
            InvalidRequest: the conversation or its owner's quota is full, or the id
                another item's.
            Conflict: the version isn't the expected one any more.
        """
        if not item.created_at:
            item = replace(item, created_at=time.time())
        try:
            body = orjson.dumps(item.to_wire())
        except TypeError as error:
            raise InvalidRequest(
                "item.content must be valid Unicode, without halves of surrogate pairs.",
                param="item.content",
            ) from error
        async with self._quota.reserved(tenant, session_id, len(body), is_item=True) as reservation:
            reply = await self._writer.offer(
                "add_item",
                session_id,
                item.item_id,
                body,
                after or "",
                event_id or "",
                keys.MAX_ITEMS,
                keys.MAX_ITEM_BYTES,
                keys.MAX_SENDS,
                version_text(expected_version),
                default_title(item.text) if item.role == "user" else "",
                item_id=item.item_id,
                after=after,
                origin=origin,
                may=_MAY_BE_KNOWN,
                is_noted=False,
            )
            if isinstance(reply, Declined):
                version, previous, item_id = reply.rest
                return AddedItem(item_id, previous or None, int(version), created=False)
            reservation.keep()
        previous, item_id, title = reply.rest
        if reply.size.num_items == 1:
            await self._index.note(reply.size.owner, session_id)
        return AddedItem(item_id, previous or None, reply.version, True, title or None)

    async def get(self, session_id: str, item_id: str) -> Item:
        """One item.

        Raises:
            NotFound: no such conversation or item.
        """
        return Item.from_wire(orjson.loads(await self._reader.item_body(session_id, item_id)))

    async def delete(self, session_id: str, item_id: str, *, origin: str = "") -> int:
        """Take an item out; the new version.

        Raises:
            NotFound: no such conversation or item.
        """
        reply = await self._writer.run(
            "delete_item", session_id, item_id, item_id=item_id, origin=origin
        )
        return reply.version

    async def truncate(
        self, session_id: str, item_id: str, num_chars: int, *, origin: str = ""
    ) -> tuple[Item, int | None]:
        """Cut an assistant's item to its first `num_chars` characters.

        Returns:
            The item, and the new version; None if it was as short before.

        Raises:
            NotFound: no such conversation or item.
            InvalidRequest: the item isn't an assistant's.
        """
        for _ in range(_REPLACE_TRIES):
            body = await self._reader.item_body(session_id, item_id)
            item = Item.from_wire(orjson.loads(body))
            if item.role != "assistant":
                raise InvalidRequest(
                    f"Only an assistant's item can be truncated; {item_id!r:.100} is a "
                    f"{item.role}'s.",
                    param="item_id",
                )
            if len(item.text) <= num_chars:
                return item, None
            item = replace(item, text=item.text[:num_chars], status="incomplete", reason=None)
            reply = await self._writer.offer(
                "replace_item",
                session_id,
                item_id,
                orjson.dumps(item.to_wire()),
                body,
                num_chars,
                may=_MAY_BE_STALE,
                item_id=item_id,
                origin=origin,
            )
            if not isinstance(reply, Declined):
                return item, reply.version
        raise Conflict(f"The item {item_id!r:.100} keeps changing.", code="version_conflict")

    async def truncate_after(
        self, session_id: str, item_id: str | None, *, origin: str = ""
    ) -> tuple[list[str], int]:
        """Take out all that comes after an item, as long as no response runs.

        Args:
            session_id: Where.
            item_id: The last item that stays; None takes out everything.
            origin: Who does it, as listeners are told.

        Returns:
            The ids of what was taken out, and the new version.

        Raises:
            NotFound: no such conversation or item.
            Conflict: a response is running.
        """
        reply = await self._running.when_idle(
            "truncate_after", session_id, item_id or "root", item_id=item_id, origin=origin
        )
        return [str(part) for part in reply.rest], reply.version


def version_text(version: int | None) -> str:
    """An expected version as scripts take it."""
    return "" if version is None else str(version)
