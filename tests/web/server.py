"""A scripted stand-in for the gateway: serves the page and speaks the Realtime wire.

It keeps sessions and each answer's log in memory, so that a page can lose its socket or be
loaded again in the middle of an answer. What an answer says, and when, is in `Script`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

WEB = Path(__file__).resolve().parents[2] / "web"
CSP = (
    "default-src 'self'; connect-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
MODEL = "scripted-model"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass
class Script:
    """How the server behaves; tests change it before they act.

    Attributes:
        chunks: The deltas of the next answers.
        gap_s: Pause before each delta.
        hold_before: Index of the delta before which the answer waits for `release()`.
        status: Status of `response.done`.
        reason: Its `status_details.reason`.
        error: The error of a failed response.
        refuse: Error object that answers `response.create`.
        refuse_item: Error object that answers `conversation.item.create`.
        ignore_creates: How many `response.create` to lose, as a dying gateway does.
        key: The API key asked for; None asks for none.
        key_by: "close" accepts the socket, then closes 4401; "status" refuses the upgrade.
        greeting_error: Error event sent in place of `session.created`, then a close.
        greeting_close: Close code that follows it.
        context_window: Of the model, in tokens.
        usage: Of `response.done`.
        tier: Named in `session.created`.
        queued_ms: Of `response.done`.
    """

    chunks: list[str] = field(default_factory=lambda: ["Hello", " there."])
    gap_s: float = 0.0
    hold_before: int | None = None
    status: str = "completed"
    reason: str | None = None
    error: dict[str, Any] | None = None
    refuse: dict[str, Any] | None = None
    refuse_item: dict[str, Any] | None = None
    ignore_creates: int = 0
    key: str | None = None
    key_by: str = "close"
    greeting_error: dict[str, Any] | None = None
    greeting_close: int = 1013
    context_window: int = 8192
    usage: dict[str, Any] | None = None
    tier: str | None = None
    queued_ms: float | None = None


@dataclass
class Answer:
    """One response: its log, and how it ended."""

    response_id: str
    item_id: str
    log: list[str] = field(default_factory=list)
    status: str = "in_progress"
    details: dict[str, Any] | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def text(self) -> str:
        return "".join(self.log)

    def item(self) -> dict[str, Any]:
        status = "completed" if self.status == "completed" else "incomplete"
        part = {"type": "output_text", "text": self.text}
        return message_item(self.item_id, "assistant", status, [part])

    def response(self) -> dict[str, Any]:
        output = [self.item()] if self.log and self.status != "in_progress" else []
        return {
            "id": self.response_id,
            "object": "realtime.response",
            "status": self.status,
            "status_details": self.details,
            "output": output,
        }


def message_item(
    item_id: str, role: str, status: str, content: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "role": role,
        "status": status,
        "content": content,
    }


@dataclass
class Session:
    """A stored conversation, and the answer that runs in it."""

    session_id: str
    items: list[dict[str, Any]] = field(default_factory=list)
    active: Answer | None = None
    sockets: set[ServerConnection] = field(default_factory=set)
    settings: dict[str, Any] = field(default_factory=lambda: {"repartee": {}})

    def summary(self) -> dict[str, Any]:
        title = self.items[0]["content"][0]["text"][:60]
        return {"id": self.session_id, "title": title, "updated_at": 1_800_000_000}

    def shown(self) -> dict[str, Any]:
        return {
            "id": self.session_id,
            "object": "realtime.session",
            "model": MODEL,
            "instructions": "",
            "max_output_tokens": "inf",
            **self.settings,
        }


class PageServer:
    """Runs in its own thread; `url` is where the page is.

    `received` holds every client event, `requests` every HTTP path, `handshakes` the query of
    every upgrade, in order.
    """

    def __init__(self) -> None:
        self.script = Script()
        self.sessions: dict[str, Session] = {}
        self.received: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.handshakes: list[dict[str, list[str]]] = []
        self.subprotocols: list[str | None] = []
        self.refuse_sockets = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Event()
        self._ids = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._started.wait(10)

    def reset(self) -> None:
        """Forget everything: as a new server, on the same port."""
        self._call(self._forget)

    def release(self) -> None:
        """Let held answers go on."""
        self._call(self._gate.set)

    def hold(self) -> None:
        self._call(self._gate.clear)

    def drop(self, code: int | None = None) -> None:
        """End every socket: without a word, or with a close code."""
        self._call(lambda: self._drop(code))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    def sent(self, kind: str) -> list[dict[str, Any]]:
        """Client events of one type, so far."""
        return [event for event in self.received if event.get("type") == kind]

    @property
    def sockets(self) -> int:
        return sum(len(session.sockets) for session in self.sessions.values())

    def _call(self, function: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            function()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(10)

    def _forget(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._drop(None)
        self.script = Script()
        self.sessions = {}
        self.refuse_sockets = False
        self._gate.clear()
        for log in (self.received, self.requests, self.handshakes, self.subprotocols):
            log.clear()

    def _drop(self, code: int | None) -> None:
        for session in self.sessions.values():
            for socket in session.sockets:
                if code is None:
                    socket.transport.abort()
                else:
                    self._spawn(socket.close(code))
            session.sockets = set()

    def _spawn(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        async with serve(
            self._connection,
            "127.0.0.1",
            0,
            process_request=self._http,
            select_subprotocol=lambda _, offered: "realtime" if "realtime" in offered else None,
            max_size=1024 * 1024,
        ) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            self._started.set()
            await self._stopping.wait()
            self._forget()

    def _http(self, connection: ServerConnection, request: Request) -> Response | None:
        path = urlsplit(request.path).path
        if path == "/v1/realtime":
            return self._upgrade(request)
        self.requests.append(path)
        if path == "/v1/models":
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            wrong = self.script.key is not None and given != self.script.key
            card = {"id": MODEL, "context_window": self.script.context_window}
            models = json.dumps({"object": "list", "data": [card]}).encode()
            return _answer(401 if wrong else 200, models, "application/json")
        if path == "/v1/sessions":
            shown = [s.summary() for s in self.sessions.values() if s.items]
            page = {"object": "list", "data": shown[::-1], "next_after": None}
            return _answer(200, json.dumps(page).encode(), "application/json")
        name = "index.html" if path == "/" else path.lstrip("/")
        file = (WEB / name).resolve()
        if WEB not in file.parents or not file.is_file():
            return _answer(404, b"not found", "text/plain")
        return _answer(200, file.read_bytes(), _TYPES[file.suffix])

    def _upgrade(self, request: Request) -> Response | None:
        self.handshakes.append(parse_qs(urlsplit(request.path).query))
        offered = request.headers.get("sec-websocket-protocol")
        self.subprotocols.append(offered)
        if self.refuse_sockets:
            return _answer(503, b"", "text/plain")
        if self.script.key_by == "status" and not self._has_key(offered):
            return _answer(401, b"", "text/plain")
        return None

    def _has_key(self, offered: str | None) -> bool:
        element = f"openai-insecure-api-key.{self.script.key}"
        return self.script.key is None or element in (offered or "").replace(" ", "").split(",")

    async def _connection(self, socket: ServerConnection) -> None:
        offered = socket.request.headers.get("sec-websocket-protocol") if socket.request else None
        if not self._has_key(offered):
            error = {"type": "authentication_error", "code": "invalid_api_key", "message": "No."}
            await _send(socket, "error", error=error)
            await socket.close(4401)
            return
        if self.script.greeting_error is not None:
            await _send(socket, "error", error=self.script.greeting_error)
            await socket.close(self.script.greeting_close)
            return
        session = self._session(socket)
        try:
            await self._greet(socket, session)
            session.sockets.add(socket)
            async for frame in socket:
                event = json.loads(frame)
                self.received.append(event)
                await self._handle(socket, session, event)
        except ConnectionClosed:
            pass
        finally:
            session.sockets.discard(socket)

    def _session(self, socket: ServerConnection) -> Session:
        query = parse_qs(urlsplit(socket.request.path).query) if socket.request else {}
        wanted = query.get("session_id", [""])[0]
        if wanted in self.sessions:
            return self.sessions[wanted]
        session = Session(f"sess_{next(self._ids)}")
        self.sessions[session.session_id] = session
        return session

    async def _greet(self, socket: ServerConnection, session: Session) -> None:
        await _send(
            socket,
            "session.created",
            session=session.shown(),
            **{
                "repartee.items": session.items,
                "repartee.items_remaining": 0,
                "repartee.tier": self.script.tier,
            },
        )
        if session.active is not None:
            cursor = {"epoch": 1, "seq": len(session.active.log)}
            await _send(
                socket,
                "repartee.response.resumed",
                state="live",
                response=session.active.response(),
                item_id=session.active.item_id,
                text=session.active.text,
                **{"repartee.cursor": cursor},
            )

    async def _handle(
        self, socket: ServerConnection, session: Session, event: dict[str, Any]
    ) -> None:
        match event["type"]:
            case "conversation.item.create":
                await self._create_item(socket, session, event)
            case "conversation.item.delete":
                session.items = [i for i in session.items if i["id"] != event["item_id"]]
                await _send(socket, "conversation.item.deleted", item_id=event["item_id"])
            case "repartee.conversation.truncate":
                await self._truncate(session, event["item_id"])
            case "response.create":
                await self._create_response(socket, session, event)
            case "response.cancel":
                if session.active is None:
                    error = {"type": "invalid_request_error", "code": "response_cancel_not_active"}
                    await _send_error(socket, event, error)
                else:
                    session.active.stopping.set()
            case "repartee.ping":
                await _send(socket, "repartee.pong")
            case "repartee.input_draft":
                draft = {"draft_event_id": event["event_id"]}
                await _send(socket, "repartee.input_draft.taken", **draft)
            case "session.update":
                sampling = {**session.settings["repartee"], **event["session"]["repartee"]}
                kept = {name: value for name, value in sampling.items() if value is not None}
                session.settings = {**event["session"], "repartee": kept}
                await self._tell(session, "session.updated", session=session.shown())
            case _:
                await _send_error(socket, event, {"type": "invalid_request_error", "code": "type"})

    async def _create_item(
        self, socket: ServerConnection, session: Session, event: dict[str, Any]
    ) -> None:
        item = event["item"]
        if self.script.refuse_item is not None:
            await _send_error(socket, event, self.script.refuse_item)
        elif any(stored["id"] == item["id"] for stored in session.items):
            error = {"type": "invalid_request_error", "code": "item_exists", "message": "exists"}
            await _send_error(socket, event, error)
        else:
            stored = message_item(item["id"], item["role"], "completed", item["content"])
            session.items.append(stored)
            await _send(socket, "conversation.item.added", item=stored)
            await _send(socket, "conversation.item.done", item=stored)

    async def _truncate(self, session: Session, item_id: str) -> None:
        ids = ["root", *(item["id"] for item in session.items)]
        stay = ids.index(item_id)
        gone, session.items = ids[stay + 1 :], session.items[:stay]
        kind = "repartee.conversation.truncated"
        await self._tell(session, kind, item_id=item_id, deleted_item_ids=gone)

    async def _create_response(
        self, socket: ServerConnection, session: Session, event: dict[str, Any]
    ) -> None:
        if self.script.ignore_creates > 0:
            self.script.ignore_creates -= 1
            socket.transport.abort()
        elif self.script.refuse is not None:
            await _send_error(socket, event, self.script.refuse)
        elif session.active is not None:
            code = "conversation_already_has_active_response"
            await _send_error(socket, event, {"type": "invalid_request_error", "code": code})
        else:
            number = next(self._ids)
            session.active = Answer(f"resp_{number}", f"item_{number}")
            self._spawn(self._answer(session, session.active, self.script))

    async def _answer(self, session: Session, answer: Answer, script: Script) -> None:
        ids = {"response_id": answer.response_id, "item_id": answer.item_id}
        place = {**ids, "output_index": 0, "content_index": 0}
        await self._tell(session, "response.created", response=answer.response())
        for index, chunk in enumerate(script.chunks):
            if not await self._may_go_on(answer, script, index):
                break
            if index == 0:
                item = message_item(answer.item_id, "assistant", "in_progress", [])
                await self._tell(session, "response.output_item.added", **ids, item=item)
                await self._tell(session, "conversation.item.added", item=item)
                part = {"type": "text", "text": ""}
                await self._tell(session, "response.content_part.added", **place, part=part)
            answer.log.append(chunk)
            cursor = {"repartee.cursor": {"epoch": 1, "seq": len(answer.log)}}
            await self._tell(session, "response.output_text.delta", **place, delta=chunk, **cursor)
        await self._end(session, answer, script, place)

    async def _may_go_on(self, answer: Answer, script: Script, index: int) -> bool:
        """Wait as the script says; false when the answer was cancelled."""
        waits = [asyncio.ensure_future(answer.stopping.wait())]
        if index == script.hold_before:
            waits.append(asyncio.ensure_future(self._gate.wait()))
        else:
            waits.append(asyncio.ensure_future(asyncio.sleep(script.gap_s)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not answer.stopping.is_set()

    async def _end(
        self, session: Session, answer: Answer, script: Script, place: dict[str, Any]
    ) -> None:
        answer.status = "cancelled" if answer.stopping.is_set() else script.status
        if answer.status != "completed":
            reason = "client_cancelled" if answer.status == "cancelled" else script.reason
            answer.details = {"type": answer.status, "reason": reason, "error": script.error}
        session.active = None
        if answer.log:
            session.items.append(answer.item())
            await self._tell(session, "response.output_text.done", **place, text=answer.text)
            await self._tell(session, "conversation.item.done", item=answer.item())
        response = {**answer.response(), "usage": script.usage}
        private = {"repartee.queued_ms": script.queued_ms}
        await self._tell(session, "response.done", response=response, **private)

    async def _tell(self, session: Session, kind: str, /, **fields: Any) -> None:
        for socket in list(session.sockets):
            try:
                await _send(socket, kind, **fields)
            except ConnectionClosed:
                session.sockets.discard(socket)


async def _send(socket: ServerConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, "event_id": "event_1", **fields}))


async def _send_error(
    socket: ServerConnection, event: dict[str, Any], error: dict[str, Any]
) -> None:
    shown = {"message": "The server said no.", "param": None, **error}
    await _send(socket, "error", error={**shown, "event_id": event.get("event_id")})


def _answer(status: int, body: bytes, kind: str) -> Response:
    headers = Headers(
        {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": CSP,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
    )
    return Response(status, HTTPStatus(status).phrase, headers, body)
