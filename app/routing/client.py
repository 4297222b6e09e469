"""`EngineClient`: submit, attach, cancel; the gateway's whole view of the engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.redis_client import make_client, redis_errors
from app.routing import policy
from app.routing.commands import Commands
from app.routing.directory import Status, WorkerDirectory
from app.routing.homes import Homes
from app.routing.inbox import GatewayInbox
from app.routing.listeners import Listeners, worker_died
from app.routing.log import ResponseLog
from app.routing.policy import Candidate
from app.routing.stream import ResponseStream
from engine.contract import (
    Cancel,
    Cursor,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    InvalidRequest,
    Listen,
    ModelCard,
    NotFound,
    Release,
    Submit,
    Unavailable,
    Warm,
    WorkerState,
    keys,
)

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
        self._max_waiting = max_waiting
        self._owns_redis = redis is None
        self._redis = redis or make_client(redis_url, f"repartee-gateway-{gateway_id}")
        self._commands = Commands(self._redis)
        self._log = ResponseLog(self._redis)
        self._directory = WorkerDirectory(self._redis, on_dead=self._on_dead)
        self._inbox = GatewayInbox(
            redis_url, gateway_id, on_events=self._on_events, on_reconnect=self._on_reconnect
        )
        self._listeners = Listeners(self._log, on_closed=self._closed, on_abandoned=self._abandoned)
        # Requests that no event has answered yet, to be sent again after Redis was lost.
        self._unanswered: dict[str, GenerateRequest] = {}
        self._sent_at: dict[str, dict[str, float]] = {}
        self._homes = Homes()
        self._cancelling: dict[str, str] = {}
        self._known_models: set[str] = set()
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
        cards: dict[str, ModelCard] = {}
        for state in self._live():
            cards.setdefault(state.card.id, state.card)
        self._known_models.update(cards)
        return [cards[name] for name in sorted(cards)]

    def card(self, model: str | None) -> ModelCard:
        """The model's card; None is the default, the first of `cards`.

        Raises:
            NotFound: no worker ever served this model.
            Unavailable: no worker serves it, or anything, now.
        """
        cards = self.cards()
        for card in cards:
            if model is None or card.id == model:
                return card
        if not cards or model in self._known_models:
            raise Unavailable(
                f"No worker serves {model!r} right now." if model else "No worker is ready.",
                code="no_worker",
                param="model" if model else None,
                retry_after_ms=1000,
            )
        raise NotFound(
            f"The model {model!r:.200} does not exist; there is "
            f"{', '.join(repr(card.id) for card in cards)}.",
            code="model_not_found",
            param="model",
        )

    def ready(self) -> bool:
        """Whether a request sent now would be served: Redis answers, a worker is live."""
        age_s = self._directory.poll_age_s
        fresh = age_s is not None and age_s <= FRESH_POLL_S
        return fresh and self._inbox.is_connected and bool(self._live())

    def health(self) -> dict[str, Any]:
        """Why `ready` says what it says, for `/readyz`."""
        age_s = self._directory.poll_age_s
        return {
            "redis": {
                "connected": self._inbox.is_connected,
                "registry_age_s": None if age_s is None else round(age_s, 3),
            },
            "workers": [
                {
                    "id": state.worker_id,
                    "model": state.card.id,
                    "status": self._directory.status(state.worker_id).value,
                    "running": state.num_running,
                    "waiting": state.num_waiting,
                }
                for state in self.workers()
            ],
        }

    def _live(self) -> list[WorkerState]:
        return [
            state
            for state in self._directory.states()
            if self._directory.status(state.worker_id) is Status.LIVE
        ]

    # Requests.

    async def submit(self, request: GenerateRequest) -> ResponseStream:
        """Send a request to a worker and listen to its answer.

        Raises:
            InvalidRequest: a text isn't valid Unicode.
            Unavailable: no live worker, or Redis failed.
            Overloaded: every worker's queue is full.
        """
        worker_id = self._choose(request)
        stream = self._listeners.open(
            request.request_id,
            after=_START,
            worker_id=worker_id,
            deadline_at=request.deadline_at,
        )
        self._unanswered[request.request_id] = request
        self._sent_at.setdefault(worker_id, {})[request.request_id] = time.monotonic()
        try:
            with redis_errors("submit"):
                await self._commands.send(
                    worker_id, Submit(request), owned_until=request.deadline_at
                )
        except TypeError as error:
            stream.end()
            raise InvalidRequest(
                "messages must be valid Unicode, without halves of surrogate pairs.",
                param="messages",
            ) from error
        except BaseException:
            # It may have been written all the same.
            self._cancelling[request.request_id] = worker_id
            stream.end()
            raise
        return stream

    async def warm(self, warm: Warm) -> None:
        """Let the worker that will get a conversation's next request begin on its prompt.

        A hint: without a worker to take it, nothing happens.

        Raises:
            Unavailable: Redis failed.
        """
        chosen = policy.choose_to_warm(self._candidates(warm.model, warm.conversation_id))
        if chosen is None:
            return
        worker_id = chosen.state.worker_id
        self._homes.note(warm.conversation_id, worker_id)
        with redis_errors("warm"):
            await self._commands.send(worker_id, warm)

    async def release(self, conversation_id: str) -> None:
        """A conversation is closed: its KV need not be kept for it.

        Raises:
            Unavailable: Redis failed.
        """
        worker_id = self._homes.forget(conversation_id)
        if worker_id is not None and self._directory.status(worker_id) is not Status.DEAD:
            with redis_errors("release"):
                await self._commands.send(worker_id, Release(conversation_id))

    async def attach(self, request_id: str, after: Cursor = _START) -> ResponseStream:
        """Listen to a response that this or another gateway began.

        Everything after the cursor comes from the log, then what follows live.

        Raises:
            NotFound: nothing is known of the response any more.
            Unavailable: Redis failed.
        """
        with redis_errors("attach"):
            last, owner = await asyncio.gather(
                self._log.last(request_id), self._commands.owner(request_id)
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
        """Ask the worker for what comes, read what has been, and judge a dead worker."""
        worker_id = stream.worker_id
        if worker_id is not None:
            self._directory.expect(worker_id)
            await self._commands.send(worker_id, Listen(stream.request_id, self.gateway_id))
        await self._listeners.catch_up(stream)
        if worker_id is not None and self._directory.status(worker_id) is Status.DEAD:
            await self._listeners.end(stream, worker_died())

    async def cancel(self, request_id: str) -> None:
        """End a response now, whoever listens. Idempotent; unknown ids are ignored.

        Raises:
            Unavailable: Redis failed, and the response is not one of ours.
        """
        for stream in self._listeners.of(request_id)[:1]:
            if stream.worker_id is not None:
                # Sent again by the sweep until the terminal event is there.
                self._cancelling[request_id] = stream.worker_id
                try:
                    await self._commands.send(stream.worker_id, Cancel(request_id))
                except (RedisError, OSError) as error:
                    logger.info("cancel of %s put off: %s", request_id, error)
                return
        with redis_errors("cancel"):
            owner = await self._commands.owner(request_id)
            if owner is None:
                return
            self._directory.expect(owner[0])
            if self._directory.status(owner[0]) is Status.DEAD:
                await self._log.end(request_id, worker_died())
                return
            await self._commands.send(owner[0], Cancel(request_id))

    def _choose(self, request: GenerateRequest) -> str:
        age_s = self._directory.poll_age_s
        if age_s is None or age_s > FRESH_POLL_S:
            raise Unavailable(
                "Redis is not reachable.", code="redis_unavailable", retry_after_ms=1000
            )
        candidates = self._candidates(request.model, request.conversation_id)
        chosen = policy.choose(request, candidates, max_waiting=self._max_waiting)
        if request.conversation_id is not None:
            self._homes.note(request.conversation_id, chosen.state.worker_id)
        return chosen.state.worker_id

    def _candidates(self, model: str, conversation_id: str | None) -> list[Candidate]:
        return [
            Candidate(
                state,
                self._num_unseen(state.worker_id),
                self._homes.num_held(conversation_id, state) if conversation_id else 0,
            )
            for state in self._live()
            if state.card.id == model
        ]

    def _num_unseen(self, worker_id: str) -> int:
        """Our requests that the worker's last heartbeat can't have counted."""
        sent = self._sent_at.get(worker_id, {})
        # The beat was made up to one poll before we saw it.
        horizon = self._directory.changed_at(worker_id) - 2 * keys.WORKER_BEAT_S
        for request_id in [rid for rid, sent_at in sent.items() if sent_at < horizon]:
            del sent[request_id]
        return len(sent)

    def _closed(self, stream: ResponseStream) -> None:
        if stream.request_id not in self._listeners:
            self._unanswered.pop(stream.request_id, None)
        if stream.worker_id is not None:
            self._sent_at.get(stream.worker_id, {}).pop(stream.request_id, None)

    def _abandoned(self, stream: ResponseStream) -> None:
        if stream.worker_id is not None:
            self._cancelling[stream.request_id] = stream.worker_id

    def _on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            self._unanswered.pop(event.request_id, None)
            if isinstance(event, Finished | Failed):
                self._cancelling.pop(event.request_id, None)
            self._listeners.feed(event)

    def _on_reconnect(self) -> None:
        """Redis was away, and may have come back empty: ask for everything again."""
        self._listeners.spawn(self._send_again())

    def _on_dead(self, worker_id: str) -> None:
        self._sent_at.pop(worker_id, None)
        for stream in self._listeners.all():
            if stream.worker_id == worker_id:
                logger.warning("response %s ends: its worker died", stream.request_id)
                self._listeners.spawn(self._listeners.end(stream, worker_died()))

    async def _send_again(self) -> None:
        for request in list(self._unanswered.values()):
            for stream in self._listeners.of(request.request_id)[:1]:
                if stream.worker_id is not None:
                    await self._commands.send(
                        stream.worker_id, Submit(request), owned_until=request.deadline_at
                    )
        for stream in self._listeners.all():
            if stream.worker_id is not None:
                await self._commands.send(
                    stream.worker_id,
                    Listen(stream.request_id, self.gateway_id),
                    owned_until=stream.deadline_at,
                )
            self._listeners.mend(stream)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self._send_cancels()
                await self._listeners.sweep()
                await self._end_orphans()
            except (RedisError, OSError) as error:
                logger.debug("sweep put off: %s", error)

    async def _send_cancels(self) -> None:
        """Cancels that no terminal event has answered yet; a worker takes repeats."""
        for request_id, worker_id in list(self._cancelling.items()):
            await self._commands.send(worker_id, Cancel(request_id))
            if request_id not in self._listeners:
                self._cancelling.pop(request_id, None)

    async def _end_orphans(self) -> None:
        """Streams whose end was put off while Redis was away."""
        for stream in self._listeners.all():
            worker_id = stream.worker_id
            if worker_id is not None and self._directory.status(worker_id) is Status.DEAD:
                await self._listeners.end(stream, worker_died())
