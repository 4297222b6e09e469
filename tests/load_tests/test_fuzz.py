"""A bounded run of the fuzzer, and what it must notice; the full size runs by command."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import pytest
import redis as redis_module

from load_tests import fuzz
from load_tests.fuzzing import leftovers
from load_tests.fuzzing.bodies import Known, chat
from load_tests.fuzzing.findings import Findings
from load_tests.fuzzing.http_inputs import Caller, Input
from load_tests.fuzzing.http_lane import Answer, HttpLane
from load_tests.fuzzing.socket_inputs import frame
from load_tests.fuzzing.values import Raw, Twice, dump, mutate


@pytest.fixture
def folder() -> Path:
    """A short path: a socket's may not exceed 107 characters."""
    with tempfile.TemporaryDirectory(prefix="rp-") as name:
        yield Path(name)


async def test_two_thousand_inputs_break_nothing(folder: Path) -> None:
    result = await fuzz.run(folder, 2000, seed=7)
    assert result.is_sound, json.dumps(result.summary(), indent=1)
    assert sum(result.findings.sent.values()) >= 2000
    assert result.num_logs > 10


def test_json_gone_wrong_is_written_as_meant() -> None:
    value = {"a": Twice(1, Raw("[[")), "b": [float("nan"), "\ud83d"]}
    assert dump(value) == '{"a":1,"a":[[,"b":[NaN,"\\ud83d"]}'


def test_mutations_leave_the_template_alone() -> None:
    template = chat(random.Random(1), Known())
    before = dump(template)
    changed = [dump(mutate(template, random.Random(seed))) for seed in range(50)]
    assert dump(template) == before
    assert len(set(changed) - {before}) > 40


@pytest.mark.parametrize("length", [0, 125, 126, 65_535, 65_536])
def test_frames_are_masked_and_of_every_length(length: int) -> None:
    payload = bytes(range(256)) * (length // 256 + 1)
    whole = frame(1, payload[:length], mask=b"\x01\x02\x03\x04")
    assert whole[1] & 0x80
    data = whole[-length:] if length else b""
    assert bytes(byte ^ (1 + i % 4) for i, byte in enumerate(data)) == payload[:length]


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (500, b'{"error":{"message":"m","type":"t","param":null,"code":null}}', "status 500"),
        (400, b"<html>no</html>", "no error object"),
        (200, b'{"id":"resp_' + b"0" * 24 + b'"}', "another tenant's shown"),
    ],
)
def test_the_lane_notices_what_must_not_be(status: int, body: bytes, fault: str) -> None:
    findings, caller = Findings(1), Caller((), Known(), Known())
    lane = HttpLane(0, [caller], random.Random(1), findings)
    lane._judge(Input("x", b"", ("GET",), True), caller, "GET", Answer(status, {}, body))
    assert list(findings.wrong) == [fault]


def test_what_is_left_is_noticed(folder: Path, redis_url: str) -> None:
    with redis_module.Redis.from_url(redis_url, decode_responses=True) as client:
        client.set("rp:eternal", "x")
        client.xadd(
            "rp:log:{r1}", {"e": json.dumps({"t": "a", "id": "r1", "e": 1, "s": 0, "p": 1})}
        )
        client.expire("rp:log:{r1}", 60)
        wrong, num_logs = leftovers.bad_keys(client)
    assert sorted(wrong) == ["rp:eternal has no lifetime", "rp:log:{r1}: 0 ends"]
    assert num_logs == 1
    log = folder / "log"
    log.write_text("fine\nTraceback (most recent call last):\n  here\n")
    assert leftovers.bad_lines(log) == ["Traceback (most recent call last):\n  here"]
