"""What a run has found wrong, and how many inputs it may still send."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

# Examples that are kept of each kind of fault.
_EXAMPLES = 5
_SHOWN_BYTES = 600


@dataclass
class Findings:
    """One run's.

    Attributes:
        left: Inputs that are still to be sent.
        sent: Inputs sent, by kind.
        answers: Answers, by status, close code or kind of event.
        num_unavailable: Times that Redis was said to be too slow, as it may be on a machine
            that has too much else to do.
        wrong: Faults by kind, with a few examples each.
    """

    left: int
    sent: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    num_unavailable: int = 0
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def take(self, kind: str, count: int = 1) -> bool:
        """Count inputs that are about to be sent; False once there are enough."""
        if self.left <= 0:
            return False
        self.left -= count
        self.sent[kind] += count
        return True

    def fault(self, kind: str, given: bytes, seen: object) -> None:
        """Note that something is wrong."""
        examples = self.wrong.setdefault(kind, [])
        if len(examples) < _EXAMPLES:
            logger.warning("%s: %.400r -> %.300r", kind, given, seen)
            examples.append(f"{given[:_SHOWN_BYTES]!r} -> {str(seen)[:_SHOWN_BYTES]}")
