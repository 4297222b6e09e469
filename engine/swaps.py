"""Moves of whole KV blocks between the pool and the host tier, once a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.block_manager import BlockManager
from engine.host_tier import HostTier
from engine.step import Runner


class Swaps:
    """What the scheduler decided to move before the step runs.

    Args:
        blocks: The pool.
        host: Where blocks go and come from; None moves nothing.
    """

    def __init__(self, blocks: BlockManager, host: HostTier | None) -> None:
        self._blocks = blocks
        self.host = host
        # By block: one that was handed out twice in a step holds what came last.
        self._incoming: dict[int, Any] = {}
        blocks.notes_evictions = host is not None

    def num_in_reach(self, names: Sequence[bytes]) -> int:
        """How many of `names`, from the first on, this step could still bring back."""
        if self.host is None:
            return 0
        room = max(0, self.host.max_step_blocks - len(self._incoming))
        return self.host.match(names[:room])

    def bring_back(self, names: Sequence[bytes], blocks: Sequence[int]) -> int:
        """Fill `blocks` with the contents of these names, from the first on.

        Args:
            names: What comes next in a prompt.
            blocks: As many blocks, just allocated for it.

        Returns:
            How many are filled once the step runs.
        """
        if self.host is None:
            return 0
        contents = self.host.take(names[: min(self.num_in_reach(names), len(blocks))])
        self._incoming.update(zip(blocks, contents, strict=False))
        return len(contents)

    def carry_out(self, runner: Runner) -> None:
        """Move what was decided; call before the step's plan runs."""
        if self.host is None:
            return
        # Out before in: a block that leaves may be the one that is filled.
        leaving = self.host.lacks(self._blocks.take_evicted())
        if leaving:
            contents = runner.read_blocks([block for block, _ in leaving])
            self.host.offer([name for _, name in leaving], contents)
        if self._incoming:
            incoming, self._incoming = self._incoming, {}
            runner.write_blocks(list(incoming), list(incoming.values()))
