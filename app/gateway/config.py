"""How one gateway process is set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from app.auth import ApiKeys, TokenKeys, parse_api_keys, parse_token_keys
from app.gateway.ops.access import parse_ops_token
from app.gateway.origins import OriginPolicy, is_loopback
from app.limits import NO_LIMITS, NO_STORAGE_LIMITS, LimitPolicy, parse_limits
from app.settings import GatewaySettings
from app.startup_error import StartupError
from app.watched_file import WatchedFile

T = TypeVar("T")

_DEFAULT_LIMITS = LimitPolicy()
_OPEN_LIMITS = LimitPolicy(NO_LIMITS, storage=NO_STORAGE_LIMITS)
WEB_DIR = Path(__file__).parents[2] / "web"
_POSITIVE = (
    "max_body_bytes",
    "max_frame_bytes",
    "max_pending_bytes",
    "max_events_per_s",
    "max_tenant_events_per_s",
    "ping_interval_s",
    "ping_timeout_s",
    "heartbeat_s",
    "write_timeout_s",
    "answer_timeout_s",
)


@dataclass(frozen=True)
class GatewayConfig:
    """Settings of a gateway, checked on construction.

    Attributes:
        redis_url: Where workers and conversations are.
        host: Address that it listens on.
        api_keys: Valid keys; without keys of any kind, only a loopback host is allowed.
        api_keys_file: Valid keys as they stand in a file; goes before `api_keys`.
        token_keys: Keys that tokens are checked with.
        token_keys_file: The same as they stand in a file; goes before `token_keys`.
        token_audience: Must be among a token's audiences.
        token_issuer: Must be a token's issuer; empty does not ask.
        ops_token_file: Hash of the token for the operator's view, as its file stands; None
            without one.
        limits: What callers may ask for; None takes the defaults, which without keys
            are no limits.
        limits_file: The same as it stands in a file; goes before `limits`.
        allowed_origins: Web pages that may call besides the gateway's own.
        web_dir: The page's files.
        max_connections: At once; 0 for as many as the limit of open files allows.
        max_body_bytes: Longest HTTP request body.
        max_frame_bytes: Longest WebSocket message from a client.
        max_pending_bytes: Unsent bytes a socket may have waiting before it is cut.
        max_events_per_s: Client events a socket may send for long; faster is throttled.
        max_tenant_events_per_s: The same for all sockets of a tenant here.
        ping_interval_s: Between WebSocket pings.
        ping_timeout_s: Until an unanswered ping ends the socket.
        heartbeat_s: Silence after which an event stream gets a comment line.
        write_timeout_s: Until a peer that takes no bytes is cut.
        answer_timeout_s: An answer's deadline, counted from its request.
        grace_s: How long running answers may go on after SIGTERM; 0 ends them at once.
        otlp_endpoint: Base URL of an OpenTelemetry collector; empty for no traces.

    Raises:
        StartupError: naming the setting.
    """

    redis_url: str
    host: str = "127.0.0.1"
    api_keys: ApiKeys = field(default_factory=lambda: ApiKeys(()))
    api_keys_file: WatchedFile[ApiKeys] | None = None
    token_keys: TokenKeys = field(default_factory=lambda: TokenKeys(()))
    token_keys_file: WatchedFile[TokenKeys] | None = None
    token_audience: str = "repartee"
    token_issuer: str = "repartee"
    ops_token_file: WatchedFile[bytes] | None = None
    limits: LimitPolicy | None = None
    limits_file: WatchedFile[LimitPolicy] | None = None
    allowed_origins: tuple[str, ...] = ()
    web_dir: Path = WEB_DIR
    max_connections: int = 0
    max_body_bytes: int = 2 * 1024 * 1024
    max_frame_bytes: int = 1024 * 1024
    max_pending_bytes: int = 256 * 1024
    max_events_per_s: float = 500.0
    max_tenant_events_per_s: float = 5000.0
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 20.0
    heartbeat_s: float = 12.0
    write_timeout_s: float = 20.0
    answer_timeout_s: float = 600.0
    grace_s: float = 30.0
    otlp_endpoint: str = ""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise StartupError(f"{name} must be above 0, got {getattr(self, name)}.")
        if not self.needs_key and not is_loopback(self.host):
            raise StartupError(
                f"--host {self.host} can be reached from elsewhere, and there are no API keys.",
                "Set --api-keys-file or --token-keys-file, or listen on 127.0.0.1.",
            )
        try:
            OriginPolicy(self.allowed_origins)
        except ValueError as error:
            raise StartupError(f"--allowed-origins: {error}.") from None

    @classmethod
    def from_settings(cls, settings: GatewaySettings) -> GatewayConfig:
        """What the command line and the environment say.

        Raises:
            StartupError: naming the setting or the file.
        """
        keys = _watched(settings.api_keys_file, parse_api_keys, "--api-keys-file")
        tokens = _watched(settings.token_keys_file, parse_token_keys, "--token-keys-file")
        read_limits = parse_limits
        if not keys and not tokens:
            read_limits = partial(parse_limits, base=NO_LIMITS, storage=NO_STORAGE_LIMITS)
        return cls(
            redis_url=settings.redis_url,
            host=settings.host,
            api_keys_file=keys,
            token_keys_file=tokens,
            token_audience=settings.token_audience,
            token_issuer=settings.token_issuer,
            ops_token_file=_watched(settings.ops_token_file, parse_ops_token, "--ops-token-file"),
            limits_file=_watched(settings.limits_file, read_limits, "--limits-file"),
            allowed_origins=settings.allowed_origins,
            max_connections=settings.max_connections,
            grace_s=settings.grace_s,
            otlp_endpoint=settings.otlp_endpoint,
        )

    @property
    def needs_key(self) -> bool:
        """Whether callers must show a key or a token."""
        return len(self.current_api_keys) > 0 or self.takes_tokens

    @property
    def takes_tokens(self) -> bool:
        """Whether there are keys to check tokens with."""
        return len(self.current_token_keys) > 0

    @property
    def current_api_keys(self) -> ApiKeys:
        """The API keys as they stand now."""
        return self.api_keys if self.api_keys_file is None else self.api_keys_file.value

    @property
    def current_token_keys(self) -> TokenKeys:
        """The tokens' keys as they stand now."""
        return self.token_keys if self.token_keys_file is None else self.token_keys_file.value

    @property
    def current_limits(self) -> LimitPolicy:
        """The limits as they stand now."""
        if self.limits_file is not None:
            return self.limits_file.value
        if self.limits is not None:
            return self.limits
        return _DEFAULT_LIMITS if self.needs_key else _OPEN_LIMITS

    @property
    def current_ops_token(self) -> bytes | None:
        """The hash of the operator's token as it stands now."""
        return None if self.ops_token_file is None else self.ops_token_file.value

    @property
    def watched_files(self) -> tuple[WatchedFile[object], ...]:
        """All that are read again when they change."""
        files = (
            self.api_keys_file,
            self.token_keys_file,
            self.limits_file,
            self.ops_token_file,
        )
        return tuple(cast("WatchedFile[object]", file) for file in files if file is not None)

    @property
    def origin_policy(self) -> OriginPolicy:
        """Which pages may call."""
        return OriginPolicy(self.allowed_origins, needs_loopback_host=not self.needs_key)


def _watched(path: Path | None, parse: Callable[[str], T], setting: str) -> WatchedFile[T] | None:
    return None if path is None else WatchedFile(path, parse, setting)
