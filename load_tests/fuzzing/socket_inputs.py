"""WebSocket frames, sound and broken, that carry client events, sound and spoiled (RFC 6455)."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from load_tests.fuzzing.bodies import Known, Template
from load_tests.fuzzing.values import dump, mutate, spoil

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_FINAL = 0x80
_MAX_MESSAGE = 1 << 20
_CLOSE_CODES = (1000, 1001, 1002, 1003, 1007, 1012, 3000, 4000, 4999)
_BAD_CLOSE_CODES = (0, 999, 1004, 1005, 1006, 1015, 2999, 5000, 65535)


@dataclass(frozen=True)
class Frames:
    """What one input is as bytes.

    Attributes:
        kind: For the count.
        data: The bytes.
        is_sound: The socket has to stay open after it.
    """

    kind: str
    data: bytes
    is_sound: bool = True


def frame(
    opcode: int, payload: bytes, *, final: bool = True, reserved: int = 0, mask: bytes = b"\0" * 4
) -> bytes:
    """One masked frame.

    Args:
        reserved: The three bits that have to be 0, as a number up to 7.
        mask: Four bytes; empty for a frame that is not masked, as a client's has to be.
    """
    first = (_FINAL if final else 0) | reserved << 4 | opcode
    masked = 0x80 if mask else 0
    length = len(payload)
    if length < 126:
        head = struct.pack("!BB", first, masked | length)
    elif length < 65536:
        head = struct.pack("!BBH", first, masked | 126, length)
    else:
        head = struct.pack("!BBQ", first, masked | 127, length)
    if any(mask):
        payload = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    return head + mask + payload


def make_frames(rng: random.Random, templates: Sequence[Template], known: Known) -> Frames:
    """The next input of a socket."""
    kind = rng.randrange(40)
    if kind < 30:
        text, is_text = _event(rng, templates, known)
        return Frames("event", _sent(rng, text), is_text)
    if kind < 34:
        events = [_event(rng, templates, known, spoiled=False)[0] for _ in range(rng.randint(2, 8))]
        return Frames("events at once", b"".join(_sent(rng, text) for text in events))
    if kind == 34 and rng.random() < 0.1:
        return Frames("as large as may be", frame(TEXT, b'"' + b"x" * (_MAX_MESSAGE - 2) + b'"'))
    if kind < 36:
        payload = rng.randbytes(rng.choice((0, 1, 125)))
        return Frames("ping or pong", frame(rng.choice((PING, PONG)), payload))
    return _broken(rng, templates, known)


def _event(
    rng: random.Random, templates: Sequence[Template], known: Known, *, spoiled: bool = True
) -> tuple[bytes, bool]:
    """An event's bytes, and whether they are UTF-8."""
    value = rng.choice(templates)(rng, known)
    if rng.random() < 0.3:
        value["event_id"] = rng.choice(("e-1", "e-2", f"e-{rng.randrange(10**9)}", "x" * 512))
    kind = rng.randrange(20)
    if kind < 12:
        return dump(value).encode(), True
    text = dump(mutate(value, rng))
    if kind < 18 or not spoiled:
        return text.encode(), True
    data = spoil(text, rng)
    try:
        data.decode()
    except UnicodeDecodeError:
        return data, False
    return data, True


def _sent(rng: random.Random, text: bytes) -> bytes:
    """A text message in one frame or in several, with a ping between them."""
    mask = rng.choice((b"\0" * 4, rng.randbytes(4) if len(text) < 2000 else b"\0" * 4))
    if rng.random() < 0.8:
        return frame(TEXT, text, mask=mask)
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.choice((1, 2, 5))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    sent = b""
    for number, piece in enumerate(pieces):
        opcode = CONTINUATION if number else TEXT
        sent += frame(opcode, piece, final=number == len(pieces) - 1, mask=mask)
        if rng.random() < 0.2 and number < len(pieces) - 1:
            sent += frame(PING, b"between")
    return sent


def _broken(rng: random.Random, templates: Sequence[Template], known: Known) -> Frames:
    """What ends a socket."""
    text, _ = _event(rng, templates, known)
    code = struct.pack("!H", rng.choice(_CLOSE_CODES))
    bad_code = struct.pack("!H", rng.choice(_BAD_CLOSE_CODES))
    large = rng.choice((_MAX_MESSAGE + 1, 2 * _MAX_MESSAGE))
    kinds = {
        "binary": frame(BINARY, rng.randbytes(16)),
        "reserved bits": frame(TEXT, text, reserved=rng.randint(1, 7)),
        "reserved opcode": frame(rng.choice((3, 4, 5, 6, 7, 11, 15)), text),
        "not masked": frame(TEXT, text, mask=b""),
        "continuation of nothing": frame(CONTINUATION, text),
        "two beginnings": frame(TEXT, text, final=False) + frame(TEXT, text),
        "long ping": frame(PING, b"x" * 126),
        "ping in pieces": frame(PING, b"x", final=False),
        "not UTF-8": frame(
            TEXT, rng.choice((b"\xff", b"\xed\xa0\x80", b"\xf0\x9f", b"{\xc0\x80}"))
        ),
        "not UTF-8 in pieces": frame(TEXT, b"\xf0\x9f", final=False) + frame(CONTINUATION, b"\xff"),
        "large": frame(TEXT, b'"' + b"x" * (large - 2) + b'"'),
        "announced large": b"\x81\xff" + struct.pack("!Q", rng.choice((1 << 40, 1 << 63))),
        "half a frame": frame(TEXT, text)[: max(2, len(text) // 2)],
        "close": frame(
            CLOSE, rng.choice((b"", code, code + b"bye", bad_code, b"\x03", code + b"\xff"))
        ),
        "events after a close": frame(CLOSE, code) + frame(TEXT, text),
        "bytes": rng.randbytes(rng.choice((2, 30, 500))),
    }
    name = rng.choice(sorted(kinds))
    return Frames(name, kinds[name], is_sound=False)


def plain_event(kind: str, **fields: object) -> bytes:
    """A sound event in one frame."""
    return frame(TEXT, json.dumps({"type": kind, **fields}).encode())
