"""Errors as Hugging Face's clients understand them: a code in a header, and JSON with the words.

The clients tell by `X-Error-Code` what is missing: a repository, a revision or a file. Where the
caller holds no grant, a repository that exists and one that does not give the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import ClassVar, Final

from fastapi import Request
from starlette.responses import JSONResponse, Response

from tensorrepo.api.access.grants import REPOSITORY_SEGMENT
from tensorrepo.api.errors import Problem
from tensorrepo.repo.errors import ConflictError, NotFoundError, UnauthenticatedError

_ENTRY: Final = rf"{REPOSITORY_SEGMENT}/{REPOSITORY_SEGMENT}"
_PATHS: Final = re.compile(
    r"/api/(?:(?:models|datasets)(?:/.*)?|repos/(?:create|delete|move)|whoami-v2|validate-yaml)"
    rf"|/(?:datasets/)?{_ENTRY}/resolve/.*"
    rf"|/(?:datasets/)?{_ENTRY}\.git/.*"
    r"|/lfs/.*",
    re.DOTALL,
)
_MESSAGE_CHARACTERS: Final = 500
# By these words clients know that it is the token that is wrong, not what it asks for.
_BAD_TOKEN: Final = "Invalid credentials in Authorization header"  # noqa: S105  words, no token


class HubNotFoundError(NotFoundError):
    """Something is not there, or the caller may not know of it."""

    code: ClassVar[str] = "EntryNotFound"

    def __init__(self, message: str, *, commit: str = "") -> None:
        super().__init__(message)
        self.commit = commit


class HubRepositoryNotFoundError(HubNotFoundError):
    """No such repository that the caller may read."""

    code = "RepoNotFound"


class HubRevisionNotFoundError(HubNotFoundError):
    """No such revision of it."""

    code = "RevisionNotFound"


class HubFileNotFoundError(HubNotFoundError):
    """No such file in the commit `commit`, which clients remember."""

    code = "EntryNotFound"


class StaleParentError(ConflictError):
    """Somebody committed since the client looked."""


class RefExistsError(ConflictError):
    """There is a branch or a tag of that name."""


class RepositoryExistsError(ConflictError):
    """There is a repository of that name. `url` is where."""

    def __init__(self, message: str, *, url: str) -> None:
        super().__init__(message)
        self.url = url


def hub_error(
    request: Request, told: Problem, error: Exception | None, headers: Mapping[str, str]
) -> Response | None:
    """The answer for a client of Hugging Face; None for requests that are none of theirs."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    if not _PATHS.fullmatch(path):
        return None
    status, more = told.status, dict(headers)
    body: dict[str, str] = {"error": told.detail}
    more["X-Error-Message"] = _header(told.detail)
    more["X-Request-Id"] = told.request_id
    if isinstance(error, HubNotFoundError):
        more["X-Error-Code"] = error.code
        if error.commit:
            more["X-Repo-Commit"] = error.commit
    elif isinstance(error, StaleParentError):
        status = HTTPStatus.PRECONDITION_FAILED
    elif isinstance(error, UnauthenticatedError):
        if "authorization" in request.headers:
            more["X-Error-Message"] = _BAD_TOKEN
        else:
            more["X-Error-Code"] = HubRepositoryNotFoundError.code
    if isinstance(error, RepositoryExistsError):
        body["url"] = error.url
    return JSONResponse(body, status, more)


def _header(text: str) -> str:
    """Words as a header can hold them."""
    one_line = " ".join(text.split())[:_MESSAGE_CHARACTERS]
    return one_line.encode("ascii", "replace").decode()
