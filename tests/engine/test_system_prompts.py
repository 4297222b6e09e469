"""Workers name the system prompts they hold as gateways name them."""

from __future__ import annotations

from engine.contract import Message, system_tag
from engine.system_prompts import LEAST_BLOCKS, MAX_PROMPTS, SystemPromptSizes
from tests.fakes.runner import Bench, encode_chat

SYSTEM = "You are a kind and patient clerk of a small bank."


def chat(system: str, text: str) -> tuple[Message, ...]:
    return (Message("system", system), Message("user", text))


def held(bench: Bench, tenant: str = "t") -> dict[str, int]:
    bench.clock.advance(1.0)
    return dict(bench.engine.stats().held)


def test_what_is_held_is_named_by_text_alone() -> None:
    bench = Bench(block_size=4)
    bench.add("r", messages=chat(SYSTEM, "hi"), max_tokens=2)
    bench.run()
    tag = system_tag("fake", "t", chat(SYSTEM, "something else"))
    # Whole blocks that the first turn after it doesn't change: the text and its end.
    assert held(bench)[tag] == (len(SYSTEM) + 1) // 4 * 4


def test_the_first_words_of_two_chats_may_agree() -> None:
    sizes = [
        SystemPromptSizes(encode_chat, 4).of("m", "t", messages, encode_chat(messages))
        for messages in (chat(SYSTEM, "0"), chat(SYSTEM, "\u00e9"), chat(SYSTEM, "x" * 99))
    ]
    assert sizes[0] == sizes[1] == sizes[2]
    assert sizes[0] is not None


def test_it_is_each_tenants_own() -> None:
    bench = Bench(block_size=4)
    bench.add("r", messages=chat(SYSTEM, "hi"), tenant="a", max_tokens=2)
    bench.run()
    names = held(bench)
    assert system_tag("fake", "a", chat(SYSTEM, "")) in names
    assert system_tag("fake", "b", chat(SYSTEM, "")) not in names


def test_what_was_handed_out_is_named_no_more() -> None:
    bench = Bench(block_size=4, num_blocks=40, retained_share=0.0)
    bench.add("r", messages=chat(SYSTEM, "hi"), max_tokens=2)
    bench.run()
    assert held(bench)
    for i in range(3):
        bench.add(f"other{i}", f"{i}" * 120, max_tokens=2)
        bench.run()
    assert not held(bench)


def test_short_and_missing_system_prompts_are_not_told_of() -> None:
    bench = Bench(block_size=4)
    bench.add("none", "x" * 100, max_tokens=2)
    bench.add("short", messages=chat("x" * (4 * LEAST_BLOCKS - 2), "y" * 50), max_tokens=2)
    bench.run()
    assert not held(bench)


def test_only_so_many_are_remembered() -> None:
    bench = Bench(block_size=4, num_blocks=4096)
    for i in range(MAX_PROMPTS + 5):
        bench.add(f"r{i}", messages=chat(f"{i:03} {SYSTEM}", "hi"), max_tokens=1)
        bench.run()
    names = held(bench)
    assert len(names) == MAX_PROMPTS
    assert system_tag("fake", "t", chat(f"000 {SYSTEM}", "")) not in names


def test_each_is_measured_once() -> None:
    calls = []

    def counted(messages: tuple[Message, ...]) -> list[int]:
        calls.append(messages)
        return encode_chat(messages)

    sizes = SystemPromptSizes(counted, 4)
    for text in ("a", "b", "c"):
        messages = chat(SYSTEM, text)
        sizes.of("m", "t", messages, encode_chat(messages))
    assert len(calls) == 2


def test_nothing_is_in_use_while_nothing_runs() -> None:
    bench = Bench()
    bench.add("r", max_tokens=5)
    bench.engine.step()
    assert bench.engine.stats().counters["repartee_engine_leaked_blocks"] == 0
    bench.run()
    assert bench.engine.stats().counters["repartee_engine_leaked_blocks"] == 0
    bench.engine.scheduler.blocks.allocate(2)
    assert bench.engine.stats().counters["repartee_engine_leaked_blocks"] == 2
