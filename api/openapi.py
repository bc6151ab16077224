"""OpenAPI of the service: what FastAPI derives of the routes, and what holds for all of them."""

from __future__ import annotations

import re
import warnings
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tensorrepo.api.errors import MEDIA_TYPE, Problem

# That ask for no token; metrics only of who comes from another machine.
OPEN_PATHS: Final = ("/health", "/health/ready", "/api/v1", "/metrics")
_FAILED: Final = {
    "description": "What went wrong, and what to do.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_NOT_IN_IDS: Final = re.compile("[^A-Za-z0-9]+")
_BEARER: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token, as `tensorrepo login` or an administrator gives it.",
}


def describe(app: FastAPI) -> None:
    """Let `app` tell its OpenAPI, made when it is first asked for."""
    made: list[dict[str, Any]] = []

    def openapi() -> dict[str, Any]:
        if not made:
            made.append(_openapi(app))
        return made[0]

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI asks


def _openapi(app: FastAPI) -> dict[str, Any]:
    with warnings.catch_warnings():
        # A route for both GET and HEAD has one name, and one of the two at random: see below.
        warnings.filterwarnings("ignore", "Duplicate Operation ID", UserWarning)
        found = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
    # FastAPI keeps the methods of a route in a set.
    found["paths"] = {path: dict(sorted(one.items())) for path, one in found["paths"].items()}
    parts = found.setdefault("components", {})
    parts.setdefault("schemas", {})["Problem"] = Problem.model_json_schema()
    parts["securitySchemes"] = {"token": _BEARER}
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            operation["operationId"] = _NOT_IN_IDS.sub("_", f"{method} {path}").strip("_")
            operation["responses"].pop("422", None)  # ours answer 400, as a problem
            operation["responses"]["default"] = _FAILED
            if path not in OPEN_PATHS:
                operation["security"] = [{"token": []}]
    for unused in ("HTTPValidationError", "ValidationError"):
        parts["schemas"].pop(unused, None)
    return found
