"""`repartee serve` with the fake worker in the real one's place.

python -m tests.fakes.serve --port 0 --data-dir FOLDER --model FILE

With FAKE_WORKER_CRASHES=N in the environment, a worker that is started for the first N
times ends at once with exit code 7; FAKE_WORKER_REFUSES=1 makes it refuse with 2.
"""

from __future__ import annotations

import os
import sys
from unittest import mock

from app import cli, supervisor
from app.models import ModelFile
from app.settings import WorkerSettings
from app.supervisor import Supervisor

_CRASH_FIRST = """
import os, sys
path, limit = sys.argv[1], int(sys.argv[2])
count = int(open(path).read()) if os.path.exists(path) else 0
open(path, "w").write(str(count + 1))
if count < limit:
    sys.exit(7)
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""


def fake_worker_command(settings: WorkerSettings, model: ModelFile) -> list[str]:
    """The fake worker, with the failures that the environment asks for."""
    if os.environ.get("FAKE_WORKER_REFUSES") == "1":
        source = "import sys; sys.stderr.write('repartee: no such weights\\n'); sys.exit(2)"
        return [sys.executable, "-c", source]
    crashes = os.environ.get("FAKE_WORKER_CRASHES", "0")
    count = str(settings.data_dir / "starts")
    worker = ["-m", "tests.fakes.worker", "--redis-url", settings.redis_url, "--model", model.name]
    options = ["--grace", str(settings.grace_s), "--rate", "50"]
    return [sys.executable, "-c", _CRASH_FIRST, count, crashes, *worker, *options]


class FakeWorkerSupervisor(Supervisor):
    """The supervisor, with another worker."""

    def __init__(self, settings: object, environ: object) -> None:
        super().__init__(settings, environ, fake_worker_command)  # type: ignore[arg-type]


if __name__ == "__main__":
    with mock.patch.object(supervisor, "Supervisor", FakeWorkerSupervisor):
        sys.exit(cli.main(["serve", *sys.argv[1:]]))
