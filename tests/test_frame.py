"""The frame: versions, pins, packages, containers and scripts agree with each other."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from app.options import OPTIONS

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SOURCES = ("app", "engine", "kernels", "load_tests", "tools", "tests")


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): number for name, number in pairs}


def _needed(names: set[str]) -> set[str]:
    """The installed packages that `names` need, with their own needs."""
    seen: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in seen:
            continue
        seen.add(name)
        for text in importlib.metadata.requires(name) or []:
            need = Requirement(text)
            extras = wanted.extras or {""}
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(need)
    return seen


def test_everything_that_is_installed_is_pinned_at_the_version_that_is_tested() -> None:
    dev = PROJECT["optional-dependencies"]["dev"]
    needed = _needed({*PROJECT["dependencies"], *dev})
    pins = _pins()
    assert sorted(needed - pins.keys()) == []
    installed = {name: importlib.metadata.version(name).partition("+")[0] for name in needed}
    assert {name: pins[name] for name in needed} == installed


def test_the_pins_allow_what_the_project_asks_for() -> None:
    pins = _pins()
    for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        wanted = Requirement(text)
        assert pins[canonicalize_name(wanted.name)] in wanted.specifier, text


def test_the_changelog_begins_with_the_packages_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == PROJECT["version"] == importlib.metadata.version("repartee")


def test_every_source_file_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*.py")
        if path.read_text().strip()
        and path.name != "__init__.py"
        and not ast.get_docstring(ast.parse(path.read_bytes()))
    ]
    assert silent == []


def test_every_environment_variable_of_ours_is_an_option() -> None:
    known = {option.variable for option in OPTIONS}
    for folder in ("app", "engine", "kernels", "load_tests", "web"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in {".py", ".js"}:
                used = set(re.findall(r"\bREPARTEE_[A-Z][A-Z_]*[A-Z]\b", path.read_text()))
                assert used <= known, path


def test_every_python_package_is_installed_by_the_wheel() -> None:
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = include["tool"]["setuptools"]["packages"]["find"]["include"]
    assert patterns == ["app*", "engine*", "kernels*", "web*"]
    for folder in ("app", "engine", "kernels"):
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").is_file(), path


@pytest.mark.parametrize(
    "path",
    [".ci/run", "tools/make_venv.sh", "tools/ensure_chromium.sh", "tools/ensure_compiler.sh"],
)
def test_scripts_parse(path: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / path)], check=True)
    assert os.access(ROOT / path, os.X_OK)


def _variables_of(text: str) -> set[str]:
    return set(re.findall(r"REPARTEE_[A-Z_]*[A-Z]", text))


def test_the_containers_set_only_options_that_exist() -> None:
    known = {option.variable for option in OPTIONS}
    used = _variables_of((ROOT / "Dockerfile").read_text())
    used |= _variables_of((ROOT / "compose.yaml").read_text())
    assert used
    assert used <= known


def _stages() -> dict[str, str]:
    """Each build stage's text by its name."""
    parts = re.split(r"^FROM .* AS (\w+)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_image_copies_what_exists_and_runs_as_nobody_special() -> None:
    stages = _stages()
    assert {"build", "runtime", "cpu", "gpu"} <= stages.keys()
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", stages["build"], re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
            assert f"!{name}" in kept, name
    assert re.findall(r"^USER (\w+)$", stages["runtime"], re.MULTILINE) == ["repartee"]
    assert "USER" not in stages["cpu"] + stages["gpu"]
    assert "HEALTHCHECK" in stages["runtime"]


def test_compose_names_what_exists() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"redis", "gateway", "worker", "worker-gpu"}
    for name, service in services.items():
        for other, condition in service.get("depends_on", {}).items():
            assert "healthcheck" in services[other], name
            assert condition == {"condition": "service_healthy"}
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in COMPOSE["volumes"], name
        for secret in service.get("secrets", []):
            assert secret in COMPOSE["secrets"], name
        if "build" in service:
            assert service["build"]["target"] in _stages(), name
            assert service["image"] == f"repartee:{service['build']['target']}"


def test_compose_starts_one_worker_a_profile_and_binds_to_loopback() -> None:
    services = COMPOSE["services"]
    for profile, worker in (("cpu", "worker"), ("gpu", "worker-gpu")):
        started = {name for name, s in services.items() if profile in s.get("profiles", [profile])}
        assert started == {"redis", "gateway", worker}
    assert services["gateway"]["ports"] == ["127.0.0.1:8080:8080"]
    assert "ports" not in services["redis"]


def test_containers_get_longer_than_the_grace_to_stop() -> None:
    grace = next(option.default for option in OPTIONS if option.name == "grace")
    for name in ("gateway", "worker", "worker-gpu"):
        assert int(COMPOSE["services"][name]["stop_grace_period"].removesuffix("s")) > int(grace)


def _imported(folders: tuple[str, ...]) -> set[str]:
    """Top-level names of everything that the folders import."""
    names = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    ("folders", "extras"),
    [(("app", "engine", "kernels"), ("otel",)), (("load_tests", "tools", "tests"), ("dev",))],
    ids=["product", "tests"],
)
def test_everything_that_is_imported_is_asked_for(
    folders: tuple[str, ...], extras: tuple[str, ...]
) -> None:
    asked = [*PROJECT["dependencies"]]
    for extra in extras:
        asked += PROJECT["optional-dependencies"][extra]
    names = {canonicalize_name(Requirement(text).name) for text in asked}
    providers = importlib.metadata.packages_distributions()
    own = {"app", "engine", "kernels", "web", "load_tests", "tools", "tests"}
    foreign = {
        name
        for name in _imported(folders) - own
        if not {canonicalize_name(d) for d in providers.get(name, [])} & names
    }
    assert foreign == set()
