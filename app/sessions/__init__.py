"""Conversations in Redis.

Modules:
    records: what the store hands out (`Session`, `Item`, `ActiveResponse`).
    keys: names of a conversation's keys, their lifetime and bounds.
    scripts: the Lua in `lua/`, loaded and run.
    refusals: what a script's refusal means to a client.
    reader: conversations read, and kept while they are in use.
    unseen: answers that ended while no gateway followed them.
    titles: titles made of a message, or given.
    index: each tenant's list, with a search.
    store: `SessionStore`, through which the gateway uses all of these.
"""

from app.sessions.records import (
    ActiveResponse,
    AddedItem,
    Item,
    Session,
    SessionSummary,
    end_reason,
)
from app.sessions.store import SessionStore

__all__ = [
    "ActiveResponse",
    "AddedItem",
    "Item",
    "Session",
    "SessionStore",
    "SessionSummary",
    "end_reason",
]
