"""Writes greedy_fixture.json anew: `python -m tests.engine.model.write_greedy_fixture`.

Takes some minutes. The prompts come from `exactness_prompts`, the answers from
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


def main() -> None:
    cases = []
    for text in PROMPTS:
        prompt = reference_tokenizer().apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        answer, leads = greedy(prompt, NUM_TOKENS)
        rounded = [round(lead, 4) for lead in leads]
        cases.append({"prompt": prompt, "answer": answer, "leads": rounded})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    FIXTURE.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
