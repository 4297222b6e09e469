"""How much a caller may ask for: budgets by tenant and tier, kept in Redis."""

from app.limits.charge import Charge, RateLimited
from app.limits.foresight import foreseen_tokens
from app.limits.limiter import Limiter
from app.limits.policy import NO_LIMITS, Budget, LimitPolicy, parse_limits
from app.limits.state import RateLimit, Standing
from app.limits.storage import NO_STORAGE_LIMITS, StoragePolicy

__all__ = [
    "NO_LIMITS",
    "NO_STORAGE_LIMITS",
    "Budget",
    "Charge",
    "LimitPolicy",
    "Limiter",
    "RateLimit",
    "RateLimited",
    "Standing",
    "StoragePolicy",
    "foreseen_tokens",
    "parse_limits",
]
