"""Lost lines, reloads and refusals: nothing is lost, nothing is doubled, nothing hangs."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.web.chat_page import ChatPage
from tests.web.server import PageServer

CHUNKS = [f"word{i} " for i in range(30)]
TEXT = "".join(CHUNKS).strip()
# A browser reports a lost or refused socket on its console, whatever the page does.
LOST = ["WebSocket connection to", "Failed to load resource"]


def test_answer_goes_on_after_a_lost_line(chat: ChatPage) -> None:
    chat.allowed = LOST
    chat.server.script.chunks = CHUNKS
    chat.server.script.hold_before = 10
    chat.ask()
    expect(chat.answer).to_have_text("".join(CHUNKS[:10]).strip())
    chat.server.drop()
    expect(chat.banner).to_contain_text("Connection lost")
    chat.server.release()
    expect(chat.answer).to_have_text(TEXT)
    expect(chat.banner).to_be_hidden()
    chat.idle()
    assert chat.answer.inner_text().strip() == TEXT
    resumed = chat.server.handshakes[-1]
    assert resumed["starting_after"] == ["10"]
    assert resumed["epoch"] == ["1"]
    assert len(chat.server.sent("response.create")) == 1


@pytest.mark.parametrize("at", [0, 1, 15, 29])
def test_reload_in_mid_answer(chat: ChatPage, at: int) -> None:
    chat.server.script.chunks = CHUNKS
    chat.server.script.hold_before = at
    chat.ask("Question")
    expect(chat.answer).to_have_text("".join(CHUNKS[:at]).strip())
    chat.until(lambda: len(chat.server.sent("response.create")) == 1)
    chat.page.reload()
    expect(chat.users).to_have_text(["Question"])
    expect(chat.answer).to_have_text("".join(CHUNKS[:at]).strip())
    expect(chat.stop_button).to_be_visible()
    chat.server.release()
    expect(chat.answer).to_have_text(TEXT)
    chat.idle()
    assert len(chat.server.sent("response.create")) == 1


def test_reload_after_the_end(chat: ChatPage) -> None:
    chat.ask_and_wait("Question")
    chat.page.reload()
    expect(chat.users).to_have_text(["Question"])
    expect(chat.answer).to_have_text("Hello there.")
    chat.idle()
    chat.ask_and_wait("More")
    expect(chat.users).to_have_count(2)


def test_stop_works_after_a_reload(chat: ChatPage) -> None:
    chat.server.script.hold_before = 1
    chat.ask()
    expect(chat.answer).to_have_text("Hello")
    chat.page.reload()
    chat.stop_button.click()
    expect(chat.answers.last).to_contain_text("You stopped this answer.")
    chat.idle()


@pytest.mark.parametrize("code", [1000, 1001, 1011, 1012, 1013])
def test_a_close_in_mid_answer_is_mended(chat: ChatPage, code: int) -> None:
    chat.server.script.hold_before = 1
    chat.ask()
    expect(chat.answer).to_have_text("Hello")
    chat.server.drop(code)
    chat.until(lambda: len(chat.server.handshakes) == 2)
    chat.server.release()
    expect(chat.answer).to_have_text("Hello there.")
    chat.idle()
    assert len(chat.server.sent("response.create")) == 1


@pytest.mark.parametrize("code", [1000, 1008, 4403])
def test_a_final_close_is_not_retried_but_may_be_by_hand(chat: ChatPage, code: int) -> None:
    chat.ask_and_wait()
    chat.server.drop(code)
    expect(chat.banner).to_contain_text("The server closed the connection")
    chat.page.wait_for_timeout(700)
    assert len(chat.server.handshakes) == 1
    chat.page.get_by_role("button", name="Reconnect now").click()
    expect(chat.banner).to_be_hidden()
    chat.ask_and_wait("again")
    expect(chat.users).to_have_count(2)


def test_a_turn_that_the_gateway_lost_is_sent_again_once(chat: ChatPage) -> None:
    chat.allowed = LOST
    chat.server.script.ignore_creates = 1
    chat.ask("Hi")
    expect(chat.answer).to_have_text("Hello there.")
    chat.idle()
    expect(chat.users).to_have_text(["Hi"])
    (session,) = chat.server.sessions.values()
    assert [item["role"] for item in session.items] == ["user", "assistant"]
    first, second = chat.server.sent("response.create")
    assert first["event_id"] == second["event_id"]
    assert len(chat.server.sent("conversation.item.create")) == 1


def test_a_message_written_while_the_line_is_down_is_sent_later(chat: ChatPage) -> None:
    chat.allowed = LOST
    chat.ask_and_wait("one")
    chat.server.refuse_sockets = True
    chat.server.drop()
    expect(chat.banner).to_contain_text("Connection lost")
    chat.ask("two")
    expect(chat.users).to_have_text(["one", "two"])
    expect(chat.stop_button).to_be_visible()
    chat.server.refuse_sockets = False
    chat.page.get_by_role("button", name="Reconnect now").click()
    expect(chat.answers).to_have_count(2)
    chat.idle()
    (session,) = chat.server.sessions.values()
    assert [item["role"] for item in session.items] == ["user", "assistant"] * 2


def test_stop_while_the_line_is_down(chat: ChatPage) -> None:
    chat.allowed = LOST
    chat.server.script.hold_before = 1
    chat.ask()
    expect(chat.answer).to_have_text("Hello")
    chat.server.refuse_sockets = True
    chat.server.drop()
    expect(chat.banner).to_contain_text("Connection lost")
    chat.stop_button.click()
    expect(chat.answers.last).to_contain_text("You stopped this answer.")
    chat.server.refuse_sockets = False
    chat.page.get_by_role("button", name="Reconnect now").click()
    chat.until(lambda: len(chat.server.sent("response.cancel")) == 1)
    expect(chat.answers.last).to_contain_text("You stopped this answer.")
    chat.idle()
    expect(chat.answers).to_have_count(1)


def test_the_network_coming_back_reconnects_at_once(chat: ChatPage) -> None:
    chat.allowed = LOST
    chat.server.refuse_sockets = True
    chat.server.drop()
    chat.until(lambda: len(chat.server.handshakes) >= 4)
    chat.server.refuse_sockets = False
    before = len(chat.server.handshakes)
    chat.page.evaluate("dispatchEvent(new Event('online'))")
    chat.until(lambda: chat.server.sockets == 1, timeout_ms=2500)
    assert len(chat.server.handshakes) == before + 1


def test_a_session_that_the_server_forgot(chat: ChatPage) -> None:
    chat.ask_and_wait("old")
    chat.server.sessions.clear()
    chat.page.reload()
    expect(chat.banner).to_contain_text("no longer kept on the server")
    expect(chat.users).to_have_count(0)
    chat.ask_and_wait("new")
    expect(chat.users).to_have_text(["new"])


def test_the_address_of_an_empty_chat_is_clean(chat: ChatPage) -> None:
    assert chat.page.url == chat.server.url
    chat.ask_and_wait()
    assert re.fullmatch(re.escape(chat.server.url) + r"#sess_\d+", chat.page.url)


@pytest.mark.parametrize(
    ("error", "words", "retry"),
    [
        (
            {"type": "rate_limit_error", "code": "overloaded", "retry_after_ms": 3000},
            "The server is busy. Try again in 3 seconds.",
            True,
        ),
        (
            {"type": "invalid_request_error", "code": "context_length_exceeded"},
            "no longer fits",
            False,
        ),
        ({"type": "server_error", "code": "no_worker"}, "No model is ready", True),
        ({"type": "server_error", "code": "too_many_connections"}, "The server is busy.", True),
        ({"type": "server_error", "code": "engine_fault"}, "Something went wrong", True),
        ({"type": "invalid_request_error", "code": "invalid_value"}, "The server said no.", False),
    ],
)
def test_a_refused_turn_says_why(
    chat: ChatPage, error: dict[str, object], words: str, retry: bool
) -> None:
    chat.server.script.refuse = error
    chat.ask()
    expect(chat.answers.last).to_contain_text(words)
    chat.idle()
    if not retry:
        expect(chat.retry_button).to_be_hidden()
        return
    chat.server.script.refuse = None
    chat.retry_button.click()
    expect(chat.answer).to_have_text("Hello there.")
    expect(chat.users).to_have_text(["Hi"])
    chat.idle()
    (session,) = chat.server.sessions.values()
    assert [item["role"] for item in session.items] == ["user", "assistant"]


def test_a_full_conversation_offers_a_new_one(chat: ChatPage) -> None:
    chat.ask_and_wait("long talk")
    chat.server.script.refuse = {
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    }
    chat.ask("and more")
    expect(chat.answers.last).to_contain_text("no longer fits")
    chat.server.script.refuse = None
    chat.page.get_by_role("button", name="Start a new chat").click()
    expect(chat.users).to_have_count(0)
    expect(chat.input).to_be_focused()
    chat.ask_and_wait("fresh")
    expect(chat.users).to_have_text(["fresh"])


def test_a_failed_answer_keeps_its_text_and_can_be_retried(chat: ChatPage) -> None:
    chat.server.script.status = "failed"
    chat.server.script.error = {"type": "server_error", "code": "engine_fault", "message": "x"}
    chat.ask()
    expect(chat.answers.last).to_contain_text("Something went wrong on the server.")
    expect(chat.answer).to_have_text("Hello there.")
    chat.server.script.status = "completed"
    chat.retry_button.click()
    expect(chat.retry_button).to_be_hidden()
    chat.idle()
    expect(chat.answers).to_have_count(1)


def test_an_answer_that_was_cut_says_so(chat: ChatPage) -> None:
    chat.server.script.status = "incomplete"
    chat.server.script.reason = "max_output_tokens"
    chat.ask_and_wait()
    expect(chat.answers.last).to_contain_text("The answer was cut off")


def test_a_busy_server_at_the_door(page: Page, server: PageServer) -> None:
    chat = ChatPage(page, server)
    server.script.greeting_error = {"type": "rate_limit_error", "code": "overloaded"}
    page.goto(server.url)
    expect(chat.banner).to_contain_text("Connection lost")
    server.script.greeting_error = None
    chat.connected()
    chat.check_clean()


@pytest.mark.parametrize("way", ["close", "status"])
def test_the_key_is_asked_for_only_when_needed(page: Page, server: PageServer, way: str) -> None:
    chat = ChatPage(page, server)
    chat.allowed = LOST
    server.script.key = "sk-right_1"
    server.script.key_by = way
    page.goto(server.url)
    field = page.get_by_label("API key", exact=True)
    field.fill("with blanks in it")
    page.get_by_role("button", name="Connect").click()
    expect(page.get_by_text("characters that a browser cannot send")).to_be_visible()
    field.fill("sk-wrong")
    field.press("Enter")
    expect(field).to_have_value("")
    expect(page.get_by_text("The server refuses this key.")).to_be_visible()
    field.fill("sk-right_1")
    field.press("Enter")
    chat.connected()
    expect(field).to_be_hidden()
    expect(chat.input).to_be_focused()
    chat.ask_and_wait()
    assert server.subprotocols[-1] == "realtime, openai-insecure-api-key.sk-right_1"
    assert "sk-right_1" not in page.url
    assert page.evaluate("Object.values(localStorage).length") == 0
    page.reload()
    expect(chat.answer).to_have_text("Hello there.")
    expect(field).to_be_hidden()
    chat.check_clean()


def test_an_answer_goes_on_over_sleep(chat: ChatPage) -> None:
    """A frozen page, as of a laptop that is shut, while the answer comes to its end."""
    chat.server.script.chunks = CHUNKS
    chat.server.script.hold_before = 10
    chat.ask()
    expect(chat.answer).to_have_text("".join(CHUNKS[:10]).strip())
    devtools = chat.page.context.new_cdp_session(chat.page)
    devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
    chat.server.drop()
    chat.server.release()
    (session,) = chat.server.sessions.values()
    chat.until(lambda: session.active is None)
    chat.allowed = LOST
    devtools.send("Page.setWebLifecycleState", {"state": "active"})
    expect(chat.answer).to_have_text(TEXT)
    chat.idle()
    expect(chat.banner).to_be_hidden()
    assert len(chat.server.sent("response.create")) == 1


def test_offline_is_told_as_it_is(chat: ChatPage) -> None:
    chat.allowed = LOST
    chat.ask_and_wait("one")
    chat.page.context.set_offline(True)
    chat.server.drop()
    expect(chat.banner).to_contain_text("You are offline.")
    chat.ask("two")
    expect(chat.users).to_have_text(["one", "two"])
    chat.page.context.set_offline(False)
    expect(chat.answers).to_have_count(2)
    chat.idle()
    expect(chat.banner).to_be_hidden()
    assert len(chat.server.sent("response.create")) == 2
