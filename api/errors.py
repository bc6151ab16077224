"""HTTP statuses of the kinds of errors, and answers that tell of one (problem+json).

The body (problem+json) carries the `kind` itself, so clients need not guess from the status.

Source:
    docs/reference/errors.md, section "Exit codes and HTTP statuses".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from tensorrepo.api.service import Service
from tensorrepo.repo.errors import (
    Error,
    MissingObjectsError,
    RateLimitedError,
    UnauthenticatedError,
)

_CLIENT_GONE: Final = 499  # as nginx has it, for metrics and logs
HTTP_STATUSES: Mapping[str, HTTPStatus] = MappingProxyType(
    {
        "invalid-input": HTTPStatus.BAD_REQUEST,
        "unauthenticated": HTTPStatus.UNAUTHORIZED,
        "permission": HTTPStatus.FORBIDDEN,
        "too-large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "rate-limited": HTTPStatus.TOO_MANY_REQUESTS,
        "not-found": HTTPStatus.NOT_FOUND,
        "no-such-row": HTTPStatus.NOT_FOUND,
        "conflict": HTTPStatus.CONFLICT,
        "expired": HTTPStatus.GONE,
        "collected": HTTPStatus.GONE,
        "missing-objects": HTTPStatus.GONE,
        "purged": HTTPStatus.GONE,
        "corrupt": HTTPStatus.INTERNAL_SERVER_ERROR,
        "rewound": HTTPStatus.INTERNAL_SERVER_ERROR,
        "unsupported": HTTPStatus.NOT_IMPLEMENTED,
        "storage": HTTPStatus.SERVICE_UNAVAILABLE,
        # The request may have been carried out: a client has to ask before it repeats it.
        "outcome-unknown": HTTPStatus.GATEWAY_TIMEOUT,
        "worker-lost": HTTPStatus.SERVICE_UNAVAILABLE,
    }
)


class Problem(BaseModel):
    """What went wrong (RFC 9457), with the stable `kind` of docs/reference/errors.md."""

    type: str
    title: str
    status: int
    kind: str = Field(description="What the caller can do next; never changes.")
    detail: str = Field(description="What, where, expected against found, what to do.")
    request_id: str


# How a client of elsewhere wants to be told of an error; None where a request is none of its own.
ErrorForm = Callable[[Request, Problem, Exception | None, Mapping[str, str]], Response | None]

MEDIA_TYPE: Final = "application/problem+json"
_LOGGER = logging.getLogger(__name__)
_KINDS_OF_STATUS: Final = {
    308: "not-found",  # under this name
    401: "unauthenticated",
    403: "permission",
    404: "not-found",
    413: "too-large",
}


def problem(
    request: Request,
    status: int,
    kind: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    error: Exception | None = None,
    **more: Any,
) -> Response:
    """An answer that tells what went wrong, where, and what to do.

    A client of elsewhere gets it in the form that it understands: the first of the application's
    `error_forms` that knows the request answers it.
    """
    about = Problem(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=int(status),
        kind=kind,
        detail=detail,
        request_id=request.scope.get("request_id", ""),
    )
    forms: tuple[ErrorForm, ...] = getattr(request.app.state, "error_forms", ())
    for form in forms:
        answer = form(request, about, error, headers or {})
        if answer is not None:
            return answer
    return JSONResponse(about.model_dump() | more, status, headers, media_type=MEDIA_TYPE)


def answer_error(request: Request, error: Exception) -> Response:
    """Answer one of our errors."""
    assert isinstance(error, Error), "registered for these alone"
    headers = {}
    if isinstance(error, UnauthenticatedError):
        headers["WWW-Authenticate"] = 'Bearer realm="tensorrepo"'
    if isinstance(error, RateLimitedError):
        headers["Retry-After"] = str(max(1, round(error.retry_seconds)))
    more = {"missing": error.digests} if isinstance(error, MissingObjectsError) else {}
    status = HTTP_STATUSES[error.kind]
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _LOGGER.error("%s: %s", error.kind, error)
    detail = told(request, error)
    return problem(request, status, error.kind, detail, headers=headers, error=error, **more)


def told(request: Request, error: Exception) -> str:
    """What the caller of a request is told of an error."""
    service: Service = request.app.state.service
    return service.told(error, str(request.path_params.get("repository", "")))


def answer_invalid(request: Request, error: Exception) -> Response:
    """Answer a request that does not fit its schema."""
    assert isinstance(error, RequestValidationError), "registered for these alone"
    # What was sent is not repeated: it may hold a secret.
    found = [
        {"where": ".".join(str(part) for part in one["loc"]), "message": one["msg"]}
        for one in error.errors()
    ]
    first = found[0] if found else {"where": "request", "message": "not as its schema says"}
    detail = (
        f"{first['where']}: {first['message']}. Correct it; /api/v1/openapi.json says what fits."
    )
    return problem(request, HTTPStatus.BAD_REQUEST, "invalid-input", detail, problems=found)


def answer_http(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses: no such route, no such method."""
    assert isinstance(error, HTTPException), "registered for these alone"
    kind = _KINDS_OF_STATUS.get(error.status_code, "invalid-input")
    return problem(request, error.status_code, kind, str(error.detail), headers=error.headers)


def answer_gone(_request: Request, _error: Exception) -> Response:
    """End a request whose client left before its body: nobody hears it, and it is no failure."""
    return Response(status_code=_CLIENT_GONE)


def answer_bug(request: Request, error: Exception) -> Response:
    """Answer what should never happen: the log has the details, the answer only its id."""
    _LOGGER.error("unexpected failure", exc_info=error)
    detail = "the service failed unexpectedly; its log tells more under this request's id"
    return problem(request, HTTPStatus.INTERNAL_SERVER_ERROR, "error", detail)


def install_handlers(app: FastAPI) -> None:
    """Let `app` answer every failure as problem+json."""
    app.add_exception_handler(Error, answer_error)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(HTTPException, answer_http)
    app.add_exception_handler(ClientDisconnect, answer_gone)
    app.add_exception_handler(Exception, answer_bug)
