"""Every option of every command, in one table.

`--help`, the environment, the documentation page and the settings objects are all
read from `OPTIONS`. An option's environment twin is its name in capitals after
`REPARTEE_`: `--kv-blocks` and `REPARTEE_KV_BLOCKS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app import option_values as values
from engine.contract.tier_values import MAX_TIER_WAITING

ENVIRONMENT_PREFIX = "REPARTEE_"

Value = str | int | float | tuple[str, ...]

SERVE = "serve"
GATEWAY = "gateway"
WORKER = "worker"
MODELS = "models"
DOCTOR = "doctor"
PROFILE = "profile"
TOKEN = "token"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting.

    Attributes:
        name: Flag without the dashes; kept for good.
        parse: Text to value; raises ValueError saying what was expected.
        default: Value when neither flag nor variable is given.
        kind: What the text looks like, for people.
        meaning: One sentence, with the unit.
        zero: What 0 or the empty text means.
        commands: The commands that take it.
    """

    name: str
    parse: Callable[[str], Value]
    default: Value
    kind: str
    meaning: str
    zero: str
    commands: tuple[str, ...]

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper().replace("-", "_")

    @property
    def zero_word(self) -> str:
        """What `zero` speaks of: the number or the empty text."""
        return "0" if isinstance(self.default, int | float) else "Empty"

    @property
    def default_text(self) -> str:
        """The default as a person would type it."""
        if isinstance(self.default, tuple):
            return ",".join(self.default)
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


OPTIONS: tuple[Option, ...] = (
    Option(
        "host",
        values.filled,
        "127.0.0.1",
        "address",
        "Address that the gateway listens on.",
        "",
        (SERVE, GATEWAY, DOCTOR),
    ),
    Option(
        "port",
        values.integer(0, 65535),
        8080,
        "number",
        "TCP port that the gateway listens on.",
        "any free port, named in the ready line",
        (SERVE, GATEWAY, DOCTOR),
    ),
    Option(
        "redis-url",
        values.redis_url,
        "",
        "URL",
        "Redis that gateways and workers share; 6.2 or later.",
        "serve starts a private one; the other commands use redis://127.0.0.1:6379/0",
        (SERVE, GATEWAY, WORKER, DOCTOR),
    ),
    Option(
        "redis-mb",
        values.integer(0, 10_000_000),
        1024,
        "MiB",
        "Most memory of the private Redis. What is stored is never dropped to make room: once "
        "it is full, new messages are refused until conversations expire or are deleted.",
        "no limit",
        (SERVE,),
    ),
    Option(
        "data-dir",
        values.text,
        "",
        "folder",
        "Holds models/ and the private Redis's data; one serve at a time.",
        "repartee below $XDG_DATA_HOME, or else ~/.local/share/repartee",
        (SERVE, WORKER, MODELS, DOCTOR, PROFILE),
    ),
    Option(
        "model",
        values.text,
        "",
        "path or name",
        "GGUF file, Hugging Face folder, or the name of a model that `repartee models` lists.",
        "the only model in the data folder, or else the packaged SmolLM2-135M-Instruct",
        (SERVE, WORKER, DOCTOR, PROFILE),
    ),
    Option(
        "kv-blocks",
        values.integer(0, 10_000_000),
        0,
        "number",
        "KV cache blocks of 16 tokens, shared by all running requests.",
        "one context window and at least 256 MiB, within half of the free memory",
        (SERVE, WORKER),
    ),
    Option(
        "host-kv-mb",
        values.integer(0, 10_000_000),
        0,
        "MiB",
        "Memory for KV blocks that had to leave the KV cache, packed without loss, so that "
        "chats that come back late are not computed again.",
        "none",
        (SERVE, WORKER),
    ),
    Option(
        "max-running",
        values.integer(1, 100_000),
        256,
        "number",
        "Most requests that run at once; further ones wait.",
        "",
        (SERVE, WORKER),
    ),
    Option(
        "max-wait",
        values.tiers("vip=10,standard=7,batch=20", 0.001, 86_400),
        "vip=10,standard=7,batch=20",
        "tier=seconds,…",
        "Longest predicted wait with which a request of each tier is taken; one that would wait "
        "longer is told when to come again. A number alone is for all tiers.",
        "",
        (SERVE, WORKER),
    ),
    Option(
        "max-waiting",
        values.tiers("vip=1024,standard=1024,batch=1024", 1, MAX_TIER_WAITING),
        "vip=1024,standard=1024,batch=1024",
        "tier=number,…",
        "Most requests of each tier that wait, 4096 at most. A number alone is for each of them.",
        "",
        (SERVE, WORKER),
    ),
    Option(
        "ageing",
        values.ageing,
        10.0,
        "seconds",
        "After this long a waiting request passes newer ones of the next higher tier; a standard "
        "request that was taken has started by then.",
        "",
        (SERVE, WORKER),
    ),
    Option(
        "batch-wait",
        values.seconds(0.2),
        0.1,
        "seconds",
        "Longest that a new request waits for others to begin with, at most 0.2, where beginning "
        "together saves a twentieth of the machine's time; VIPs, and all on an idle engine, "
        "begin at once. 0 for never.",
        "",
        (SERVE, WORKER),
    ),
    Option(
        "speculation",
        values.choice("off", "ngram", "auto"),
        "off",
        "off, ngram, auto",
        "Guess tokens ahead from the text so far and verify them in one step; auto does so "
        "where it measures a gain.",
        "",
        (SERVE, WORKER, PROFILE),
    ),
    Option(
        "threads",
        values.integer(0, 1024),
        0,
        "number",
        "CPU threads for the model.",
        "one for each core that the process may use",
        (SERVE, WORKER, PROFILE),
    ),
    Option(
        "device",
        values.choice("auto", "cpu", "cuda"),
        "auto",
        "auto, cpu, cuda",
        "Where the model runs; auto takes the best that this version can use.",
        "",
        (SERVE, WORKER, DOCTOR, PROFILE),
    ),
    Option(
        "compute",
        values.choice("auto", "int16", "int8", "fp32"),
        "auto",
        "auto, int16, int8, fp32",
        "How matrix products are formed on the CPU: int16 and int8 round activations to 16 or "
        "8 bits, fp32 is exact to the weights; auto is int16.",
        "",
        (SERVE, WORKER, PROFILE),
    ),
    Option(
        "kv-dtype",
        values.choice("auto", "bf16", "int8", "fp8"),
        "auto",
        "auto, bf16, int8, fp8",
        "How the KV cache is stored. int8 and fp8 take about half the memory and round each "
        "token's keys and values to 8 bits with a scale for each head; auto is bf16, or float32 "
        "where compute is fp32.",
        "",
        (SERVE, WORKER, PROFILE),
    ),
    Option(
        "head",
        values.choice("auto", "int8", "int4"),
        "auto",
        "auto, int8, int4",
        "What a model's output layer is rounded to when it is read, if its file has it in floating "
        "point: on a GPU an answer alone gets its tokens sooner. auto leaves it as it is.",
        "",
        (SERVE, WORKER, PROFILE),
    ),
    Option(
        "native",
        values.integer(0, 1),
        1,
        "0 or 1",
        "Compile the CPU kernels for this machine at first use; needs g++.",
        "use PyTorch's operations, several times slower",
        (SERVE, WORKER, DOCTOR, PROFILE),
    ),
    Option(
        "cache-dir",
        values.text,
        "",
        "folder",
        "Holds the compiled CPU kernels.",
        "repartee below $XDG_CACHE_HOME, or else ~/.cache/repartee",
        (SERVE, WORKER, DOCTOR, PROFILE),
    ),
    Option(
        "grace",
        values.seconds(3600.0),
        30.0,
        "seconds",
        "How long running answers may go on after a stop signal.",
        "stop at once",
        (SERVE, GATEWAY, WORKER),
    ),
    Option(
        "api-keys-file",
        values.text,
        "",
        "file",
        "API keys that the gateway accepts; its format is in the documentation.",
        "no keys: anyone on this machine is let in, and nobody from elsewhere",
        (SERVE, GATEWAY),
    ),
    Option(
        "token-keys-file",
        values.text,
        "",
        "file",
        "JSON Web Key Set: keys that bearer tokens are checked with, and signed with by "
        "`repartee token`.",
        "no tokens",
        (SERVE, GATEWAY, TOKEN),
    ),
    Option(
        "token-audience",
        values.filled,
        "repartee",
        "name",
        "Audience that a token must be for.",
        "",
        (SERVE, GATEWAY, TOKEN),
    ),
    Option(
        "token-issuer",
        values.text,
        "repartee",
        "name",
        "Issuer that a token must come from.",
        "any issuer",
        (SERVE, GATEWAY, TOKEN),
    ),
    Option(
        "new-key",
        values.key_kind,
        "",
        "eddsa, hs256",
        "Add a new key to the key set, making the file if it is not there, and no token.",
        "no new key",
        (TOKEN,),
    ),
    Option(
        "public-keys",
        values.text,
        "",
        "file",
        "Write the key set without what signs to this file, for gateways, and make no token.",
        "none",
        (TOKEN,),
    ),
    Option(
        "key-id",
        values.text,
        "",
        "name",
        "Key that signs.",
        "the newest",
        (TOKEN,),
    ),
    Option(
        "tenant",
        values.filled,
        "default",
        "name",
        "Tenant that the token stands for.",
        "",
        (TOKEN,),
    ),
    Option(
        "tier",
        values.choice("vip", "standard", "batch"),
        "standard",
        "vip, standard, batch",
        "Tier that the token gives.",
        "",
        (TOKEN,),
    ),
    Option(
        "subject",
        values.text,
        "",
        "name",
        "Whom the tenant gives the token to.",
        "the tenant itself",
        (TOKEN,),
    ),
    Option(
        "ttl",
        values.integer(1, 366 * 86_400),
        3600,
        "seconds",
        "How long the token is good.",
        "",
        (TOKEN,),
    ),
    Option(
        "limits-file",
        values.text,
        "",
        "file",
        "TOML: requests and tokens a minute, responses and sockets at once, by tier and tenant; "
        "what tenants and their subjects may store.",
        "generous limits for callers with keys, none without",
        (SERVE, GATEWAY),
    ),
    Option(
        "max-connections",
        values.integer(0, 10_000_000),
        0,
        "number",
        "Connections that a gateway holds at once; further ones get 503.",
        "as many as the limit of open files allows, at most 100000",
        (SERVE, GATEWAY),
    ),
    Option(
        "allowed-origins",
        values.origins,
        (),
        "origins",
        "Web origins, joined by commas, whose pages may connect besides the gateway's own.",
        "only the gateway's own page",
        (SERVE, GATEWAY),
    ),
    Option(
        "trace",
        values.filled,
        "trace.json",
        "file",
        "Where `repartee profile` writes its steps for chrome://tracing or Perfetto.",
        "",
        (PROFILE,),
    ),
    Option(
        "ops-token-file",
        values.text,
        "",
        "file",
        "Token for the operator's page `/ops` and for `/metrics`, 16 to 512 characters.",
        "without API keys anyone on this machine sees them; with keys nobody sees `/ops`, and "
        "`/metrics` takes any key",
        (SERVE, GATEWAY),
    ),
    Option(
        "log-level",
        values.choice("debug", "info", "warning", "error"),
        "info",
        "debug, info, warning, error",
        "Least severe log line that is written to standard error.",
        "",
        (SERVE, GATEWAY, WORKER),
    ),
    Option(
        "log-format",
        values.choice("text", "json"),
        "text",
        "text, json",
        "How log lines are written: for people, or one JSON object a line with its fields.",
        "",
        (SERVE, GATEWAY, WORKER),
    ),
    Option(
        "otlp-endpoint",
        values.http_url,
        "",
        "URL",
        "OpenTelemetry collector that gets a span for each answer, by OTLP over HTTP; needs "
        "`pip install 'repartee[otel]'`.",
        "no traces",
        (SERVE, GATEWAY),
    ),
)


def options_of(command: str) -> tuple[Option, ...]:
    """The options that `command` takes, in table order."""
    return tuple(option for option in OPTIONS if command in option.commands)


def markdown_table() -> str:
    """The table as it stands in the documentation."""
    rows = [
        "| option | environment | takes | default | meaning | commands |",
        "|---|---|---|---|---|---|",
    ]
    for option in OPTIONS:
        zero = f" {option.zero_word}: {option.zero}." if option.zero else ""
        default = f"`{option.default_text}`" if option.default_text else ""
        cells = (
            f"`{option.flag}`",
            f"`{option.variable}`",
            option.kind,
            default,
            option.meaning + zero,
            ", ".join(option.commands),
        )
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"
