"""Every Redis key that gateway and worker share: name, type, lifetime.

| key | type | written by | holds |
|---|---|---|---|
| `rp:workers` | sorted set | worker | worker ids, scored by last beat |
| `rp:worker:<wid>` | string | worker | `WorkerState` as JSON, expires in WORKER_TTL_S |
| `rp:in:<wid>` | stream | gateways | commands, field `c` = one command as JSON |
| `rp:gw:<gid>` | stream | workers | field `b` = JSON list of events, one entry a step |
| `rp:log:{<rid>}` | stream | worker | field `e` = one event as JSON, id `epoch-seq` |
| `rp:owner:{<rid>}` | string | gateways | JSON `{"w": worker id, "d": deadline_at}` |

A gateway writes to a log in one case: its worker died. It ends the log under the next
epoch, so that every listener sees the same end and the dead worker, should it wake up,
is refused.

Nothing lives without a lifetime: whoever writes a key sets its expiry in the same
pipeline. Conversation keys belong to `app/sessions` alone.
"""

from __future__ import annotations

from engine.contract.messages import Cursor

WORKERS = "rp:workers"
WORKERS_TTL_S = 60
WORKER_BEAT_S = 0.5
WORKER_TTL_S = 3
INBOX_TTL_S = 900
INBOX_MAXLEN = 20_000
GATEWAY_TTL_S = 300
GATEWAY_MAXLEN = 20_000
LOG_TTL_S = 3600
# After its end, of a response that no conversation can be opened to take up again.
LOOSE_LOG_TTL_S = 300


def worker(worker_id: str) -> str:
    return f"rp:worker:{worker_id}"


def inbox(worker_id: str) -> str:
    return f"rp:in:{worker_id}"


def gateway(gateway_id: str) -> str:
    return f"rp:gw:{gateway_id}"


def log(request_id: str) -> str:
    """The braces are Redis Cluster's hash tag: one response, one slot."""
    return f"rp:log:{{{request_id}}}"


def owner(request_id: str) -> str:
    """In the slot of the response's log."""
    return f"rp:owner:{{{request_id}}}"


def log_entry_id(epoch: int, seq: int) -> str:
    """Stream id of one event. Redis refuses an id not above the last, which fences
    a worker that lost its lease."""
    return f"{epoch}-{seq}"


def cursor_from_entry_id(entry_id: str) -> Cursor:
    """Inverse of `log_entry_id`."""
    epoch, seq = entry_id.split("-")
    return Cursor(int(epoch), int(seq))
