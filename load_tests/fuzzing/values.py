"""JSON gone wrong: odd values in odd places, and texts that are no JSON at all."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from typing import Any

_STRINGS = (
    *("", " ", "\0", "\n", "a", "root", "null", "true", "inf", "NaN", "none", "auto", "0", "-1"),
    *("\ud83d", "\ude00y", "\u202eevil", "\ufeff", "\uffff", "e\u0301", "💥" * 40, "ß" * 300),
    *("<|im_end|>", "<script>alert(1)</script>", "../../etc/passwd", "%s%n", "' OR 1=1 --"),
    *("{}", "[]", '"', "\\", "\\ud800", "x\r\nset-cookie: a=b", "rp:workers", "{x}", "١٢"),
)
_NUMBERS = (
    *(0, 1, -1, 2, 16, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1),
    *(2**63, 2**64, -(2**63), -(2**63) - 1, 10**30, 0.0, -0.0, 0.5, 1.5, -1.5, 1e-320, 1e308),
    *(-1e308, float("nan"), float("inf"), float("-inf")),
)
_DEPTHS = (2, 62, 63, 64, 65, 200, 5000)


@dataclass(frozen=True)
class Raw:
    """Text put into the JSON as it is."""

    text: str


@dataclass(frozen=True)
class Twice:
    """A value whose key is written two times, with two values."""

    first: Any
    second: Any


def dump(value: Any) -> str:
    """JSON of a value that may hold `Raw` and `Twice`; NaN and half pairs are written."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(_pair(str(key), each) for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dump, value)) + "]"
    if isinstance(value, Twice):
        return dump(value.second)
    return json.dumps(value)


def _pair(key: str, value: Any) -> str:
    name = json.dumps(key)
    if isinstance(value, Twice):
        return f"{name}:{dump(value.first)},{name}:{dump(value.second)}"
    return f"{name}:{dump(value)}"


def odd_value(rng: random.Random) -> Any:
    """Anything that a field does not expect."""
    kind = rng.randrange(12)
    if kind < 4:
        return rng.choice(_STRINGS)
    if kind < 7:
        return rng.choice(_NUMBERS)
    if kind == 7:
        return rng.choice((None, True, False))
    if kind == 8:
        return rng.choice(([], {}, [[]], [None], {"": ""}, [{}], {"a": {"b": [1]}}))
    if kind == 9:
        depth = rng.choice(_DEPTHS)
        opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
        return Raw(opening * depth + "1" + closing * depth)
    if kind == 10:
        return [rng.choice(_STRINGS)] * rng.choice((1, 5, 17, 1000))
    return "x" * rng.choice((64, 65, 128, 129, 200, 201, 513, 4097, 20_000))


def mutate(value: Any, rng: random.Random) -> Any:
    """A copy with one or a few things wrong."""
    changed = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        changed = _mutate_once(changed, rng)
    return changed


def _mutate_once(value: Any, rng: random.Random) -> Any:
    places = list(_places(value))
    if not places:
        return odd_value(rng)
    container, key = rng.choice(places)
    kind = rng.randrange(7)
    if kind < 3:
        container[key] = odd_value(rng)
    elif kind == 3:
        del container[key]
    elif isinstance(container, list):
        container[key:key] = [copy.deepcopy(container[key])] * rng.choice((1, 2, 30))
    elif kind == 4:
        container[rng.choice(_STRINGS)] = odd_value(rng)
    elif kind == 5:
        container[key] = Twice(odd_value(rng), container[key])
    else:
        container[key] = rng.choice(([container[key]], {key: container[key]}, str(container[key])))
    return value


def _places(value: Any) -> Any:
    """Every (container, key) of a value."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield value, key
            yield from _places(each)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield value, index
            yield from _places(each)


def spoil(text: str, rng: random.Random) -> bytes:
    """Bytes of a JSON text, changed below the level of JSON."""
    data = bytearray(text.encode())
    kind = rng.randrange(8)
    at = rng.randrange(len(data) + 1)
    if kind == 0:
        return bytes(data[:at])
    if kind == 1:
        data[at:at] = rng.randbytes(rng.choice((1, 2, 30)))
    elif kind == 2:
        for _ in range(rng.choice((1, 3, 20))):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 3:
        return text.encode(rng.choice(("utf-16", "utf-32", "utf-8-sig")))
    elif kind == 4:
        return bytes(data) * 2
    elif kind == 5:
        data[at:at] = rng.choice((b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\0", b"//x\n", b","))
    elif kind == 6:
        return rng.choice((b"", b" ", b"null", b"[]", b"5", b"{", b'"', b"NaN", b"[" * 20_000))
    else:
        return bytes(data) + b" " * rng.choice((1, 5000))
    return bytes(data)
