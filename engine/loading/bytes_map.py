"""From a token as its vocabulary writes it to the bytes it stands for."""

from __future__ import annotations

import re

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "\u2581"


def _byte_characters() -> dict[str, int]:
    """GPT-2's printable character for each byte, reversed.

    Printable Latin-1 stands for itself; the others follow from U+0100 in order.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in printable)
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(256 + index): byte for index, byte in enumerate(others)}


# The byte of each character that byte-level vocabularies write.
BYTE_CHARACTERS = _byte_characters()


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a GPT-2 style token; one that isn't written that way is its own text."""
    try:
        return bytes(BYTE_CHARACTERS[character] for character in token)
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """Bytes of a SentencePiece token: `<0x0A>` is one byte, a lower block a space."""
    match = _BYTE_TOKEN.fullmatch(token)
    if match:
        return bytes([int(match[1], 16)])
    return token.replace(SPACE_MARK, " ").encode()
