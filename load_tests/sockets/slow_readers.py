"""Readers that hardly read, or never, beside healthy ones.

python -m load_tests.sockets.slow_readers

The healthy readers whose latency counts stream twice: beside others that keep up, and
beside as many that don't, with the same questions at the same rate. So the two differ in
nothing but the reading. Latency is from the making of a chunk to its reading. Answers of
bad readers are far longer than what the kernel buffers for them. At the end each bad
reader opens its session again, as a client does that lost its connection, and must find
the whole answer, which is known.
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
from load_tests.processes import cpu_s
from load_tests.sockets.bench import Stream, open_sockets
from load_tests.sockets.socket_client import SocketClient
from load_tests.sockets.targets import MODEL, Target, memory_bytes, repartee

RECEIVE_BUFFER_BYTES = 4096
# An answer has to outgrow what the kernel buffers for its reader.
WORD_CHARS = 300
# Between two sips of a slow reader; more of them would load the client, not the server.
SIP_S = 1.0
STAGGER_S = 0.005
MAX_FRAME_BYTES = 1 << 24


@dataclass(slots=True)
class Reader:
    """A client of a session of its own that reads all it is sent, or too little of it.

    Attributes:
        bytes_per_s: How much; 0 for none, None for all.
        text: The answer that it will be owed.
        session_id: Once it was greeted.
        was_cut: Whether the server ended the socket.
        close_code: From the server's close frame, if the reader came that far.
    """

    bytes_per_s: int | None
    text: str
    session_id: str = ""
    was_cut: bool = False
    close_code: int | None = None
    _raw: socket.socket = field(default_factory=socket.socket)

    async def run(self, target: Target, seconds: float, rate: float) -> None:
        """Greet, ask, and read for `seconds`."""
        loop = asyncio.get_running_loop()
        raw = self._raw
        raw.setblocking(False)
        if self.bytes_per_s is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        await loop.sock_connect(raw, ("127.0.0.1", target.port))
        client = SocketClient(f"127.0.0.1:{target.port}", target.target, self._on_text)
        transport = _RawTransport()
        client.connection_made(transport)
        await loop.sock_sendall(raw, transport.take())
        while not self.session_id:
            client.data_received(await loop.sock_recv(raw, 65536))
        # One token a word, however long.
        tokens = [word + " " for word in self.text.split(" ")]
        tokens[-1] = tokens[-1].removesuffix(" ")
        script = {"tokens": tokens, "rate": rate}
        content = [{"type": "input_text", "text": "!json " + json.dumps(script)}]
        item = {"type": "message", "role": "user", "content": content}
        client.send_text(json.dumps({"type": "conversation.item.create", "item": item}))
        client.send_text(
            json.dumps({"type": "response.create", "response": {"max_output_tokens": "inf"}})
        )
        await loop.sock_sendall(raw, transport.take())
        with suppress(OSError):
            await self._sip(client, transport, seconds)
        if client.closed.done():
            self.close_code = client.closed.result()
        raw.close()

    async def _sip(self, client: SocketClient, transport: _RawTransport, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            if self.bytes_per_s is not None:
                await asyncio.sleep(min(SIP_S, left_s))
            if self.bytes_per_s == 0:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    most = 65536 if self.bytes_per_s is None else int(self.bytes_per_s * SIP_S)
                    data = await loop.sock_recv(self._raw, most)
                    if not data:
                        self.was_cut = True
                        return
                    client.data_received(data)
                    await loop.sock_sendall(self._raw, transport.take())

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
    """asyncio's interface to a socket that is read and written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self._unsent = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it for `take`."""
        self._unsent += data

    def take(self) -> bytes:
        """What is to be sent now."""
        unsent, self._unsent = bytes(self._unsent), bytearray()
        return unsent

    def close(self) -> None:
        """Nothing: the owner closes its socket."""

    def abort(self) -> None:
        """Nothing: the owner closes its socket."""


def long_text(number: int, num_words: int) -> str:
    """A text in which a lost or doubled piece shows."""
    return " ".join(f"{number}.{index}".ljust(WORD_CHARS, "-") for index in range(num_words))


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


@dataclass(slots=True)
class Beside:
    """One phase: healthy readers beside others.

    Attributes:
        name: For the table.
        latencies: Of the healthy ones, in ms.
        others: The others.
        cpu_s: Processor time of the gateway.
        peak_bytes: Its memory at most.
    """

    name: str
    others: list[Reader]
    latencies: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    peak_bytes: int = 0

    async def run(self, target: Target, options: argparse.Namespace) -> None:
        """Let all of them stream at once."""
        cpu = cpu_s(target.server_pid)
        seconds = options.seconds + options.healthy * STAGGER_S
        others = [
            asyncio.create_task(reader.run(target, seconds, options.rate)) for reader in self.others
        ]
        good = asyncio.create_task(healthy(target, options.healthy, options.seconds, options.rate))
        while not good.done():
            self.peak_bytes = max(self.peak_bytes, memory_bytes(target.server_pid))
            await asyncio.sleep(1.0)
        self.latencies += await good
        await asyncio.gather(*others)
        self.cpu_s += cpu_s(target.server_pid) - cpu

    def row(self) -> list[str]:
        """Of the table."""
        p50, p99 = (percentile(self.latencies, part) for part in (0.5, 0.99))
        return [self.name, f"{p50:.2f}", f"{p99:.2f}", f"{self.cpu_s:.1f}"]


async def run(options: argparse.Namespace) -> str:
    """All rounds of both phases; the report."""
    speeds = [100] * options.slow + [0] * options.dead
    num_words = int(options.seconds * options.rate)
    texts = [long_text(number, num_words) for number in range(len(speeds))]
    with repartee() as target:
        before = memory_bytes(target.server_pid)
        phases = [Beside("others that keep up", []), Beside("bad readers", [])]
        bad: list[Reader] = []
        for _ in range(options.rounds):
            phases[0].others = [Reader(None, text) for text in texts]
            phases[1].others = [
                Reader(speed, text) for speed, text in zip(speeds, texts, strict=True)
            ]
            bad += phases[1].others
            for phase in phases:
                await phase.run(target, options)
        outcomes = await outcomes_of(bad, target)
    peak = max(phase.peak_bytes for phase in phases)
    lines = [
        table(
            ("healthy readers beside", "latency p50 ms", "p99 ms", "gateway CPU s"),
            [phase.row() for phase in phases],
        ),
        f"{MODEL}: {options.healthy} healthy beside {options.slow} at 100 B/s and {options.dead} "
        f"that never read; gateway memory {before / 2**20:.0f} MiB, at most {peak / 2**20:.0f} MiB",
        *(f"{number:5} {what}" for what, number in sorted(outcomes.items())),
    ]
    return "\n".join(lines) + "\n"


async def outcomes_of(readers: Sequence[Reader], target: Target) -> Counter[str]:
    """What became of bad readers' answers."""
    limit = asyncio.Semaphore(16)
    outcomes: Counter[str] = Counter()

    async def check(reader: Reader) -> None:
        async with limit, asyncio.timeout(120):
            whole = await reader.answer_after_return(target) == reader.text
        kind = f"{reader.bytes_per_s} B/s"
        outcomes[f"{kind}: {'whole' if whole else 'WRONG'} after its return"] += 1
        if reader.close_code is not None:
            outcomes[f"{kind}: closed with {reader.close_code}"] += 1

    await asyncio.gather(*(check(reader) for reader in readers))
    return outcomes


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--slow", type=int, default=200, help="readers of 100 bytes a second")
    parser.add_argument("--dead", type=int, default=50, help="readers that never read")
    parser.add_argument("--seconds", type=float, default=25.0, help="of each phase")
    parser.add_argument("--rate", type=float, default=16.0, help="tokens a second of each answer")
    parser.add_argument("--rounds", type=int, default=1, help="of both phases, in turns")
    report = asyncio.run(run(parser.parse_args(argv)))
    sys.stdout.write(report)
    return 1 if "WRONG" in report else 0


if __name__ == "__main__":
    sys.exit(main())
