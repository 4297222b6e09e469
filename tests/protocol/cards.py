"""The model that protocol tests talk to."""

from __future__ import annotations

from engine.contract import ModelCard, NotFound

CARD = ModelCard(
    id="test-model",
    created_at=1_700_000_000,
    context_window=8192,
    vocab_size=49152,
    max_token_bytes=24,
    quantization="q4_1",
)


def card_of(model: str | None) -> ModelCard:
    """The only card, also by default."""
    if model not in (None, CARD.id):
        raise NotFound(f"The model {model!r} does not exist.", code="model_not_found")
    return CARD
