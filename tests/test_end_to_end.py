"""The whole product at once: `repartee serve` with the packaged model, asked by the SDK."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from load_tests.processes import Server, repartee
from tests.engine.model_file import default_model

ROOT = Path(__file__).resolve().parents[1]
MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("end-to-end")
    model = ("--model", str(default_model()))
    # Exact arithmetic, so that the answer is the model's own on every processor.
    with repartee(folder / "data", folder / "log", *model, "--compute", "fp32") as running:
        yield running


def _url(server: Server) -> str:
    return f"http://{server.host}:{server.port}"


def test_the_page_and_the_health_routes(server: Server) -> None:
    with httpx.Client(base_url=_url(server), timeout=30) as client:
        page = client.get("/")
        assert page.status_code == 200
        assert "text/html" in page.headers["content-type"]
        assert client.get("/livez").status_code == 200
        ready = client.get("/readyz")
        assert ready.status_code == 200
        assert [worker["model"] for worker in ready.json()["workers"]] == [MODEL]


def test_an_answer_over_http_is_the_models_own(server: Server) -> None:
    with OpenAI(base_url=f"{_url(server)}/v1", api_key="none", timeout=60) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=30,
            stream=True,
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == "The capital of France is Paris."


async def test_a_conversation_over_the_socket_remembers(server: Server) -> None:
    async with (
        AsyncOpenAI(base_url=f"{_url(server)}/v1", api_key="none") as client,
        client.realtime.connect(model=MODEL) as connection,
    ):
        prompt_tokens = []
        for text in ("Hi", "1234567"):
            content = [{"type": "input_text", "text": text}]
            item = {"type": "message", "role": "user", "content": content}
            await connection.conversation.item.create(item=item)
            await connection.response.create(response={"max_output_tokens": 5})
            async for event in connection:
                if event.type == "response.done":
                    prompt_tokens.append(event.response.usage.input_tokens)
                    break
    assert prompt_tokens[0] == 31
    # The second turn holds the first turn and its answer as well.
    assert prompt_tokens[1] > 37 + 5


def test_a_damaged_model_is_one_line_and_nothing_stays(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    with default_model().open("rb") as whole:
        path.write_bytes(whole.read(3_000_000))
    command = [sys.executable, "-m", "app.cli", "serve", "--port", "0", "--model", str(path)]
    result = subprocess.run(
        [*command, "--data-dir", str(tmp_path / "data")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    own = [line for line in result.stderr.splitlines() if line.startswith("repartee: ")]
    assert len(own) == 1
    assert str(path) in own[0]
    assert not list((tmp_path / "data" / "redis").glob("socket"))
