"""`repartee serve` as processes: real Redis and gateway, and a worker without a model."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from websockets.sync.client import ClientConnection, connect

from engine.contract import keys

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 60.0
_MARKS = {"redis": "redis-server ", "worker": "fakes.worker", "gateway": "app.cli\0gateway"}


class Serve:
    """A running `repartee serve`."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        self.url = ""

    def wait_ready(self) -> str:
        """The ready line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log()
        self.url = line.partition("at ")[2].partition(" ")[0]
        return line

    def log(self) -> str:
        return self._log.read_text()

    def children(self) -> dict[str, int]:
        """Its child processes by what they run."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if int(fields[1]) == self.process.pid and fields[0] != "Z":
                for name, mark in _MARKS.items():
                    if mark in command:
                        found[name] = int(folder.name)
        return found

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def chat(self, text: str = "Hello", max_tokens: int = 8, **sampling: object) -> str:
        """One whole answer."""
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            **sampling,
        }
        request = urllib.request.Request(
            self.url + "v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])


def eventually(holds: Callable[[], bool]) -> None:
    """Waits for a state of other processes, which nothing announces."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def serving(folder: Path, *options: str, **variables: str) -> Iterator[Serve]:
    """Starts it; in the end nothing of it is left, whatever the test did."""
    folder.mkdir(exist_ok=True)
    model = folder / "tiny.Q4_1.gguf"
    model.write_bytes(b"GGUF" + bytes(60))
    command = [
        *(sys.executable, "-m", "tests.fakes.serve", "--port", "0"),
        *("--data-dir", str(folder / "data"), "--model", str(model), *options),
    ]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("REPARTEE_")}
    log = folder / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environ, **variables},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        serve = Serve(process, log)
        children: dict[str, int] = {}
        try:
            yield serve
            children = serve.children()
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
        assert not [name for name, pid in children.items() if is_alive(pid)]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """One for the tests that leave it running and ready."""
    with serving(tmp_path_factory.mktemp("serve")) as running:
        running.wait_ready()
        yield running


def test_the_ready_line_names_the_address_and_the_model(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        line = serve.wait_ready()
        assert line.startswith("Repartee answers at http://127.0.0.1:")
        assert "/ with tiny, ready after " in line
        assert serve.get("readyz")[0] == 200
        assert serve.chat()


def test_a_page_and_an_answer(serve: Serve) -> None:
    status, page = serve.get("")
    assert status == 200
    assert "<title>" in page
    assert serve.chat("Say something")


def test_three_children_and_the_secret_in_no_arguments(serve: Serve) -> None:
    children = serve.children()
    assert set(children) == {"redis", "worker", "gateway"}
    gateway = Path(f"/proc/{children['gateway']}")
    assert b"REPARTEE_REDIS_URL=unix://" in (gateway / "environ").read_bytes()
    assert b"unix://" not in (gateway / "cmdline").read_bytes()


@pytest.mark.parametrize("name", ["worker", "gateway", "redis"])
def test_a_killed_child_comes_back(serve: Serve, name: str) -> None:
    before = serve.children()
    os.kill(before[name], signal.SIGKILL)
    eventually(lambda: serve.children().get(name, before[name]) != before[name])

    def answers() -> bool:
        try:
            return bool(serve.chat())
        except OSError:
            return False

    eventually(answers)
    after = serve.children()
    assert {k: v for k, v in after.items() if k != name} == {
        k: v for k, v in before.items() if k != name
    }
    assert f"the {name if name != 'redis' else 'Redis'} ended by SIGKILL" in serve.log()


def test_an_answer_outlives_its_worker(tmp_path: Path) -> None:
    """Its worker is killed, and the next one goes on, told at once that the first has ended."""
    with serving(tmp_path) as serve:
        serve.wait_ready()
        expected = serve.chat("long", 60, seed=7)
        answers: list[str] = []
        caller = threading.Thread(target=lambda: answers.append(serve.chat("long", 60, seed=7)))
        caller.start()
        eventually(lambda: _running(serve) == 1)
        os.kill(serve.children()["worker"], signal.SIGKILL)
        caller.join(PATIENCE_S)
        assert answers == [expected]
        assert "goes on at worker" in serve.log()
        assert "no heartbeat" not in serve.log()


def test_an_answer_outlives_the_whole_of_serve(tmp_path: Path) -> None:
    """What outlasts the grace waits in the private Redis, and goes on at the next start."""
    prompt = "!json " + json.dumps({"num_tokens": 150})
    with serving(tmp_path, "--grace", "0") as serve:
        serve.wait_ready()
        with _socket(serve) as socket:
            session_id = json.loads(socket.recv())["session"]["id"]
            _ask(socket, prompt)
            _wait_for(socket, "response.output_text.delta")
            serve.process.send_signal(signal.SIGTERM)
            assert serve.process.wait(PATIENCE_S) == 0
    with serving(tmp_path) as serve:
        serve.wait_ready()
        with _socket(serve) as socket:
            socket.recv()
            _ask(socket, prompt)
            expected = _answer(_wait_for(socket, "response.done")["response"]["output"])

        def answers() -> list[str]:
            with _socket(serve, f"?session_id={session_id}") as socket:
                items = json.loads(socket.recv())["repartee.items"]
            return [_answer([item]) for item in items if item["role"] == "assistant"]

        eventually(lambda: bool(answers()))
        assert answers() == [expected]
        assert len(expected.split()) == 150


def _socket(serve: Serve, query: str = "") -> ClientConnection:
    return connect(serve.url.replace("http:", "ws:") + "v1/realtime" + query)


def _ask(socket: ClientConnection, prompt: str) -> None:
    content = [{"type": "input_text", "text": prompt}]
    item = {"type": "message", "role": "user", "content": content}
    socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
    response = {"repartee": {"seed": 7}}
    socket.send(json.dumps({"type": "response.create", "response": response}))


def _wait_for(socket: ClientConnection, kind: str) -> dict[str, Any]:
    while True:
        event: dict[str, Any] = json.loads(socket.recv(PATIENCE_S))
        if event["type"] == kind:
            return event


def _answer(output: list[dict[str, Any]]) -> str:
    return "".join(part["text"] for part in output[0]["content"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as serve:
        serve.wait_ready()
        children = serve.children()
        serve.process.send_signal(number)
        assert serve.process.wait(PATIENCE_S) == 0
        assert not [name for name, pid in children.items() if is_alive(pid)]


def test_a_running_answer_is_finished_within_the_grace(tmp_path: Path) -> None:
    with serving(tmp_path, "--grace", "30") as serve:
        serve.wait_ready()
        answers: list[str] = []
        # Fifty tokens a second: this one takes two seconds.
        caller = threading.Thread(target=lambda: answers.append(serve.chat("long", 100)))
        caller.start()
        eventually(lambda: "repartee_worker_running{" in serve.get("metrics")[1])
        eventually(lambda: _running(serve) == 1)
        serve.process.send_signal(signal.SIGTERM)
        assert serve.process.wait(PATIENCE_S) == 0
        caller.join(PATIENCE_S)
        assert len(answers[0].split()) > 20


def _running(serve: Serve) -> int:
    lines = serve.get("metrics")[1].splitlines()
    return sum(int(float(s.split()[-1])) for s in lines if s.startswith("repartee_worker_running{"))


def test_a_killed_supervisor_leaves_nobody_behind(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        serve.wait_ready()
        children = serve.children()
        assert len(children) == 3
        serve.process.kill()
        serve.process.wait()
        eventually(lambda: not any(is_alive(pid) for pid in children.values()))


def test_a_second_serve_on_the_folder_is_refused_and_the_first_goes_on(serve: Serve) -> None:
    folder = serve._log.parent
    command = [sys.executable, "-m", "app.cli", "serve", "--port", "0"]
    result = subprocess.run(
        [*command, "--data-dir", str(folder / "data"), "--model", str(folder / "tiny.Q4_1.gguf")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert f"in use by another repartee serve (process {serve.process.pid})" in result.stderr
    assert result.stderr.count("\n") == 1
    assert serve.chat()


def test_a_worker_that_falls_at_first_is_started_again(tmp_path: Path) -> None:
    with serving(tmp_path, FAKE_WORKER_CRASHES="2") as serve:
        serve.wait_ready()
        assert serve.log().count("the worker ended with exit code 7") == 2
        assert serve.chat()


def test_a_worker_that_keeps_falling_ends_the_start(tmp_path: Path) -> None:
    with serving(tmp_path, FAKE_WORKER_CRASHES="99") as serve:
        assert serve.process.wait(PATIENCE_S) == 2
        assert "The worker ended 3 times before it was ready" in serve.log().splitlines()[-1]


def test_a_worker_that_refuses_ends_the_start_with_its_own_line(tmp_path: Path) -> None:
    with serving(tmp_path, FAKE_WORKER_REFUSES="1") as serve:
        assert serve.process.wait(PATIENCE_S) == 2
        assert "repartee: no such weights" in serve.log()
        assert not serve.children()


def test_what_redis_holds_outlives_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        serve.wait_ready()
        with _redis_of(serve) as client:
            client.set("kept", "yes", ex=600)
    with serving(tmp_path) as serve:
        serve.wait_ready()
        with _redis_of(serve) as client:
            assert client.get("kept") == b"yes"
        assert serve.chat()


def test_workers_of_a_run_that_was_killed_are_forgotten(tmp_path: Path) -> None:
    with serving(tmp_path) as serve:
        serve.wait_ready()
        with _redis_of(serve) as client:
            client.zadd(keys.WORKERS, {"ghost": time.time() + 600})
    with serving(tmp_path) as serve:
        serve.wait_ready()
        with _redis_of(serve) as client:
            (worker,) = client.zrange(keys.WORKERS, 0, -1)
            assert worker != b"ghost"


def _redis_of(serve: Serve) -> redis.Redis:
    environ = Path(f"/proc/{serve.children()['gateway']}/environ").read_bytes().split(b"\0")
    url = next(v for v in environ if v.startswith(b"REPARTEE_REDIS_URL=")).partition(b"=")[2]
    return redis.Redis.from_url(url.decode())


def test_a_redis_that_was_named_is_used_and_left_running(tmp_path: Path, redis_url: str) -> None:
    with serving(tmp_path, "--redis-url", redis_url) as serve:
        serve.wait_ready()
        assert "redis" not in serve.children()
        assert serve.chat()
