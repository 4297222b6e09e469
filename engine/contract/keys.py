"""Every Redis key that gateway and worker share: name, type, lifetime.

| key | type | written by | holds |
|---|---|---|---|
| `rp:workers` | sorted set | worker | worker ids, scored by last beat |
| `rp:worker:<wid>` | string | worker | `WorkerState` as JSON, or `WORKER_GONE`; expires |
| `rp:in:<wid>` | stream | gateways | commands, field `c` = one command as JSON |
| `rp:gw:<gid>` | stream | workers | field `b` = JSON list of events, one entry a step |
| `rp:log:{<rid>}` | stream | worker | field `e` = one event as JSON, id `epoch-seq` |
| `rp:lease:{<rid>}` | hash | both | whose a response is: see `engine.contract.lease` |
| `rp:owned:<wid>` | set | both | ids of the responses that a worker has; `NOBODY`'s wait for one |
| `rp:owners` | sorted set | both | ids of workers with such a set, scored by its last use |
| `rp:probe:<gid>` | string | gateway | nothing; written to learn whether Redis takes writes |

A gateway writes to a log when it gives a dead worker's response to another (`TakenOver`)
and when it ends one that nobody can go on with; both under the next epoch, so that the
former worker, should it wake up, is refused.

An entry of a gateway's stream is written only after the log took the event, so that
nobody hears what the log has refused.

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
LEASE_MARGIN_S = 60
OWNED_TTL_S = 3600
PROBE_TTL_S = 10
# After its end, of a response that no conversation can be opened to take up again.
LOOSE_LOG_TTL_S = 300

# In the place of a worker's id: a response that waits for one.
NOBODY = "none"
# In the place of a worker's state: its process has ended. Said by the worker itself, or by
# whoever started the process.
WORKER_GONE = b"gone"
WORKER_GONE_TTL_S = 60

OWNERS = "rp:owners"


def worker(worker_id: str) -> str:
    return f"rp:worker:{worker_id}"


def inbox(worker_id: str) -> str:
    return f"rp:in:{worker_id}"


def gateway(gateway_id: str) -> str:
    return f"rp:gw:{gateway_id}"


def log(request_id: str) -> str:
    """The braces are Redis Cluster's hash tag: one response, one slot."""
    return f"rp:log:{{{request_id}}}"


def lease(request_id: str) -> str:
    """In the slot of the response's log."""
    return f"rp:lease:{{{request_id}}}"


def owned(worker_id: str) -> str:
    return f"rp:owned:{worker_id}"


def probe(gateway_id: str) -> str:
    return f"rp:probe:{gateway_id}"


def log_entry_id(epoch: int, seq: int) -> str:
    """Stream id of one event. Redis refuses an id not above the last, which fences
    a worker that lost its lease."""
    return f"{epoch}-{seq}"


def cursor_from_entry_id(entry_id: str) -> Cursor:
    """Inverse of `log_entry_id`."""
    epoch, seq = entry_id.split("-")
    return Cursor(int(epoch), int(seq))
