"""`repartee doctor`: what this machine has, what will be used, and what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from app.embedded_redis import find_redis
from app.listener import open_listener
from app.models import find_models, resolve_model
from app.redis_check import check_redis
from app.settings import DoctorSettings
from app.startup_error import StartupError, without_password
from app.worker_process import engine_environment

ENGINE_TIMEOUT_S = 120


@dataclass(slots=True)
class Report:
    """Lines of findings by subject, and what is wrong.

    Attributes:
        findings: (subject, finding) in order.
        problems: One line each, with what mends it.
    """

    findings: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, subject: str, finding: str) -> None:
        self.findings.append((subject, finding))

    def add_problem(self, error: StartupError) -> None:
        self.problems.append(error.line())

    def text(self) -> str:
        """The report for a terminal."""
        width = max((len(subject) for subject, _ in self.findings), default=0)
        lines = [f"{subject.ljust(width)}  {finding}" for subject, finding in self.findings]
        if self.problems:
            lines += ["", *(f"Problem: {problem}" for problem in self.problems)]
        else:
            lines += ["", "Nothing is wrong."]
        return "\n".join(lines) + "\n"


def examine(settings: DoctorSettings, environ: Mapping[str, str]) -> Report:
    """Look at everything that `repartee serve` would use, and change nothing."""
    report = Report()
    report.add("Repartee", version("repartee"))
    _examine_engine(report, settings, environ)
    _examine_redis(report, settings, environ)
    _examine_models(report, settings)
    _examine_port(report, settings)
    return report


def _examine_engine(report: Report, settings: DoctorSettings, environ: Mapping[str, str]) -> None:
    try:
        found = _engine_report(engine_environment(settings, environ))
    except StartupError as error:
        report.add_problem(error)
        return
    versions = [f"{name} {number}" for name, number in found["versions"].items() if number]
    report.add("Python", f"{found['python']}; {', '.join(versions)}")
    cpu = found["cpu"]
    report.add("CPU", f"{cpu['name']}, {cpu['usable_cores']} usable cores, {' '.join(cpu['isa'])}")
    report.add("Memory", f"{found['memory_bytes'] / 2**30:.1f} GiB")
    native = found["native"]
    if native["available"]:
        report.add("CPU kernels", f"native, {native['isa']}")
    else:
        report.add("CPU kernels", f"PyTorch's, several times slower: {native['reason']}")
        if found["auto_device"] == "cpu" and settings.native:
            problem = StartupError(
                f"No native CPU kernels: {native['reason']}.", "Mend it with: apt-get install g++"
            )
            report.add_problem(problem)
    gpus = found["gpus"]
    for gpu in gpus:
        memory = f"{gpu['free_bytes'] / 2**30:.1f} of {gpu['memory_bytes'] / 2**30:.1f} GiB free"
        report.add("GPU", f"{gpu['name']} (capability {gpu['capability']}), {memory}")
    if not gpus:
        report.add("GPU", "none")
    device = found["auto_device"] if settings.device == "auto" else settings.device
    report.add("Will run on", device)
    if device == "cuda" and not gpus:
        problem = StartupError(
            "--device cuda: this machine has no usable GPU.", "Use --device cpu."
        )
        report.add_problem(problem)


def _engine_report(environ: Mapping[str, str]) -> dict[str, Any]:
    """The engine's own findings, from a process that may import torch.

    Raises:
        StartupError: it could not be run.
    """
    command = [sys.executable, "-m", "engine.doctor"]
    try:
        result = subprocess.run(
            command,
            env=environ,
            capture_output=True,
            text=True,
            timeout=ENGINE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StartupError(f"The engine did not start in {ENGINE_TIMEOUT_S} s.") from None
    if result.returncode != 0:
        said = result.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise StartupError(f"The engine does not start: {said[0]}", "Mend it with: make setup")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def _examine_redis(report: Report, settings: DoctorSettings, environ: Mapping[str, str]) -> None:
    try:
        if settings.redis_url is None:
            binary = find_redis(environ)
            place = f"{binary.path}, from {binary.source}"
            report.add("Redis", f"{binary.version_text}, private ({place})")
        else:
            number = check_redis(settings.redis_url)
            report.add("Redis", f"{number} at {without_password(settings.redis_url)}")
    except StartupError as error:
        report.add_problem(error)


def _examine_models(report: Report, settings: DoctorSettings) -> None:
    for model in find_models(settings.data_dir):
        size = f"{model.size_bytes / 1e6:,.0f} MB"
        report.add("Model", f"{model.name}, {model.format}, {size}, {model.path}")
    try:
        chosen = resolve_model(settings.model, settings.data_dir)
        report.add("Will serve", f"{chosen.name} ({chosen.path})")
    except StartupError as error:
        report.add_problem(error)


def _examine_port(report: Report, settings: DoctorSettings) -> None:
    try:
        open_listener(settings.host, settings.port).close()
    except StartupError as error:
        report.add_problem(error)
    else:
        report.add("Address", f"{settings.host} port {settings.port} is free")
