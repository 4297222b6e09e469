"""Options, their environment twins, and what stops start-up."""

from pathlib import Path

import pytest

from app.models import ModelFile
from app.options import OPTIONS, markdown_table, options_of
from app.settings import (
    DEFAULT_REDIS_URL,
    gateway_environment,
    gateway_settings,
    serve_settings,
    worker_settings,
)
from app.startup_error import StartupError
from app.worker_process import worker_command

ROOT = Path(__file__).resolve().parents[1]
KEPT_FOR_GOOD = {
    "host",
    "port",
    "redis-url",
    "data-dir",
    "model",
    "kv-blocks",
    "max-running",
    "speculation",
    "grace",
}


def test_defaults() -> None:
    settings = serve_settings({}, {})
    assert settings.redis_url is None
    assert (settings.gateway.host, settings.gateway.port) == ("127.0.0.1", 8080)
    assert settings.gateway.redis_url == settings.worker.redis_url == DEFAULT_REDIS_URL
    assert settings.gateway.api_keys_file is None
    assert settings.grace_s == 30.0
    assert settings.worker.model == ""
    assert settings.data_dir == Path("~/.local/share/repartee").expanduser()


def test_data_dir_follows_xdg_only_if_it_is_absolute() -> None:
    assert serve_settings({}, {"XDG_DATA_HOME": "/x"}).data_dir == Path("/x/repartee")
    relative = serve_settings({}, {"XDG_DATA_HOME": "x"}).data_dir
    assert relative == Path("~/.local/share/repartee").expanduser()


def test_a_flag_beats_the_environment() -> None:
    environ = {"REPARTEE_PORT": "1234", "REPARTEE_HOST": "::1"}
    settings = gateway_settings({"port": "0"}, environ)
    assert (settings.host, settings.port) == ("::1", 0)


def test_every_option_can_be_set_by_flag_and_by_environment() -> None:
    for option in OPTIONS:
        assert option.variable == "REPARTEE_" + option.name.upper().replace("-", "_")
        assert option.parse(option.default_text) == option.default, option.name


def test_names_kept_for_good() -> None:
    assert {option.name for option in options_of("serve")} >= KEPT_FOR_GOOD
    assert len({option.name for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("REPARTEE_PROT", "Did you mean REPARTEE_PORT?"),
        ("REPARTEE_REDISURL", "Did you mean REPARTEE_REDIS_URL?"),
        ("REPARTEE_QQQQQQ", "Unset it"),
    ],
)
def test_an_unknown_variable_stops_start_up(variable: str, hint: str) -> None:
    with pytest.raises(StartupError) as caught:
        worker_settings({}, {variable: "1"})
    assert f"Unknown setting {variable}" in caught.value.line()
    assert hint in caught.value.line()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("port", "65536", "a whole number from 0 to 65535"),
        ("port", "-1", "a whole number"),
        ("port", "8080 ", "a whole number"),
        ("port", "٣", "a whole number"),
        ("port", "", "a whole number"),
        ("port", "9" * 5000, "a whole number"),
        ("kv-blocks", "1e3", "a whole number"),
        ("max-running", "0", "a whole number from 1"),
        ("grace", "nan", "seconds from 0 to 3600"),
        ("grace", "-1", "seconds from 0 to 3600"),
        ("grace", "inf", "seconds from 0 to 3600"),
        ("host", " ", "a text that is not empty"),
        ("redis-url", "localhost:6379", "a URL that begins with redis://"),
        ("speculation", "on", "one of off, ngram, auto"),
        ("compute", "fp16", "one of auto, int16, int8, fp32"),
        ("kv-dtype", "int4", "one of auto, bf16, int8, fp8"),
        ("head", "bf16", "one of auto, int8, int4"),
        ("max-wait", "gold=1", "tier=number for vip, standard and batch"),
        ("max-waiting", "vip=0", "tier=number for vip, standard and batch"),
        (
            "max-waiting",
            "batch=4097",
            "tier=number for vip, standard and batch, joined by commas, from 1 to 4096",
        ),
        ("ageing", "0", "seconds above 0"),
        ("batch-wait", "0.25", "seconds from 0 to 0.2"),
        ("log-level", "INFO", "one of debug"),
        ("allowed-origins", "chat.example.org", "origins such as"),
    ],
)
def test_a_value_that_does_not_fit_stops_start_up(name: str, text: str, expected: str) -> None:
    variable = "REPARTEE_" + name.upper().replace("-", "_")
    for flags, environ, source in (
        ({name: text}, {}, f"--{name}"),
        ({}, {variable: text}, variable),
    ):
        with pytest.raises(StartupError) as caught:
            serve_settings(flags, environ)
        line = caught.value.line()
        assert line.startswith(f"{source} takes {expected}")
        assert repr(text[:80]) in line
        assert len(line) < 300


def test_a_refused_redis_url_keeps_its_password() -> None:
    with pytest.raises(StartupError) as caught:
        serve_settings({"redis-url": "http://user:hunter2@host:1"}, {})
    assert "hunter2" not in caught.value.line()
    assert "//***@host:1" in caught.value.line()


def test_origins_are_a_list_without_trailing_slashes() -> None:
    settings = gateway_settings({"allowed-origins": "https://a.example/, http://b.example:81"}, {})
    assert settings.allowed_origins == ("https://a.example", "http://b.example:81")


def test_a_gateway_reads_its_own_environment_back(tmp_path: Path) -> None:
    flags = {
        "host": "::1",
        "port": "81",
        "redis-url": "unix:///tmp/a%20b",
        "grace": "1.5",
        "api-keys-file": str(tmp_path / "keys"),
        "allowed-origins": "https://a.example,https://b.example",
        "log-level": "debug",
        "log-format": "json",
        "otlp-endpoint": "http://127.0.0.1:4318",
        "ops-token-file": str(tmp_path / "ops"),
    }
    settings = gateway_settings(flags, {})
    environ = gateway_environment(settings, {"PATH": "/bin", "REPARTEE_MODEL": "x"})
    assert environ["PATH"] == "/bin"
    assert "REPARTEE_MODEL" not in environ
    assert gateway_settings({}, environ) == settings
    assert gateway_settings({}, gateway_environment(gateway_settings({}, {}), {})).port == 8080


def test_the_documented_table_is_this_table() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    assert markdown_table() in page, "docs/options.md is stale: run `make docs`"


def test_limits_of_the_queue_reach_the_worker() -> None:
    values = {"max-wait": "standard=2.5", "max-waiting": "9", "ageing": "4", "batch-wait": "0.05"}
    settings = worker_settings(values, {})
    command = worker_command(settings, ModelFile("m", Path("/m.gguf"), "GGUF Q4_1", 1, "package"))
    for flag, value in (
        ("--max-wait", "vip=10,standard=2.5,batch=20"),
        ("--max-waiting", "vip=9,standard=9,batch=9"),
        ("--ageing", "4"),
        ("--batch-wait", "0.05"),
    ):
        assert command[command.index(flag) + 1] == value
