"""What the gateway and the engine say to each other, and nothing else.

Standard library only. `app/` may import this package from `engine/`, and no
other part of it; a test reads the imports and fails on a wrong arrow.

Modules:
    errors: the tree of errors a client can see.
    sampling: `SamplingParams`, validated on construction.
    messages: commands to a worker (`Submit`, `Resume`, `Cancel`, `Listen`, `Warm`,
        `Release`, `Drain`) with their wire form.
    events: what comes back (`Accepted`, `Delta`, `TakenOver`, `Finished`, `Failed`).
    progress: how far a response has come.
    lease: whose a response is, and the scripts that change it.
    registry: what a worker says about itself (`ModelCard`, `WorkerState`).
    keys: the names and lifetimes of every Redis key both sides touch.
"""

from engine.contract.errors import (
    AuthenticationFailed,
    Conflict,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineFault,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    ReparteeError,
    Unavailable,
    error_from_wire,
)
from engine.contract.events import (
    Accepted,
    Delta,
    Event,
    Failed,
    Finished,
    TakenOver,
    event_from_wire,
    progress_of,
)
from engine.contract.messages import (
    Cancel,
    Command,
    Cursor,
    Drain,
    FinishReason,
    GenerateRequest,
    Listen,
    Message,
    Release,
    Resume,
    Submit,
    Tier,
    Usage,
    Warm,
    command_from_wire,
)
from engine.contract.progress import Progress
from engine.contract.registry import (
    ModelCard,
    WorkerState,
    conversation_tag,
    leading_system,
    system_tag,
)
from engine.contract.sampling import SamplingParams

__all__ = [
    "Accepted",
    "AuthenticationFailed",
    "Cancel",
    "Command",
    "Conflict",
    "ContextLengthExceeded",
    "Cursor",
    "DeadlineExceeded",
    "Delta",
    "Drain",
    "EngineFault",
    "Event",
    "Failed",
    "FinishReason",
    "Finished",
    "GenerateRequest",
    "InvalidRequest",
    "Listen",
    "Message",
    "ModelCard",
    "NotFound",
    "Overloaded",
    "PermissionDenied",
    "Progress",
    "Release",
    "ReparteeError",
    "Resume",
    "SamplingParams",
    "Submit",
    "TakenOver",
    "Tier",
    "Unavailable",
    "Usage",
    "Warm",
    "WorkerState",
    "command_from_wire",
    "conversation_tag",
    "error_from_wire",
    "event_from_wire",
    "leading_system",
    "progress_of",
    "system_tag",
]
