"""The page in real Chromium: what it weighs, when it is ready, and its frames under a fast answer.

    python -m load_tests.bench_page

Redis, a fake worker and a gateway run apart from the browser. A frame's time is the distance of
two animation frames while an answer of `--tokens` tokens arrives at `--rate` tokens a second, for
each kind of text; `--slowdown` lets the page have only that part of the processor. At the end the
page's text is compared with what the server keeps. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, CDPSession, Page, expect, sync_playwright

from load_tests.bench_gateway import ROOT, ready, start_gateway
from load_tests.measure import percentile, table
from tests.redis_server import RedisServer
from tests.web.conftest import CHROMIUM

LONG_FRAME_MS = 50.0
# What Chromium calls slow 4G.
SLOW_LINK = {"offline": False, "latency": 150, "downloadThroughput": 200_000}
ANSWER_TIMEOUT_MS = 120_000

# A piece of each kind of text, token by token; an answer is as many of them as fit.
WORDS = [" the", " river", " runs", " past", " old", " stones", ",", " and", " home", "."]
KINDS: dict[str, list[str]] = {
    "prose": [*WORDS * 4, "\n\n"],
    "one paragraph": WORDS,
    "list": ["\n", "-", " **", "bold", "**", *WORDS[:6], " `", "code", "`"],
    "code": ["\n", "    ", "x", " =", " call", "(", "'text'", ",", " 42", ")", "  #", " why"],
    "table": ["\n|", " one", " |", " `", "two", "`", " |", " three", " |"],
}
HEADS = {"code": ["```python"], "table": ["| a | b | c |\n|---|---|---|"]}

WATCH = """() => {
  const bench = (window.bench = { frames: [], tasks: [], running: true })
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) bench.tasks.push(duration)
  }).observe({ type: "longtask" })
  let last = null
  const tick = (now) => {
    if (last !== null) bench.frames.push(now - last)
    last = now
    if (bench.running) requestAnimationFrame(tick)
  }
  requestAnimationFrame(tick)
}"""
READY = """() => {
  new MutationObserver((_, observer) => {
    if (!document.getElementById("model")?.textContent) return
    window.readyAt = performance.now()
    observer.disconnect()
  }).observe(document, { subtree: true, childList: true, characterData: true })
}"""


@dataclass(frozen=True)
class Frames:
    """One answer.

    Attributes:
        kind: Of text.
        frames: Animation frames while it arrived.
        p50_ms: Median time of a frame.
        p99_ms: What all but one in a hundred stay below.
        longest_ms: The longest.
        over_50_ms: How many took longer than that.
        longest_task_ms: The longest stretch in which the page did nothing else; 0 if none took
            50 ms.
        is_exact: Whether the page holds the server's text to the character.
    """

    kind: str
    frames: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    over_50_ms: int
    longest_task_ms: float
    is_exact: bool


@dataclass(frozen=True)
class Load:
    """One way to come to the page; medians.

    Attributes:
        link: Over what.
        files: Requests, the page's own files alone.
        body_bytes: Of these, as they are stored.
        wire_bytes: With headers.
        first_paint_ms: From the start of the navigation.
        ready_ms: Until the server has greeted and a message may be sent.
    """

    link: str
    files: int
    body_bytes: int
    wire_bytes: int
    first_paint_ms: float
    ready_ms: float


def start_worker(stack: ExitStack, redis_url: str) -> None:
    """A worker process around a fake engine, at whatever rate an answer's script says."""
    command = [sys.executable, "-m", "tests.fakes.worker", "--redis-url", redis_url]
    process = subprocess.Popen(
        [*command, "--context-window", "65536"], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    stack.callback(process.wait)
    stack.callback(process.kill)


def answer_script(kind: str, num_tokens: int, rate: float) -> str:
    """A message that the fake engine answers with so many tokens of a kind."""
    head, piece = HEADS.get(kind, []), KINDS[kind]
    count = num_tokens - len(head)
    tokens = [*head, *(piece * (count // len(piece) + 1))[:count]]
    return "!json " + json.dumps({"tokens": tokens, "rate": rate}, separators=(",", ":"))


def measure_answer(page: Page, url: str, kind: str, num_tokens: int, rate: float) -> Frames:
    """Ask on a page with a new chat, and watch its frames until the end."""
    page.goto(url)
    expect(page.locator("#model")).not_to_be_empty()
    # The question is long as well; it is put in as a paste is.
    page.evaluate(
        """(text) => {
          const input = document.getElementById("input")
          input.value = text
          input.dispatchEvent(new InputEvent("input", { bubbles: true }))
          input.form.requestSubmit()
        }""",
        answer_script(kind, num_tokens, rate),
    )
    expect(page.locator(".streaming")).to_have_count(1)
    page.evaluate(WATCH)
    expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=ANSWER_TIMEOUT_MS)
    bench: dict[str, list[float]] = page.evaluate(
        "() => { window.bench.running = false; return window.bench }"
    )
    frames = bench["frames"]
    return Frames(
        kind=kind,
        frames=len(frames),
        p50_ms=round(statistics.median(frames), 1),
        p99_ms=round(percentile(frames, 0.99), 1),
        longest_ms=round(max(frames), 1),
        over_50_ms=sum(frame > LONG_FRAME_MS for frame in frames),
        longest_task_ms=round(max(bench["tasks"], default=0.0), 1),
        is_exact=_page_text(page) == _server_text(page, url),
    )


def _page_text(page: Page) -> str:
    """The answer's source as the page's copy button gives it."""
    page.locator(".assistant [data-action=copy]").click()
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def _server_text(page: Page, url: str) -> str:
    session_id = page.url.partition("#")[2]
    session = httpx.get(f"{url}v1/sessions/{session_id}").json()
    return "".join(part["text"] for part in session["items"][-1]["content"])


def measure_load(browser: Browser, url: str, link: str, rounds: int) -> Load:
    """Come to the page for the first time, several times."""
    loads = [_load_once(browser, url, link) for _ in range(rounds)]

    def middle(name: str) -> float:
        return statistics.median(float(load[name]) for load in loads)

    return Load(
        link=link,
        files=int(middle("files")),
        body_bytes=int(middle("body")),
        wire_bytes=int(middle("wire")),
        first_paint_ms=round(middle("paint"), 1),
        ready_ms=round(middle("ready"), 1),
    )


def _load_once(browser: Browser, url: str, link: str) -> dict[str, float]:
    context = browser.new_context()
    page = context.new_page()
    network = context.new_cdp_session(page)
    wire = _count_bytes(network, link)
    page.add_init_script(f"({READY})()")
    page.goto(url)
    expect(page.locator("#model")).not_to_be_empty()
    seen: dict[str, Any] = page.evaluate(
        """() => {
          const files = ["navigation", "resource"]
            .flatMap((type) => performance.getEntriesByType(type))
            .filter(({ name }) => !name.includes("/v1/"))
          return {
            files: files.length,
            body: files.reduce((sum, { decodedBodySize }) => sum + decodedBodySize, 0),
            paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
            ready: window.readyAt,
          }
        }"""
    )
    context.close()
    return {**seen, "wire": sum(wire)}


def _count_bytes(network: CDPSession, link: str) -> list[float]:
    """What arrives for the page's files, as the browser counts it."""
    sizes: list[float] = []
    network.send("Network.enable")
    network.send("Network.setCacheDisabled", {"cacheDisabled": True})
    if link == "slow":
        conditions = {**SLOW_LINK, "uploadThroughput": 90_000}
        network.send("Network.emulateNetworkConditions", conditions)
    own: set[str] = set()

    def note(event: dict[str, Any]) -> None:
        if "/v1/" not in event["request"]["url"]:
            own.add(event["requestId"])

    network.on("Network.requestWillBeSent", note)
    network.on(
        "Network.loadingFinished",
        lambda event: event["requestId"] in own and sizes.append(event["encodedDataLength"]),
    )
    return sizes


def main(argv: Sequence[str] | None = None) -> int:
    """Run all, print two tables and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=500.0, help="tokens a second")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=9, help="loads of the page for each link")
    parser.add_argument("--slowdown", type=float, default=1.0, help="of the page's processor")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="rp-") as folder, ExitStack() as stack:
        redis = RedisServer(Path(folder))
        redis.start()
        stack.callback(redis.stop)
        start_worker(stack, redis.url)
        _, port = start_gateway(stack, redis.url)
        asyncio.run(ready(port))
        url = f"http://127.0.0.1:{port}/"
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        stack.callback(browser.close)
        loads = [measure_load(browser, url, link, options.rounds) for link in ("local", "slow")]
        answers = []
        for kind in options.kinds:
            context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
            page = context.new_page()
            rate = {"rate": options.slowdown}
            context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", rate)
            answers.append(measure_answer(page, url, kind, options.tokens, options.rate))
            context.close()
    _report(loads, answers)
    return 0 if all(answer.is_exact for answer in answers) else 1


def _report(loads: list[Load], answers: list[Frames]) -> None:
    for rows in (loads, answers):
        listed = [asdict(row) for row in rows]
        sys.stdout.write(table(list(listed[0]), [[str(v) for v in row.values()] for row in listed]))
        sys.stdout.write("\n")
    found = {"loads": [asdict(row) for row in loads], "answers": [asdict(row) for row in answers]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    sys.exit(main())
