"""The whole engine with many chats on one system prompt: decode with its KV read once or not.

    python -m load_tests.gpu.shared_engine [--shape llama3-8b] [--kind int4] [--chats 64]
        [--system 4096]

Each chat has 64 tokens of its own behind the system prompt, which the prefix cache holds.
129 against 1 new tokens, the difference timed, greedy; the first round, which captures
graphs, doesn't count.
"""

from __future__ import annotations

import argparse

import torch

from engine.contract import Message
from engine.shared_prefix import PrefixFinder
from load_tests.gpu.engine_decode import Bench
from load_tests.gpu.shapes import KINDS, SHAPES

OWN_TOKENS, NEW_TOKENS = 64, 129


class SharedBench(Bench):
    """`Bench`, every prompt behind the same system prompt.

    Attributes:
        system_tokens: Its length.
    """

    system_tokens = 0

    def _encode(self, messages: tuple[Message, ...]) -> list[int]:
        generator = torch.Generator().manual_seed(0)
        system = torch.randint(0, self._vocab, (self.system_tokens,), generator=generator)
        return system.tolist() + super()._encode(messages)

    def rate(self, chats: int) -> float:
        """Tokens a second of all chats in the decode phase."""
        _, short = self.seconds(chats, OWN_TOKENS, 1)
        _, long = self.seconds(chats, OWN_TOKENS, NEW_TOKENS)
        return chats * (NEW_TOKENS - 1) / (long - short)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="llama3-8b")
    parser.add_argument("--kind", choices=KINDS, default="int4")
    parser.add_argument("--chats", type=int, default=64)
    parser.add_argument("--system", type=int, default=4096)
    options = parser.parse_args()
    SharedBench.system_tokens = options.system
    bench = SharedBench(options.shape, options.kind, "bf16", options.chats, 8, None)
    bench.seconds(1, OWN_TOKENS, 1)
    found = PrefixFinder.find
    for name, find in (("shared", found), ("apart", lambda *_: []), ("shared", found)):
        PrefixFinder.find = find  # type: ignore[method-assign, assignment]
        bench.rate(options.chats)
        rates = sorted(bench.rate(options.chats) for _ in range(3))
        print(
            f"{options.chats} chats on {options.system} tokens, {name}: {rates[1]:.0f} tok/s "
            f"({rates[0]:.0f} to {rates[2]:.0f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
