"""Writes greedy_fixture.json anew: `python -m tests.engine.model.write_greedy_fixture`.

Takes a minute or two. The prompts come from `exactness_prompts`, the answers from
transformers alone; the engine has no part in them.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.engine.model.exactness_prompts import PROMPTS
from tests.engine.model.reference import greedy
from tests.engine.tokenizer_oracle import reference_tokenizer

FIXTURE = Path(__file__).with_name("greedy_fixture.json")
NUM_TOKENS = 64
BATCH = 10


def main() -> None:
    prompts = [
        reference_tokenizer().apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        for text in PROMPTS
    ]
    # Prompts of like length together, so that little of a batch is padding.
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    cases = {}
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        answers = greedy([prompts[index] for index in batch], NUM_TOKENS)
        for index, (answer, leads) in zip(batch, answers, strict=True):
            rounded = [round(lead, 4) for lead in leads]
            cases[index] = {"prompt": prompts[index], "answer": answer, "leads": rounded}
    lines = ",\n".join(
        json.dumps(cases[index], separators=(",", ":")) for index in range(len(prompts))
    )
    FIXTURE.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
