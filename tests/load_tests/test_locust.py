"""The load test runs, against a real gateway, and checks what it claims to check."""

import csv
import os
import subprocess
import sys
from pathlib import Path

from load_tests.sockets.targets import repartee

ROOT = Path(__file__).parents[2]


def test_users_of_every_kind_find_their_texts_whole(tmp_path: Path) -> None:
    with repartee() as target:
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "locust", "-f", "load_tests/locustfile.py"),
                *("--headless", "-u", "8", "-r", "8", "-t", "6s", "--only-summary"),
                *("--host", f"http://127.0.0.1:{target.port}", "--csv", str(tmp_path / "load")),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
        )
    assert ran.returncode == 0, ran.stderr[-2000:]
    with (tmp_path / "load_stats.csv").open() as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    assert int(rows["standard turn"]["Request Count"]) > 0
    assert int(rows["standard gap"]["Request Count"]) > 0
    assert rows["Aggregated"]["Failure Count"] == "0"
