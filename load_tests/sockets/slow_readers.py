"""Readers that hardly read, or never, beside healthy ones.

python -m load_tests.sockets.slow_readers

First the healthy readers stream alone; then again beside the others, whose answers are far
longer than any buffer. Latency of the healthy ones is from the making of a chunk to its
reading. At the end each bad reader opens its session again, as a client does that lost its
connection, and must find the whole answer, which is known.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from websockets.asyncio.client import connect as connect_websocket

from load_tests.measure import percentile, table
from load_tests.sockets.bench import Stream, open_sockets
from load_tests.sockets.socket_client import SocketClient
from load_tests.sockets.targets import MODEL, Target, memory_bytes, repartee

RECEIVE_BUFFER_BYTES = 4096
SIP_BYTES = 10
SIP_S = 0.1
STAGGER_S = 0.005
MAX_FRAME_BYTES = 1 << 24


@dataclass(slots=True)
class BadReader:
    """A client of a session of its own that reads too little.

    Attributes:
        bytes_per_s: How much; 0 for none.
        text: The answer that it will be owed.
        session_id: Once it was greeted.
        was_cut: Whether the server ended the socket.
        close_code: From the server's close frame, if the reader came that far.
    """

    bytes_per_s: int
    text: str
    session_id: str = ""
    was_cut: bool = False
    close_code: int | None = None
    _raw: socket.socket = field(default_factory=socket.socket)

    async def run(self, target: Target, seconds: float, rate: float) -> None:
        """Greet, ask, and read too little for `seconds`."""
        loop = asyncio.get_running_loop()
        raw = self._raw
        raw.setblocking(False)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        await loop.sock_connect(raw, ("127.0.0.1", target.port))
        client = SocketClient(f"127.0.0.1:{target.port}", target.target, self._on_text)
        client.connection_made(_RawTransport(raw))
        while not self.session_id:
            client.data_received(await loop.sock_recv(raw, 65536))
        script = {"text": self.text, "rate": rate}
        content = [{"type": "input_text", "text": "!json " + json.dumps(script)}]
        item = {"type": "message", "role": "user", "content": content}
        client.send_text(json.dumps({"type": "conversation.item.create", "item": item}))
        client.send_text(
            json.dumps({"type": "response.create", "response": {"max_output_tokens": "inf"}})
        )
        with suppress(OSError):
            await self._sip(client, seconds)
        if client.closed.done():
            self.close_code = client.closed.result()
        raw.close()

    async def _sip(self, client: SocketClient, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            await asyncio.sleep(SIP_S if self.bytes_per_s else 1.0)
            if not self.bytes_per_s:
                continue
            data = await loop.sock_recv(self._raw, SIP_BYTES)
            if not data:
                self.was_cut = True
                return
            client.data_received(data)

    def _on_text(self, data: bytes) -> None:
        event = json.loads(data)
        if event["type"] == "session.created":
            self.session_id = event["session"]["id"]

    async def answer_after_return(self, target: Target) -> str:
        """What a client finds that opens the session again, waiting for a running answer."""
        url = f"ws://127.0.0.1:{target.port}/v1/realtime?session_id={self.session_id}"
        async with connect_websocket(url, max_size=MAX_FRAME_BYTES, compression=None) as ws:
            text = ""
            remaining = 1
            while remaining:
                event = json.loads(await ws.recv())
                remaining = event.get("repartee.items_remaining", remaining)
                for item in event.get("repartee.items", []):
                    if item["role"] == "assistant":
                        text = item["content"][0]["text"]
            if text:
                return text
            async for frame in ws:
                event = json.loads(frame)
                if event["type"] == "response.output_text.done":
                    return str(event["text"])
        return ""


class _RawTransport(asyncio.Transport):
    """A bare socket behind asyncio's interface, for a protocol that is fed by hand."""

    def __init__(self, raw: socket.socket) -> None:
        super().__init__()
        self._raw = raw

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send at once; what is sent here is small."""
        with suppress(OSError):
            self._raw.send(data)

    def close(self) -> None:
        """Nothing: the owner closes its socket."""

    def abort(self) -> None:
        """Nothing: the owner closes its socket."""


def long_text(number: int, num_words: int) -> str:
    """A text in which a lost or doubled piece shows."""
    return " ".join(f"{number}.{index}" for index in range(num_words))


async def healthy(target: Target, number: int, seconds: float, rate: float) -> list[float]:
    """Latencies in ms of `number` readers that keep up."""
    streams: list[Stream] = await open_sockets(target, number)
    for stream in streams:
        stream.client.send_text(target.question(int(seconds * rate), rate))
        await asyncio.sleep(STAGGER_S)
    await asyncio.gather(*(stream.done for stream in streams))
    latencies = list(streams[0].latencies)
    for stream in streams:
        stream.client.transport.abort()
    return latencies


async def run(options: argparse.Namespace) -> str:
    """Both phases; the report."""
    with repartee() as target:
        alone = await healthy(target, options.healthy, options.seconds, options.rate)
        readers = [
            BadReader(100 if number < options.slow else 0, long_text(number, options.words))
            for number in range(options.slow + options.dead)
        ]
        before, peak = memory_bytes(target.server_pid), 0
        bad = [
            asyncio.create_task(reader.run(target, options.seconds * 1.5, options.words_rate))
            for reader in readers
        ]
        good = asyncio.create_task(healthy(target, options.healthy, options.seconds, options.rate))
        while not good.done():
            peak = max(peak, memory_bytes(target.server_pid))
            await asyncio.sleep(0.5)
        beside = await good
        await asyncio.gather(*bad)
        limit = asyncio.Semaphore(16)
        outcomes: Counter[str] = Counter()

        async def check(reader: BadReader) -> None:
            async with limit, asyncio.timeout(120):
                whole = await reader.answer_after_return(target) == reader.text
            kind = f"{reader.bytes_per_s} B/s"
            outcomes[f"{kind}: {'whole' if whole else 'WRONG'} after its return"] += 1
            if reader.close_code is not None:
                outcomes[f"{kind}: closed with {reader.close_code}"] += 1

        await asyncio.gather(*(check(reader) for reader in readers))
    rows = [
        [name, f"{percentile(values, 0.5):.2f}", f"{percentile(values, 0.99):.2f}"]
        for name, values in (("alone", alone), ("beside bad readers", beside))
    ]
    lines = [
        table(("healthy readers", "latency p50 ms", "p99 ms"), rows),
        f"{MODEL}: {options.healthy} healthy, {options.slow} at 100 B/s, {options.dead} that "
        f"never read; gateway memory {before / 2**20:.0f} MiB, at most {peak / 2**20:.0f} MiB",
        *(f"{number:5} {what}" for what, number in sorted(outcomes.items())),
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--slow", type=int, default=200, help="readers of 100 bytes a second")
    parser.add_argument("--dead", type=int, default=50, help="readers that never read")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of each")
    parser.add_argument("--words", type=int, default=800, help="length of a bad reader's answer")
    parser.add_argument("--words-rate", type=float, default=25.0, help="its tokens a second")
    report = asyncio.run(run(parser.parse_args(argv)))
    sys.stdout.write(report)
    return 1 if "WRONG" in report else 0


if __name__ == "__main__":
    sys.exit(main())
