"""Eight chats at once on one system prompt of 1,000 tokens, first cold, then warm.

    python -m load_tests.bench_shared [--model PATH] [--rounds 3]

Cold, nobody has used the system prompt on this engine; warm, another chat has. Times
from the request to the first token; the aim is a fifth or less.
"""

from __future__ import annotations

import sys

from engine.contract import Message
from load_tests.bench_prefix import WORDS
from load_tests.local_engine import Drive, LocalModel, parser, report
from load_tests.measure import median, percentile, spread, table

CHATS = 8
SYSTEM = Message("system", WORDS * 59)


def first_times_ms(drive: Drive, questions: str) -> list[float]:
    """Eight chats at once; when each had its first token."""
    answers = [
        drive.add((SYSTEM, Message("user", f"{questions} {number}?")), 4) for number in range(CHATS)
    ]
    drive.run()
    return [answer.first_ms for answer in answers]


def main() -> int:
    """Measure and print."""
    options = parser(__doc__, 3).parse_args()
    model = LocalModel(options.model)
    times: dict[str, list[list[float]]] = {"cold": [], "warm": []}
    for _ in range(options.rounds):
        drive = Drive(model.engine())
        times["cold"].append(first_times_ms(drive, "Who counts boat"))
        times["warm"].append(first_times_ms(drive, "What is the name of boat"))
    medians = {name: [median(run) for run in runs] for name, runs in times.items()}
    worst = {name: [percentile(run, 1.0) for run in runs] for name, runs in times.items()}
    rows = [[name, spread(medians[name], 0), spread(worst[name], 0)] for name in times]
    share = median(medians["warm"]) / median(medians["cold"])
    report(
        {"cold_ms": median(medians["cold"]), "warm_ms": median(medians["warm"]), "share": share},
        [table(["8 chats", "median first token, ms", "last one's, ms"], rows)],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
