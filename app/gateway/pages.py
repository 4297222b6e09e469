"""The page's files, with a policy that lets nothing in from elsewhere."""

from __future__ import annotations

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}
# Only these are served: notes, tests and sources beside them are not the page's.
SERVED_SUFFIXES = frozenset({*_TYPES, ".png", ".ico", ".txt"})


class PageFiles(StaticFiles):
    """Static files under one folder; unchanged ones are answered with 304.

    Args:
        folder: The page's files; need not exist.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, html=True, check_dir=False)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """One file, or the folder's index.html."""
        suffix = Path(path).suffix.lower()
        hidden = any(part.startswith(".") for part in Path(path).parts)
        if hidden or (suffix and suffix not in SERVED_SUFFIXES):
            raise HTTPException(404)
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        response.headers.update(SECURITY_HEADERS)
        if suffix in _TYPES:
            response.headers["content-type"] = _TYPES[suffix]
        return response
