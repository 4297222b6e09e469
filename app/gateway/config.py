"""How one gateway process is set."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from app.auth import ApiKeys, parse_api_keys
from app.gateway.origins import OriginPolicy, is_loopback
from app.settings import GatewaySettings
from app.startup_error import StartupError

WEB_DIR = Path(__file__).parents[2] / "web"
_POSITIVE = (
    "max_body_bytes",
    "max_frame_bytes",
    "max_pending_bytes",
    "max_events_per_s",
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
        api_keys: Valid keys; without any, only a loopback host is allowed.
        allowed_origins: Web pages that may call besides the gateway's own.
        web_dir: The page's files.
        max_body_bytes: Longest HTTP request body.
        max_frame_bytes: Longest WebSocket message from a client.
        max_pending_bytes: Unsent bytes a socket may have waiting before it is cut.
        max_events_per_s: Client events a socket may send for long; faster is throttled.
        ping_interval_s: Between WebSocket pings.
        ping_timeout_s: Until an unanswered ping ends the socket.
        heartbeat_s: Silence after which an event stream gets a comment line.
        write_timeout_s: Until a peer that takes no bytes is cut.
        answer_timeout_s: An answer's deadline, counted from its request.
        grace_s: How long running answers may go on after SIGTERM; 0 ends them at once.

    Raises:
        StartupError: naming the setting.
    """

    redis_url: str
    host: str = "127.0.0.1"
    api_keys: ApiKeys = field(default_factory=lambda: ApiKeys(()))
    allowed_origins: tuple[str, ...] = ()
    web_dir: Path = WEB_DIR
    max_body_bytes: int = 2 * 1024 * 1024
    max_frame_bytes: int = 1024 * 1024
    max_pending_bytes: int = 256 * 1024
    max_events_per_s: float = 500.0
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 20.0
    heartbeat_s: float = 12.0
    write_timeout_s: float = 20.0
    answer_timeout_s: float = 600.0
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise StartupError(f"{name} must be above 0, got {getattr(self, name)}.")
        if not self.needs_key and not is_loopback(self.host):
            raise StartupError(
                f"--host {self.host} can be reached from elsewhere, and there are no API keys.",
                "Set --api-keys-file, or listen on 127.0.0.1.",
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
        return cls(
            redis_url=settings.redis_url,
            host=settings.host,
            api_keys=_read_keys(settings.api_keys_file),
            allowed_origins=settings.allowed_origins,
            grace_s=settings.grace_s,
        )

    @property
    def needs_key(self) -> bool:
        """Whether callers must show an API key."""
        return len(self.api_keys) > 0

    @property
    def origin_policy(self) -> OriginPolicy:
        """Which pages may call."""
        return OriginPolicy(self.allowed_origins, needs_loopback_host=not self.needs_key)


def _read_keys(file: Path | None) -> ApiKeys:
    if file is None:
        return ApiKeys(())
    try:
        keys = parse_api_keys(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"--api-keys-file {file} cannot be read: {error}.") from None
    except ValueError as error:
        raise StartupError(f"--api-keys-file {file}: {error}.") from None
    if not keys:
        raise StartupError(f"--api-keys-file {file} holds no key.")
    return keys
