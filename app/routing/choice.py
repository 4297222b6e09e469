"""Which worker gets what: who is live, how busy, who holds a conversation's prefix."""

from __future__ import annotations

import sys
import time

from app.routing import policy
from app.routing.directory import Status, WorkerDirectory
from app.routing.homes import Homes
from app.routing.policy import Candidate
from engine.contract import (
    GenerateRequest,
    ModelCard,
    NotFound,
    Unavailable,
    Warm,
    WorkerState,
    conversation_tag,
    keys,
    system_tag,
)


class Choice:
    """Chooses workers, and remembers what was sent where.

    Args:
        directory: Who is alive.
        max_waiting: Requests that may queue at one worker before it counts as full.
    """

    def __init__(self, directory: WorkerDirectory, max_waiting: int) -> None:
        self._directory = directory
        self._max_waiting = max_waiting
        self._homes = Homes()
        self._sent_at: dict[str, dict[str, float]] = {}
        self._known_models: set[str] = set()

    def live(self) -> list[WorkerState]:
        """Workers that take requests, by id."""
        return [
            state
            for state in self._directory.states()
            if self._directory.status(state.worker_id) is Status.LIVE
        ]

    def cards(self) -> list[ModelCard]:
        """Models with a live worker, by id."""
        cards: dict[str, ModelCard] = {}
        for state in self.live():
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

    def num_waiting(self, worker_id: str) -> int | None:
        """Requests that wait at a worker by its last word; None if nothing is known of it."""
        for state in self._directory.states():
            if state.worker_id == worker_id:
                return state.num_waiting
        return None

    def pick(self, request: GenerateRequest) -> str:
        """The worker for a new request.

        Raises:
            Unavailable: no worker serves its model.
            Overloaded: every worker's queue is full.
        """
        return self._pick(request, self._candidates(request), self._max_waiting)

    def pick_next(self, request: GenerateRequest) -> str | None:
        """Who goes on with a response: however busy, better than nobody; None if nobody."""
        candidates = self._candidates(request)
        return self._pick(request, candidates, sys.maxsize) if candidates else None

    def pick_to_warm(self, warm: Warm) -> str | None:
        """The worker that will get a conversation's next request, if it has time."""
        chosen = policy.choose_to_warm(self._candidates(warm))
        if chosen is None:
            return None
        self._homes.note(warm.conversation_id, chosen.state.worker_id)
        return chosen.state.worker_id

    def forget(self, conversation_id: str, *, everywhere: bool) -> list[str]:
        """A conversation is closed; the workers that keep something for it.

        Args:
            conversation_id: Which.
            everywhere: Also those where other gateways had it sent.
        """
        home = self._homes.forget(conversation_id)
        worker_ids = set() if home is None else {home}
        if everywhere:
            tag = conversation_tag(conversation_id)
            worker_ids |= {state.worker_id for state in self.live() if tag in state.held}
        return sorted(
            worker_id
            for worker_id in worker_ids
            if self._directory.status(worker_id) is not Status.DEAD
        )

    def ended(self, request_id: str, worker_id: str) -> None:
        """A request counts no longer."""
        self._sent_at.get(worker_id, {}).pop(request_id, None)

    def died(self, worker_id: str) -> None:
        """A worker counts no longer."""
        self._sent_at.pop(worker_id, None)

    def _pick(self, request: GenerateRequest, candidates: list[Candidate], max_waiting: int) -> str:
        chosen = policy.choose(request, candidates, max_waiting=max_waiting)
        worker_id = chosen.state.worker_id
        self._sent_at.setdefault(worker_id, {})[request.request_id] = time.monotonic()
        if request.conversation_id is not None:
            self._homes.note(request.conversation_id, worker_id)
        return worker_id

    def _candidates(self, asked: GenerateRequest | Warm) -> list[Candidate]:
        system = system_tag(asked.model, asked.tenant, asked.messages)
        return [
            Candidate(
                state,
                self._num_unseen(state.worker_id),
                self._homes.num_held(asked.conversation_id, state, system),
            )
            for state in self.live()
            if state.card.id == asked.model
        ]

    def _num_unseen(self, worker_id: str) -> int:
        """Our requests that the worker's last heartbeat can't have counted."""
        sent = self._sent_at.get(worker_id, {})
        # The beat was made up to one poll before we saw it.
        horizon = self._directory.changed_at(worker_id) - 2 * keys.WORKER_BEAT_S
        for request_id in [rid for rid, sent_at in sent.items() if sent_at < horizon]:
            del sent[request_id]
        return len(sent)
