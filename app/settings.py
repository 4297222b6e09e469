"""What each process was told, read once from the command line and the environment.

The command line beats the environment. A variable that begins with `REPARTEE_` and
is not known, or a value that does not fit, stops start-up by name.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from app.options import (
    DOCTOR,
    ENVIRONMENT_PREFIX,
    GATEWAY,
    MODELS,
    OPTIONS,
    PROFILE,
    SERVE,
    TOKEN,
    WORKER,
    Option,
    Value,
    options_of,
)
from app.startup_error import StartupError, without_password

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """One gateway process.

    Attributes:
        host: Address to listen on.
        port: TCP port; 0 takes a free one.
        redis_url: Never empty.
        grace_s: Seconds that running answers get after a stop signal.
        api_keys_file: API keys; None takes none.
        token_keys_file: Keys that tokens are checked with; None takes no tokens.
            Without either file anyone on this machine is let in and nobody else.
        token_audience: Must be among a token's audiences.
        token_issuer: Must be a token's issuer; empty does not ask.
        limits_file: What callers may ask for; None takes the defaults.
        max_connections: At once; 0 for as many as the limit of open files allows.
        allowed_origins: Web origins besides the gateway's own.
        log_level: debug, info, warning or error.
        log_format: text or json.
        ops_token_file: Who may see the operator's page; see the option.
        otlp_endpoint: Base URL of an OpenTelemetry collector; empty for no traces.
    """

    host: str
    port: int
    redis_url: str
    grace_s: float
    api_keys_file: Path | None
    token_keys_file: Path | None
    token_audience: str
    token_issuer: str
    limits_file: Path | None
    max_connections: int
    allowed_origins: tuple[str, ...]
    log_level: str
    log_format: str
    otlp_endpoint: str
    ops_token_file: Path | None


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One worker process.

    Attributes:
        redis_url: Never empty.
        data_dir: Where models are looked for.
        model: Path or name as given; empty takes the default model.
        kv_blocks: KV cache blocks; 0 is sized by window and free memory.
        host_kv_mb: MiB for packed KV blocks outside the cache; 0 for none.
        max_running: Most requests that run at once; at least 1.
        max_wait: Longest predicted wait with which each tier is taken, seconds, as
            `parse_tier_values` reads it.
        max_waiting: Most requests of each tier that wait, likewise.
        ageing_s: Seconds after which a waiting request passes newer ones of the next
            higher tier.
        batch_wait_s: Longest wait of a new request for others to begin with, seconds.
        speculation: off, ngram or auto.
        threads: CPU threads; 0 is one for each usable core.
        device: auto, cpu or cuda.
        compute: auto, int16, int8 or fp32.
        kv_dtype: auto, bf16, int8 or fp8.
        head: auto, int8 or int4.
        native: Whether the CPU kernels are compiled for this machine.
        cache_dir: Where they are kept; None takes the user's cache folder.
        grace_s: Seconds that running answers get after a stop signal.
        log_level: debug, info, warning or error.
        log_format: text or json.
    """

    redis_url: str
    data_dir: Path
    model: str
    kv_blocks: int
    host_kv_mb: int
    max_running: int
    max_wait: str
    max_waiting: str
    ageing_s: float
    batch_wait_s: float
    speculation: str
    threads: int
    device: str
    compute: str
    kv_dtype: str
    head: str
    native: bool
    cache_dir: Path | None
    grace_s: float
    log_level: str
    log_format: str


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The supervisor and what it starts.

    Attributes:
        data_dir: Lock, models and the private Redis's data.
        redis_url: A Redis to use instead of a private one; None starts one.
        redis_mb: Most memory of the private one; 0 has no limit.
        gateway: Its `redis_url` is the default until the private Redis has its own.
        worker: Likewise.
    """

    data_dir: Path
    redis_url: str | None
    redis_mb: int
    gateway: GatewaySettings
    worker: WorkerSettings

    @property
    def grace_s(self) -> float:
        return self.gateway.grace_s


@dataclass(frozen=True, slots=True)
class ModelsSettings:
    """`repartee models`."""

    data_dir: Path


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """`repartee doctor`; the fields mean the same as for `serve`."""

    data_dir: Path
    redis_url: str | None
    model: str
    device: str
    host: str
    port: int
    native: bool
    cache_dir: Path | None


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """`repartee profile`; the fields mean the same as for `worker`.

    Attributes:
        trace: File for the steps.
    """

    data_dir: Path
    model: str
    speculation: str
    threads: int
    device: str
    compute: str
    kv_dtype: str
    head: str
    native: bool
    cache_dir: Path | None
    trace: Path


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """`repartee token`.

    Attributes:
        token_keys_file: The key set.
        token_audience: The token's audience.
        token_issuer: The token's issuer; empty leaves it out.
        new_key: eddsa or hs256: add such a key; empty adds none.
        public_keys: Where the public halves go; None writes none.
        key_id: Which key signs; empty takes the newest.
        tenant: The token's.
        tier: The token's.
        subject: The token's; empty takes the tenant.
        ttl_s: Seconds that it is good for.
    """

    token_keys_file: Path
    token_audience: str
    token_issuer: str
    new_key: str
    public_keys: Path | None
    key_id: str
    tenant: str
    tier: str
    subject: str
    ttl_s: int


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """`repartee` below the user's data folder, by the XDG base directory rule."""
    base = environ.get("XDG_DATA_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path("~/.local/share").expanduser()
    return root / "repartee"


def check_environment(environ: Mapping[str, str]) -> None:
    """Refuse variables with our prefix that no option has.

    Raises:
        StartupError: naming the variable and the nearest known one.
    """
    known = [option.variable.removeprefix(ENVIRONMENT_PREFIX) for option in OPTIONS]
    for name in sorted(environ):
        own = name.removeprefix(ENVIRONMENT_PREFIX)
        if own != name and own not in known:
            near = difflib.get_close_matches(own, known, n=1)
            hint = "Unset it; `--help` lists what exists."
            if near:
                hint = f"Did you mean {ENVIRONMENT_PREFIX}{near[0]}?"
            raise StartupError(f"Unknown setting {name} in the environment.", hint)


def _read(option: Option, flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Value:
    """The option's value from its flag, else its variable, else its default."""
    source, text = option.flag, flags.get(option.name)
    if text is None:
        source, text = option.variable, environ.get(option.variable)
    if text is None:
        return option.default
    try:
        return option.parse(text)
    except ValueError as error:
        shown = without_password(text)[:80]
        raise StartupError(f"{source} takes {error}, got {shown!r}.") from None


class _Values:
    """One command's values, with their types narrowed where they are used."""

    def __init__(
        self, command: str, flags: Mapping[str, str | None], environ: Mapping[str, str]
    ) -> None:
        self._values = {
            option.name: _read(option, flags, environ) for option in options_of(command)
        }
        self._environ = environ

    def text(self, name: str) -> str:
        return cast(str, self._values[name])

    def integer(self, name: str) -> int:
        return cast(int, self._values[name])

    def seconds(self, name: str) -> float:
        return cast(float, self._values[name])

    def texts(self, name: str) -> tuple[str, ...]:
        return cast("tuple[str, ...]", self._values[name])

    def file(self, name: str) -> Path | None:
        given = self.text(name)
        return Path(given).expanduser().absolute() if given else None

    @property
    def data_dir(self) -> Path:
        given = self.text("data-dir")
        path = Path(given).expanduser() if given else default_data_dir(self._environ)
        return path.absolute()

    @property
    def native(self) -> bool:
        return self.integer("native") == 1

    @property
    def cache_dir(self) -> Path | None:
        return self.file("cache-dir")

    @property
    def redis_url(self) -> str:
        return self.text("redis-url") or DEFAULT_REDIS_URL

    def gateway(self) -> GatewaySettings:
        return GatewaySettings(
            host=self.text("host"),
            port=self.integer("port"),
            redis_url=self.redis_url,
            grace_s=self.seconds("grace"),
            api_keys_file=self.file("api-keys-file"),
            token_keys_file=self.file("token-keys-file"),
            token_audience=self.text("token-audience"),
            token_issuer=self.text("token-issuer"),
            limits_file=self.file("limits-file"),
            max_connections=self.integer("max-connections"),
            allowed_origins=self.texts("allowed-origins"),
            log_level=self.text("log-level"),
            log_format=self.text("log-format"),
            otlp_endpoint=self.text("otlp-endpoint"),
            ops_token_file=self.file("ops-token-file"),
        )

    def worker(self) -> WorkerSettings:
        return WorkerSettings(
            redis_url=self.redis_url,
            data_dir=self.data_dir,
            model=self.text("model"),
            kv_blocks=self.integer("kv-blocks"),
            host_kv_mb=self.integer("host-kv-mb"),
            max_running=self.integer("max-running"),
            max_wait=self.text("max-wait"),
            max_waiting=self.text("max-waiting"),
            ageing_s=self.seconds("ageing"),
            batch_wait_s=self.seconds("batch-wait"),
            speculation=self.text("speculation"),
            threads=self.integer("threads"),
            device=self.text("device"),
            compute=self.text("compute"),
            kv_dtype=self.text("kv-dtype"),
            head=self.text("head"),
            native=self.native,
            cache_dir=self.cache_dir,
            grace_s=self.seconds("grace"),
            log_level=self.text("log-level"),
            log_format=self.text("log-format"),
        )


def gateway_environment(settings: GatewaySettings, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with exactly these settings, for a gateway process to read back.

    The Redis URL may hold a password, and arguments are visible to every user.
    """
    ours = {
        "REPARTEE_HOST": settings.host,
        "REPARTEE_PORT": str(settings.port),
        "REPARTEE_REDIS_URL": settings.redis_url,
        "REPARTEE_GRACE": str(settings.grace_s),
        "REPARTEE_API_KEYS_FILE": str(settings.api_keys_file or ""),
        "REPARTEE_TOKEN_KEYS_FILE": str(settings.token_keys_file or ""),
        "REPARTEE_TOKEN_AUDIENCE": settings.token_audience,
        "REPARTEE_TOKEN_ISSUER": settings.token_issuer,
        "REPARTEE_LIMITS_FILE": str(settings.limits_file or ""),
        "REPARTEE_MAX_CONNECTIONS": str(settings.max_connections),
        "REPARTEE_ALLOWED_ORIGINS": ",".join(settings.allowed_origins),
        "REPARTEE_LOG_LEVEL": settings.log_level,
        "REPARTEE_LOG_FORMAT": settings.log_format,
        "REPARTEE_OTLP_ENDPOINT": settings.otlp_endpoint,
        "REPARTEE_OPS_TOKEN_FILE": str(settings.ops_token_file or ""),
    }
    return {**without_our_variables(environ), **ours}


def without_our_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` less everything that begins with our prefix."""
    return {
        name: value for name, value in environ.items() if not name.startswith(ENVIRONMENT_PREFIX)
    }


def gateway_settings(
    flags: Mapping[str, str | None], environ: Mapping[str, str] = os.environ
) -> GatewaySettings:
    """Settings of `repartee gateway`; `flags` maps option names to texts.

    Raises:
        StartupError: for an unknown variable or a value that does not fit.
    """
    check_environment(environ)
    return _Values(GATEWAY, flags, environ).gateway()


def worker_settings(
    flags: Mapping[str, str | None], environ: Mapping[str, str] = os.environ
) -> WorkerSettings:
    """Settings of `repartee worker`; see `gateway_settings`."""
    check_environment(environ)
    return _Values(WORKER, flags, environ).worker()


def serve_settings(
    flags: Mapping[str, str | None], environ: Mapping[str, str] = os.environ
) -> ServeSettings:
    """Settings of `repartee serve`; see `gateway_settings`."""
    check_environment(environ)
    values = _Values(SERVE, flags, environ)
    return ServeSettings(
        data_dir=values.data_dir,
        redis_url=values.text("redis-url") or None,
        redis_mb=values.integer("redis-mb"),
        gateway=values.gateway(),
        worker=values.worker(),
    )


def models_settings(
    flags: Mapping[str, str | None], environ: Mapping[str, str] = os.environ
) -> ModelsSettings:
    """Settings of `repartee models`; see `gateway_settings`."""
    check_environment(environ)
    return ModelsSettings(data_dir=_Values(MODELS, flags, environ).data_dir)


def doctor_settings(
    flags: Mapping[str, str | None], environ: Mapping[str, str] = os.environ
) -> DoctorSettings:
    """Settings of `repartee doctor`; see `gateway_settings`."""
    check_environment(environ)
    values = _Values(DOCTOR, flags, environ)
    return DoctorSettings(
        data_dir=values.data_dir,
        redis_url=values.text("redis-url") or None,
        model=values.text("model"),
        device=values.text("device"),
        host=values.text("host"),
        port=values.integer("port"),
        native=values.native,
        cache_dir=values.cache_dir,
    )


def profile_settings(
    flags: Mapping[str, str | None], environ: Mapping[str, str] = os.environ
) -> ProfileSettings:
    """Settings of `repartee profile`; see `gateway_settings`."""
    check_environment(environ)
    values = _Values(PROFILE, flags, environ)
    return ProfileSettings(
        data_dir=values.data_dir,
        model=values.text("model"),
        speculation=values.text("speculation"),
        threads=values.integer("threads"),
        device=values.text("device"),
        compute=values.text("compute"),
        kv_dtype=values.text("kv-dtype"),
        head=values.text("head"),
        native=values.native,
        cache_dir=values.cache_dir,
        trace=Path(values.text("trace")),
    )


def token_settings(
    flags: Mapping[str, str | None], environ: Mapping[str, str] = os.environ
) -> TokenSettings:
    """Settings of `repartee token`; see `gateway_settings`."""
    check_environment(environ)
    values = _Values(TOKEN, flags, environ)
    file = values.file("token-keys-file")
    if file is None:
        raise StartupError("A token needs a key to sign with.", "Name a file: --token-keys-file.")
    return TokenSettings(
        token_keys_file=file,
        token_audience=values.text("token-audience"),
        token_issuer=values.text("token-issuer"),
        new_key=values.text("new-key"),
        public_keys=values.file("public-keys"),
        key_id=values.text("key-id"),
        tenant=values.text("tenant"),
        tier=values.text("tier"),
        subject=values.text("subject"),
        ttl_s=values.integer("ttl"),
    )
