"""Typed fields: right values pass, wrong ones are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.protocol.fields import Fields
from engine.contract import InvalidRequest

FIELDS = Fields(
    {"s": "text", "b": True, "n": 5, "f": 1.5, "o": {"x": 1}, "a": [1], "z": None}, "top"
)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda f: f.string("s"), "text"),
        (lambda f: f.string("s", 4), "text"),
        (lambda f: f.string("z"), None),
        (lambda f: f.string("absent"), None),
        (lambda f: f.boolean("b"), True),
        (lambda f: f.boolean("z"), False),
        (lambda f: f.array("a"), [1]),
        (lambda f: f.integer("n", 5, 5), 5),
        (lambda f: f.integer("z", 0, 1), None),
        (lambda f: f.choice("s", ("text", "other")), "text"),
        (lambda f: f.choice("z", ("text",)), None),
        (lambda f: f.object("z"), None),
        (lambda f: f.object("o").path, "top.o"),
        (lambda f: f.get("f"), 1.5),
    ],
)
def test_right_values(read: Callable[[Fields], Any], value: object) -> None:
    assert read(FIELDS) == value


@pytest.mark.parametrize(
    ("read", "param", "code"),
    [
        (lambda f: f.string("n"), "top.n", "invalid_type"),
        (lambda f: f.string("s", 3), "top.s", "invalid_value"),
        (lambda f: f.required_string("z"), "top.z", "missing_required_parameter"),
        (lambda f: f.boolean("n"), "top.n", "invalid_type"),
        (lambda f: f.array("o"), "top.o", "invalid_type"),
        (lambda f: f.object("a"), "top.a", "invalid_type"),
        (lambda f: f.integer("b", 0, 9), "top.b", "invalid_type"),
        (lambda f: f.integer("f", 0, 9), "top.f", "invalid_type"),
        (lambda f: f.integer("n", 6, 9), "top.n", "invalid_value"),
        (lambda f: f.choice("s", ("x",)), "top.s", "invalid_value"),
        (lambda f: f.only(("s",)), "top.b", "unknown_parameter"),
        (lambda f: Fields.of(5, "here"), "here", "invalid_type"),
    ],
)
def test_wrong_values(read: Callable[[Fields], Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(FIELDS)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert param in caught.value.message
