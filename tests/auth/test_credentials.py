"""Where a request carries its credential, and what happens where there are two."""

from __future__ import annotations

import pytest

from app.auth import Credential, credential_of, offered_subprotocols
from engine.contract import AuthenticationFailed

KEY = "sk-0123456789abcdef"
SUBPROTOCOL = f"openai-insecure-api-key.{KEY}"


@pytest.mark.parametrize(
    ("authorizations", "subprotocols"),
    [
        ([f"Bearer {KEY}"], []),
        ([f"bearer  {KEY} "], []),
        ([], ["realtime", SUBPROTOCOL]),
        ([f"Bearer {KEY}"], ["realtime", SUBPROTOCOL]),
        ([f"Bearer {KEY}", f"Bearer {KEY}"], []),
    ],
)
def test_where_credentials_are(authorizations: list[str], subprotocols: list[str]) -> None:
    assert credential_of(authorizations, subprotocols) == Credential(KEY)


@pytest.mark.parametrize(
    ("subprotocols", "tickets"),
    [([], []), (["realtime", "openai-insecure-api-key."], []), (["realtime"], [])],
)
def test_none_is_none(subprotocols: list[str], tickets: list[str]) -> None:
    assert credential_of([], subprotocols, tickets) is None


@pytest.mark.parametrize(
    ("authorizations", "subprotocols", "tickets"),
    [
        ([f"Basic {KEY}"], [], []),
        (["Bearer"], [], []),
        (["Bearer "], [], []),
        ([""], ["realtime", SUBPROTOCOL], []),
        ([f"Bearer {KEY}", f"Bearer {KEY}x"], [], []),
        ([f"Bearer {KEY}x"], ["realtime", SUBPROTOCOL], []),
        ([], [SUBPROTOCOL, SUBPROTOCOL + "x"], []),
        ([f"Bearer {KEY}"], [], ["tk_1"]),
        ([f"Bearer {KEY}"], [], [KEY]),
        ([], [], ["tk_1", "tk_2"]),
    ],
)
def test_aut_06_two_that_differ_are_none(
    authorizations: list[str], subprotocols: list[str], tickets: list[str]
) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        credential_of(authorizations, subprotocols, tickets)
    assert KEY not in str(caught.value)


def test_a_credential_is_not_shown() -> None:
    assert KEY not in repr(Credential(KEY))


def test_subprotocols_are_split() -> None:
    assert offered_subprotocols(["realtime, a.b ,,c", "d"]) == ["realtime", "a.b", "c", "d"]
    assert offered_subprotocols([]) == []
