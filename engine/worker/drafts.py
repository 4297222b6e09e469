"""Drafts on their way to the engine: tokenised one by one, while no request waits for that."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor

from engine.contract import ReparteeError, Warm
from engine.worker.engine_thread import Engine, EngineThread

logger = logging.getLogger(__name__)

# One draft a conversation; older ones than this are not worth it any more, and of more
# conversations than this the first are dropped.
DRAFT_MAX_AGE_S = 10.0
MAX_DRAFTS = 64
DRAFT_POLL_S = 0.02


class Drafts:
    """See the module.

    Args:
        engine: Prepares warm-ups.
        thread: Carries them out.
        pool: Where they are tokenised.
        is_busy: Whether requests wait to be tokenised.
    """

    def __init__(
        self, engine: Engine, thread: EngineThread, pool: Executor, is_busy: Callable[[], bool]
    ) -> None:
        self._engine = engine
        self._thread = thread
        self._pool = pool
        self._is_busy = is_busy
        self._drafts: dict[str, Warm] = {}
        self._task: asyncio.Task[None] | None = None

    def offer(self, warm: Warm) -> None:
        """Take a draft in, in place of its conversation's last."""
        self._drafts.pop(warm.conversation_id, None)
        self._drafts[warm.conversation_id] = warm
        if len(self._drafts) > MAX_DRAFTS:
            del self._drafts[next(iter(self._drafts))]
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._prepare_all(), name="prepare-drafts")

    def drop(self, conversation_id: str | None) -> None:
        """Forget a conversation's draft, if there is one."""
        self._drafts.pop(conversation_id or "", None)

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _prepare_all(self) -> None:
        while self._drafts:
            if self._is_busy():
                await asyncio.sleep(DRAFT_POLL_S)
                continue
            warm = self._drafts.pop(next(iter(self._drafts)))
            if time.time() - warm.created_at <= DRAFT_MAX_AGE_S:
                await self._prepare(warm)

    async def _prepare(self, warm: Warm) -> None:
        loop = asyncio.get_running_loop()
        try:
            prepared = await loop.run_in_executor(self._pool, self._engine.prepare_warm_up, warm)
        except ReparteeError as error:
            logger.debug("draft of %s not taken: %s", warm.conversation_id, error)
        except Exception:
            logger.exception("draft of %s failed", warm.conversation_id)
        else:
            self._thread.warm_up(warm.conversation_id, prepared)
