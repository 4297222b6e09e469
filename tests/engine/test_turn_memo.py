"""Turns tokenised before are not tokenised again, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat_template import ChatTemplate
from engine.contract import Message
from engine.loading import load_model
from engine.turn_memo import LEAST_CHARACTERS, TurnMemo
from tests.engine.model_file import default_model
from tests.fakes.runner import Bench, encode_chat

LONG = "a line that is long enough to be remembered " * 3


def counting(calls: list[str], text: str) -> Callable[[], list[int]]:
    def tokenise() -> list[int]:
        calls.append(text)
        return list(text.encode())

    return tokenise


def test_a_piece_is_tokenised_once_a_tenant() -> None:
    calls: list[str] = []
    memo = TurnMemo()
    for tenant in ("a", "a", "b"):
        ids = memo.of(tenant)(True, LONG, counting(calls, LONG))
        assert list(ids) == list(LONG.encode())
    assert calls == [LONG, LONG]
    memo.of("a")(False, LONG, counting(calls, LONG))
    assert len(calls) == 3


def test_short_pieces_are_not_kept() -> None:
    memo = TurnMemo()
    memo.of("a")(True, "x" * (LEAST_CHARACTERS - 1), lambda: [1])
    assert memo.num_bytes == 0


def test_the_longest_unused_goes_first_and_the_bound_holds() -> None:
    memo = TurnMemo(max_bytes=20_000)
    texts = [f"{i:03}" * 100 for i in range(20)]
    for text in texts:
        memo.of("a")(True, text, lambda: [1] * 100)
        memo.of("a")(True, texts[0], lambda: [1] * 100)
        assert memo.num_bytes <= 20_000
    calls: list[str] = []
    memo.of("a")(True, texts[0], counting(calls, "kept"))
    memo.of("a")(True, texts[1], counting(calls, "lost"))
    assert calls == ["lost"]


def test_one_huge_piece_does_not_empty_it() -> None:
    memo = TurnMemo(max_bytes=20_000)
    memo.of("a")(True, LONG, lambda: [1])
    before = memo.num_bytes
    memo.of("a")(True, "x" * 6000, lambda: [1])
    assert memo.num_bytes == before


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return load_model(default_model()).chat_template


_text = st.one_of(
    st.text(max_size=120),
    st.sampled_from([LONG, f" {LONG}", f"{LONG}\n", "<|im_end|>", f"<|im_start|>{LONG}", "<|im"]),
)


@settings(max_examples=60, deadline=None)
@given(turns=st.lists(_text, min_size=1, max_size=6))
def test_the_real_templates_prompts_are_the_same(template: ChatTemplate, turns: list[str]) -> None:
    memo = TurnMemo()
    for end in range(1, len(turns) + 1):
        messages = [
            Message("assistant" if i % 2 else "user", text) for i, text in enumerate(turns[:end])
        ]
        plain = template.encode(messages)
        assert template.encode(messages, memo.of("t")) == plain
        assert template.encode(messages, memo.of("t")) == plain


def test_the_engine_gives_each_tenant_its_own() -> None:
    seen: list[object] = []

    def encode(messages: tuple[Message, ...], recall: object = None) -> list[int]:
        seen.append(recall)
        return encode_chat(messages)

    bench = Bench()
    preparer = bench.engine._preparer
    preparer._encode_chat = encode
    preparer._memo = TurnMemo()
    bench.engine.prepare(bench.request("r", "hi"))
    bench.warm("c", "hello there")
    assert len(seen) == 3
    assert all(callable(recall) for recall in seen)
