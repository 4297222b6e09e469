"""Conversations in Redis.

Modules:
    records: what the store hands out (`Session`, `Item`, `ActiveResponse`).
    keys: names of a conversation's keys, their lifetime and bounds.
    scripts: the Lua in `lua/`, loaded and run.
    writer: changes made by these scripts, kept up with the quota.
    quota: what each owner has stored, and may.
    refusals: what a script's refusal means to a client.
    reader: conversations read, and kept while they are in use.
    items: what is said in a conversation.
    running: the response that may write to a conversation.
    unseen: answers that ended while no gateway followed them.
    titles: titles made of a message, or given.
    index: each tenant's list, with a search.
    store: `SessionStore`, through which the gateway uses all of these.
"""

from app.sessions.records import (
    ActiveResponse,
    AddedItem,
    Begun,
    Item,
    Session,
    SessionSummary,
    StoredTurns,
    TurnBound,
    end_reason,
)
from app.sessions.store import SessionStore

__all__ = [
    "ActiveResponse",
    "AddedItem",
    "Begun",
    "Item",
    "Session",
    "SessionStore",
    "SessionSummary",
    "StoredTurns",
    "TurnBound",
    "end_reason",
]
