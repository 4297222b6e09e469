"""`python -m engine.worker`: load a model, then serve it until a signal.

The Redis URL comes from REPARTEE_REDIS_URL alone, for it may hold a password and
arguments are visible to every user. While it loads it writes its progress to standard
output, one JSON object a line: {"stage": what comes next, "done": fraction}, and before it
serves {"worker_id": its id}. What stops it before it serves is one line on standard error
and exit code 2.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.contract.logs import FORMATS, configure_logging
from engine.loading.errors import ModelFileError
from engine.loading.head import HEAD_KINDS
from engine.queue_limits import DEFAULT_WAITING, DEFAULT_WAITS_S, QueueLimits
from engine.worker.build import BuildError, build_engine
from engine.worker.worker import Worker

REDIS_URL_VARIABLE = "REPARTEE_REDIS_URL"
REFUSED = 2


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.worker", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--kv-blocks", type=int, default=0)
    parser.add_argument("--host-kv-mb", type=int, default=0)
    parser.add_argument("--max-running", type=int, default=256)
    parser.add_argument("--max-wait", default=DEFAULT_WAITS_S)
    parser.add_argument("--max-waiting", default=DEFAULT_WAITING)
    parser.add_argument("--ageing", type=float, default=10.0)
    parser.add_argument("--batch-wait", type=float, default=0.1)
    parser.add_argument("--speculation", choices=("off", "ngram", "auto"), default="off")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--compute", choices=("auto", "int16", "int8", "fp32"), default="auto")
    parser.add_argument("--kv-dtype", choices=("auto", "bf16", "int8", "fp8"), default="auto")
    parser.add_argument("--head", choices=("auto", *HEAD_KINDS), default="auto")
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info"
    )
    parser.add_argument("--log-format", choices=FORMATS, default="text")
    return parser.parse_args(argv)


def _limits(options: argparse.Namespace) -> QueueLimits:
    try:
        return QueueLimits.parse(
            options.max_wait, options.max_waiting, options.ageing, options.batch_wait
        )
    except ValueError as error:
        raise BuildError(f"--max-wait and --max-waiting take {error}") from None


def _report(done: float, stage: str) -> None:
    _tell({"stage": stage, "done": round(done, 3)})


def _tell(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Load, serve, drain.

    Returns:
        0 after a signal, `REFUSED` if it could not begin, 1 if the engine gave up.
    """
    options = _parse(argv)
    configure_logging(options.log_level, options.log_format)
    redis_url = os.environ.get(REDIS_URL_VARIABLE, "")
    try:
        if not redis_url:
            raise BuildError(f"{REDIS_URL_VARIABLE} is not set")
        engine = build_engine(
            options.model,
            kv_blocks=options.kv_blocks,
            host_kv_mb=options.host_kv_mb,
            max_running=options.max_running,
            speculation=options.speculation,
            limits=_limits(options),
            threads=options.threads,
            device=options.device,
            compute=options.compute,
            kv_dtype=options.kv_dtype,
            head=None if options.head == "auto" else options.head,
            progress=_report,
        )
    except (BuildError, ModelFileError) as error:
        sys.stderr.write(f"repartee: {error}\n")
        return REFUSED

    async def serve() -> int:
        worker = Worker(engine, redis_url, grace_s=options.grace)
        # What loading made is there for good, hundreds of thousands of objects: each full
        # garbage collection would look at all of them, and hold every answer up meanwhile.
        gc.collect()
        gc.freeze()
        _tell({"worker_id": worker.worker_id})
        return await worker.run()

    return asyncio.run(serve())


if __name__ == "__main__":
    sys.exit(main())
