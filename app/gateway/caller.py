"""Work done for a caller who may leave, in a gateway that may close."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def while_caller_waits(
    work: Coroutine[Any, Any, None], receive: Receive, closing: asyncio.Event
) -> bool:
    """Run work to its end, or until the caller has left or the gateway closes.

    Args:
        work: Cancelled if it is not done by then.
        receive: The request's; its body has been read.
        closing: Set when the gateway closes.

    Returns:
        Whether it was cut short because the gateway closes; the caller is still there.

    Raises:
        Exception: whatever the work raised.
    """
    task = asyncio.create_task(work)
    left = asyncio.create_task(_caller_leaves(receive))
    closes = asyncio.create_task(closing.wait())
    tasks: tuple[asyncio.Task[Any], ...] = (task, left, closes)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not task.cancelled():
        task.result()
        return False
    return not left.done() or left.cancelled()


async def _caller_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
