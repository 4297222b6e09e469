"""A conversation's keys, their lifetime and bounds.

| key | type | holds |
|---|---|---|
| `rp:ses:{<sid>}` | hash | version, tenant, settings, times, bytes, the running response |
| `rp:ses:{<sid>}:order` | list | item ids, first to last |
| `rp:ses:{<sid>}:items` | hash | item id to item as JSON |
| `rp:ses:{<sid>}:sends` | hash | client event id to the id of the item that it made |
| `rp:ses:{<sid>}:ring` | list | those event ids, newest first |

The braces put all of them into one Redis Cluster slot. Each use of a conversation
renews the lifetime of all of them.
"""

from __future__ import annotations

SESSION_TTL_S = 7 * 24 * 3600

# A conversation's bounds: a further item is refused, a running answer is still kept.
MAX_ITEMS = 2000
MAX_ITEM_BYTES = 4 * 1024 * 1024

# Client event ids that are remembered, so that a send twice makes one item.
MAX_SENDS = 256

# Seconds past its deadline in which a response still counts as running.
DEADLINE_GRACE_S = 10.0


def of(session_id: str) -> list[str]:
    """The keys in the scripts' order: meta, order, items, sends, ring."""
    meta = f"rp:ses:{{{session_id}}}"
    return [meta, f"{meta}:order", f"{meta}:items", f"{meta}:sends", f"{meta}:ring"]
