"""Errors of a service as ours: problem+json back into the class of its kind."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from tensorrepo.repo.errors import (
    CommitExpired,
    CommitOutcomeUnknown,
    Error,
    RateLimitedError,
    StorageError,
    UnauthenticatedError,
    error_classes,
)

_STATUS: Final = re.compile(r"status code: (\d{3})[^:{]*: (\{.*\})\s*$", re.MULTILINE)
_UNKNOWN: Final = CommitOutcomeUnknown.kind
_KINDS: Final = {
    one.kind: one
    for one in error_classes()
    if not issubclass(one, (CommitOutcomeUnknown, StorageError))
} | {CommitExpired.kind: CommitExpired}
_LOGIN: Final = "`tensorrepo login URL`"  # as a service says it, which need not know its address
_MOST_CHARACTERS: Final = 2000


class ToldProblem(NamedTuple):
    """An answer that tells of a failure."""

    status: int
    body: bytes


def problem_in(text: str) -> ToldProblem | None:
    """The answer of a service that a message of obstore repeats; None: there is none in it."""
    match = _STATUS.search(text)
    return None if match is None else ToldProblem(int(match[1]), match[2].encode())


def error_of(status: int, body: bytes, url: str) -> Error:
    """Our error for an answer of a service at `url`."""
    kind, detail = _told(body)
    if kind is None:
        return _error_without_words(status, url)
    if status == HTTPStatus.UNAUTHORIZED:
        parts = urlsplit(url)
        login = f"`tensorrepo login {parts.scheme}://{parts.netloc}`"
        if _LOGIN not in detail:
            detail = f"{detail.removesuffix('.')}. {_LOGIN} gets a token."
        return UnauthenticatedError(f"{url}: {detail.replace(_LOGIN, login)}")
    if kind == RateLimitedError.kind:
        return RateLimitedError(f"{url}: {detail}")
    # An append whose outcome the service itself does not know is asked for once more.
    if kind in {StorageError.kind, _UNKNOWN} or kind not in _KINDS:
        return StorageError(f"{url}: {detail}", transient=status >= 500)
    return _KINDS[kind](f"{url}: {detail}")


def moved_url(url: str, status: int, location: str | None) -> str | None:
    """Where an answer to `url` says that this is for good; None: nowhere, or on another origin.

    A token goes to no other origin.
    """
    if status != HTTPStatus.PERMANENT_REDIRECT or location is None:
        return None
    to = urljoin(url, location)
    return to if urlsplit(to)[:2] == urlsplit(url)[:2] else None


def _told(body: bytes) -> tuple[str | None, str]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None, ""
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        return None, ""
    return found["kind"], str(found.get("detail", ""))[:_MOST_CHARACTERS]


def _error_without_words(status: int, url: str) -> Error:
    """Of a proxy before the service, for example."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    transient = status in {408, 429} or status >= 500
    return StorageError(f"{url}: {status} {phrase}".rstrip() + ".", transient=transient)
