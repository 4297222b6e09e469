"""The conversation of one open session, in the store.

Translates between the store's records and the wire's items, and remembers what every
event needs: the settings, the model's card, whose it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from app.auth import Principal
from app.protocol.content import STORED_ITEM_BYTES, check_stored_size, stored_text_bound
from app.protocol.ids import item_id_of, new_id
from app.protocol.realtime.items import NewItem, item_object
from app.protocol.realtime.response import item_reason
from app.protocol.realtime.settings import SessionSettings
from app.routing import EngineClient
from app.sessions import (
    ActiveResponse,
    AddedItem,
    Begun,
    Item,
    Session,
    SessionStore,
    StoredTurns,
    TurnBound,
)
from engine.contract import InvalidRequest, Message, ModelCard, NotFound


class Conversation:
    """See the module; `open` makes one.

    Attributes:
        session_id: Its id.
        settings: As they stand.
        card: The session's model.
        items: What it held when it was last read whole, until `let_go`.
        active: The response that ran in it then.
        title: Its title then.
        version: The version that was read.
        origin: By what listeners know the changes made here.
    """

    def __init__(self, store: SessionStore, session: Session, card: ModelCard) -> None:
        self._store = store
        self.session_id = session.session_id
        self.card = card
        self._tenant = session.tenant
        self._bound = TurnBound(stored_text_bound(card), STORED_ITEM_BYTES)
        self.origin = new_id("tab_")
        self._show(session)

    def _show(self, session: Session) -> None:
        self.settings = SessionSettings.from_dict(session.settings)
        self.items: tuple[Item, ...] = session.items
        self.active: ActiveResponse | None = session.active
        self.title: str | None = session.title
        self.version: int = session.version

    @classmethod
    async def open(
        cls,
        store: SessionStore,
        engine: EngineClient,
        principal: Principal,
        session_id: str | None,
        model: str | None,
        listen: Callable[[str], Awaitable[None]],
    ) -> Conversation:
        """A new conversation, or one that exists.

        Args:
            store: The conversations.
            engine: Knows the models.
            principal: Whose it is; of others' there is no trace.
            session_id: None for a new one.
            model: Of a new one; that of one that exists is fixed.
            listen: Called with the id before the conversation is read, so that no later
                change is missed.

        Raises:
            NotFound: no such session or model.
            InvalidRequest: `model` is not the session's.
            Unavailable: the model has no worker now.
        """
        if session_id is None:
            offered = principal.session
            card = engine.card(model or (offered["model"] if offered else None))
            settings = {**(offered or SessionSettings(card.id).to_dict()), "model": card.id}
            new = new_id("sess_")
            # Nobody else knows of it yet.
            _, session = await asyncio.gather(
                listen(new), store.create(new, settings, tenant=principal.owner)
            )
            return cls(store, session, card)
        await listen(session_id)
        session = await store.load(session_id, tenant=principal.owner)
        own = SessionSettings.from_dict(session.settings).model
        if model not in (None, own):
            raise InvalidRequest(
                f"The session's model is {own!r} and cannot become {model[:64]!r}.", param="model"
            )
        return cls(store, session, engine.card(own))

    def opened_items(self) -> list[dict[str, Any]]:
        """What it held when it was opened, as the wire shows items."""
        return [shown_item(item) for item in self.items]

    def let_go(self) -> None:
        """What was read has been shown: a socket lives long, and items may be megabytes."""
        self.items = ()

    async def reload(self) -> None:
        """Read all of it again."""
        self._show(await self._store.load(self.session_id))

    async def forget_response(self, response_id: str) -> None:
        """A running response whose log is gone cannot go on; free the conversation."""
        await self._store.running.finish(self.session_id, response_id, None)
        await self.reload()

    async def update(self, settings: SessionSettings) -> int:
        """Replace the settings; the new version."""
        version = await self._store.update_settings(
            self.session_id, settings.to_dict(), tenant=self._tenant, origin=self.origin
        )
        self.settings = settings
        return version

    async def add(
        self, new: NewItem, previous_item_id: str | None, event_id: str | None
    ) -> tuple[dict[str, Any], AddedItem]:
        """Put an item in; a repeated send finds the item it made before.

        Returns:
            The item as the wire shows it, and its place.
        """
        item = Item(new.item_id or new_id("item_"), new.role, new.text)
        added = await self._store.items.add(
            self.session_id,
            item,
            tenant=self._tenant,
            after=previous_item_id,
            event_id=event_id,
            origin=self.origin,
        )
        return shown_item(replace(item, item_id=added.item_id)), added

    async def item(self, item_id: str) -> dict[str, Any]:
        """One item as the wire shows it."""
        return shown_item(await self._store.items.get(self.session_id, item_id))

    async def message(self, item_id: str, param: str) -> Message:
        """One item as a turn; `param` names who refers to it."""
        try:
            item = await self._store.items.get(self.session_id, item_id)
        except NotFound as error:
            raise NotFound(error.message, code=error.code, param=param) from None
        return Message(item.role, item.text)

    async def messages(self, turns: StoredTurns | None = None) -> list[Message]:
        """All turns, in order.

        Args:
            turns: They, if they were read with the beginning of the response.

        Raises:
            ContextLengthExceeded: they are far more than the window holds; they are not even
                read then, as that would hold up everybody.
        """
        if turns is None:
            turns = await self._store.turns(self.session_id, self._bound)
        check_stored_size(turns.num_items, turns.num_bytes, self.card, "The conversation")
        return [Message(item.role, item.text) for item in turns.items or ()]

    async def delete(self, item_id: str) -> int:
        """Take an item out; the new version."""
        return await self._store.items.delete(self.session_id, item_id, origin=self.origin)

    async def truncate(self, item_id: str, text_end: int) -> int | None:
        """Keep the first characters of an assistant's item.

        Returns:
            The new version; None if nothing changed.
        """
        _, version = await self._store.items.truncate(
            self.session_id, item_id, text_end, origin=self.origin
        )
        return version

    async def truncate_after(self, item_id: str | None) -> tuple[list[str], int]:
        """Take out all that comes after an item; None takes out everything.

        Returns:
            The ids of what was taken out, and the new version.

        Raises:
            NotFound: no such item.
            Conflict: a response runs.
        """
        return await self._store.items.truncate_after(self.session_id, item_id, origin=self.origin)

    async def begin(
        self,
        response_id: str,
        deadline_at: float,
        event_id: str | None,
        answers: str | None,
        asked: Mapping[str, Any],
    ) -> Begun:
        """Take the conversation for a response, if it holds the item that is to be answered.

        Args:
            response_id: Which.
            deadline_at: Unix seconds.
            event_id: The client's id of the request.
            answers: The item that is to be answered; None asks for none.
            asked: What every socket shows of the response.

        Returns:
            The item that the answer follows, and the turns that it answers.

        Raises:
            NotFound: no such item.
            Conflict: another response runs.
            InvalidRequest: the event of this id was answered before.
        """
        return await self._store.running.begin(
            self.session_id,
            response_id,
            item_id=item_id_of(response_id),
            deadline_at=deadline_at,
            event_id=event_id,
            answers=answers,
            asked=asked,
            origin=self.origin,
            turns=self._bound,
        )

    async def finish(
        self, response_id: str, text: str | None, status: str, reason: str | None = None
    ) -> None:
        """Give the conversation free, and keep the answer; None keeps nothing."""
        item = None
        if text is not None:
            item = Item(item_id_of(response_id), "assistant", text, status, reason=reason)
        await self._store.running.finish(self.session_id, response_id, item)

    async def active_response(self) -> str | None:
        """The id of the running response, if any."""
        active = await self._store.running.active(self.session_id)
        return None if active is None else active.response_id


def shown_item(item: Item) -> dict[str, Any]:
    """An item as the wire shows it."""
    return item_object(item.item_id, item.role, item.text, item.status, item_reason(item.reason))
