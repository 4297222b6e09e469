"""A conversation goes back to the worker that holds its prefix."""

from __future__ import annotations

import time

from app.routing.homes import MAX_HOMES, Homes
from engine.contract import (
    Message,
    ModelCard,
    Warm,
    WorkerState,
    conversation_tag,
    system_tag,
)
from tests.fakes.engine import FakeEngine
from tests.spine import collect, make_request, running_client, running_worker, until


def state(worker_id: str, held: dict[str, int]) -> WorkerState:
    card = ModelCard("m", 0, 100, 10, 4, "none")
    return WorkerState(worker_id, card, 0.0, 0.0, 0, 0, 0, 100, 0.0, False, {}, held)


def test_what_is_held_travels_with_the_heartbeat() -> None:
    sent = state("a", {conversation_tag("c"): 96})
    assert WorkerState.from_wire(sent.to_wire()) == sent
    assert Homes().num_held("c", sent) == 96
    assert Homes().num_held("d", sent) == 0


def test_what_was_sent_here_counts_before_any_heartbeat() -> None:
    homes = Homes()
    homes.note("c", "a")
    assert homes.num_held("c", state("a", {})) == 1
    assert homes.num_held("c", state("b", {})) == 0
    assert homes.num_held("c", state("b", {conversation_tag("c"): 64})) == 64
    assert homes.forget("c") == "a"
    assert homes.forget("c") is None


def test_a_system_prompt_counts_for_chats_that_are_new() -> None:
    messages = (Message("system", "You are kind."), Message("user", "hi"))
    tag = system_tag("m", "t", messages)
    holder = state("a", {tag: 512, conversation_tag("c"): 700})
    assert Homes().num_held("new", holder, tag) == 512
    assert Homes().num_held(None, holder, tag) == 512
    # A chat's own prefix is longer.
    assert Homes().num_held("c", holder, tag) == 700
    assert Homes().num_held("new", holder, system_tag("m", "t", messages[1:])) == 0


def test_a_system_prompts_tag_is_the_tenants_and_the_models() -> None:
    messages = (Message("system", "You are kind."), Message("user", "hi"))
    tags = {
        system_tag("m", "t", messages),
        system_tag("m", "u", messages),
        system_tag("n", "t", messages),
        system_tag("m", "t", (Message("system", "You are rude."),)),
        system_tag("m", "t", (Message("developer", "You are kind."),)),
        system_tag("m", "t", (Message("system", "You are"), Message("system", " kind."))),
    }
    assert len(tags) == 6
    assert system_tag("m", "t", messages[:1]) == system_tag("m", "t", messages)
    assert system_tag("m", "t", messages[1:]) is None


def test_only_so_many_are_remembered() -> None:
    homes = Homes()
    for number in range(MAX_HOMES + 1):
        homes.note(str(number), "a")
    assert homes.forget("0") is None
    assert homes.forget(str(MAX_HOMES)) == "a"


async def test_turns_and_drafts_of_a_conversation_meet_at_one_worker(redis_url: str) -> None:
    engines = [FakeEngine(), FakeEngine()]
    async with (
        running_worker(redis_url, engines[0]),
        running_worker(redis_url, engines[1]),
        running_client(redis_url) as client,
    ):
        await until(lambda: len(client.workers()) == 2 and client.ready())
        for conversation_id in ("c1", "c2", "c3", "c4"):
            draft = Warm(conversation_id, "repartee-fake", (), "hi", "t", time.time())
            await client.warm(draft)
            homes = set()
            for _ in range(3):
                request = make_request(conversation_id=conversation_id)
                stream = await client.submit(request)
                homes.add(stream.worker_id)
                await collect(stream)
            assert len(homes) == 1
        warmed = [warm.conversation_id for engine in engines for warm in engine.warmed]
        assert sorted(warmed) == ["c1", "c2", "c3", "c4"]


async def test_a_gateway_that_knows_nothing_believes_the_heartbeat(redis_url: str) -> None:
    engines = [FakeEngine(), FakeEngine()]
    engines[1].held[conversation_tag("c")] = 512
    async with (
        running_worker(redis_url, engines[0], worker_id="w0"),
        running_worker(redis_url, engines[1], worker_id="w1"),
        running_client(redis_url) as client,
    ):
        await until(
            lambda: (
                any(worker.held for worker in client.workers())
                and len(client.workers()) == 2
                and client.ready()
            )
        )
        for _ in range(4):
            stream = await client.submit(make_request(conversation_id="c"))
            assert stream.worker_id == "w1"
            await collect(stream)
        await client.release("c")
        await until(lambda: engines[1].released == ["c"])


async def test_who_is_gone_for_good_is_forgotten_wherever_it_is_held(redis_url: str) -> None:
    engines = [FakeEngine(), FakeEngine()]
    engines[1].held[conversation_tag("c")] = 512
    async with (
        running_worker(redis_url, engines[0], worker_id="w0"),
        running_worker(redis_url, engines[1], worker_id="w1"),
        running_client(redis_url) as client,
    ):
        await until(
            lambda: any(worker.held for worker in client.workers()) and len(client.workers()) == 2
        )
        await client.release("c")
        await client.release("c", everywhere=True)
        await until(lambda: engines[1].released == ["c"])
    assert engines[0].released == []
