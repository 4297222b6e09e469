"""The step loop on its own thread, and what it asks of an engine.

The engine is not thread-safe but for `prepare`; everything else happens here,
between steps. The asyncio side puts commands in and gets each step's events by
`call_soon_threadsafe`, those of several steps at once where it is behind.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from engine.contract import Event, Failed, Finished, GenerateRequest, ModelCard, Warm
from engine.stats import EngineStats
from engine.step_trace import EngineReport

logger = logging.getLogger(__name__)

# How long an idle thread sleeps at most; each wake-up proves that it's alive.
IDLE_PASS_S = 0.25

# An engine that waits for something gives empty steps; after some of them, sleep a little.
MAX_EMPTY_STEPS = 16
EMPTY_STEP_S = 0.0001
EMPTY_WAIT_S = 0.001

# How old the statistics of a busy engine may be.
STATS_S = 0.05

# Steps that raise one after the other before the process gives up on its engine.
MAX_STEP_FAULTS = 3


class Engine(Protocol):
    """What the worker drives."""

    @property
    def card(self) -> ModelCard: ...

    def prepare(self, request: GenerateRequest) -> Any:
        """Render, tokenise and check a request; on any thread.

        Raises:
            ReparteeError: what is wrong with the request.
        """
        ...

    def add(self, prepared: Any) -> list[Event]:
        """Queue a prepared request; its Accepted event."""
        ...

    def cancel(self, request_id: str) -> list[Event]:
        """End a request now: its terminal event, or nothing for an unknown id."""
        ...

    def prepare_warm_up(self, warm: Warm) -> Any:
        """Tokenise a draft; on any thread.

        Raises:
            ReparteeError: what is wrong with it.
        """
        ...

    def warm_up(self, prepared: Any) -> None:
        """Compute a prompt's beginning when there's time."""
        ...

    def release(self, conversation_id: str) -> None:
        """A conversation is closed; unknown ids are ignored."""
        ...

    def step(self) -> list[Event]:
        """One step for everyone; the events that it made."""
        ...

    def has_work(self) -> bool: ...

    def stats(self) -> EngineStats: ...

    def report(self) -> EngineReport:
        """The latest steps, and whether all bookkeeping agrees."""
        ...


class EngineThread:
    """Runs an engine.

    Args:
        engine: Touched by no one else from now on, but for `prepare`.
        on_events: Called on the loop with a step's events.
        on_refused: Called on the loop with (request id, error) when `add` raises.
        on_fault: Called on the loop with the error of a step that raised; every
            request in the engine has been dropped by then.
        on_dead: Called on the loop when the thread gives up.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        on_events: Callable[[list[Event]], None],
        on_refused: Callable[[str, Exception], None],
        on_fault: Callable[[Exception], None],
        on_dead: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._on_events = on_events
        self._on_refused = on_refused
        self._on_fault = on_fault
        self._on_dead = on_dead
        self._condition = threading.Condition()
        self._commands: list[tuple[str, str, Any]] = []
        self._stopping = False
        self._paused = False
        self._live: set[str] = set()
        self._num_faults = 0
        self._num_empty_steps = 0
        self._stats_at = 0.0
        self._last_step_at = time.time()
        self._stats = engine.stats()
        # What the loop is yet to be told, and whether it knows that there is something: it is
        # woken once for all that comes before it looks.
        self._told: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_woken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def last_step_at(self) -> float:
        """Unix seconds of the last completed step or idle pass."""
        return self._last_step_at

    @property
    def stats(self) -> EngineStats:
        """As of the last completed step."""
        return self._stats

    def start(self) -> None:
        """Start the thread; call on the loop that is to get the events."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def add(self, request_id: str, prepared: Any) -> None:
        """Queue a prepared request."""
        self._put("add", request_id, prepared)

    def cancel(self, request_id: str) -> None:
        """End a request before the next step; unknown ids are ignored."""
        self._put("cancel", request_id, None)

    def warm_up(self, conversation_id: str, prepared: Any) -> None:
        """Begin a prepared warm-up."""
        self._put("warm", conversation_id, prepared)

    def release(self, conversation_id: str) -> None:
        """A conversation is closed."""
        self._put("release", conversation_id, None)

    def report(self, on_report: Callable[[EngineReport], None]) -> None:
        """Look at the engine between two steps; `on_report` is called on the loop."""
        self._put("report", "", on_report)

    def pause(self, paused: bool) -> None:
        """Hold further steps, or go on. Cancels are still carried out."""
        with self._condition:
            self._paused = paused
            self._condition.notify()

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end and wait; whether it did."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _put(self, kind: str, subject_id: str, prepared: Any) -> None:
        with self._condition:
            self._commands.append((kind, subject_id, prepared))
            self._condition.notify()

    def _run(self) -> None:
        while True:
            commands = self._take_commands()
            if commands is None:
                return
            events: list[Event] = []
            for kind, request_id, prepared in commands:
                events += self._apply(kind, request_id, prepared)
            if self._can_step():
                events += self._step()
            self._note_progress()
            if events:
                self._live.difference_update(
                    event.request_id for event in events if isinstance(event, Finished | Failed)
                )
                self._tell(self._on_events, events)
            if self._num_faults >= MAX_STEP_FAULTS:
                self._tell(self._on_dead)
                return

    def _take_commands(self) -> list[tuple[str, str, Any]] | None:
        """What has come in, after a sleep if there is nothing to do; None to end."""
        with self._condition:
            if not self._commands and not self._stopping:
                if not self._can_step():
                    self._condition.wait(IDLE_PASS_S)
                elif self._num_empty_steps > MAX_EMPTY_STEPS:
                    self._condition.wait(EMPTY_WAIT_S)
            if self._stopping:
                return None
            commands, self._commands = self._commands, []
            return commands

    def _step(self) -> list[Event]:
        started_at = time.monotonic()
        try:
            events = self._engine.step()
        except Exception as error:
            self._step_failed(error)
            return []
        self._num_faults = 0
        empty = not events and time.monotonic() - started_at < EMPTY_STEP_S
        self._num_empty_steps = self._num_empty_steps + 1 if empty else 0
        return events

    def _note_progress(self) -> None:
        now = time.time()
        if now - self._stats_at > STATS_S or not self._engine.has_work():
            self._stats = self._engine.stats()
            self._stats_at = now
        self._last_step_at = now

    def _can_step(self) -> bool:
        return not self._paused and self._engine.has_work()

    def _apply(self, kind: str, request_id: str, prepared: Any) -> list[Event]:
        if kind == "report":
            self._tell(prepared, self._engine.report())
            return []
        if kind in ("warm", "release"):
            self._apply_unanswered(kind, request_id, prepared)
            return []
        try:
            if kind == "cancel":
                self._live.discard(request_id)
                return self._engine.cancel(request_id)
            events = self._engine.add(prepared)
            self._live.add(request_id)
            return events
        except Exception as error:
            self._tell(self._on_refused, request_id, error)
            return []

    def _apply_unanswered(self, kind: str, conversation_id: str, prepared: Any) -> None:
        try:
            if kind == "warm":
                self._engine.warm_up(prepared)
            else:
                self._engine.release(conversation_id)
        except Exception:
            logger.exception("%s of conversation %s failed", kind, conversation_id)

    def _step_failed(self, error: Exception) -> None:
        logger.exception("engine step failed; dropping %d requests", len(self._live))
        self._num_faults += 1
        for request_id in self._live:
            try:
                self._engine.cancel(request_id)
            except Exception:
                logger.exception("dropping %s failed", request_id)
        self._live.clear()
        self._tell(self._on_fault, error)

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        self._told.append((callback, args))
        if self._is_woken:
            return
        self._is_woken = True
        try:
            self._loop.call_soon_threadsafe(self._hear)
        except RuntimeError:
            # The loop is closed: the process ends and nobody is left to tell.
            logger.debug("event after the loop was closed")

    def _hear(self) -> None:
        """On the loop: all that was told so far."""
        # First, so that what is told from now on wakes the loop again.
        self._is_woken = False
        while self._told:
            callback, args = self._told.popleft()
            try:
                callback(*args)
            except Exception:
                logger.exception("what the engine told could not be taken")
