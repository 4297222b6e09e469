"""`make bench`: the engine alone and through the socket, llama.cpp in the same run.

Prints tables for people and, as its last line, one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from app.models import resolve_model
from app.settings import default_data_dir
from app.startup_error import EXIT_CODE, StartupError
from load_tests import bench_chat

ROOT = Path(__file__).resolve().parents[1]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="repartee bench", description=__doc__)
    parser.add_argument("--model", default="", help="GGUF file; the packaged one by default")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="CPU threads an engine"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds, at least 1 (default 3)")
    parser.add_argument(
        "--llama-server",
        type=Path,
        default=None,
        help="llama.cpp's server; looked for on PATH by default. Its llama-bench is expected "
        "beside it",
    )
    parser.add_argument("--only", choices=("engine", "chat"), help="one of the two benchmarks")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    return options


def _find_peer(given: Path | None) -> Path | None:
    """The llama-server to compare with, if there is one.

    Raises:
        StartupError: one was named and is not there.
    """
    if given is None:
        found = shutil.which("llama-server")
        return Path(found) if found else None
    if not given.is_file():
        raise StartupError(f"--llama-server: there is no {given}.")
    return given.absolute()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for."""
    options = _parse(argv)
    try:
        peer = _find_peer(options.llama_server)
        model = resolve_model(options.model, default_data_dir(os.environ)).path
    except StartupError as error:
        sys.stderr.write(f"repartee: {error.line()}\n")
        return EXIT_CODE
    report: dict[str, object] = {
        "cpu": _cpu_name(),
        "threads": options.threads,
        "commit": _commit(),
        "model": model.name,
        "rounds": options.rounds,
    }
    sys.stdout.write(
        f"# {model.name} on {report['cpu']}, {options.threads} threads, "
        f"commit {report['commit']}, {options.rounds} rounds: median (least-most)\n"
    )
    if peer is None:
        sys.stdout.write("\nPeer not installed: no llama-server on PATH; see --llama-server.\n")
    if options.only != "chat":
        # Torch is loaded for the engine's own benchmark alone.
        from load_tests import bench_engine

        engine = bench_engine.run(model, peer, options.threads, options.rounds, _say)
        sys.stdout.write(bench_engine.tables(engine))
        report["engine"] = bench_engine.as_json(engine)
    if options.only != "engine":
        systems = bench_chat.run(model, peer, options.threads, options.rounds, _say)
        sys.stdout.write(bench_chat.tables(systems))
        report["chat"] = bench_chat.as_json(systems)
    sys.stdout.write("\n" + json.dumps(report) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
