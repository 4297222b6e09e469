"""Guessing ahead by n-grams: the same text, how much sooner, and never later.

    python -m load_tests.bench_speculation [--model PATH] [--rounds 3]

First 50 prompts, half of them asking for repetition, greedy and with a seed, guessed as
often as possible and not at all: the texts must be the same, byte for byte. Then answers
at once in batches of 1, 4 and 8, in turns without guesses, with all (`ngram`) and with those
that pay (`auto`). Aim for `auto`: never below 0.97 times `off`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from load_tests.local_engine import Drive, LocalModel, parser, report
from load_tests.measure import median, spread, table
from load_tests.prompts import chat_prompt

NUM_EACH = 25
IDENTITY_TOKENS = 64
SPEED_TOKENS = 160
BATCHES = (1, 4, 8)
MODES = ("off", "ngram", "auto")
LINE = "the harbour master counts nine grey boats and writes their names in a long blue book"


def repetitive(number: int) -> str:
    """A prompt whose answer repeats itself and the prompt."""
    return f"Repeat this line again and again, word for word: {number} {LINE}. {LINE}. {LINE}."


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


def rate(drive: Drive, prompts: Sequence[str]) -> tuple[float, float]:
    """Tokens a second and tokens a step, of each answer, once all have begun."""
    answers = [drive.add(prompt, SPEED_TOKENS) for prompt in prompts]
    while any(not answer.token_times for answer in answers):
        drive.step()
    totals = drive.engine.totals
    tokens, steps = totals.sampled_tokens, totals.steps
    seconds = drive.run()
    made = totals.sampled_tokens - tokens
    return made / seconds, made / (totals.steps - steps) / len(prompts)


def main() -> int:
    """Measure and print.

    Returns:
        1 if any text differed.
    """
    options = parser(__doc__, 3).parse_args()
    model = LocalModel(options.model)
    kinds = {"repetitive": repetitive, "ordinary": lambda _: chat_prompt()}
    rows, result = [], dict(compare_texts(model))
    for kind, prompt in kinds.items():
        for batch in BATCHES:
            drives = {mode: Drive(model.engine(speculation=mode)) for mode in MODES}
            rounds: list[dict[str, tuple[float, float]]] = []
            for number in range(options.rounds + 1):
                prompts = [prompt(number * batch + i) for i in range(batch)]
                rates = {
                    mode: rate(drives[mode], prompts)
                    for mode in sorted(drives, reverse=bool(number % 2))
                }
                # The first round is there to learn what guesses cost and bring.
                if number:
                    rounds.append(rates)
            row = [kind, str(batch)]
            for mode in MODES[1:]:
                gains = [rates[mode][0] / rates["off"][0] for rates in rounds]
                result[f"{mode}_{kind}_{batch}"] = round(median(gains), 3)
                row += [spread(gains, 3), spread([rates[mode][1] for rates in rounds], 2)]
            rows.append(row)
    headings = ["text", "at once", "ngram / off", "tokens a step", "auto / off", "tokens a step"]
    words = f"{result['num_different']} of {result['num_texts']} texts differ.\n"
    report(result, [words, table(headings, rows)])
    return 1 if result["num_different"] else 0


if __name__ == "__main__":
    sys.exit(main())
