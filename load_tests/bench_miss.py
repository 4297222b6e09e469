"""What the prefix cache costs where it never finds anything.

    python -m load_tests.bench_miss [--model PATH] [--rounds 9]

Distinct prompts through a pool that is too small to keep them, four at once, with the
prefix cache on and off in turns: naming, looking up, keeping and giving up blocks is all
that differs. Pieces of prompts are not cut by what steps took: each engine learns that by
itself, and what two have learnt differs by more than the cache costs. The aim is under 1 %
of the throughput.
"""

from __future__ import annotations

import sys
import time
from itertools import count

from engine.contract import Message
from load_tests.local_engine import Drive, LocalModel, parser, report
from load_tests.measure import median, spread, table
from load_tests.prompts import long_prompt

AT_ONCE = 4
NUM_PROMPTS = 12
PROMPT_TOKENS = 240
ANSWER_TOKENS = 48
NUM_BLOCKS = 160
STEP_MS = 60_000.0

_numbers = count()


def throughput(drive: Drive) -> float:
    """Tokens computed a second, prompts and answers."""
    left = NUM_PROMPTS
    before = drive.engine.totals.computed_tokens
    seconds = 0.0
    while left or drive.engine.has_work():
        while left and len(drive.engine.sequences) < AT_ONCE:
            # Even the template's own system prompt would be found.
            system = Message("system", f"{next(_numbers)} is your number.")
            drive.add((system, Message("user", long_prompt(PROMPT_TOKENS))), ANSWER_TOKENS)
            left -= 1
        started = time.perf_counter()
        drive.step()
        seconds += time.perf_counter() - started
    return (drive.engine.totals.computed_tokens - before) / seconds


def main() -> int:
    """Measure and print."""
    options = parser(__doc__, 9).parse_args()
    model = LocalModel(options.model)
    drives = {
        name: Drive(
            model.engine(
                num_blocks=NUM_BLOCKS,
                prefix_cache=name == "on",
                prefill_step_ms=STEP_MS,
                mixed_step_ms=STEP_MS,
            )
        )
        for name in ("on", "off")
    }
    rates: dict[str, list[float]] = {name: [] for name in drives}
    for number in range(options.rounds + 1):
        # In turns, each first as often as second; the first round only warms up.
        for name in sorted(drives, reverse=bool(number % 2)):
            rate = throughput(drives[name])
            if number:
                rates[name].append(rate)
    ratios = [on / off for on, off in zip(rates["on"], rates["off"], strict=True)]
    rows = [[name, spread(values)] for name, values in rates.items()]
    rows.append(["on / off, round by round", spread(ratios, 4)])
    report(
        {"on": median(rates["on"]), "off": median(rates["off"]), "ratio": median(ratios)},
        [table(["prefix cache", "tok/s, median (least-most)"], rows)],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
