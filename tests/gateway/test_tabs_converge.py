"""Tabs that do anything at once, on two gateways, with a feed that is cut: all see the same."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from tests.gateway.live import LiveGateway, receive, running_gateway, script
from tests.redis_server import RedisServer
from tests.spine import until

STEPS = 25
TABS = 4


class Tab:
    """A client that keeps a conversation by the events alone."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.items: list[str] = []
        self.texts: dict[str, str] = {}
        self.active: str | None = None
        self.ends: dict[str, int] = {}
        self._arriving: list[dict[str, Any]] = []
        self._task = asyncio.create_task(self._listen())

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.socket.close()

    async def _listen(self) -> None:
        async for frame in self.socket:
            self.apply(json.loads(frame))

    def shown(self) -> list[tuple[str, str]]:
        return [(item_id, self.texts[item_id]) for item_id in self.items]

    def apply(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "session.created" | "repartee.resynced" | "repartee.items":
                if event["type"] != "repartee.items":
                    self._arriving = []
                self._arriving += event["repartee.items"]
                if not event["repartee.items_remaining"]:
                    self.items = [item["id"] for item in self._arriving]
                    self.texts = {item["id"]: _text(item) for item in self._arriving}
            case "conversation.item.added":
                self._place(event["item"], event["previous_item_id"])
            case "conversation.item.done" | "response.output_item.done":
                if event["item"]["id"] in self.texts:
                    self.texts[event["item"]["id"]] = _text(event["item"])
            case "repartee.response.resumed":
                item = {"id": event["item_id"], "content": [{"text": event["text"] or ""}]}
                self._place(item, event["previous_item_id"])
                self.active = event["response"]["id"]
            case "response.created":
                self.active = event["response"]["id"]
            case "response.output_text.delta":
                if event["item_id"] in self.texts:
                    self.texts[event["item_id"]] += event["delta"]
            case "response.done":
                self.active = None
                response = event["response"]
                self.ends[response["id"]] = self.ends.get(response["id"], 0) + 1
                if not response["output"]:
                    self._remove([_item_of(response["id"])])
            case "conversation.item.deleted":
                self._remove([event["item_id"]])
            case "conversation.item.truncated":
                if event["item_id"] in self.texts:
                    text = self.texts[event["item_id"]]
                    self.texts[event["item_id"]] = text[: event["repartee.text_end"]]
            case "repartee.conversation.truncated":
                last = event["item_id"]
                if last == "root":
                    self._remove(list(self.items))
                elif last in self.items:
                    self._remove(self.items[self.items.index(last) + 1 :])

    def _place(self, item: dict[str, Any], previous: str | None) -> None:
        if item["id"] in self.texts:
            self.texts[item["id"]] = _text(item)
            return
        at = self.items.index(previous) + 1 if previous in self.items else len(self.items)
        self.items.insert(0 if previous is None else at, item["id"])
        self.texts[item["id"]] = _text(item)

    def _remove(self, item_ids: list[str]) -> None:
        for item_id in item_ids:
            if self.texts.pop(item_id, None) is not None:
                self.items.remove(item_id)


def _text(item: dict[str, Any]) -> str:
    return "".join(part["text"] for part in item["content"])


def _item_of(response_id: str) -> str:
    return "item_" + response_id.removeprefix("resp_")


@pytest.fixture
async def gateways(redis_url: str) -> AsyncIterator[tuple[LiveGateway, LiveGateway]]:
    async with (
        running_gateway(redis_url) as first,
        running_gateway(redis_url, worker=False) as second,
    ):
        await until(lambda: second.gateway.responses.engine.ready())
        yield first, second


async def anything(tab: Tab, number: int, chance: random.Random) -> None:
    """One thing that a person may do."""
    kind = chance.choice(["add", "add", "ask", "ask", "delete", "cut", "truncate", "cancel", "set"])
    some = chance.choice(tab.items) if tab.items else "root"
    text = script(text="abc def ghi " * chance.randint(1, 6), rate=chance.choice([0, 300]))
    content = [{"type": "input_text", "text": text}]
    item = {"id": f"i{number}", "type": "message", "role": "user", "content": content}
    match kind:
        case "add":
            after = chance.choice([None, None, "root"])
            await tab.send("conversation.item.create", item=item, previous_item_id=after)
        case "ask":
            await tab.send("conversation.item.create", item=item)
            await tab.send("response.create", **{"repartee.answers": item["id"]})
        case "delete":
            await tab.send("conversation.item.delete", item_id=some)
        case "cut":
            await tab.send("conversation.item.truncate", item_id=some, **{"repartee.text_end": 3})
        case "truncate":
            await tab.send("repartee.conversation.truncate", item_id=some)
        case "cancel":
            await tab.send("response.cancel")
        case "set":
            session = {"type": "realtime", "instructions": f"number {number}"}
            await tab.send("session.update", session=session)


@pytest.mark.parametrize(("seed", "cuts"), [(1, False), (2, False), (3, True), (4, True)])
async def test_all_tabs_come_to_show_the_same(
    gateways: tuple[LiveGateway, LiveGateway], redis_server: RedisServer, seed: int, cuts: bool
) -> None:
    chance = random.Random(seed)
    async with AsyncExitStack() as stack:
        tabs: list[Tab] = []
        query = ""
        for number in range(TABS):
            socket = await stack.enter_async_context(
                gateways[number % 2].socket(query, max_queue=None)
            )
            created = await receive(socket)
            query = f"?session_id={created['session']['id']}"
            tab = Tab(socket)
            tab.apply(created)
            stack.push_async_callback(tab.close)
            tabs.append(tab)
        for step in range(STEPS):
            doing = chance.sample(tabs, chance.randint(1, 3))
            await asyncio.gather(
                *(anything(tab, step * TABS + i, chance) for i, tab in enumerate(doing))
            )
            if cuts and step % 8 == 4:
                with redis_server.client() as outside:
                    for client in outside.client_list():
                        if client["name"] == "repartee-changes":
                            outside.client_kill_filter(_id=client["id"])
            if chance.random() < 0.5:
                await asyncio.sleep(0.02)
        session_id = query.partition("=")[2]

        async def truth() -> list[tuple[str, str]] | None:
            session = await gateways[0].gateway.realtime._sessions.load(session_id)
            if session.active is not None:
                return None
            return [(item.item_id, item.text) for item in session.items]

        async def agree() -> bool:
            wanted = await truth()
            return wanted is not None and all(tab.shown() == wanted for tab in tabs)

        try:
            await until(agree, timeout_s=15)
        except TimeoutError:
            wanted = await truth()
            assert [tab.shown() for tab in tabs] == [wanted] * TABS
        for tab in tabs:
            assert set(tab.ends.values()) <= {1}
