"""The errors a client can see.

    ReparteeError
    ├── InvalidRequest            400  the request is wrong; repeating it is useless
    │   ├── ContextLengthExceeded 400  prompt (plus answer) does not fit the window
    │   └── NotFound              404  no such model, session, item or response
    ├── AuthenticationFailed      401  who are you
    ├── PermissionDenied          403  you may not
    ├── Conflict                  409  the conversation is busy with another response
    ├── Overloaded                429  a queue or a rate limit is full; retry later
    ├── Unavailable               503  no worker or no Redis right now; retry later
    ├── DeadlineExceeded          504  the request's own deadline passed
    └── EngineFault               500  ours; the detail is logged and never sent

Every text names the field, the limit and the value given. `http_status` and
`close_code` are the only mapping to the wire; the edge applies them once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class ReparteeError(Exception):
    """Base of everything a client may be told.

    Args:
        message: One sentence for a person.
        code: Short stable name for programs; the class's own by default.
        param: The offending field, dotted and indexed (`messages.2.content`).
        retry_after_ms: When a retry may succeed; None says nothing.
    """

    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    close_code: ClassVar[int] = 1011
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after_ms = retry_after_ms

    def to_wire(self) -> dict[str, Any]:
        """Plain dict for the spine; `error_from_wire` reads it back."""
        return {
            "class": self.__class__.__name__,
            "message": self.message,
            "code": self.code,
            "param": self.param,
            "retry_after_ms": self.retry_after_ms,
        }


class InvalidRequest(ReparteeError):
    type = "invalid_request_error"
    default_code = "invalid_value"
    http_status = 400
    close_code = 1008


class ContextLengthExceeded(InvalidRequest):
    default_code = "context_length_exceeded"


class NotFound(InvalidRequest):
    default_code = "not_found"
    http_status = 404


class AuthenticationFailed(ReparteeError):
    type = "authentication_error"
    default_code = "invalid_api_key"
    http_status = 401
    close_code = 4401


class PermissionDenied(ReparteeError):
    type = "permission_error"
    default_code = "permission_denied"
    http_status = 403
    close_code = 1008


class Conflict(ReparteeError):
    type = "invalid_request_error"
    default_code = "conversation_already_has_active_response"
    http_status = 409
    close_code = 1008


class Overloaded(ReparteeError):
    type = "rate_limit_error"
    default_code = "overloaded"
    http_status = 429
    close_code = 1013
    retryable = True


class Unavailable(ReparteeError):
    default_code = "unavailable"
    http_status = 503
    close_code = 1013
    retryable = True


class DeadlineExceeded(ReparteeError):
    default_code = "deadline_exceeded"
    http_status = 504
    retryable = True


class EngineFault(ReparteeError):
    default_code = "engine_fault"
    retryable = True


_CLASSES: dict[str, type[ReparteeError]] = {
    cls.__name__: cls
    for cls in (
        InvalidRequest,
        ContextLengthExceeded,
        NotFound,
        AuthenticationFailed,
        PermissionDenied,
        Conflict,
        Overloaded,
        Unavailable,
        DeadlineExceeded,
        EngineFault,
    )
}


def error_from_wire(wire: Mapping[str, Any]) -> ReparteeError:
    """Rebuild an error from `ReparteeError.to_wire`; an unknown class is an EngineFault."""
    cls = _CLASSES.get(str(wire.get("class")), EngineFault)
    return cls(
        str(wire.get("message", "")),
        code=wire.get("code"),
        param=wire.get("param"),
        retry_after_ms=wire.get("retry_after_ms"),
    )
