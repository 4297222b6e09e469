"""Guessing ahead by n-grams: the same text, how much sooner, and never later.

    python -m load_tests.bench_speculation [--model PATH] [--rounds 3]

First 50 prompts, half of them asking for repetition, greedy and with a seed, guessed as
often as possible and not at all: the texts must be the same, byte for byte. Then answers
at once in batches of 1, 4 and 8, without guesses, with all (`ngram`) and with those that pay
(`auto`), one step of each engine in turns. Aim for `auto`: never below 0.97 times `off`, the
very first answers included.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from load_tests.local_engine import Drive, LocalModel, parser, report
from load_tests.measure import median, spread, table
from load_tests.prompts import chat_prompt

NUM_EACH = 25
IDENTITY_TOKENS = 64
SPEED_TOKENS = 160
MODES = ("off", "ngram", "auto")
FRUITS = "apples, pears, plums, cherries, grapes, melons, dates, figs, lemons, limes, quinces"
STORY = (
    "The harbour master counts nine grey boats. He writes their names in a long blue book. The "
    "first boat carries salt and rope. The second boat carries apples from the south. The third "
    "boat has no sails and waits for the tide. In the evening the lamps are lit along the pier. A "
    "dog sleeps on a heap of nets. The wind turns to the north and the water grows dark."
)
CODE = "".join(
    f"    def {name}(self, value):\n        self.count = self.count {sign} value\n"
    "        return self.count\n\n"
    for name, sign in (("add", "+"), ("subtract", "-"), ("multiply", "*"))
)
REPETITIVE = (
    f"Write a JSON array of objects with the keys name and colour for these fruits: {FRUITS}",
    f"Repeat the following text exactly, word for word:\n\n{STORY}",
    f"Print a Markdown table with the columns fruit, price, in stock for: {FRUITS}",
    f"Copy this code exactly:\nclass Counter:\n{CODE}",
)


def repetitive(number: int) -> str:
    """A prompt whose answer repeats itself or the prompt, as lists, quotes and code do."""
    return f"{REPETITIVE[number % len(REPETITIVE)]}\n({number})"


def texts(drive: Drive, prompts: Sequence[str], seed: int | None) -> list[str]:
    """Their answers, eight at once."""
    answers = []
    for start in range(0, len(prompts), 8):
        answers += [
            drive.add(prompt, IDENTITY_TOKENS, seed=seed) for prompt in prompts[start : start + 8]
        ]
        drive.run()
    return [answer.text for answer in answers]


def compare_texts(model: LocalModel) -> dict[str, float]:
    """How many of all answers differ with guessing: 0, or it is broken; what share stood."""
    prompts = [repetitive(number) for number in range(NUM_EACH)]
    prompts += [chat_prompt() for _ in range(NUM_EACH)]
    drives = [Drive(model.engine(speculation=mode)) for mode in ("off", "ngram")]
    different = 0
    for seed in (None, 11):
        plain, guessed = (texts(drive, prompts, seed) for drive in drives)
        different += sum(one != other for one, other in zip(plain, guessed, strict=True))
    guesses = drives[1].engine.scheduler.speculation
    return {
        "num_different": different,
        "num_texts": 2 * len(prompts),
        "guesses_that_stood": round(guesses.num_accepted / max(guesses.num_drafted, 1), 3),
    }


def repetitive_among(ordinary: int) -> list[str]:
    """One prompt whose answer repeats itself, and others."""
    return [repetitive(ordinary), *(chat_prompt() for _ in range(ordinary))]


KINDS: dict[str, Callable[[int, int], list[str]]] = {
    "repetitive": lambda number, batch: [repetitive(number * batch + i) for i in range(batch)],
    "one repetitive": lambda number, batch: repetitive_among(batch - 1),
    "ordinary": lambda number, batch: [chat_prompt() for _ in range(batch)],
}


@dataclass
class Lane:
    """One engine's answers to a round's prompts, once all have begun.

    Attributes:
        drive: Its engine.
        seconds: Spent in steps.
        tokens: Made in them.
        steps: How many.
    """

    drive: Drive
    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0

    def begin(self, prompts: Sequence[str]) -> None:
        """Let all have their first token; nothing of that counts."""
        answers = [self.drive.add(prompt, SPEED_TOKENS) for prompt in prompts]
        while any(not answer.token_times for answer in answers):
            self.drive.step()
        self.seconds, self.tokens, self.steps = 0.0, 0, 0

    def step(self) -> None:
        """One step, timed."""
        before = self.drive.engine.totals.sampled_tokens
        started = time.perf_counter()
        self.drive.step()
        self.seconds += time.perf_counter() - started
        self.tokens += self.drive.engine.totals.sampled_tokens - before
        self.steps += 1


def rates(lanes: dict[str, Lane], prompts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Tokens a second and tokens a step, of each answer, by mode.

    The engines step in turns, so that whatever else the machine does hits all alike.
    """
    for lane in lanes.values():
        lane.begin(prompts)
    order = list(lanes.values())
    while any(lane.drive.engine.has_work() for lane in order):
        for lane in order:
            if lane.drive.engine.has_work():
                lane.step()
        order.append(order.pop(0))
    return {
        mode: (lane.tokens / lane.seconds, lane.tokens / lane.steps / len(prompts))
        for mode, lane in lanes.items()
    }


def main() -> int:
    """Measure and print.

    Returns:
        1 if any text differed.
    """
    options = _options()
    model = LocalModel(options.model)
    result: dict[str, float] = {} if options.skip_texts else compare_texts(model)
    rows = []
    for kind in options.kinds:
        for batch in options.batches:
            row, medians = _measure(model, kind, batch, options)
            rows.append(row)
            result.update(medians)
    words = ""
    if not options.skip_texts:
        words = f"{result['num_different']:.0f} of {result['num_texts']:.0f} texts differ.\n"
    headings = ["text", "at once"]
    for mode in options.modes:
        headings += [f"{mode} / off", "tokens a step"]
    report(result, [words, table(headings, rows)])
    return 1 if result.get("num_different") else 0


def _options() -> argparse.Namespace:
    options = parser(__doc__, 3)
    options.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8])
    options.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    options.add_argument("--modes", nargs="+", choices=MODES[1:], default=list(MODES[1:]))
    options.add_argument("--skip-texts", action="store_true", help="measure speed alone")
    return options.parse_args()


def _measure(
    model: LocalModel, kind: str, batch: int, options: argparse.Namespace
) -> tuple[list[str], dict[str, float]]:
    """A row of the table, and its medians by name."""
    modes = ("off", *options.modes)
    lanes = {mode: Lane(Drive(model.engine(speculation=mode))) for mode in modes}
    # All that was ever asked counts: there is no round to learn in.
    rounds = [rates(lanes, KINDS[kind](number, batch)) for number in range(options.rounds)]
    row, medians = [kind, str(batch)], {}
    for mode in options.modes:
        gains = [by_mode[mode][0] / by_mode["off"][0] for by_mode in rounds]
        medians[f"{mode}_{kind.replace(' ', '_')}_{batch}"] = round(median(gains), 3)
        row += [spread(gains, 3), spread([by_mode[mode][1] for by_mode in rounds], 2)]
    return row, medians


if __name__ == "__main__":
    sys.exit(main())
