"""Who is calling: API keys, and the tenant and tier that each stands for."""

from app.auth.api_keys import ApiKey, ApiKeys, parse_api_keys
from app.auth.authenticator import Authenticator, KeyAuthenticator, OpenAuthenticator
from app.auth.credentials import credential_of, offered_subprotocols
from app.auth.principal import Principal

__all__ = [
    "ApiKey",
    "ApiKeys",
    "Authenticator",
    "KeyAuthenticator",
    "OpenAuthenticator",
    "Principal",
    "credential_of",
    "offered_subprotocols",
    "parse_api_keys",
]
