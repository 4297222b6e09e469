"""Conversations in Redis.

Modules:
    records: what the store hands out (`Session`, `Item`, `ActiveResponse`).
    keys: names of a conversation's keys, their lifetime and bounds.
    scripts: the Lua in `lua/`, loaded and run.
    refusals: what a script's refusal means to a client.
    store: `SessionStore`, the only thing that the gateway uses.
"""

from app.sessions.records import ActiveResponse, AddedItem, Item, Session, end_reason
from app.sessions.store import SessionStore

__all__ = ["ActiveResponse", "AddedItem", "Item", "Session", "SessionStore", "end_reason"]
