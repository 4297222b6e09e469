"""`EngineClient`: submit, attach, cancel; the gateway's whole view of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.redis_client import make_client, redis_errors
from app.routing import policy
from app.routing.choice import Choice
from app.routing.commands import Commands
from app.routing.directory import Status, WorkerDirectory
from app.routing.inbox import GatewayInbox
from app.routing.leases import Leases
from app.routing.listeners import Listeners
from app.routing.log import ResponseLog
from app.routing.stream import ResponseStream
from app.routing.takeovers import Takeovers
from engine.contract import (
    Cancel,
    Cursor,
    Drain,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    InvalidRequest,
    Listen,
    ModelCard,
    NotFound,
    Release,
    ReparteeError,
    Unavailable,
    Warm,
    WorkerState,
    keys,
)
from engine.contract.sampling import MAX_SEED

logger = logging.getLogger(__name__)

# How often streams are looked after.
SWEEP_S = 0.5

# The registry must have been read within this, or we don't know who is alive.
FRESH_POLL_S = 3.0

_START = Cursor(0, 0)


class EngineClient:
    """One per gateway process.

    Args:
        redis_url: The spine.
        gateway_id: Unique to this process's life.
        max_waiting: Requests that may queue at one worker before it counts as full.
        redis: A pooled client to share; made (and closed) here by default.
    """

    def __init__(
        self,
        redis_url: str,
        gateway_id: str,
        *,
        max_waiting: int = policy.MAX_WAITING,
        redis: Redis | None = None,
    ) -> None:
        self.gateway_id = gateway_id
        self._owns_redis = redis is None
        self._redis = redis or make_client(redis_url, f"repartee-gateway-{gateway_id}")
        self._commands = Commands(self._redis)
        self._leases = Leases(self._redis)
        self._log = ResponseLog(self._redis)
        self._directory = WorkerDirectory(self._redis, gateway_id, on_dead=self._on_dead)
        self._choice = Choice(self._directory, max_waiting)
        self._takeovers = Takeovers(
            self._leases,
            self._log,
            self._directory,
            choose=self._choice.pick_next,
            on_moved=self._mend_all,
        )
        self._inbox = GatewayInbox(
            redis_url, gateway_id, on_events=self._on_events, on_reconnect=self._on_reconnect
        )
        self._listeners = Listeners(
            self._log,
            on_closed=self._closed,
            on_abandoned=self._abandoned,
            on_moved=self._moved,
            on_hole=self._ask_again,
        )
        # Requests that no event has answered yet, to be sent again after Redis was lost.
        self._unanswered: dict[str, GenerateRequest] = {}
        # Cancels that are told again until the response has ended.
        self._cancelling: set[str] = set()
        # Set when a worker is found dead: what it had is taken over at once.
        self._orphaned = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to listen. Returns once the registry was read, or Redis found down."""
        try:
            await self._directory.poll()
        except (RedisError, OSError) as error:
            logger.warning("Redis is not reachable yet: %s", error)
        self._loops = [
            asyncio.create_task(self._directory.run(), name="worker-directory"),
            asyncio.create_task(self._inbox.run(), name="gateway-inbox"),
            asyncio.create_task(self._sweep_forever(), name="stream-sweep"),
        ]

    async def close(self) -> None:
        """Stop listening; streams end without a terminal event. Nothing is cancelled."""
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._listeners.close()
        await self._inbox.close()
        if self._owns_redis:
            await self._redis.aclose()

    # What there is to serve.

    def workers(self) -> list[WorkerState]:
        """Workers that are not dead, by id."""
        return self._directory.states()

    def cards(self) -> list[ModelCard]:
        """Models with a live worker, by id."""
        return self._choice.cards()

    def card(self, model: str | None) -> ModelCard:
        """The model's card; None is the default, the first of `cards`.

        Raises:
            NotFound: no worker ever served this model.
            Unavailable: no worker serves it, or anything, now.
        """
        return self._choice.card(model)

    def num_waiting(self, worker_id: str) -> int | None:
        """Requests that wait at a worker by its last word; None if nothing is known of it."""
        return self._choice.num_waiting(worker_id)

    def ready(self) -> bool:
        """Whether a request sent now would be served: Redis serves, a worker is live."""
        return self._has_redis() and self._inbox.is_connected and bool(self._choice.live())

    def _has_redis(self) -> bool:
        age_s = self._directory.poll_age_s
        return age_s is not None and age_s <= FRESH_POLL_S and not self._directory.refusal

    def status(self, worker_id: str) -> Status:
        """What a worker is good for now."""
        return self._directory.status(worker_id)

    def health(self) -> dict[str, Any]:
        """Why `ready` says what it says, for `/readyz`."""
        age_s = self._directory.poll_age_s
        return {
            "redis": {
                "connected": self._inbox.is_connected,
                "registry_age_s": None if age_s is None else round(age_s, 3),
                "refuses_writes": self._directory.refusal or None,
            },
            "workers": [
                {
                    "id": state.worker_id,
                    "model": state.card.id,
                    "status": self.status(state.worker_id).value,
                    "running": state.num_running,
                    "waiting": state.num_waiting,
                }
                for state in self.workers()
            ],
        }

    # Requests.

    async def submit(self, request: GenerateRequest) -> ResponseStream:
        """Send a request to a worker and listen to its answer.

        A request without a seed gets one, so that whichever worker goes on with it makes
        the same answer.

        Raises:
            InvalidRequest: a text isn't valid Unicode.
            Unavailable: no live worker, or Redis failed.
            Overloaded: every worker's queue is full.
        """
        if request.sampling.seed is None:
            seeded = replace(request.sampling, seed=secrets.randbelow(MAX_SEED + 1))
            request = replace(request, sampling=seeded)
        if not self._has_redis():
            raise Unavailable(
                "Redis is not reachable, or takes no writes.",
                code="redis_unavailable",
                retry_after_ms=1000,
            )
        worker_id = self._choice.pick(request)
        stream = self._listeners.open(
            request.request_id,
            after=_START,
            worker_id=worker_id,
            deadline_at=request.deadline_at,
        )
        self._unanswered[request.request_id] = request
        try:
            with redis_errors("submit"):
                await self._commands.submit(worker_id, request)
        except TypeError as error:
            stream.end()
            raise InvalidRequest(
                "messages must be valid Unicode, without halves of surrogate pairs.",
                param="messages",
            ) from error
        except BaseException:
            # It may have been written all the same.
            self._cancelling.add(request.request_id)
            stream.end()
            raise
        return stream

    async def warm(self, warm: Warm) -> bool:
        """Let the worker that will get a conversation's next request begin on its prompt.

        A hint: without a worker to take it, nothing happens.

        Returns:
            Whether it went to a worker.

        Raises:
            Unavailable: Redis failed.
        """
        worker_id = self._choice.pick_to_warm(warm)
        if worker_id is None:
            return False
        with redis_errors("warm"):
            await self._commands.send(worker_id, warm)
        return True

    async def release(self, conversation_id: str, *, everywhere: bool = False) -> None:
        """A conversation is closed: its KV need not be kept for it.

        Args:
            conversation_id: Which.
            everywhere: It is gone for good: also where other gateways had it sent.

        Raises:
            Unavailable: Redis failed.
        """
        for worker_id in self._choice.forget(conversation_id, everywhere=everywhere):
            with redis_errors("release"):
                await self._commands.send(worker_id, Release(conversation_id))

    async def drain(self, worker_id: str) -> None:
        """Ask a worker to leave as after SIGTERM; whoever started it may start another.

        Raises:
            NotFound: no such worker is alive.
            Unavailable: Redis failed.
        """
        if self._directory.status(worker_id) is Status.DEAD:
            raise NotFound(f"There is no worker {worker_id[:80]!r}.", code="worker_not_found")
        with redis_errors("drain"):
            await self._commands.send(worker_id, Drain())

    async def attach(self, request_id: str, after: Cursor = _START) -> ResponseStream:
        """Listen to a response that this or another gateway began.

        Everything after the cursor comes from the log, then what follows live.

        Raises:
            NotFound: nothing is known of the response any more.
            Unavailable: Redis failed.
        """
        with redis_errors("attach"):
            last, owner = await asyncio.gather(
                self._log.last(request_id), self._leases.owner(request_id)
            )
            if last is None and owner is None:
                raise NotFound(
                    f"The response {request_id!r:.200} does not exist any more.",
                    code="response_not_found",
                    param="response_id",
                )
            worker_id, deadline_at = owner or (None, None)
            stream = self._listeners.open(
                request_id, after=after, worker_id=worker_id, deadline_at=deadline_at
            )
            try:
                if isinstance(last, Finished | Failed):
                    await self._listeners.catch_up(stream)
                    if Cursor(last.epoch, last.seq) > stream.cursor:
                        stream.take_last(last)
                    stream.end()
                else:
                    await self._follow(stream)
            except BaseException:
                stream.end()
                raise
        return stream

    async def _follow(self, stream: ResponseStream) -> None:
        """Ask the worker for what comes, and read what has been."""
        if stream.worker_id is not None and stream.worker_id != keys.NOBODY:
            self._directory.expect(stream.worker_id)
            await self._listen(stream)
        await self._listeners.catch_up(stream)

    async def _listen(self, stream: ResponseStream, next_seq: int | None = None) -> None:
        if stream.worker_id is not None and stream.worker_id != keys.NOBODY:
            listen = Listen(stream.request_id, self.gateway_id, next_seq)
            await self._commands.send(stream.worker_id, listen)

    async def cancel(self, request_id: str) -> None:
        """End a response now, whoever listens. Idempotent; unknown ids are ignored.

        Raises:
            Unavailable: Redis failed, and the response is not one of ours.
        """
        self._cancelling.add(request_id)
        try:
            with redis_errors("cancel"):
                await self._send_cancel(request_id)
        except ReparteeError:
            if request_id in self._listeners:
                # The sweep sends it again.
                return
            self._cancelling.discard(request_id)
            raise

    async def _send_cancel(self, request_id: str) -> None:
        """Tell whoever has the response; end it here if nobody has."""
        streams = self._listeners.of(request_id)
        worker_id = await self._leases.cancel(request_id)
        if worker_id is None:
            # It has ended, or Redis lost its lease.
            worker_id = streams[0].worker_id if streams else None
            if worker_id is None:
                self._cancelling.discard(request_id)
                return
        if worker_id != keys.NOBODY:
            self._directory.expect(worker_id)
        if self._takeovers.is_gone(worker_id):
            await self._takeovers.end(request_id, FinishReason.CANCELLED, worker_id)
            self._cancelling.discard(request_id)
        else:
            await self._commands.send(worker_id, Cancel(request_id))

    def _closed(self, stream: ResponseStream) -> None:
        if stream.request_id not in self._listeners:
            self._unanswered.pop(stream.request_id, None)
        if stream.worker_id is not None:
            self._choice.ended(stream.request_id, stream.worker_id)

    def _abandoned(self, stream: ResponseStream) -> None:
        self._cancelling.add(stream.request_id)

    def _moved(self, stream: ResponseStream) -> None:
        """Another worker has the response: hear from that one."""
        self._listeners.spawn(self._listen(stream))

    def _ask_again(self, stream: ResponseStream) -> None:
        """The log lacks something: the worker may still have it in memory."""
        self._listeners.spawn(self._listen(stream, stream.next_seq))

    def _mend_all(self, request_id: str) -> None:
        for stream in self._listeners.of(request_id):
            self._listeners.mend(stream)

    def _on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            self._unanswered.pop(event.request_id, None)
            if isinstance(event, Finished | Failed):
                self._cancelling.discard(event.request_id)
            self._listeners.feed(event)

    def _on_reconnect(self) -> None:
        """Redis was away, and may have come back empty: ask for everything again."""
        self._listeners.spawn(self._send_again())

    def _on_dead(self, worker_id: str) -> None:
        self._choice.died(worker_id)
        self._orphaned.set()

    async def _send_again(self) -> None:
        for request in list(self._unanswered.values()):
            for stream in self._listeners.of(request.request_id)[:1]:
                if stream.worker_id is not None:
                    await self._commands.submit(stream.worker_id, request)
        for stream in self._listeners.all():
            await self._listen(stream)
            self._listeners.mend(stream)

    async def _sweep_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._orphaned.wait(), SWEEP_S)
            self._orphaned.clear()
            self._listeners.expire()
            try:
                for request_id in tuple(self._cancelling):
                    await self._send_cancel(request_id)
                await self._listeners.sweep()
                if not self._directory.is_failing:
                    await self._takeovers.sweep(self._listened())
            except (RedisError, OSError) as error:
                logger.debug("sweep put off: %s", error)

    def _listened(self) -> list[tuple[str, str]]:
        """(response, its worker) of all that this gateway follows."""
        return [
            (stream.request_id, stream.worker_id)
            for stream in self._listeners.all()
            if stream.worker_id is not None
        ]
