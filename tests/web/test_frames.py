"""A fast, long answer: the work of each frame is that of what is new, and the text is exact.

Nothing here is timed; `load_tests/bench_page.py` measures frames.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from load_tests.bench_page import HEADS, KINDS
from tests.web.chat_page import ChatPage

TOKENS = 3000

# Counts what is put into the answer, however often: characters, and nodes.
COUNT = """() => {
  const work = (window.work = { characters: 0, nodes: 0, frames: 0 })
  const tick = () => { work.frames++; requestAnimationFrame(tick) }
  requestAnimationFrame(tick)
  const size = (node) => {
    work.characters += node.textContent.length
    work.nodes += 1 + (node.querySelectorAll ? node.querySelectorAll("*").length : 0)
  }
  new MutationObserver((records) => {
    const after = new Map()
    for (const record of records.toReversed()) {
      if (record.type === "childList") {
        if (record.target.closest(".assistant .body")) record.addedNodes.forEach(size)
        continue
      }
      const now = after.get(record.target) ?? record.target.data
      const grown = now.startsWith(record.oldValue)
      work.characters += grown ? now.length - record.oldValue.length : now.length
      after.set(record.target, record.oldValue)
    }
  }).observe(document.getElementById("log"), {
    subtree: true, childList: true, characterData: true, characterDataOldValue: true,
  })
}"""


@pytest.mark.parametrize("kind", KINDS)
def test_each_character_is_put_in_the_page_about_once(chat: ChatPage, kind: str) -> None:
    head = HEADS.get(kind, [])
    tokens = [*head, *(KINDS[kind] * TOKENS)[: TOKENS - len(head)]]
    chat.server.script.chunks = ["".join(tokens[i : i + 5]) for i in range(0, TOKENS, 5)]
    chat.server.script.gap_s = 0.002
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.page.evaluate(COUNT)
    chat.ask()
    expect(chat.answers).to_have_count(1)
    chat.page.wait_for_selector("[aria-busy=true]", state="detached", timeout=60_000)
    work = chat.page.evaluate("window.work")
    shown, nodes = chat.answer.evaluate(
        "node => [node.textContent.length, node.querySelectorAll('*').length]"
    )
    assert work["frames"] > 10
    assert 0.9 * shown <= work["characters"] <= 1.6 * shown, (work, shown)
    assert 0.9 * nodes <= work["nodes"] <= 3 * nodes + work["frames"], (work, nodes)
    chat.answers.get_by_role("button", name="Copy", exact=True).last.click()
    assert chat.page.evaluate("navigator.clipboard.readText()") == "".join(tokens)


def test_older_messages_cost_a_growing_answer_nothing(chat: ChatPage) -> None:
    chat.ask_and_wait("Hi")
    (session,) = chat.server.sessions.values()
    turn = session.items
    session.items = [{**item, "id": f"{item['id']}_{i}"} for i in range(100) for item in turn]
    chat.page.reload()
    expect(chat.answers).to_have_count(100)
    chat.server.script.chunks = ["word "] * 200
    chat.server.script.hold_before = 0
    chat.ask("more")
    expect(chat.answers).to_have_count(101)
    chat.page.evaluate(
        """() => {
          window.made = 0
          const create = document.createElement.bind(document)
          document.createElement = (name) => { window.made++; return create(name) }
        }"""
    )
    chat.server.release()
    expect(chat.answer).to_have_text(("word " * 200).strip())
    chat.idle()
    assert chat.page.evaluate("window.made") < 2000
