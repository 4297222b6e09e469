"""Lines that repeat are dropped, counted, and told of later."""

from __future__ import annotations

import logging

from app.gateway.log_bounds import BURST, WINDOW_S, RepeatFilter


def line(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("x", logging.WARNING, "", 0, message, args, None)


def test_a_few_of_each_pass_and_the_next_window_tells_of_the_others() -> None:
    now = 100.0
    lines = RepeatFilter(lambda: now)
    passed = [lines.filter(line("bad request of %s", number)) for number in range(50)]
    assert passed == [True] * BURST + [False] * (50 - BURST)
    assert lines.filter(line("something else"))
    now += WINDOW_S
    late = line("bad request of %s", "late")
    assert lines.filter(late)
    assert late.getMessage() == f"bad request of late ({50 - BURST} more like it before)"
    again = line("bad request of %s", "again")
    assert lines.filter(again)
    assert again.getMessage() == "bad request of again"
