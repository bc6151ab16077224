"""Errors as Hugging Face's clients understand them: a code in a header, and JSON with the words.

The clients tell by `X-Error-Code` what is missing: a repository, a revision or a file. Where the
caller holds no grant, a repository that exists and one that does not give the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from fastapi import Request
from starlette.responses import JSONResponse, Response

from tensorrepo.api.access.grants import REPOSITORY_SEGMENT
from tensorrepo.api.errors import Problem
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, NotFoundError, UnauthenticatedError

_ENTRY: Final = rf"{REPOSITORY_SEGMENT}/{REPOSITORY_SEGMENT}"
# What has no place here, though clients ask for it: names of one part, and other kinds.
_ONE_PART: Final = re.compile(
    rf"/api/(?:models|datasets)/({REPOSITORY_SEGMENT})"
    r"(?:/(?:auth-check|commits|paths-info|refs|revision|tree)(?:/.*)?)?"
    rf"|/({REPOSITORY_SEGMENT})/resolve/(?!-/).*",
    re.DOTALL,
)
_OTHER_KINDS: Final = re.compile(
    rf"/api/(spaces|kernels)(?:/.*)?|/(spaces|kernels)/{_ENTRY}/resolve/.*", re.DOTALL
)
_PATHS: Final = re.compile(
    rf"{_ONE_PART.pattern}|{_OTHER_KINDS.pattern}"
    r"|/api/(?:(?:models|datasets)(?:/.*)?|repos/(?:create|delete|move)|whoami-v2|validate-yaml)"
    rf"|/(?:datasets/)?{_ENTRY}/resolve/.*"
    rf"|/(?:datasets/)?{_ENTRY}\.git/.*"
    r"|/lfs/.*"
    r"|/cas/.*",
    re.DOTALL,
)
_MESSAGE_CHARACTERS: Final = 500
# By these words clients know that it is the token that is wrong, not what it asks for.
_BAD_TOKEN: Final = "Invalid credentials in Authorization header"  # noqa: S105  words, no token


@dataclass(frozen=True, slots=True)
class HubFault:
    """What a client is told of an error beside its words; carried by the error.

    Attributes:
        code: `X-Error-Code`; "" is none.
        commit: 40 digits of the commit that was looked at, which clients remember; "" is none.
        status: HTTP status, where it is another one than that of the error's kind.
        url: where what is in the way lies.
    """

    code: str = ""
    commit: str = ""
    status: int | None = None
    url: str = ""


def repository_missing(name: str) -> NotFoundError:
    """For what is not there, and for what the caller may not know of: in the same words."""
    fault = HubFault("RepoNotFound")
    return NotFoundError(f"there is no repository {name} that you may read", fault)


def revision_missing(name: str, revision: str) -> NotFoundError:
    """A repository that has no such branch, tag or commit."""
    fault = HubFault("RevisionNotFound")
    return NotFoundError(f"{name} has no revision {revision!r:.120}", fault)


def file_missing(message: str, commit: str) -> NotFoundError:
    """No such file or folder in the commit of these 40 digits."""
    return NotFoundError(message, HubFault("EntryNotFound", commit))


def stale_parent(message: str) -> ConflictError:
    """Somebody committed since the client looked."""
    return ConflictError(message, (HubFault(status=HTTPStatus.PRECONDITION_FAILED),))


def repository_exists(message: str, url: str) -> ConflictError:
    """There is a repository of that name, at `url`."""
    return ConflictError(message, (HubFault(url=url),))


def _fault_of(error: Exception | None) -> HubFault:
    carried = () if error is None else (*error.args[1:], *getattr(error, "conflicts", ()))
    return next((one for one in carried if isinstance(one, HubFault)), HubFault())


def hub_error(
    request: Request, told: Problem, error: Exception | None, headers: Mapping[str, str]
) -> Response | None:
    """The answer for a client of Hugging Face; None for requests that are none of theirs."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    if not _PATHS.fullmatch(path):
        return None
    fault, more = _fault_of(error), dict(headers)
    code, detail = fault.code, told.detail
    if told.status == HTTPStatus.NOT_FOUND and not code:
        code, detail = _nowhere(path, request.method, detail)
    if request.method == "HEAD" or detail.isascii():  # else the body alone has it as it is
        more["X-Error-Message"] = _header(detail)
    if isinstance(error, UnauthenticatedError):
        if "authorization" in request.headers:
            more["X-Error-Message"] = _BAD_TOKEN
        else:
            code = "RepoNotFound"
    if code:
        more["X-Error-Code"] = code
    if fault.commit:
        more["X-Repo-Commit"] = fault.commit
    body = {"error": detail} | ({"url": fault.url} if fault.url else {})
    return JSONResponse(body, fault.status or told.status, more)


def _nowhere(path: str, method: str, detail: str) -> tuple[str, str]:
    """The code and the words for a path that no route answers; else `detail`, without a code."""
    one_part, other = _ONE_PART.fullmatch(path), _OTHER_KINDS.fullmatch(path)
    if one_part is not None:
        name = one_part[1] or one_part[2]
        return "RepoNotFound", f"there is no repository {name!r} here: names are as 'team/net'"
    if other is not None:
        return (
            "RepoNotFound",
            f"there are no {other[1] or other[2]} here: models and datasets alone",
        )
    if detail == HTTPStatus.NOT_FOUND.phrase:
        return "", f"this service does not answer {method} {path}"
    return "", detail


def _header(text: str) -> str:
    """Words as a header can hold them."""
    one_line = " ".join(text.split())[:_MESSAGE_CHARACTERS]
    return one_line.encode("ascii", "replace").decode()
