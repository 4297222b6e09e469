"""Sampling parameters, validated on construction.

What does not depend on the model is checked here; token ids are checked against
the vocabulary by `SamplingParams.check_vocabulary`, which the gateway calls with
the model card and the engine calls again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from engine.contract.errors import InvalidRequest

MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 1024
MAX_LOGIT_BIAS = 1024
MAX_SEED = 2**63 - 1
MAX_TOKENS_LIMIT = 2**31 - 1


def _number(name: str, value: object, low: float, high: float) -> float:
    """`value` as float if it is a finite number in [low, high], else InvalidRequest."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number, got {value!r}.", param=name)
    number = float(value) if abs(value) < 1e300 else math.inf
    if not math.isfinite(number) or not low <= number <= high:
        raise InvalidRequest(
            f"{name} must be a finite number from {low:g} to {high:g}, got {value!r:.40}.",
            param=name,
        )
    return number


def _integer(name: str, value: object, low: int, high: int) -> int:
    """`value` if it is an int (not bool) in [low, high], else InvalidRequest."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer, got {value!r:.40}.", param=name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be from {low} to {high}, got {value!r:.40}.", param=name)
    return value


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one answer is sampled.

    The order is: logit_bias, penalties (repetition, then frequency and presence),
    min_tokens mask, temperature, top_k, top_p, min_p, then Gumbel noise keyed by
    (seed, position). temperature 0, top_k 1 and top_p 0 all mean greedy.

    Attributes:
        temperature: 0 to 2.
        top_k: Keep the k likeliest tokens. 0 and -1 mean off; so does any k of
            at least the vocabulary size.
        top_p: Keep the smallest set whose probability reaches top_p. 1 means off.
        min_p: Keep tokens of at least min_p times the top probability. 0 means off.
        repetition_penalty: 1 means off; above 0, at most 10. Counts prompt and answer.
        frequency_penalty: -2 to 2, times the token's count in the answer.
        presence_penalty: -2 to 2, once if the token is in the answer.
        logit_bias: Pairs (token id, bias); bias -100 to 100; at most 1024 pairs.
        seed: 0 to 2**63 - 1; None draws a fresh seed for this request.
        stop: At most 4 strings of 1 to 1024 characters; the match is not sent.
        stop_token_ids: Token ids that end the answer; at most 1024.
        max_tokens: At least 1; None means up to the window.
        min_tokens: End-of-turn and stop tokens are masked until then.
        ignore_eos: Go on after the end-of-turn token (for benchmarks).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0.0, 2.0)
        _integer("top_k", self.top_k, -1, MAX_TOKENS_LIMIT)
        _number("top_p", self.top_p, 0.0, 1.0)
        _number("min_p", self.min_p, 0.0, 1.0)
        if _number("repetition_penalty", self.repetition_penalty, 0.0, 10.0) == 0.0:
            raise InvalidRequest(
                "repetition_penalty must be above 0, got 0.", param="repetition_penalty"
            )
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        if self.seed is not None:
            _integer("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, MAX_TOKENS_LIMIT)
        _integer("min_tokens", self.min_tokens, 0, MAX_TOKENS_LIMIT)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequest(
                f"ignore_eos must be true or false, got {self.ignore_eos!r:.40}.",
                param="ignore_eos",
            )
        self._check_min_tokens()
        self._check_stop()
        self._check_logit_bias()

    def _check_min_tokens(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), "
                f"got {self.min_tokens}.",
                param="min_tokens",
            )

    def _check_stop(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(
                f"stop holds at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}.",
                param="stop",
            )
        for text in self.stop:
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARS:
                raise InvalidRequest(
                    f"stop must hold strings of 1 to {MAX_STOP_CHARS} characters, "
                    f"got {text!r:.40}.",
                    param="stop",
                )
        if len(self.stop_token_ids) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"stop_token_ids holds at most {MAX_LOGIT_BIAS} ids, "
                f"got {len(self.stop_token_ids)}.",
                param="stop_token_ids",
            )
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0, MAX_TOKENS_LIMIT)

    def _check_logit_bias(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"logit_bias holds at most {MAX_LOGIT_BIAS} tokens, got {len(self.logit_bias)}.",
                param="logit_bias",
            )
        for token, bias in self.logit_bias:
            _integer("logit_bias", token, 0, MAX_TOKENS_LIMIT)
            _number("logit_bias", bias, -100.0, 100.0)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1 or self.top_p == 0.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids outside [0, vocab_size).

        Raises:
            InvalidRequest: naming logit_bias or stop_token_ids.
        """
        for name, tokens in (
            ("logit_bias", [token for token, _ in self.logit_bias]),
            ("stop_token_ids", list(self.stop_token_ids)),
        ):
            for token in tokens:
                if token >= vocab_size:
                    raise InvalidRequest(
                        f"{name} token ids must be from 0 to {vocab_size - 1}, got {token}.",
                        param=name,
                    )

    def to_wire(self) -> dict[str, Any]:
        """Only what differs from the default."""
        wire: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                wire[field.name] = value
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> SamplingParams:
        """Read `to_wire`'s dict back, validating again."""
        values = dict(wire)
        if "logit_bias" in values:
            values["logit_bias"] = tuple((token, bias) for token, bias in values["logit_bias"])
        for name in ("stop", "stop_token_ids"):
            if name in values:
                values[name] = tuple(values[name])
        return cls(**values)
