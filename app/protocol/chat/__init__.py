"""`/v1/chat/completions`: requests read and checked, answers rendered."""

from app.protocol.chat.request import ChatRequest, read_chat_request
from app.protocol.chat.response import DONE, HEARTBEAT, ChatAnswer, ChatStream

__all__ = [
    "DONE",
    "HEARTBEAT",
    "ChatAnswer",
    "ChatRequest",
    "ChatStream",
    "read_chat_request",
]
