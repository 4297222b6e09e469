"""The command line: `repartee serve | gateway | worker | token | models | ...`."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import NoReturn

from app.options import (
    DOCTOR,
    GATEWAY,
    MODELS,
    OPTIONS,
    PROFILE,
    SERVE,
    TOKEN,
    WORKER,
    Option,
    options_of,
)
from app.settings import (
    check_environment,
    doctor_settings,
    gateway_settings,
    models_settings,
    profile_settings,
    serve_settings,
    token_settings,
    worker_settings,
)
from app.startup_error import EXIT_CODE, StartupError
from engine.contract.logs import configure_logging

BENCH = "bench"

Flags = Mapping[str, str | None]


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise StartupError(f"{message[:1].upper()}{message[1:]}.", f"See `{self.prog} --help`.")


def _serve(flags: Flags) -> int:
    """Start a private Redis, a worker and a gateway, and keep them running."""
    from app.supervisor import Supervisor

    settings = serve_settings(flags)
    configure_logging(settings.gateway.log_level, settings.gateway.log_format)
    return asyncio.run(Supervisor(settings, os.environ).run())


def _gateway(flags: Flags) -> int:
    """Run a gateway: the page, the WebSocket and the HTTP interfaces."""
    from app.listener import inherited_listener, open_listener
    from app.redis_check import check_redis

    settings = gateway_settings(flags)
    configure_logging(settings.log_level, settings.log_format)
    listener = inherited_listener(os.environ)
    if listener is None:
        check_redis(settings.redis_url)
        listener = open_listener(settings.host, settings.port)
    # Imported late: everything above can fail without it, and it is the slow part.
    from app.gateway.server import run

    with listener:
        return run(settings, listener)


def _worker(flags: Flags) -> int:
    """Run a worker: one model behind the shared Redis."""
    from app.models import resolve_model
    from app.redis_check import check_redis
    from app.worker_process import worker_command, worker_environment

    settings = worker_settings(flags)
    model = resolve_model(settings.model, settings.data_dir)
    check_redis(settings.redis_url)
    command = worker_command(settings, model)
    os.execve(command[0], command, worker_environment(settings, os.environ))


def _models(flags: Flags) -> int:
    """List the models on this machine."""
    from app.models import find_models, models_table

    settings = models_settings(flags)
    sys.stdout.write(models_table(find_models(settings.data_dir), settings.data_dir))
    return 0


def _doctor(flags: Flags) -> int:
    """Say what this machine has, what will be used, and what is wrong."""
    from app.doctor import examine

    report = examine(doctor_settings(flags), os.environ)
    sys.stdout.write(report.text())
    return 1 if report.problems else 0


def _profile(flags: Flags) -> int:
    """Run a model under four chats and say where the time of its steps goes."""
    from app.models import resolve_model
    from app.worker_process import engine_environment, profile_command

    settings = profile_settings(flags)
    model = resolve_model(settings.model, settings.data_dir)
    command = profile_command(settings, model)
    os.execve(command[0], command, engine_environment(settings, os.environ))


def _token(flags: Flags) -> int:
    """Sign a bearer token and print it, or make the keys for that."""
    from app.token_command import run_token

    token, notes = run_token(token_settings(flags))
    for note in notes:
        sys.stderr.write(f"repartee: {note}\n")
    if token:
        sys.stdout.write(f"{token}\n")
    return 0


_COMMANDS: dict[str, Callable[[Flags], int]] = {
    SERVE: _serve,
    GATEWAY: _gateway,
    WORKER: _worker,
    TOKEN: _token,
    MODELS: _models,
    DOCTOR: _doctor,
    PROFILE: _profile,
}


def _parse(arguments: Sequence[str]) -> tuple[str, Flags]:
    """The command and the texts of its options.

    Raises:
        StartupError: an unknown command or option, with the nearest known one.
    """
    first = arguments[0] if arguments else ""
    if first and not first.startswith("-") and first not in (*_COMMANDS, BENCH):
        raise StartupError(
            f"There is no command {first[:80]!r}.", _near(first, [*_COMMANDS, BENCH])
        )
    parsed, unknown = build_parser().parse_known_args(arguments)
    flags = vars(parsed)
    if unknown:
        name = unknown[0].partition("=")[0]
        known = [option.flag for option in options_of(parsed.command)]
        raise StartupError(f"{parsed.command} takes no {name[:80]!r}.", _near(name, known))
    return parsed.command, {option.name: flags.get(option.name) for option in OPTIONS}


def _near(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {near[0]}?" if near else "`--help` lists what exists."


def _metavar(kind: str) -> str:
    return kind.replace(", ", "|") if ", " in kind else kind.upper().replace(" ", "-")


def _help_of(option: Option) -> str:
    parts = [option.meaning]
    if option.zero:
        parts.append(f"{option.zero_word}: {option.zero}.")
    default = f"default {option.default_text}, " if option.default_text else ""
    parts.append(f"({default}environment {option.variable})")
    return " ".join(parts).replace("%", "%%")


def build_parser() -> argparse.ArgumentParser:
    """The parser, made from the table of options."""
    parser = _Parser(prog="repartee", description="Real-time chat with its own engine.")
    parser.add_argument("--version", action="version", version=f"repartee {version('repartee')}")
    commands = parser.add_subparsers(
        dest="command", metavar="command", required=True, parser_class=_Parser
    )
    for name, function in _COMMANDS.items():
        summary = (function.__doc__ or "").strip()
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        for option in options_of(name):
            command.add_argument(
                option.flag,
                dest=option.name,
                metavar=_metavar(option.kind),
                help=_help_of(option),
            )
    summary = "Measure this machine: the engine alone and through the socket."
    commands.add_parser(BENCH, help=summary, description=summary, add_help=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; the process's own by default.

    Returns:
        The exit code; `EXIT_CODE` after one line on standard error that says why
        nothing was started.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == [BENCH]:
            from app.bench import run_bench

            check_environment(os.environ)
            return run_bench(arguments[1:])
        command, flags = _parse(arguments)
        return _COMMANDS[command](flags)
    except StartupError as error:
        sys.stderr.write(f"repartee: {error.line()}\n")
        return EXIT_CODE
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
