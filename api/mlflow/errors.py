"""Errors as MLflow's clients understand them: a code of theirs, and a message.

They stand beside the members of problem+json, so that one answer says it to all, whichever layer
refused a request.

Source:
    mlflow/exceptions.py and mlflow/protos/databricks.proto of MLflow 3.17.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from fastapi import Request
from starlette.responses import JSONResponse, Response

from tensorrepo.api.errors import MEDIA_TYPE, Problem

_API: Final = r"api/\d+\.\d+/mlflow(?:-artifacts)?/"
_PATH: Final = re.compile(rf"/[^/]+/(?:[^/]+/)?{_API}")
_ELSEWHERE: Final = re.compile(rf"/(?:.*/)?{_API}")
_NAMES_NONE: Final = (
    "this names no repository: MLFLOW_TRACKING_URI is the URL of the service and a name, such as "
    "https://host/team/nets"
)
_CODES: Final[Mapping[str, str]] = {
    "invalid-input": "INVALID_PARAMETER_VALUE",
    "too-large": "INVALID_PARAMETER_VALUE",
    "unauthenticated": "UNAUTHENTICATED",
    "permission": "PERMISSION_DENIED",
    "rate-limited": "REQUEST_LIMIT_EXCEEDED",
    "not-found": "RESOURCE_DOES_NOT_EXIST",
    "no-such-row": "RESOURCE_DOES_NOT_EXIST",
    "expired": "RESOURCE_DOES_NOT_EXIST",
    "collected": "RESOURCE_DOES_NOT_EXIST",
    "missing-objects": "RESOURCE_DOES_NOT_EXIST",
    "purged": "RESOURCE_DOES_NOT_EXIST",
    "conflict": "RESOURCE_CONFLICT",
    "corrupt": "DATA_LOSS",
    "unsupported": "NOT_IMPLEMENTED",
    "storage": "TEMPORARILY_UNAVAILABLE",
}
_OTHER: Final = "INTERNAL_ERROR"
_TAKEN: Final = "RESOURCE_ALREADY_EXISTS"
_NOWHERE: Final = "ENDPOINT_NOT_FOUND"


def mlflow_error(
    request: Request, told: Problem, _error: Exception | None, headers: Mapping[str, str]
) -> Response | None:
    """The answer for a client of MLflow; None for requests that are none of theirs."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    if _PATH.match(path) is None:
        if _ELSEWHERE.match(path) is None or told.status != HTTPStatus.NOT_FOUND:
            return None
        told = told.model_copy(update={"detail": _NAMES_NONE})
    status, members = _members(path, request.method, told)
    body = told.model_dump() | {"status": status} | members
    return JSONResponse(body, status, dict(headers), media_type=MEDIA_TYPE)


def _members(path: str, method: str, told: Problem) -> tuple[int, dict[str, str]]:
    """The status that MLflow answers an error with, and the members that say which it is."""
    status, detail, code = told.status, told.detail, _CODES.get(told.kind, _OTHER)
    if told.kind == "conflict" and method == "POST" and path.endswith("/create"):
        # Their clients go on where a model or an experiment is there already, told by this alone.
        status, code = HTTPStatus.BAD_REQUEST, _TAKEN
    if detail in {HTTPStatus.NOT_FOUND.phrase, HTTPStatus.METHOD_NOT_ALLOWED.phrase}:
        code, detail = _NOWHERE, f"this service does not answer {method} {path}"
    return int(status), {"error_code": code, "message": detail}
