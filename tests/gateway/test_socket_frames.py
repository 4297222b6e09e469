"""Frames that the gateway writes itself are those that the library would write."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode

from app.gateway.socket_connection import text_frame


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65535, 65536, 70000])
def test_a_text_frame_is_the_librarys(length: int) -> None:
    data = b"x" * length
    assert text_frame(data) == Frame(Opcode.TEXT, data).serialize(mask=False)
