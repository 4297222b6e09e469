"""The default model through the engine on the CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.contract import (
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    InvalidRequest,
    Message,
    SamplingParams,
    Tier,
    progress_of,
)
from engine.engine import Engine
from engine.loading import LoadedModel, load_model
from engine.runner import CpuRunner
from tests.engine.model_file import default_model

PROMPTS = (
    "Hi",
    "Name three colours.",
    "Napiš větu o dešti.",
    "List ten weather emoji",
    "What is 12 times 12?",
    "用一句话介绍北京。",
    "Write a haiku about the sea.",
    "def fibonacci(n):",
)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(default_model())


def make_engine(loaded: LoadedModel, **config: Any) -> Engine:
    settings = {"num_blocks": 256, "check_invariants": True, **config}
    engine_config = EngineConfig(**settings)
    return Engine(
        engine_config,
        card=loaded.card,
        runner=CpuRunner(loaded.model, engine_config),
        vocabulary=loaded.tokenizer,
        encode_chat=loaded.chat_template.encode,
    )


class Asker:
    """Runs requests through an engine and keeps their texts and ends."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.texts: dict[str, str] = {}
        self.ends: dict[str, Finished] = {}
        self._count = 0

    def add(self, *contents: str, tier: Tier = Tier.STANDARD, **sampling: Any) -> str:
        self._count += 1
        name = f"r{self._count}"
        request = GenerateRequest(
            request_id=name,
            model=self.engine.card.id,
            messages=tuple(
                Message("user" if i % 2 == 0 else "assistant", content)
                for i, content in enumerate(contents)
            ),
            sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 24, **sampling}),
            tier=tier,
            tenant="t",
            conversation_id=None,
            reply_to="g",
            created_at=time.time(),
            deadline_at=time.time() + 600,
        )
        self.take(self.engine.add(self.engine.prepare(request)))
        return name

    def take(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Delta):
                self.texts[event.request_id] = self.texts.get(event.request_id, "") + event.text
            elif isinstance(event, Finished):
                self.ends[event.request_id] = event

    def run(self) -> None:
        while self.engine.has_work():
            self.take(self.engine.step())

    def ask(self, *contents: str, **sampling: Any) -> tuple[str, Finished]:
        """One answer, alone unless others were added."""
        name = self.add(*contents, **sampling)
        self.run()
        return self.texts.get(name, ""), self.ends[name]


@pytest.fixture
def asker(loaded: LoadedModel) -> Asker:
    return Asker(make_engine(loaded))


def test_bat_01_eight_prompts_at_once_equal_serial(loaded: LoadedModel) -> None:
    serial = Asker(make_engine(loaded))
    alone = [serial.ask(prompt)[0] for prompt in PROMPTS]
    busy = Asker(make_engine(loaded))
    names = [busy.add(prompt) for prompt in PROMPTS]
    busy.run()
    assert [busy.texts[name] for name in names] == alone
    assert all(alone)


def test_a_prompt_computed_by_layers_beside_chats_gets_the_words_of_one_alone(
    loaded: LoadedModel,
) -> None:
    story = "The old lighthouse keeper wrote down every ship that passed. " * 30
    alone, _ = Asker(make_engine(loaded, prefix_cache=False)).ask(story)
    chats = [Asker(make_engine(loaded)).ask(prompt, max_tokens=60)[0] for prompt in PROMPTS[:3]]
    busy = Asker(make_engine(loaded, num_blocks=512, prefix_cache=False))
    names = [busy.add(prompt, max_tokens=60) for prompt in PROMPTS[:3]]
    for _ in range(5):
        busy.take(busy.engine.step())
    name = busy.add(story)
    halfway = set()
    while busy.engine.has_work():
        busy.take(busy.engine.step())
        seq = busy.engine.sequences.get(name)
        if seq is not None and seq.partial is not None:
            halfway.add(seq.num_computed)
    assert len(halfway) >= 2
    assert busy.texts[name] == alone
    assert [busy.texts[name] for name in names] == chats


def test_smp_07_a_seed_holds_in_a_busy_batch(loaded: LoadedModel) -> None:
    sampling = {"temperature": 0.8, "seed": 42, "max_tokens": 16}
    alone, _ = Asker(make_engine(loaded)).ask("Tell me a story.", **sampling)
    busy = Asker(make_engine(loaded))
    names = []
    for i in range(3):
        busy.add(f"Noise number {i}.", temperature=1.0, seed=None)
        names.append(busy.add("Tell me a story.", **sampling))
        busy.take(busy.engine.step())
    busy.run()
    assert {busy.texts[name] for name in names} == {alone}
    other, _ = busy.ask("Tell me a story.", **{**sampling, "seed": 43})
    assert other != alone


def test_pfx_01_a_hit_equals_a_miss(loaded: LoadedModel) -> None:
    system = "Once upon a time there was a small town by a wide river. " * 12
    cached = Asker(make_engine(loaded))
    uncached = Asker(make_engine(loaded, prefix_cache=False))
    for i in range(3):
        question = f"{system}\nQuestion {i}: who lives there?"
        hit, end = cached.ask(question, max_tokens=16)
        assert hit == uncached.ask(question, max_tokens=16)[0]
        assert (end.usage.cached_tokens > 100) == (i > 0)
        again, end = cached.ask(question, max_tokens=16)
        assert again == hit
        assert 100 < end.usage.cached_tokens < end.usage.prompt_tokens


@pytest.mark.parametrize("extra", [-1, 0, 1, 16])
def test_pfx_02_prompts_of_whole_blocks(loaded: LoadedModel, asker: Asker, extra: int) -> None:
    # Each further " a" is one token.
    content = "a"
    while True:
        request_tokens = len(loaded.chat_template.encode((Message("user", content),)))
        if request_tokens >= 48 + extra:
            break
        content += " a"
    assert request_tokens == 48 + extra
    for max_tokens in (1, 12):
        first, _ = asker.ask(content, max_tokens=max_tokens)
        second, end = asker.ask(content, max_tokens=max_tokens)
        assert first == second
        assert end.usage.cached_tokens == (request_tokens - 1) // 16 * 16


def test_a_next_turn_computes_only_what_is_new(asker: Asker) -> None:
    question = "Name the planets, and say a little about each of them, please. " * 8
    answer, end = asker.ask(question, max_tokens=40)
    total = end.usage.prompt_tokens + end.usage.completion_tokens
    _, end = asker.ask(question, answer, "Thanks! Which is the largest?")
    assert total - 32 <= end.usage.cached_tokens <= total


def test_ctx_02_generation_ends_at_the_window(loaded: LoadedModel) -> None:
    # 4 blocks of 16 tokens are all the KV there is.
    asker = Asker(make_engine(loaded, num_blocks=4))
    _, end = asker.ask("Count for ever.", max_tokens=None, logit_bias=((2, -100.0),))
    assert end.reason is FinishReason.LENGTH
    assert end.usage.prompt_tokens + end.usage.completion_tokens == 64
    assert asker.engine.stats().used_blocks == 0


def test_can_05_queued_requests_cancel_at_once(loaded: LoadedModel) -> None:
    asker = Asker(make_engine(loaded, max_running=2))
    running = [asker.add(f"Story {i}", max_tokens=30) for i in range(2)]
    asker.take(asker.engine.step())
    queued = [asker.add(f"Queued {i}") for i in range(6)]
    for name in queued[::2]:
        asker.take(asker.engine.cancel(name))
        assert asker.ends[name].reason is FinishReason.CANCELLED
        assert asker.ends[name].usage.completion_tokens == 0
    assert asker.engine.stats().num_waiting == 3
    asker.run()
    assert all(asker.texts[name] for name in running + queued[1::2])


def test_fin_02_ggf_04_short_answers_end_with_stop(asker: Asker) -> None:
    questions = ("Hi", "What is the capital of France?", "Say hello.", "Who are you?")
    names = [asker.add(question, max_tokens=200) for question in questions]
    asker.run()
    assert sum(asker.ends[name].reason is FinishReason.STOP for name in names) >= 3
    for name in names:
        assert "<|im_" not in asker.texts[name]
        assert "user\n" not in asker.texts[name]


def test_smp_01_tiny_temperatures_give_the_greedy_text(asker: Asker) -> None:
    greedy, _ = asker.ask("Name a fruit.", max_tokens=12)
    assert greedy
    variants = [{"temperature": t} for t in (1e-4, 1e-6, 1e-30)]
    variants += [{"temperature": 1.0, "top_p": 0.0001}, {"temperature": 1.0, "top_k": 1}]
    variants += [{"temperature": 1.0, "top_p": 0.0}]
    names = [asker.add("Name a fruit.", seed=3, max_tokens=12, **v) for v in variants]
    asker.run()
    assert {asker.texts[name] for name in names} == {greedy}


def test_smp_05_top_k_beyond_the_vocabulary_is_off(asker: Asker) -> None:
    names = [
        asker.add("Name a fruit.", temperature=1.0, seed=9, max_tokens=8, top_k=top_k)
        for top_k in (0, -1, 49152, 49153, 9_999_999)
    ]
    asker.run()
    assert len({asker.texts[name] for name in names}) == 1


def test_smp_03_ids_outside_the_vocabulary_are_refused(asker: Asker) -> None:
    with pytest.raises(InvalidRequest, match="49152"):
        asker.add("Hi", logit_bias=((49152, 1.0),))
    assert asker.ask("Hi", max_tokens=4)[0]


def test_smp_09_one_token(asker: Asker) -> None:
    text, end = asker.ask("Hi", max_tokens=1)
    assert end.usage.completion_tokens == 1
    assert text


def test_min_tokens_keeps_the_answer_going(asker: Asker) -> None:
    _, short = asker.ask("Hi", max_tokens=60)
    assert short.reason is FinishReason.STOP
    count = short.usage.completion_tokens
    _, longer = asker.ask("Hi", max_tokens=60, min_tokens=count + 8)
    assert longer.usage.completion_tokens >= count + 8


def test_txt_02_half_characters_become_replacement_characters(
    loaded: LoadedModel, asker: Asker
) -> None:
    for token in (10813, 238):
        text, end = asker.ask("Hi", max_tokens=5, logit_bias=((token, 100.0),))
        raw = loaded.tokenizer.token_bytes(token) * 5
        assert text == raw.decode("utf-8", "replace")
        assert "\ufffd" in text
        assert end.usage.completion_tokens == 5
        assert end.reason is FinishReason.LENGTH


def test_spc_03_control_tokens_are_no_text(loaded: LoadedModel, asker: Asker) -> None:
    for token in sorted(loaded.tokenizer.control_ids)[:5]:
        text, end = asker.ask("Hi", max_tokens=3, ignore_eos=True, logit_bias=((token, 100.0),))
        assert text == ""
        assert end.usage.completion_tokens == 3


def test_stp_01_a_stop_cuts_exactly_before_its_match(asker: Asker) -> None:
    text, _ = asker.ask("Write a haiku about the sea.", max_tokens=24)
    for start in range(4, len(text) - 6, 9):
        stop = text[start : start + 6]
        cut, end = asker.ask("Write a haiku about the sea.", max_tokens=24, stop=(stop,))
        assert cut == text[: text.index(stop)]
        assert end.reason is FinishReason.STOP


def test_stp_02_no_newline_is_lost_to_a_stop_that_never_comes(asker: Asker) -> None:
    prompt = "Write five colours, one a line."
    plain, _ = asker.ask(prompt, max_tokens=40)
    assert asker.ask(prompt, max_tokens=40, stop=("\nZZZZ",))[0] == plain
    assert "\n" in plain


def test_penalties_change_the_text(asker: Asker) -> None:
    plain, _ = asker.ask("Say cat ten times.", max_tokens=30)
    for penalty in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        assert asker.ask("Say cat ten times.", max_tokens=30, **penalty)[0] != plain


def test_suspended_answers_are_exact(loaded: LoadedModel) -> None:
    sampling = {"max_tokens": 40, "ignore_eos": True}
    plain = Asker(make_engine(loaded))
    alone = [plain.ask(prompt, **sampling)[0] for prompt in PROMPTS[:2]]
    tight = Asker(make_engine(loaded, num_blocks=8, prefix_cache=False))
    names = [tight.add(prompt, **sampling) for prompt in PROMPTS[:2]]
    tight.run()
    assert [tight.texts[name] for name in names] == alone
    assert tight.engine.scheduler.counts.suspensions > 0


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 11}])
def test_spd_01_guessing_changes_nothing(loaded: LoadedModel, sampling: dict[str, Any]) -> None:
    prompts = (
        " ".join(["apple"] * 48) + " Go on.",
        "Count: one two three four five one two three four five one two three",
        "print(1)\nprint(2)\nprint(3)\nprint(4)\nContinue the code.",
        "重复 天空是蓝色的。天空是蓝色的。天空是蓝色的。",
    )
    results = []
    for mode in ("off", "ngram"):
        asker = Asker(make_engine(loaded, speculation=mode))
        names = [asker.add(prompt, max_tokens=40, **sampling) for prompt in prompts]
        asker.run()
        results.append([(asker.texts[name], asker.ends[name]) for name in names])
    texts, ends = zip(*(zip(*result, strict=True) for result in results), strict=True)
    assert texts[0] == texts[1]
    assert [end.usage for end in ends[0]] == [end.usage for end in ends[1]]
    assert [end.reason for end in ends[0]] == [end.reason for end in ends[1]]
    assert asker.engine.scheduler.speculation.num_accepted > 0


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ("List ten weather emoji", {"temperature": 0.0}),
        ("用一句话介绍北京。", {"temperature": 0.9, "seed": 5, "frequency_penalty": 0.5}),
        ("Tell me a story.", {"temperature": 0.8, "seed": 42, "stop": (" the ",)}),
    ],
)
def test_another_engine_goes_on_with_the_same_words(
    loaded: LoadedModel, prompt: str, sampling: dict[str, Any]
) -> None:
    engine = make_engine(loaded)
    request = GenerateRequest(
        request_id="r",
        model=engine.card.id,
        messages=(Message("user", prompt),),
        sampling=SamplingParams(max_tokens=24, **sampling),
        tier=Tier.STANDARD,
        tenant="t",
        conversation_id=None,
        reply_to="g",
        created_at=time.time(),
        deadline_at=time.time() + 600,
    )
    whole = engine.add(engine.prepare(request))
    while engine.has_work():
        whole += engine.step()
    for cut in (1, len(whole) // 2, len(whole) - 1):
        other = make_engine(loaded)
        progress = progress_of(whole[:cut])
        events = other.add(other.prepare(replace(request, epoch=2, progress=progress)))
        while other.has_work():
            events += other.step()
        texts = [
            "".join(event.text for event in answer if isinstance(event, Delta))
            for answer in (whole, [*whole[:cut], *events])
        ]
        assert texts[0] == texts[1]
        end, expected = events[-1], whole[-1]
        assert isinstance(end, Finished) and isinstance(expected, Finished)
        assert (end.reason, end.usage.completion_tokens) == (
            expected.reason,
            expected.usage.completion_tokens,
        )
