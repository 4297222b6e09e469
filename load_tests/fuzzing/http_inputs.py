"""HTTP requests, sound and broken, for every route of a gateway."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from load_tests.chaos_processes import MODEL
from load_tests.fuzzing import bodies
from load_tests.fuzzing.bodies import Known
from load_tests.fuzzing.values import dump, mutate, odd_value, spoil

_METHODS = (
    *("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT"),
    *("PRI", "get", "X" * 40, "BREW"),
)
_TYPES = (
    *("text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data", "x/y;" * 30),
    *("application/json; charset=utf-16", "application/xml"),
)
_PATHS = (
    *("/", "/index.html", "/main.js", "/ops/", "/ops", "/favicon.ico", "/%00", "/main.js%00.png"),
    *(
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/.git/config",
        "//v1/models",
        "/v1",
        "/v1/",
    ),
    *("/v1/../metrics", "/v1/%2e%2e/metrics", "/v1/models/", "/v1/models/a/b", "/V1/models", "*"),
    *("/livez", "/readyz", "/livez/", "/" + "a" * 300, "/" + "a/" * 2000, "/%ff%fe", "/%", "/%zz"),
    *("/v1/realtime", "/v1/sessions/", "/v1/sessions//export", "/v1/responses/a/b", "/v1/nothing"),
    *("http://127.0.0.1/livez", "http://evil.example/v1/models", "https://a@127.0.0.1/v1/models"),
    *("http://", "/\\..\\x", "/main.js?" + "a=b&" * 500, "/" + "%41" * 5000, "/con:", "/..;/ops"),
)
_HEADERS = (
    *("host: 127.0.0.1", "host: evil.example", "host: [::::]", "host:", "origin: null"),
    *("origin: http://[::::]", "origin: http://evil.example", "origin: http://127.0.0.1"),
    *("expect: 100-continue", "expect: 200-ok", "upgrade: h2c", "connection: upgrade"),
    *("upgrade: websocket", "connection: close", "connection: keep-alive, \x01", "te: trailers"),
    *("range: bytes=0-", "range: bytes=5-1", "range: bytes=-99999999999999", "range: bytes=a-b"),
    *("range: bytes=" + "0-0," * 200 + "1-1", "if-none-match: *", "if-modified-since: yesterday"),
    *("if-range: x", "accept-encoding: gzip, br;q=7", "accept: image/png", "cookie: a=b"),
    *(
        "traceparent: 00-" + "0" * 32 + "-" + "0" * 16 + "-00",
        "traceparent: \xff",
        "traceparent: z",
    ),
    *("x-request-id: " + "x" * 9000, "x-forwarded-for: 1.2.3.4", "x-http-method-override: DELETE"),
    *("authorization: Basic eDp5", "authorization: Bearer", "authorization: Bearer a b"),
    *(
        "authorization: Bearer \xe9\xe9",
        "authorization: Bearer ek_x",
        "x: \xff\xfe",
        "x: " + "y" * 30_000,
    ),
    *("sec-websocket-key: x", "sec-websocket-protocol: realtime, openai-insecure-api-key.x"),
    *("access-control-request-method: PUT", "access-control-request-headers: \xff, a"),
    *("content-length: 5", "content-length: -1", "content-length: 99999999999999999999", "a b: c"),
    *("content-length: 1, 2", "transfer-encoding: gzip, chunked", "transfer-encoding: x", ": c"),
    *("content-encoding: gzip", " folded", "x\x00y: z", "bad\x7fname: v", "no colon"),
)
_CHUNKS = (
    *(b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"zz\r\n"),
    *(
        b"5;" + b"x" * 100 + b"\r\nhello\r\n0\r\nx: y\r\n\r\n",
        b"5\r\nhelloXX",
        b"00000005\r\nhello\r\n",
    ),
    *(b"5\nhello\n0\n\n", b"", b"1\r\n{\r\n" * 300 + b"0\r\n\r\n"),
)


@dataclass(frozen=True)
class Input:
    """What one or several requests are as bytes.

    Attributes:
        kind: For the count.
        data: The bytes.
        methods: Of the requests in it; empty if it is no sound HTTP, so that there may be
            no answer, and no second request on its connection.
        is_foreign: It asks for what another tenant owns.
    """

    kind: str
    data: bytes
    methods: tuple[str, ...] = ()
    is_foreign: bool = False


@dataclass(frozen=True)
class Caller:
    """Whose requests they are.

    Attributes:
        headers: Lines that show the credential.
        known: The tenant's own ids.
        other: Another tenant's.
    """

    headers: tuple[str, ...]
    known: Known
    other: Known


Template = Callable[[random.Random, Known], dict[str, object]]
_POSTS: dict[str, Template] = {
    "/v1/chat/completions": bodies.chat,
    "/v1/responses": bodies.http_response,
    "/v1/realtime/client_secrets": bodies.secret,
    "/v1/realtime/tickets": bodies.ticket,
}
_GETS = ("/v1/models", f"/v1/models/{MODEL}", "/metrics", "/ops/state", "/livez", "/v1/sessions")


def make_input(rng: random.Random, caller: Caller) -> Input:
    """The next one."""
    kind = rng.randrange(20)
    if kind < 9:
        return _post(rng, caller)
    if kind < 14:
        return _of_one(rng, caller)
    if kind < 15:
        return _get(rng, caller)
    if kind < 17:
        return _pathological(rng, caller)
    if kind < 18:
        return _pipelined(rng, caller)
    return _broken(rng, caller)


def request(method: str, target: str, caller: Caller, body: bytes | None, *headers: str) -> bytes:
    """A sound request's bytes."""
    lines = [f"{method} {target} HTTP/1.1", "host: 127.0.0.1", *caller.headers, *headers]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def _body(template: Template, rng: random.Random, known: Known) -> bytes:
    value = template(rng, known)
    kind = rng.randrange(10)
    if kind < 3:
        return dump(value).encode()
    changed = dump(mutate(value, rng))
    return changed.encode() if kind < 8 else spoil(changed, rng)


def _post(rng: random.Random, caller: Caller) -> Input:
    target = rng.choice(sorted(_POSTS))
    body = _body(_POSTS[target], rng, caller.known)
    content_type = rng.choice(_TYPES) if rng.random() < 0.1 else "application/json"
    method = "POST" if rng.random() < 0.95 else rng.choice(_METHODS[:7])
    data = request(method, target, caller, body, f"content-type: {content_type}")
    return Input(f"http {target}", data, (method,))


def _query(rng: random.Random, names: tuple[str, ...], known: Known) -> str:
    fields = []
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        name = rng.choice((*names, *names, "x", "limit[]"))
        usual = ("1", "20", "true", "asc", "json", "markdown", "0", "5", known.one_of("items", rng))
        value = rng.choice(usual) if rng.random() < 0.6 else str(odd_value(rng))[:3000]
        fields.append(f"{name}={quote(value, errors='replace', safe='')}")
    return "?" + "&".join(fields) if fields else ""


def _of_one(rng: random.Random, caller: Caller) -> Input:
    """A session or a response, mostly an own one."""
    is_foreign = rng.random() < 0.2
    known = caller.other if is_foreign else caller.known
    if rng.random() < 0.5:
        sid = quote(known.one_of("sessions", rng), safe="")
        suffix = rng.choice(("", "", "", "/export"))
        path, names = f"/v1/sessions/{sid}{suffix}", ("limit", "after", "query", "format")
        method = (
            rng.choice(("GET", "GET", "GET", "POST", "DELETE", "HEAD")) if not suffix else "GET"
        )
        body = _body(bodies.title, rng, known) if method == "POST" else None
        names = ("format",) if suffix else ()
    else:
        rid = quote(known.one_of("responses", rng), safe="")
        suffix, method = rng.choice(
            (("", "GET"), ("", "GET"), ("", "DELETE"), ("/cancel", "POST"), ("/input_items", "GET"))
        )
        path, body = f"/v1/responses/{rid}{suffix}", None
        names = ("stream", "starting_after", "include", "limit", "after", "order")
    data = request(method, path + _query(rng, names, known), caller, body)
    return Input("http of one", data, (method,), is_foreign)


def _get(rng: random.Random, caller: Caller) -> Input:
    target = rng.choice(_GETS) + _query(rng, ("limit", "after", "query"), caller.known)
    method = rng.choice(("GET", "GET", "HEAD", "POST", "DELETE"))
    if rng.random() < 0.1:
        target, method = (
            f"/ops/workers/{quote(str(odd_value(rng))[:200], errors='replace')}/drain",
            "POST",
        )
    return Input("http get", request(method, target, caller, None), (method,))


def _pathological(rng: random.Random, caller: Caller) -> Input:
    """Paths and headers that nobody sends; each may be no sound HTTP."""
    method, path = rng.choice(_METHODS), rng.choice(_PATHS)
    if rng.random() < 0.6:
        method = "GET"
    headers = [rng.choice(_HEADERS) for _ in range(rng.choice((0, 1, 1, 2)))]
    if rng.random() < 0.02:
        headers += [f"x-{n}: y" for n in range(3000)]
    return Input("http odd head", request(method, path, caller, None, *headers))


def _pipelined(rng: random.Random, caller: Caller) -> Input:
    parts = [rng.choice((_get, _of_one, _post))(rng, caller) for _ in range(rng.randint(2, 6))]
    data, methods = b"".join(part.data for part in parts), tuple(p.methods[0] for p in parts)
    return Input("http pipelined", data, methods)


def _broken(rng: random.Random, caller: Caller) -> Input:
    """No sound HTTP, or a sound request that is not sent to its end."""
    kind = rng.randrange(6)
    if kind == 0:
        head = request("POST", "/v1/chat/completions", caller, None, "transfer-encoding: chunked")
        return Input("http chunks", head + rng.choice(_CHUNKS))
    whole = bytearray(_post(rng, caller).data)
    if kind in (1, 2):
        return Input("http cut", bytes(whole[: rng.randrange(len(whole))]))
    if kind == 3:
        for _ in range(rng.choice((1, 2, 10))):
            whole[rng.randrange(min(len(whole), 200))] = rng.randrange(256)
        return Input("http flipped", bytes(whole))
    if kind == 4:
        return Input("http bytes", rng.randbytes(rng.choice((1, 10, 300, 5000))))
    lines = bytes(whole).split(b"\r\n")
    rng.shuffle(lines)
    return Input("http shuffled", b"\r\n".join(lines))
