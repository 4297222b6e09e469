"""Who is calling: keys, tokens and tickets, and the principal that each stands for."""

from app.auth.api_keys import ApiKey, ApiKeys, parse_api_keys
from app.auth.authenticator import Authenticator, KeyAuthenticator, OpenAuthenticator
from app.auth.credentials import Credential, credential_of, offered_subprotocols
from app.auth.grants import Grant, GrantStore
from app.auth.principal import Allowance, Principal
from app.auth.token_keys import TokenKeys, parse_token_keys
from app.auth.tokens import TokenVerifier, mint

__all__ = [
    "Allowance",
    "ApiKey",
    "ApiKeys",
    "Authenticator",
    "Credential",
    "Grant",
    "GrantStore",
    "KeyAuthenticator",
    "OpenAuthenticator",
    "Principal",
    "TokenKeys",
    "TokenVerifier",
    "credential_of",
    "mint",
    "offered_subprotocols",
    "parse_api_keys",
    "parse_token_keys",
]
