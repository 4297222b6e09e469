"""Write the pictures of the page in docs/screenshots/, with the real model answering.

    python -m tools.write_screenshots

Starts `repartee serve` with its own data folder, holds three short conversations at temperature
0, and takes each picture at desktop and phone width, in light and dark; then the operator's page
beside six people who chat.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from load_tests.processes import repartee
from tests.web.conftest import CHROMIUM

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "screenshots"
MODEL = ROOT / ".data" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
ANSWER_TIMEOUT_MS = 180_000
OPS_S = 45
QUESTIONS = (
    "Name three rivers in Europe.",
    "Why is the sky blue? Answer in two sentences.",
    "Write a short Python function that says whether a number is even.",
)


def ask(page: Page, text: str) -> None:
    """One turn of a new chat, to its end."""
    page.get_by_role("button", name="New chat", exact=True).click()
    expect(page.locator(".user")).to_have_count(0)
    page.keyboard.press("Control+,")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Longest answer").fill("160")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("textbox", name="Message").press("Enter")
    expect(page.locator("[aria-busy=false]")).to_have_count(1, timeout=ANSWER_TIMEOUT_MS)


def take(browser: Browser, url: str, size: str, scheme: Literal["light", "dark"]) -> None:
    """All pictures of one size and scheme; the chats are there already."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(url)
    expect(page.locator(".assistant .foot button").last).to_be_visible()
    page.keyboard.press("Control+.")
    if size == "desktop":
        page.keyboard.press("Control+k")
        expect(page.locator("#chats-list li")).to_have_count(len(QUESTIONS))
        page.get_by_role("textbox", name="Message").focus()
        ask_once_more(page)
        _write(page, f"chat-{size}-{scheme}")
    else:
        ask_once_more(page)
        _write(page, f"chat-{size}-{scheme}")
        page.keyboard.press("Control+k")
        expect(page.locator("#chats-list li")).to_have_count(len(QUESTIONS))
        _write(page, f"chats-{size}-{scheme}")
        page.keyboard.press("Escape")
    page.keyboard.press("Control+,")
    expect(page.get_by_role("dialog")).to_be_visible()
    _write(page, f"settings-{size}-{scheme}")
    context.close()


def ask_once_more(page: Page) -> None:
    """Let the figures be those of an answer that this page saw."""
    # By key: a pointer would leave the button lit.
    page.get_by_role("button", name="Try again").press("Enter")
    expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=ANSWER_TIMEOUT_MS)
    page.locator("#scroller").evaluate("node => (node.scrollTop = 0)")


def _write(page: Page, name: str) -> None:
    page.screenshot(path=FOLDER / f"{name}.png", animations="disabled", caret="hide")


def hold_chats(context: BrowserContext, url: str) -> str:
    """Ask all questions; the address of the last chat."""
    page = context.new_page()
    page.goto(url)
    expect(page.locator("#model")).not_to_be_empty()
    for question in QUESTIONS:
        ask(page, question)
    address = page.url
    context.close()
    return address


def take_ops(browser: Browser, url: str) -> None:
    """The operator's page, once its plots have some of the people's load."""
    locust = [sys.executable, "-m", "locust", "-f", "load_tests/locustfile.py", "--headless"]
    with subprocess.Popen(
        [*locust, "-u", "6", "-r", "6", "--host", url], cwd=ROOT, stderr=subprocess.DEVNULL
    ) as people:
        contexts = [
            browser.new_context(
                viewport={"width": SIZES["desktop"][0], "height": 1000}, color_scheme=scheme
            )
            for scheme in SCHEMES
        ]
        pages = [context.new_page() for context in contexts]
        for page in pages:
            page.goto(f"{url}ops/")
        pages[0].wait_for_timeout(OPS_S * 1000)
        for page, scheme in zip(pages, SCHEMES, strict=True):
            page.bring_to_front()
            page.wait_for_timeout(2000)
            _write(page, f"ops-desktop-{scheme}")
        people.terminate()


def main(argv: Sequence[str] | None = None) -> int:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    options = parser.parse_args(argv)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rp-") as folder:
        data_dir = Path(folder) / "data"
        log = Path(folder) / "log"
        with (
            repartee(data_dir, log, "--model", str(options.model)) as server,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--font-render-hinting=none"]
            )
            address = hold_chats(browser.new_context(), f"http://{server.host}:{server.port}/")
            for size in SIZES:
                for scheme in SCHEMES:
                    take(browser, address, size, scheme)
            take_ops(browser, f"http://{server.host}:{server.port}/")
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
