"""tokenizer.json as a `Tokenizer` whose text can't become a control token."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from engine.loading.bytes_map import SPACE_MARK, byte_level_bytes, sentencepiece_bytes
from engine.loading.errors import ModelFileError
from engine.loading.huggingface.json_file import read_object, read_optional_object
from engine.tokenizer import ControlToken, Tokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
# Unicode normalisation leaves a third of the bytes at worst.
_NORMALISED_SHRINK = 3


def read_tokenizer(directory: Path, vocab_size: int, declared_end_ids: Iterable[int]) -> Tokenizer:
    """Build the tokenizer.

    Args:
        directory: Holds tokenizer.json, or what transformers can make one of.
        vocab_size: Rows of the embedding.
        declared_end_ids: Ends of an answer by the model's configuration.

    Raises:
        ModelFileError: when it is missing, damaged or of a kind that isn't supported.
    """
    path = directory / "tokenizer.json"
    values = read_object(path) if path.exists() else _converted(directory)
    try:
        return _build(directory, values, vocab_size, declared_end_ids)
    except ModelFileError:
        raise
    # The library raises plain Exception for a file that contradicts itself, and
    # values of the wrong type surface as one of Python's own.
    except Exception as error:
        raise ModelFileError(path, f"has a damaged tokenizer ({error!r:.200})") from error


def read_chat_template(directory: Path) -> str:
    """The Jinja source.

    Raises:
        ModelFileError: when the directory has none.
    """
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(path, f"cannot be read ({error})") from error
    template = read_optional_object(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        # Several by name; the one for plain chat is called default.
        named = {entry.get("name"): entry for entry in template if isinstance(entry, dict)}
        template = named.get("default", {}).get("template")
    if not isinstance(template, str):
        raise ModelFileError(directory, "has no chat template")
    return template


def _converted(directory: Path) -> dict[str, Any]:
    """tokenizer.json's content for a directory that holds an older form of it."""
    # Heavy, and needed by such directories only.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        return json.loads(tokenizer.backend_tokenizer.to_str())
    # Whatever it meets in the files, including a tokenizer without a fast form.
    except Exception as error:
        raise ModelFileError(
            directory, f"has no tokenizer.json, and none can be made ({error!r:.200})"
        ) from error


def _build(
    directory: Path, values: dict[str, Any], vocab_size: int, declared_end_ids: Iterable[int]
) -> Tokenizer:
    model = values["model"]
    if model.get("type", "BPE") != "BPE":
        raise ModelFileError(
            directory / "tokenizer.json",
            f"tokenizer model {model.get('type')!r:.40} is not supported; supported is BPE",
        )
    added = values.get("added_tokens") or []
    controls = [
        ControlToken(entry["id"], entry["content"], entry["lstrip"], entry["rstrip"])
        for entry in added
        if entry["special"]
    ]
    token_bytes = _token_bytes(directory, values, controls, vocab_size)
    named = _named_tokens(directory)
    ends = set(declared_end_ids)
    ends |= {control.id for control in controls if control.spelling == named.get("eos_token")}
    steps = _types(values.get("normalizer"))
    plain = _plain(values, controls)
    continued = _continued(plain)
    return Tokenizer(
        tokenizers.Tokenizer.from_str(json.dumps(plain)),
        token_bytes,
        controls,
        vocab_size=vocab_size,
        end_ids=ends,
        named=named,
        shrink=1 if steps <= {"Sequence", "Prepend", "Replace"} else _NORMALISED_SHRINK,
        continued=tokenizers.Tokenizer.from_str(json.dumps(continued)) if continued else None,
    )


def _plain(values: dict[str, Any], controls: list[ControlToken]) -> dict[str, Any]:
    """tokenizer.json without control tokens and without anything added around the text."""
    spellings = {control.spelling for control in controls}
    vocab = {
        token: index for token, index in values["model"]["vocab"].items() if token not in spellings
    }
    kept = [entry for entry in values.get("added_tokens") or [] if not entry["special"]]
    # An added token keeps its id only if the model knows it: others are renumbered.
    vocab |= {entry["content"]: entry["id"] for entry in kept}
    model = {**values["model"], "vocab": vocab}
    if model.get("unk_token") in spellings:
        model["unk_token"] = None
    return {
        **values,
        "model": model,
        "added_tokens": kept,
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


def _continued(values: dict[str, Any]) -> dict[str, Any] | None:
    """tokenizer.json for text that isn't the first; None where it is the same."""
    step = values.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step])
    if not any(inner.get("prepend_scheme") == "first" for inner in steps):
        return None
    never = [
        {**inner, "prepend_scheme": "never"} if "prepend_scheme" in inner else inner
        for inner in steps
    ]
    return {**values, "pre_tokenizer": {"type": "Sequence", "pretokenizers": never}}


def _token_bytes(
    directory: Path, values: dict[str, Any], controls: list[ControlToken], vocab_size: int
) -> list[bytes]:
    steps = _types([values.get("pre_tokenizer"), values.get("decoder"), values.get("normalizer")])
    if "ByteLevel" in steps:
        to_bytes = byte_level_bytes
    elif values["model"].get("byte_fallback") or SPACE_MARK in json.dumps(
        [values.get("normalizer"), values.get("pre_tokenizer")], ensure_ascii=False
    ):
        to_bytes = sentencepiece_bytes
    else:
        raise ModelFileError(
            directory / "tokenizer.json", "is neither a byte-level nor a SentencePiece tokenizer"
        )
    table = {index: to_bytes(token) for token, index in values["model"]["vocab"].items()}
    table |= {e["id"]: e["content"].encode() for e in values.get("added_tokens") or []}
    table |= {control.id: b"" for control in controls}
    if not table or min(table) < 0 or max(table) >= vocab_size:
        raise ModelFileError(
            directory / "tokenizer.json",
            f"has token ids up to {max(table, default=-1)}; the model has {vocab_size}",
        )
    return [table.get(index, b"") for index in range(max(table) + 1)]


def _named_tokens(directory: Path) -> dict[str, str]:
    """Spellings that templates ask for by name."""
    named: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        values = read_optional_object(directory / file)
        for name in _NAMED:
            value = values.get(name)
            text = value.get("content") if isinstance(value, Mapping) else value
            if isinstance(text, str):
                named[name] = text
    return named


def _types(node: Any) -> set[str]:
    """All values of `type` within a part of tokenizer.json."""
    if isinstance(node, list):
        return set().union(*map(_types, node)) if node else set()
    if not isinstance(node, dict):
        return set()
    own = {node["type"]} if isinstance(node.get("type"), str) else set()
    return own.union(*map(_types, node.values()))
