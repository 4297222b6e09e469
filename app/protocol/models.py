"""`/v1/models` and `/v1/models/{id}`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.contract import ModelCard


def model_object(card: ModelCard) -> dict[str, Any]:
    """One model; OpenAI's fields, and the window and weights' format besides."""
    return {
        "id": card.id,
        "object": "model",
        "created": card.created_at,
        "owned_by": "repartee",
        "context_window": card.context_window,
        "quantization": card.quantization,
    }


def model_list(cards: Iterable[ModelCard]) -> dict[str, Any]:
    """All models, in the order given."""
    return {"object": "list", "data": [model_object(card) for card in cards]}
