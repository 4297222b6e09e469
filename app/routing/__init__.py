"""From the gateway to the workers: who is alive, who gets a request, what comes back.

Modules:
    directory: which workers are alive, from their heartbeats.
    policy: which of them gets a request.
    choice: who is live, how busy, and what was sent where.
    homes: which of them holds a conversation's prefix.
    commands: into workers' inboxes.
    leases: whose a response is, and giving it to another worker.
    takeovers: responses whose worker is gone: given to another, or ended.
    inbox: the gateway's own stream of events, and its one reader.
    stream: one listener's ordered view of one response.
    log: reading a response's log, and ending it when nobody can go on with it.
    listeners: every open stream, fed, mended and ended in time.
    client: `EngineClient`, the only thing that the gateway uses.
"""

from app.routing.client import EngineClient
from app.routing.stream import ResponseStream

__all__ = ["EngineClient", "ResponseStream"]
