"""The default model's KV: packed and unpacked bit by bit, and chats that come back from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.contract import Delta, Finished, GenerateRequest, Message, SamplingParams, Tier, Warm
from engine.engine import Engine
from engine.kv_codec import KvCodec
from engine.loading import LoadedModel, load_model
from engine.runner import CpuRunner
from engine.worker.build import make_host_tier
from tests.engine.model_file import default_model

STORY = "The lighthouse keeper wrote down every ship that passed, its colours and its course. " * 6


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(default_model())


class Chat:
    """An engine with a small pool."""

    def __init__(
        self,
        loaded: LoadedModel,
        host_bytes: int,
        num_blocks: int = 24,
        kv_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        config = EngineConfig(num_blocks=num_blocks, check_invariants=True, retained_share=0.0)
        self.runner = CpuRunner(loaded.model, config, kv_dtype)
        self.host = make_host_tier(loaded.config, kv_dtype, host_bytes)
        self.engine = Engine(
            config,
            card=loaded.card,
            runner=self.runner,
            vocabulary=loaded.tokenizer,
            encode_chat=loaded.chat_template.encode,
            host_tier=self.host,
        )

    def ask(self, name: str, text: str, max_tokens: int = 12) -> tuple[str, Finished]:
        events = self.ask_all({name: text}, max_tokens)
        assert isinstance(events[-1], Finished)
        return text_of(events, name), events[-1]

    def ask_all(self, texts: dict[str, str], max_tokens: int = 12) -> list[Any]:
        """All at once; the events, in order."""
        events: list[Any] = []
        for name, text in texts.items():
            events += self.engine.add(self.engine.prepare(self._request(name, text, max_tokens)))
        while self.engine.has_work():
            events += self.engine.step()
        return events

    def _request(self, name: str, text: str, max_tokens: int) -> GenerateRequest:
        now = time.time()
        return GenerateRequest(
            request_id=name,
            model=self.engine.card.id,
            messages=(Message("user", text),),
            sampling=SamplingParams(max_tokens=max_tokens, seed=3),
            tier=Tier.STANDARD,
            tenant="t",
            conversation_id=None,
            reply_to="g",
            created_at=now,
            deadline_at=now + 600,
        )


def text_of(events: list[Any], name: str) -> str:
    return "".join(
        event.text for event in events if isinstance(event, Delta) and event.request_id == name
    )


@pytest.fixture(scope="module")
def chat(loaded: LoadedModel) -> Iterator[Chat]:
    yield Chat(loaded, host_bytes=64 << 20)


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_an_evicted_chat_with_8_bit_kv_comes_back(
    loaded: LoadedModel, kv_dtype: torch.dtype
) -> None:
    test_an_evicted_chat_comes_back_with_the_same_text(
        Chat(loaded, host_bytes=64 << 20, kv_dtype=kv_dtype)
    )


def test_an_evicted_chat_comes_back_with_the_same_text(chat: Chat) -> None:
    first, _ = chat.ask("r1", STORY)
    for i in range(3):
        chat.ask(f"other{i}", f"{i} is another number. " * 40, max_tokens=1)
    again, end = chat.ask("r2", STORY)
    assert again == first
    assert end.usage.cached_tokens >= end.usage.prompt_tokens - 16
    counters = chat.engine.stats().counters
    assert counters["repartee_engine_host_restored_total"] >= end.usage.prompt_tokens // 16 - 1


def test_real_blocks_come_back_bit_by_bit_and_smaller(chat: Chat) -> None:
    chat.ask("filling", STORY + "What did the keeper write?", max_tokens=1)
    blocks = chat.runner.read_blocks(list(range(20)))
    codec = KvCodec(blocks[0].shape, 2)
    packed = [codec.pack(bits) for bits in blocks]
    for bits, small in zip(blocks, packed, strict=True):
        assert np.array_equal(codec.unpack(small), bits)
    ratio = len(blocks) * codec.block_bytes / sum(map(len, packed))
    assert ratio > 1.3


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.int8], ids=str)
def test_chats_on_one_long_beginning_get_the_same_words_together_and_alone(
    loaded: LoadedModel, kv_dtype: torch.dtype
) -> None:
    # Above 512 tokens, two whole segments of the CPU's attention are computed once for all.
    questions = ("What did the keeper write?", "Who passed?", "Why?", "Name one colour.")
    texts = {f"r{i}": STORY * 7 + question for i, question in enumerate(questions)}
    together = Chat(loaded, 0, num_blocks=160, kv_dtype=kv_dtype)
    together.ask("first", STORY * 7, max_tokens=1)
    events = together.ask_all(texts)
    ends = [event for event in events if isinstance(event, Finished)]
    assert all(end.usage.cached_tokens >= 512 for end in ends) and len(ends) == 4
    alone = Chat(loaded, 0, num_blocks=160, kv_dtype=kv_dtype)
    for name, text in texts.items():
        assert text_of(events, name) == alone.ask(name, text)[0]


def test_a_draft_makes_the_tokens_that_the_message_begins_with(loaded: LoadedModel) -> None:
    chat = Chat(loaded, host_bytes=0, num_blocks=64)
    turns = (Message("system", "Answer briefly."),)
    for draft in ("Tell", "Tell me about the Iber", STORY + "Which sh", STORY + "说一句关于海的话"):
        warm = Warm("c", chat.engine.card.id, turns, draft, "t", time.time())
        tokens = chat.engine.prepare_warm_up(warm).tokens
        for rest in ("", "ips", "ian coast?", "\n\nthanks", "'s", "、好"):
            message = Message("user", draft + rest)
            whole = loaded.chat_template.encode((*turns, message))
            assert whole[: len(tokens)] == tokens
    assert len(tokens) > 90
