"""Signed tokens: who they stand for, and what is none."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth import Allowance, Principal, TokenKeys, TokenVerifier, mint, parse_token_keys
from app.auth.token_keys import new_key, public_half
from app.auth.tokens import LEEWAY_S, MAX_TOKEN_CHARS, TokenError
from engine.contract import Tier

EDDSA = new_key("eddsa")
HS256 = new_key("hs256")
HOUR_S = 3600


def key_set(*jwks: Any) -> str:
    return json.dumps({"keys": jwks})


KEYS = parse_token_keys(key_set(EDDSA, HS256))


def verifier(keys: TokenKeys = KEYS, issuer: str = "repartee") -> TokenVerifier:
    return TokenVerifier(lambda: keys, audience="repartee", issuer=issuer)


def signed(jwk: dict[str, str] = EDDSA, **changes: Any) -> str:
    key = KEYS.find(jwk["kid"])
    assert key is not None
    fields = {
        "tenant": "acme",
        "tier": Tier.VIP,
        "ttl_s": HOUR_S,
        "audience": "repartee",
        "issuer": "repartee",
    }
    return mint(key, **{**fields, **changes})


def forged(claims: dict[str, Any], header: dict[str, Any], key: bytes = b"") -> str:
    """A token made by hand: HMAC under `key`, or without a signature."""
    head = b".".join(_part(json.dumps(part).encode()) for part in (header, claims))
    signature = hmac.new(key, head, hashlib.sha256).digest() if key else b""
    return (head + b"." + _part(signature)).decode()


def _part(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    known = {"aud": "repartee", "iss": "repartee", "sub": "acme", "exp": now + HOUR_S}
    return {k: v for k, v in {**known, **changes}.items() if v is not None}


def hs256(**changes: Any) -> str:
    secret = base64.urlsafe_b64decode(HS256["k"] + "==")
    return forged(claims(**changes), {"alg": "HS256", "kid": HS256["kid"]}, secret)


@pytest.mark.parametrize("jwk", [EDDSA, HS256], ids=["eddsa", "hs256"])
def test_a_token_names_tenant_and_tier(jwk: dict[str, str]) -> None:
    before = time.time()
    principal = verifier().verify(signed(jwk, subject="ann"))
    assert principal.expires_at is not None
    assert int(before) + HOUR_S <= principal.expires_at <= time.time() + HOUR_S
    assert principal == Principal("acme", Tier.VIP, "ann", principal.expires_at)


def test_a_gateway_needs_only_the_public_half() -> None:
    half = public_half(EDDSA)
    assert half is not None
    assert "d" not in half
    keys = parse_token_keys(key_set(half))
    assert verifier(keys).verify(signed()).tenant == "acme"
    with pytest.raises(ValueError, match="can sign"):
        keys.signer()
    assert public_half(HS256) is None


def test_the_tenant_is_the_subject_where_nothing_else_is_said() -> None:
    assert verifier().verify(hs256(sub="bob")).tenant == "bob"
    assert verifier().verify(hs256()).tier is Tier.STANDARD


def test_limits_travel_in_claims() -> None:
    token = signed(limits={"requests_per_min": 5, "tokens_per_min": 100})
    assert verifier().verify(token).allowance == Allowance(5, 100)


def test_old_tokens_count_until_their_key_goes() -> None:
    keys = [parse_token_keys(key_set(EDDSA))]
    tokens = TokenVerifier(lambda: keys[0], audience="repartee", issuer="repartee")
    old = signed(EDDSA)
    with pytest.raises(TokenError):
        tokens.verify(signed(HS256))
    keys[0] = parse_token_keys(key_set(EDDSA, HS256))
    assert tokens.verify(old).tenant == tokens.verify(signed(HS256)).tenant == "acme"
    assert keys[0].signer().kid == HS256["kid"]
    keys[0] = parse_token_keys(key_set(HS256))
    with pytest.raises(TokenError, match="no key"):
        tokens.verify(old)


def test_clocks_may_differ_by_the_leeway() -> None:
    now = time.time()
    assert verifier().verify(hs256(exp=now - LEEWAY_S + 5)).tenant == "acme"
    assert verifier().verify(hs256(nbf=now + LEEWAY_S - 5, iat=now + 20)).tenant == "acme"


def test_an_issuer_is_asked_for_only_if_one_is_set() -> None:
    assert verifier(issuer="").verify(hs256(iss="other")).tenant == "acme"


def _confused() -> str:
    """HMAC under the public half of an Ed25519 key, which everybody may know."""
    public = base64.urlsafe_b64decode(EDDSA["x"] + "==")
    return forged(claims(), {"alg": "HS256", "kid": EDDSA["kid"]}, public)


WRONG: dict[str, Callable[[], str]] = {
    "nothing": lambda: "",
    "words": lambda: "not a token",
    "dots": lambda: "..",
    "expired": lambda: signed(now=time.time() - HOUR_S - LEEWAY_S - 5),
    "not yet": lambda: hs256(nbf=time.time() + LEEWAY_S + 5),
    "issued later": lambda: hs256(iat=time.time() + LEEWAY_S + 5),
    "no end": lambda: hs256(exp=None),
    "other audience": lambda: signed(audience="other"),
    "no audience": lambda: hs256(aud=None),
    "other issuer": lambda: signed(issuer="other"),
    "no issuer": lambda: hs256(iss=None),
    "alg none": lambda: forged(claims(), {"alg": "none", "kid": EDDSA["kid"]}),
    "alg None": lambda: forged(claims(), {"alg": "None", "kid": HS256["kid"]}),
    "alg swapped": lambda: _confused(),
    "alg swapped back": lambda: forged(claims(), {"alg": "EdDSA", "kid": HS256["kid"]}, b"x"),
    "empty signature": lambda: signed().rpartition(".")[0] + ".",
    "cut signature": lambda: signed()[:-4],
    "other payload": lambda: ".".join(
        [signed().split(".")[0], signed(tenant="evil").split(".")[1], signed().split(".")[2]]
    ),
    "no kid": lambda: forged(claims(), {"alg": "HS256"}, b"x" * 32),
    "wrong kid": lambda: forged(claims(), {"alg": "HS256", "kid": "none"}, b"x" * 32),
    "kid of another kind": lambda: forged(claims(), {"alg": "HS256", "kid": [1]}, b"x" * 32),
    "key in its own header": lambda: forged(
        claims(), {"alg": "HS256", "jwk": HS256, "kid": "none"}, b"x" * 32
    ),
    "unknown crit": lambda: jwt.encode(
        claims(),
        base64.urlsafe_b64decode(HS256["k"] + "=="),
        headers={"kid": HS256["kid"], "crit": ["x"], "x": 1},
    ),
    "no tenant": lambda: hs256(sub=None),
    "odd tenant": lambda: hs256(tenant="a/b"),
    "unicode tenant": lambda: hs256(tenant="१२३"),
    "tenant of another kind": lambda: hs256(tenant=["acme"]),
    "odd tier": lambda: hs256(tier="gold"),
    "tier of another kind": lambda: hs256(tier={}),
    "long subject": lambda: hs256(sub="s" * 300),
    "odd limits": lambda: hs256(limits={"requests_per_min": -1}),
    "limits of another kind": lambda: hs256(limits=[1]),
    "unicode end": lambda: hs256(exp="١٩٩٩٩٩٩٩٩٩"),
    "text end": lambda: hs256(exp="9999999999"),
    "endless": lambda: hs256(exp=float("inf")),
    "boolean nbf": lambda: hs256(nbf=True),
    "unicode": lambda: signed() + "é",
    "too long": lambda: "a." * MAX_TOKEN_CHARS,
    "deep header": lambda: _part(b"[" * 2900).decode() + ".e30.",
}


@pytest.mark.parametrize("name", WRONG)
def test_aut_06_what_is_no_token(name: str) -> None:
    token = WRONG[name]()
    with pytest.raises(TokenError) as caught:
        verifier().verify(token)
    for part in token.split("."):
        assert len(part) < 12 or part not in str(caught.value)


GOOD = signed()


@given(st.integers(0, len(GOOD) - 1), st.characters(max_codepoint=0x2FF))
def test_aut_06_a_changed_token_is_none(at: int, char: str) -> None:
    changed = GOOD[:at] + char + GOOD[at + 1 :]
    try:
        principal = verifier().verify(changed)
    except TokenError:
        return
    # The last character of a part has bits that mean nothing.
    assert principal == verifier().verify(GOOD)
    assert changed.split(".")[1] == GOOD.split(".")[1]


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda data: data.decode("latin-1")))
def test_aut_06_any_text_is_refused_and_nothing_else_happens(text: str) -> None:
    for token in (text, f"{GOOD.split('.')[0]}.{text}.{text}", f"{GOOD}.{text}"):
        with pytest.raises(TokenError):
            verifier().verify(token)


@pytest.mark.parametrize(
    ("jwk", "reason"),
    [
        (1, "keys.0 must be an object"),
        ({**EDDSA, "kid": None}, "keys.0.kid"),
        ({**EDDSA, "kid": "a b"}, "keys.0.kid"),
        ({**EDDSA, "kty": "RSA"}, "keys.0.kty"),
        ({**EDDSA, "kty": []}, "keys.0.kty"),
        ({**EDDSA, "crv": "X25519"}, "keys.0.crv"),
        ({**EDDSA, "alg": "HS256"}, "keys.0.alg"),
        ({**HS256, "alg": "none"}, "keys.0.alg"),
        ({**HS256, "use": "enc"}, "keys.0.use"),
        ({**HS256, "k": HS256["k"][:20]}, "at least 32 bytes"),
        ({**HS256, "k": "!" * 60}, "base64url"),
        ({**HS256, "k": "é" * 60}, "base64url"),
        ({**EDDSA, "x": EDDSA["x"][:20]}, "not a sound key"),
        ({**EDDSA, "d": "!"}, "not a sound key"),
    ],
)
def test_wrong_keys_are_named_and_not_shown(jwk: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_token_keys(key_set(jwk))
    assert HS256["k"] not in str(caught.value)
    assert EDDSA["d"] not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[" * 5000, "not JSON"),
        ("[]", "array"),
        ('{"keys": {}}', "array"),
        ('{"keys": []}', "no key"),
        (key_set(EDDSA, EDDSA), "two keys"),
    ],
)
def test_wrong_key_sets(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_token_keys(text)


def test_keys_are_not_shown() -> None:
    key = KEYS.find(HS256["kid"])
    assert HS256["k"] not in repr(key)
