"""Errors as clients of OCI registries understand them: a code of theirs, and a message.

Source:
    The OCI distribution specification, section "Error Codes".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from fastapi import Request
from starlette.responses import JSONResponse, Response

from tensorrepo.api.errors import Problem
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

# Which version of the protocol this is: old clients ask for it.
API_VERSION: Final = {"Docker-Distribution-API-Version": "registry/2.0"}
_PATHS: Final = re.compile(r"/v2(?:/.*)?", re.DOTALL)
_READING: Final = frozenset({"GET", "HEAD"})
_NO_PUSH: Final = (
    "models are pulled from here and not pushed: upload by Hugging Face's client, by git-lfs or by "
    "`tensorrepo model add`"
)
_CODES: Final[Mapping[int, str]] = {
    HTTPStatus.BAD_REQUEST: "UNSUPPORTED",
    HTTPStatus.UNAUTHORIZED: "UNAUTHORIZED",
    HTTPStatus.FORBIDDEN: "DENIED",
    HTTPStatus.NOT_FOUND: "NAME_UNKNOWN",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "MANIFEST_INVALID",
    HTTPStatus.TOO_MANY_REQUESTS: "TOOMANYREQUESTS",
}
_OTHER: Final = "UNSUPPORTED"


@dataclass(frozen=True, slots=True)
class OciFault:
    """The code that an error has there; carried by the error."""

    code: str


def manifest_missing(message: str) -> NotFoundError:
    """There is no such tag, or nothing with such a digest."""
    return NotFoundError(message, OciFault("MANIFEST_UNKNOWN"))


def blob_missing(message: str) -> NotFoundError:
    return NotFoundError(message, OciFault("BLOB_UNKNOWN"))


def name_missing(name: str) -> NotFoundError:
    """For what is not there, and for what the caller may not know of: in the same words."""
    return NotFoundError(f"there is no model {name} that you may read", OciFault("NAME_UNKNOWN"))


def digest_invalid(text: str) -> InvalidInputError:
    return InvalidInputError(
        f"{text!r:.100} is no digest: expected 'sha256:' and 64 hex digits",
        OciFault("DIGEST_INVALID"),
    )


def oci_error(
    request: Request, told: Problem, error: Exception | None, headers: Mapping[str, str]
) -> Response | None:
    """The answer for a client of OCI registries; None for requests that are none of theirs."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    if _PATHS.fullmatch(path) is None:
        return None
    code, detail = _CODES.get(told.status, _OTHER), told.detail
    carried = () if error is None else error.args[1:]
    code = next((one.code for one in carried if isinstance(one, OciFault)), code)
    if request.method not in _READING and told.status in {404, 405}:
        code, detail = "UNSUPPORTED", _NO_PUSH
    more = {**headers, **API_VERSION}
    if told.status == HTTPStatus.UNAUTHORIZED:
        # What every client answers by the password that it has. Where it is told of a bearer's
        # token, it looks for another server that would give one.
        more["WWW-Authenticate"] = 'Basic realm="tensorrepo"'
    return JSONResponse({"errors": [{"code": code, "message": detail}]}, told.status, more)
