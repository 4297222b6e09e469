"""`metadata` of a response: a few short strings, given back as they came."""

from __future__ import annotations

from app.protocol.fields import Fields
from engine.contract import InvalidRequest

MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512


def read_metadata(response: Fields) -> dict[str, str] | None:
    """The `metadata` of a request.

    Raises:
        InvalidRequest: too many, or one that is too long.
    """
    metadata = response.object("metadata")
    if metadata is None:
        return None
    if len(metadata.source) > MAX_METADATA:
        raise InvalidRequest(
            f"{metadata.path} holds at most {MAX_METADATA} keys, got {len(metadata.source)}.",
            param=metadata.path,
        )
    for key in metadata.source:
        if len(key) > MAX_METADATA_KEY_CHARS:
            raise InvalidRequest(
                f"{metadata.path} keys must be at most {MAX_METADATA_KEY_CHARS} characters, "
                f"got {len(key)}.",
                param=metadata.path,
            )
        metadata.required_string(key, MAX_METADATA_VALUE_CHARS)
    return dict(metadata.source)
