"""Answers while gateways, workers and Redis are killed at random: every one must be whole.

python -m load_tests.chaos --answers 1000 --seed 1

Each question is asked twice, with the same seed: undisturbed, then under fire; half of
the answers are greedy. Clients reconnect and resume. In the end every text must be that
of the undisturbed answer, in the client's hands and in the conversation; every response's
log must hold its events once, in order, with one terminal event; every client must have
been told of one end. The run's own seed is printed: what falls, when and how long follows
from it, but for the machine's speed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import redis as redis_module

from engine.contract import (
    Accepted,
    Delta,
    Event,
    Failed,
    Finished,
    TakenOver,
    event_from_wire,
    keys,
)
from load_tests.chaos_client import Asked, StubbornClient
from load_tests.chaos_processes import MODEL, Monkey, Stack

TOPICS = ("rivers", "old stones", "seven birds", "tall reeds", "a small boat", "clear mornings")


@dataclass
class Result:
    """One run.

    Attributes:
        seed: See the module.
        answers: Questions asked.
        wrong: What is wrong, a line each; empty if all is well.
        falls: How often what fell.
        taken_over: Responses that changed workers, and the changes in all.
        sockets: Sockets that the clients took, and how many took up a running answer.
        seconds: Time under fire.
    """

    seed: int
    answers: int
    wrong: list[str] = field(default_factory=list)
    falls: dict[str, int] = field(default_factory=dict)
    taken_over: tuple[int, int] = (0, 0)
    sockets: tuple[int, int] = (0, 0)
    seconds: float = 0.0


def fake_worker(rate: float) -> list[str]:
    """A worker without a model, so many tokens a second for each answer."""
    command = [sys.executable, "-m", "tests.fakes.worker", "--model", MODEL]
    return [*command, "--rate", str(rate), "--grace", "0.5"]


def real_worker(model: Path, threads: int = 0) -> list[str]:
    """A worker with a model, on so many threads; 0 for one a core."""
    command = [sys.executable, "-m", "engine.worker", "--model", str(model)]
    return [*command, "--threads", str(threads), "--grace", "0.5"]


def questions(number: int, rng: random.Random, max_tokens: int, is_fake: bool) -> list[Asked]:
    """What is asked. The fake engine is told how long its answer is; some are cut short."""
    asked = []
    for n in range(number):
        length = rng.randint(max(1, max_tokens // 4), max_tokens)
        prompt = f"Tell me about {rng.choice(TOPICS)}, number {n}."
        if is_fake:
            prompt = "!json " + json.dumps({"num_tokens": length})
        limit = rng.choice((length // 2, max_tokens)) if is_fake else length
        temperature = rng.choice((0.0, 1.0))
        asked.append(Asked(prompt, rng.randrange(1 << 32), max(limit, 1), temperature))
    return asked


async def ask_all(
    asked: Sequence[Asked], stack: Stack, num_at_once: int, rng: random.Random
) -> dict[int, str]:
    """Ask everything, so many at a time; the sessions by the question's place."""
    slots = asyncio.Semaphore(num_at_once)
    sessions: dict[int, str] = {}

    async def ask(number: int, one: Asked, own: random.Random) -> None:
        async with slots:
            client = StubbornClient(one, stack.ports, own)
            await client.run()
            sessions[number] = client.session_id or ""

    await asyncio.gather(*(ask(n, one, random.Random(rng.random())) for n, one in enumerate(asked)))
    return sessions


async def run(
    folder: Path,
    worker_command: Sequence[str],
    *,
    is_fake: bool,
    answers: int,
    seed: int,
    num_at_once: int = 40,
    num_gateways: int = 2,
    num_workers: int = 3,
    max_tokens: int = 300,
    pause_s: tuple[float, float] = (0.7, 2.5),
) -> Result:
    """Both rounds, and what is wrong with the second."""
    rng = random.Random(seed)
    result = Result(seed, answers)
    expected = questions(answers, rng, max_tokens, is_fake)
    asked = [Asked(one.prompt, one.seed, one.max_tokens, one.temperature) for one in expected]
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    stack = Stack(folder, num_gateways, num_workers, worker_command)
    try:
        await stack.start()
        calm_sessions = await ask_all(expected, stack, num_at_once, rng)
        await until_stored(stack, calm_sessions)
        with stack.redis.client() as client:
            for one in expected:
                one.tokens = [count_tokens(read_log(client, name)) for name in one.response_ids]
        monkey = Monkey(stack, random.Random(rng.random()), pause_s)
        falling = asyncio.create_task(monkey.run())
        started = time.monotonic()
        sessions = await ask_all(asked, stack, num_at_once, rng)
        result.seconds = time.monotonic() - started
        falling.cancel()
        await asyncio.gather(falling, return_exceptions=True)
        result.falls = monkey.counts
        await until_stored(stack, sessions)
        with stack.redis.client() as client:
            judge(result, expected, asked, sessions, client)
    finally:
        await stack.stop()
    return result


async def until_stored(stack: Stack, sessions: dict[int, str]) -> None:
    """A client may know its answer a moment before the conversation does."""
    with stack.redis.client() as client:
        for session_id in sessions.values():
            for _ in range(200):
                if not await asyncio.to_thread(
                    client.hexists, f"rp:ses:{{{session_id}}}", "active"
                ):
                    break
                await asyncio.sleep(0.05)


def judge(
    result: Result,
    expected: Sequence[Asked],
    asked: Sequence[Asked],
    sessions: dict[int, str],
    client: redis_module.Redis,
) -> None:
    """Compare every answer with its undisturbed run, and look into its log."""
    num_moved = num_moves = 0
    for number, (one, calm) in enumerate(zip(asked, expected, strict=True)):
        wrong = judge_answer(one, calm, sessions[number], client)
        for request_id in one.response_ids:
            events = read_log(client, request_id)
            wrong += judge_log(events)
            one.tokens.append(count_tokens(events))
            moves = sum(isinstance(event, TakenOver) for event in events)
            num_moved += moves > 0
            num_moves += moves
            if wrong:
                wrong.append(f"its log ends with {events[-1:]}"[:300])
        if one.tokens != calm.tokens:
            wrong.append(f"tokens charged and shown are {one.tokens}, not {calm.tokens}")
        result.wrong += [f"answer {number} ({one.response_ids}): {line}" for line in wrong]
    result.taken_over = (num_moved, num_moves)
    result.sockets = (sum(o.num_sockets for o in asked), sum(o.num_resumed for o in asked))
    leases = list(client.scan_iter("rp:lease:*"))
    if leases:
        result.wrong.append(f"{len(leases)} leases are left")


def judge_answer(one: Asked, calm: Asked, session_id: str, client: redis_module.Redis) -> list[str]:
    """What is wrong with what the client and the conversation have of an answer."""
    wrong = []
    if one.failure:
        wrong.append(f"failed: {one.failure}")
    elif one.text != calm.text:
        wrong.append(f"text differs: {_difference(one.text, calm.text)}")
    if one.num_ends != 1:
        wrong.append(f"told of {one.num_ends} ends")
    bodies = client.hvals(f"rp:ses:{{{session_id}}}:items")
    stored = [item["text"] for item in map(json.loads, bodies) if item["role"] == "assistant"]
    if stored != [calm.text]:
        wrong.append(f"{len(stored)} answers stored, or not the same")
    return wrong


def read_log(client: redis_module.Redis, request_id: str) -> list[Event]:
    """One response's events, as its followers read them."""
    entries = client.xrange(keys.log(request_id))
    return [event_from_wire(json.loads(fields["e"])) for _, fields in entries]


def count_tokens(events: Sequence[Event]) -> tuple[int, int]:
    """Tokens charged and tokens shown.

    No text may come of the last ones (parts of a character, control tokens), so the two
    may differ, but by as much whenever the text is the same.
    """
    ends = [event for event in events if isinstance(event, Finished)]
    charged = sum(end.usage.completion_tokens for end in ends)
    return charged, sum(event.num_tokens for event in events if isinstance(event, Delta))


def judge_log(events: Sequence[Event]) -> list[str]:
    """What is wrong with the order of one response's log."""
    wrong = []
    if [event.seq for event in events] != list(range(len(events))):
        wrong.append("its log has gaps or doubles")
    ends = [event for event in events if isinstance(event, Finished | Failed)]
    if len(ends) != 1 or events[-1] is not ends[0]:
        wrong.append(f"its log has {len(ends)} terminal events")
    if sum(isinstance(event, Accepted) for event in events) != 1:
        wrong.append("it was not accepted once")
    return wrong


def _difference(text: str, expected: str) -> str:
    same = next(
        (i for i, pair in enumerate(zip(text, expected, strict=False)) if pair[0] != pair[1]),
        min(len(text), len(expected)),
    )
    return f"{len(text)} characters, not {len(expected)}; {text[same:][:30]!r} at {same}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the result as JSON; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m load_tests.chaos", description=__doc__)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=60)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=40.0, help="tokens a second of each answer")
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--model", type=Path, help="a real model in place of the fake engine")
    parser.add_argument("--threads", type=int, default=0, help="of each worker with a real model")
    parser.add_argument("--keep", type=Path, help="folder for the logs; a new one by default")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.info("seed %d", options.seed)
    command = fake_worker(options.rate)
    if options.model is not None:
        command = real_worker(options.model, options.threads)
    with tempfile.TemporaryDirectory(prefix="rp-chaos-") as folder:
        result = asyncio.run(
            run(
                options.keep or Path(folder),
                command,
                is_fake=options.model is None,
                answers=options.answers,
                seed=options.seed,
                num_at_once=options.at_once,
                num_gateways=options.gateways,
                num_workers=options.workers,
                max_tokens=options.max_tokens,
            )
        )
    sys.stdout.write(json.dumps(asdict(result), indent=2) + "\n")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
