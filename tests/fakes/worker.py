"""A worker process without a model: the product's worker around a `FakeEngine`.

python -m tests.fakes.worker --redis-url redis://127.0.0.1:6379/0 --rate 200
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.worker.worker import Worker
from tests.fakes.engine import FakeEngine, read_scripts


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.worker", description=__doc__)
    parser.add_argument("--redis-url", default=os.environ.get("REPARTEE_REDIS_URL"))
    parser.add_argument("--model", default="repartee-fake", help="the card's id")
    parser.add_argument("--rate", type=float, default=200.0, help="tokens a second; 0: at once")
    parser.add_argument("--context-window", type=int, default=8192)
    parser.add_argument("--max-running", type=int, default=1024)
    parser.add_argument("--grace", type=float, default=30.0, help="seconds after SIGTERM")
    parser.add_argument("--worker-id", default=None)
    parser.add_argument("--script", type=Path, default=None, help="JSON list of scripted answers")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM."""
    options = _parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    engine = FakeEngine(
        options.model,
        rate=options.rate,
        context_window=options.context_window,
        max_running=options.max_running,
        scripts=read_scripts(options.script) if options.script else (),
    )

    async def serve() -> int:
        worker = Worker(
            engine, options.redis_url, grace_s=options.grace, worker_id=options.worker_id
        )
        # As the product's worker does.
        gc.collect()
        gc.freeze()
        sys.stdout.write(json.dumps({"worker_id": worker.worker_id}) + "\n")
        sys.stdout.flush()
        return await worker.run()

    return asyncio.run(serve())


if __name__ == "__main__":
    sys.exit(main())
