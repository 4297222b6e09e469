"""A conversation's keys, their lifetime and bounds.

| key | type | holds |
|---|---|---|
| `rp:ses:{<sid>}` | hash | version, tenant, settings, times, bytes, the running response |
| `rp:ses:{<sid>}:order` | list | item ids, first to last |
| `rp:ses:{<sid>}:items` | hash | item id to item as JSON |
| `rp:ses:{<sid>}:sends` | hash | client event id to the id of the item that it made |
| `rp:ses:{<sid>}:ring` | list | those event ids, newest first |
| `rp:ses:list:{<tenant>}` | sorted set | a tenant's session ids, by their last turn |

`rp:ses:{<sid>}:changes` is a channel: each change is told there as it is made.

A tenant here is whoever owns conversations (`Principal.owner`): a tenant, or one subject
of a tenant, `<tenant>/<digest>`.

The braces put all of a conversation's keys into one Redis Cluster slot; a tenant's list
is in another, so it is written after the conversation and read with mistrust. Each use
of a conversation renews the lifetime of all its keys. One without items lives shortly,
and is in no list.
"""

from __future__ import annotations

SESSION_TTL_S = 7 * 24 * 3600
# Of a conversation without items: an open socket renews it.
EMPTY_TTL_S = 3600
# Sessions in a tenant's list; those used longest ago leave it, and can still be opened.
MAX_LISTED = 10_000

# A conversation's bounds: a further item is refused, a running answer is still kept.
MAX_ITEMS = 2000
MAX_ITEM_BYTES = 4 * 1024 * 1024

# Client event ids that are remembered, so that a send twice makes one item.
MAX_SENDS = 256

# Seconds past its deadline in which a response still counts as running.
DEADLINE_GRACE_S = 10.0
# Within so many seconds a response that has begun is given to a worker. Without lease and
# log after that, its gateway died before it could: it no longer blocks the conversation.
SUBMIT_GRACE_S = 15.0


def stored_response(response_id: str) -> str:
    """A response of the Responses API."""
    return f"rp:rsp:{{{response_id}}}"


def listed(tenant: str) -> str:
    """The tenant's list."""
    return f"rp:ses:list:{{{tenant}}}"


def changes(session_id: str) -> str:
    """The conversation's channel."""
    return f"rp:ses:{{{session_id}}}:changes"


def of(session_id: str) -> list[str]:
    """The keys in the scripts' order: meta, order, items, sends, ring."""
    meta = f"rp:ses:{{{session_id}}}"
    return [meta, f"{meta}:order", f"{meta}:items", f"{meta}:sends", f"{meta}:ring"]
