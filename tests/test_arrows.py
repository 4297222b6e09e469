"""Who may import whom: read from the source, function-local imports included."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = ("app", "engine", "kernels")
ENGINE_CORE_FORBIDDEN = {"redis", "starlette", "uvicorn", "websockets", "orjson", "gguf"}


def _modules() -> list[Path]:
    return sorted(path for folder in OURS for path in (ROOT / folder).rglob("*.py"))


def _imports(path: Path) -> set[str]:
    """Every dotted name that the file imports; `from a import b` gives a and a.b."""
    names = set()
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return names


def _within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def _wrong_arrows(path: Path) -> list[str]:
    """The imports of `path` that it must not have."""
    parts = path.relative_to(ROOT).parts
    names = _imports(path)
    top = {name.partition(".")[0] for name in names}
    if parts[0] == "app":
        engine = {n for n in names if _within(n, "engine") and not _within(n, "engine.contract")}
        # `from engine import contract` names the package itself as well.
        engine -= {"engine"} if "engine.contract" in names else set()
        return sorted(engine | (top & {"torch", "triton", "transformers", "kernels"}))
    if parts[:2] == ("engine", "contract"):
        allowed = sys.stdlib_module_names
        return sorted(
            n
            for n in names
            if not _within(n, "engine.contract") and n.partition(".")[0] not in allowed
        )
    if parts[0] == "kernels":
        return sorted(top & {"app", "engine"})
    forbidden = {"app", "load_tests", "tests"}
    if parts[:2] != ("engine", "worker"):
        forbidden |= ENGINE_CORE_FORBIDDEN
    return sorted(top & forbidden)


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_wrong_arrow(path: Path) -> None:
    assert _wrong_arrows(path) == []


def test_every_package_is_read() -> None:
    found = {path.relative_to(ROOT).parts[0] for path in _modules()}
    assert found == set(OURS)


@pytest.mark.parametrize(
    ("place", "source", "wrong"),
    [
        ("app/x.py", "def f():\n    import torch", ["torch"]),
        ("app/x.py", "from engine.engine import Engine", ["engine.engine", "engine.engine.Engine"]),
        ("app/x.py", "from engine import scheduler", ["engine", "engine.scheduler"]),
        ("app/x.py", "from engine.contract import Delta\nimport redis", []),
        ("engine/contract/x.py", "import orjson", ["orjson"]),
        ("engine/contract/x.py", "from . import keys\nimport json", []),
        ("engine/x.py", "import redis.asyncio", ["redis"]),
        ("engine/worker/x.py", "import redis.asyncio", []),
        ("engine/worker/x.py", "from app import settings", ["app"]),
        ("kernels/x.py", "import importlib\nimportlib.import_module('engine.step')", ["engine"]),
    ],
)
def test_the_reader_sees_wrong_arrows(
    place: str, source: str, wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert _wrong_arrows(path) == wrong
