"""config.json as a `ModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.model.config import ARCHITECTURES, ModelConfig, RopeConfig


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """The model's shape.

    Args:
        values: The whole of config.json.

    Raises:
        ValueError: for what is missing, out of range or not supported.
    """
    architecture = values.get("model_type")
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"model_type {architecture!r:.80} is not supported; "
            f"supported are {', '.join(ARCHITECTURES)}"
        )
    activation = values.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"hidden_act {activation!r:.40} is not supported; supported is silu")
    if values.get("mlp_bias"):
        raise ValueError("mlp_bias is not supported")
    hidden_size = _need(values, "hidden_size")
    num_heads = _need(values, "num_attention_heads")
    if not isinstance(num_heads, int) or num_heads < 1 or not isinstance(hidden_size, int):
        raise ValueError(f"num_attention_heads is {num_heads!r:.40}")
    return ModelConfig(
        architecture=architecture,
        num_layers=_need(values, "num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=_need(values, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=_or(values, "num_key_value_heads", num_heads),
        head_dim=_or(values, "head_dim", hidden_size // num_heads),
        vocab_size=_need(values, "vocab_size"),
        context_window=_context_window(values),
        norm_eps=_or(values, "rms_norm_eps", 1e-6),
        rope=_read_rope(values),
        tied=bool(values.get("tie_word_embeddings", False)),
    )


def _need(values: Mapping[str, Any], name: str) -> Any:
    if values.get(name) is None:
        raise ValueError(f"{name} is missing")
    return values[name]


def _or(values: Mapping[str, Any], name: str, default: Any) -> Any:
    value = values.get(name)
    return default if value is None else value


def _context_window(values: Mapping[str, Any]) -> Any:
    # Within its window, sliding attention is full attention: serve that much.
    context = _need(values, "max_position_embeddings")
    slides = values["model_type"] == "mistral" or values.get("use_sliding_window")
    window = values.get("sliding_window") if slides else None
    if window is None:
        return context
    if not isinstance(window, int) or not isinstance(context, int):
        raise ValueError(f"sliding_window is {window!r:.40}")
    return min(context, window)


def _read_rope(values: Mapping[str, Any]) -> RopeConfig:
    # One object since version 5 of the format, a base and an optional scaling before.
    scaling = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise ValueError(f"rope_scaling is {scaling!r:.40}")
    theta = _or(scaling, "rope_theta", _or(values, "rope_theta", 10000.0))
    for source in (scaling, values):
        if _or(source, "partial_rotary_factor", 1.0) != 1.0:
            raise ValueError("partial_rotary_factor must be 1")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, "linear", factor=_need(scaling, "factor"))
    if kind == "llama3":
        return RopeConfig(
            theta,
            "llama3",
            factor=_need(scaling, "factor"),
            low_freq_factor=_need(scaling, "low_freq_factor"),
            high_freq_factor=_need(scaling, "high_freq_factor"),
            original_context=_need(scaling, "original_max_position_embeddings"),
        )
    raise ValueError(
        f"rope scaling {kind!r:.40} is not supported; supported are default, linear, llama3"
    )
