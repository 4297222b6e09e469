"""The command line: what it prints, and the one line it says when it can't start."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app import cli
from app.data_dir import DataDirLock
from app.options import OPTIONS

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ("serve", "gateway", "worker", "models", "doctor", "profile")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("REPARTEE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file that passes for a model until somebody reads it."""
    path = tmp_path / "tiny.Q4_1.gguf"
    path.write_bytes(b"GGUF" + bytes(60))
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that ends with exit code 2."""
    assert cli.main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("repartee: ")
    assert output.err.count("\n") == 1
    return output.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_documents_every_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS:
        if command in option.commands:
            assert f"{option.flag} " in text
            assert " ".join(option.meaning.split()) in text.replace("%%", "%")
            assert option.variable in text


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    for command in (*COMMANDS, "bench"):
        assert f"\n    {command} " in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("repartee 0.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: command"),
        (["srve"], "There is no command 'srve'. Did you mean serve?"),
        (["serve", "--prot", "1"], "serve takes no '--prot'. Did you mean --port?"),
        (["models", "--port=1"], "models takes no '--port'"),
        (["serve", "extra"], "serve takes no 'extra'"),
        (["serve", "--por", "1"], "serve takes no '--por'. Did you mean --port?"),
        (["serve", "--port"], "--port: expected one argument"),
        (["serve", "--port", "abc"], "--port takes a whole number from 0 to 65535, got 'abc'."),
        (["worker", "--redis-url", "http://x"], "--redis-url takes a URL that begins with"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, *arguments)


def test_an_unknown_variable_stops_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPARTEE_MODLE", "x")
    for command in (*COMMANDS, "bench"):
        assert "Unknown setting REPARTEE_MODLE" in refused(capsys, command)


def test_models_lists_files_folders_and_the_packaged_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "models"
    (folder / "llama").mkdir(parents=True)
    (folder / "llama" / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16"}))
    (folder / "llama" / "model.safetensors").write_bytes(bytes(2_000_000))
    (folder / "tiny-Q4_K_M.gguf").write_bytes(bytes(1_000_000))
    (folder / "notes.txt").write_text("not a model")
    assert cli.main(["models", "--data-dir", str(tmp_path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["NAME", "FORMAT", "SIZE", "WHERE"]
    assert lines[1][:6] == ["llama", "Hugging", "Face", "bfloat16", "2", "MB"]
    assert lines[2][:5] == ["tiny", "GGUF", "Q4_K_M", "1", "MB"]
    assert lines[3][0] == "SmolLM2-135M-Instruct"
    assert len(lines) == 4


def _serve(tmp_path: Path, *arguments: str) -> list[str]:
    return ["serve", "--data-dir", str(tmp_path / "data"), "--port", "0", *arguments]


def test_serve_without_the_named_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, *_serve(tmp_path, "--model", str(tmp_path / "gone.gguf")))
    assert f"there is no {tmp_path / 'gone.gguf'}" in line
    assert "`repartee models`" in line
    line = refused(capsys, *_serve(tmp_path, "--model", "SmolLM2-135-Instruct"))
    assert "Did you mean SmolLM2-135M-Instruct?" in line


def test_serve_with_something_else_than_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<html>")
    assert "is not a GGUF file" in refused(capsys, *_serve(tmp_path, "--model", str(path)))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no config.json" in refused(capsys, *_serve(tmp_path, "--model", str(empty)))


def test_serve_does_not_choose_between_several_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data" / "models"
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.gguf").write_bytes(b"GGUF")
    assert "holds several models. --model: one, two." in refused(capsys, *_serve(tmp_path))


def test_serve_on_a_port_in_use(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        line = refused(capsys, *_serve(tmp_path, "--model", str(model), "--port", port))
    assert f"Port {port} on 127.0.0.1 is in use. Name another with --port" in line


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_serve_on_an_address_that_is_not_ours(
    tmp_path: Path, model: Path, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert host in refused(capsys, *_serve(tmp_path, "--model", str(model), "--host", host))


def test_two_serves_do_not_share_a_data_folder(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.data_dir._WAIT_S", 0.0)
    lock = DataDirLock(tmp_path / "data")
    try:
        line = refused(capsys, *_serve(tmp_path, "--model", str(model)))
    finally:
        lock.release()
    assert f"in use by another repartee serve (process {os.getpid()})" in line


def test_serve_where_the_data_folder_cannot_be_made(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").write_text("a file")
    line = refused(capsys, *_serve(tmp_path, "--model", str(model)))
    assert f"--data-dir: {tmp_path / 'data'} cannot be written" in line


@pytest.mark.parametrize("command", ["serve", "gateway", "worker"])
def test_redis_gone_at_start(
    command: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {
        "serve": _serve(tmp_path, "--model", str(model)),
        "gateway": ["gateway", "--port", "0"],
        "worker": ["worker", "--model", str(model)],
    }[command]
    line = refused(capsys, *arguments, "--redis-url", "redis://127.0.0.1:1/0")
    assert "No Redis at redis://127.0.0.1:1/0" in line


def test_doctor_reports_and_counts_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--data-dir", str(tmp_path), "--port", "0", "--device", "cpu", "--native", "0"]
    code = cli.main(["doctor", *flags])
    text = capsys.readouterr().out
    assert code == (1 if "Problem:" in text else 0)
    for subject in ("Repartee", "Python", "CPU", "Memory", "Redis", "Model", "Will serve"):
        assert f"\n{subject} " in f"\n{text}"
    assert (
        cli.main(["doctor", *flags, "--model", "gone", "--redis-url", "redis://127.0.0.1:1"]) == 1
    )
    text = capsys.readouterr().out
    assert "Problem: --model: no model is named 'gone'" in text
    assert "Problem: No Redis at redis://127.0.0.1:1" in text


def test_the_installed_command_runs() -> None:
    path = Path(sys.executable).with_name("repartee")
    result = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("repartee ")


def test_no_command_imports_torch() -> None:
    source = (
        "import sys, app.cli, app.supervisor, app.doctor, app.models, app.redis_check\n"
        "assert 'torch' not in sys.modules and 'engine.engine' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", source], cwd=ROOT, check=True)
