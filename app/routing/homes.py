"""Which worker holds a prompt's beginning, by its own word and by what was sent to it."""

from __future__ import annotations

from collections import OrderedDict

from engine.contract import WorkerState, conversation_tag

# Conversations remembered; the one not used for longest is forgotten first.
MAX_HOMES = 10_000


class Homes:
    """Remembers where this gateway sent what; workers' heartbeats say the rest."""

    def __init__(self) -> None:
        self._homes: OrderedDict[str, str] = OrderedDict()

    def note(self, conversation_id: str, worker_id: str) -> None:
        """A conversation's prompt goes to this worker."""
        self._homes[conversation_id] = worker_id
        self._homes.move_to_end(conversation_id)
        if len(self._homes) > MAX_HOMES:
            self._homes.popitem(last=False)

    def forget(self, conversation_id: str) -> str | None:
        """Drop a conversation; returns where it was sent last, if known."""
        return self._homes.pop(conversation_id, None)

    def num_held(
        self, conversation_id: str | None, state: WorkerState, system: str | None = None
    ) -> int:
        """Tokens of a prompt that a worker has; 1 if they can't be told.

        Args:
            conversation_id: Whose prompt; None for one outside any conversation.
            state: The worker's last word.
            system: `system_tag` of the prompt.
        """
        held = 0 if system is None else state.held.get(system, 0)
        if conversation_id is not None:
            held = max(held, state.held.get(conversation_tag(conversation_id), 0))
            held = max(held, int(self._homes.get(conversation_id) == state.worker_id))
        return held
