"""A prompt of 7,000 tokens arrives among four running chats.

    python -m load_tests.bench_mixed [--model PATH] [--rounds 3] [--tokens 7000]

Times between the chats' tokens, before it came and while it was computed. The aim for
the 99th percentile is less than twice.
"""

from __future__ import annotations

import sys

from load_tests.local_engine import Drive, LocalModel, parser, report
from load_tests.measure import median, percentile, spread, table
from load_tests.prompts import chat_prompt, long_prompt

CHATS = 4
TOKENS_BEFORE = 100
ANSWER_TOKENS = 2000


def measure(drive: Drive, num_tokens: int) -> dict[str, float]:
    """Gaps before and during, milliseconds, and how long the prompt took, seconds."""
    chats = [drive.add(chat_prompt(), ANSWER_TOKENS) for _ in range(CHATS)]
    while any(len(chat.token_times) < TOKENS_BEFORE for chat in chats):
        drive.step()
    began = max(chat.token_times[10] for chat in chats)
    long = drive.add(long_prompt(num_tokens), 2)
    came = long.asked_at
    while not long.token_times:
        drive.step()
    started = long.token_times[0]
    before = [gap for chat in chats for gap in chat.gaps_ms(began, came)]
    during = [gap for chat in chats for gap in chat.gaps_ms(came, started)]
    for name in list(drive.engine.sequences):
        drive.engine.cancel(name)
    return {
        "before_p50_ms": percentile(before, 0.5),
        "before_p99_ms": percentile(before, 0.99),
        "during_p50_ms": percentile(during, 0.5),
        "during_p99_ms": percentile(during, 0.99),
        "prompt_s": started - came,
    }


def main() -> int:
    """Measure and print."""
    made = parser(__doc__, 3)
    made.add_argument("--tokens", type=int, default=7000)
    options = made.parse_args()
    model = LocalModel(options.model)
    runs = [measure(Drive(model.engine()), options.tokens) for _ in range(options.rounds)]
    result = {name: median(run[name] for run in runs) for name in runs[0]}
    result["p99_ratio"] = median(run["during_p99_ms"] / run["before_p99_ms"] for run in runs)
    rows = [[name, spread([run[name] for run in runs], 2)] for name in runs[0]]
    report(result, [table(["4 chats", "median (least-most)"], rows)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
