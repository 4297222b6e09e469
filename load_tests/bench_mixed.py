"""A prompt of 7,000 tokens arrives among four running chats.

    python -m load_tests.bench_mixed [--model PATH] [--rounds 3] [--tokens 7000] [--answer 4000]

Times between the chats' tokens before it came, while it was computed, and afterwards. The
aim for the 99th percentile is less than twice. Chats whose answers don't end have longer
contexts with every step, and their steps take longer by themselves: what the prompt does is
then the difference to both before and after. With short answers each chat that ends is
followed by a new one, as in real use, and contexts stay as they are.
"""

from __future__ import annotations

import sys

from load_tests.local_engine import Answer, Drive, LocalModel, parser, report
from load_tests.measure import median, percentile, spread, table
from load_tests.prompts import chat_prompt, long_prompt

CHATS = 4
TOKENS_BEFORE = 100
TOKENS_AFTER = 50


class Chats:
    """So many answers at once, ending one after the other; each is followed by another.

    Args:
        drive: Idle.
        answer_tokens: Length of an answer.
    """

    def __init__(self, drive: Drive, answer_tokens: int) -> None:
        self._drive = drive
        self._answer_tokens = answer_tokens
        self.all: list[Answer] = []
        self._running: list[tuple[Answer, int]] = []
        for number in range(CHATS):
            self._begin(answer_tokens * (number + 1) // CHATS)

    def _begin(self, num_tokens: int) -> None:
        answer = self._drive.add(chat_prompt(), num_tokens)
        self.all.append(answer)
        self._running.append((answer, num_tokens))

    def step(self) -> None:
        """One step of the engine."""
        self._drive.step()
        for pair in list(self._running):
            answer, num_tokens = pair
            if len(answer.token_times) >= num_tokens:
                self._running.remove(pair)
                self._begin(self._answer_tokens)

    def gaps_ms(self, start: float, end: float = float("inf")) -> list[float]:
        """Between tokens of all answers, of which the later was made within a time."""
        return [gap for answer in self.all for gap in answer.gaps_ms(start, end)]


def measure(drive: Drive, num_tokens: int, answer_tokens: int) -> dict[str, float]:
    """Gaps before, during and after, milliseconds, and how long the prompt took, seconds."""
    chats = Chats(drive, answer_tokens)
    first = chats.all[:CHATS]
    while any(len(chat.token_times) <= 10 for chat in first):
        chats.step()
    began = max(chat.token_times[10] for chat in first)
    for _ in range(TOKENS_BEFORE):
        chats.step()
    long = drive.add(long_prompt(num_tokens), 1)
    came = long.asked_at
    while not long.token_times:
        chats.step()
    started = long.token_times[0]
    for _ in range(TOKENS_AFTER):
        chats.step()
    phases = {"before": (began, came), "during": (came, started), "after": (started,)}
    result = {}
    for name, times in phases.items():
        gaps = chats.gaps_ms(*times)
        result[f"{name}_p50_ms"] = percentile(gaps, 0.5)
        result[f"{name}_p99_ms"] = percentile(gaps, 0.99)
    for name in list(drive.engine.sequences):
        drive.engine.cancel(name)
    return {**result, "prompt_s": started - came}


def main() -> int:
    """Measure and print."""
    made = parser(__doc__, 3)
    made.add_argument("--tokens", type=int, default=7000)
    made.add_argument("--answer", type=int, default=4000, help="tokens of a chat's answer")
    options = made.parse_args()
    model = LocalModel(options.model)
    runs = [
        measure(Drive(model.engine()), options.tokens, options.answer)
        for _ in range(options.rounds)
    ]
    result = {name: median(run[name] for run in runs) for name in runs[0]}
    for other in ("before", "after"):
        result[f"p99_ratio_{other}"] = median(
            run["during_p99_ms"] / run[f"{other}_p99_ms"] for run in runs
        )
    rows = [[name, spread([run[name] for run in runs], 2)] for name in runs[0]]
    report(result, [table(["4 chats", "median (least-most)"], rows)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
