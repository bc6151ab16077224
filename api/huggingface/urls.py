"""URLs of this service as the client that asks reached it."""

from __future__ import annotations

from fastapi import Request


def base_url(request: Request) -> str:
    """Scheme, host and prefix, without a slash at the end."""
    return str(request.base_url).rstrip("/")
