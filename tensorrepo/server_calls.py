"""Calls of a server's API: JSON in, JSON out, and its errors as ours.

Which server: the one that is named, else ``TENSORREPO_SERVER``, else the only one that this user is
logged in to.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self

from tensorrepo.connect import Machine
from tensorrepo.credentials import SERVER_VARIABLE, server_url, stored_logins, stored_token
from tensorrepo.repo.backends.service_errors import moved_url
from tensorrepo.repo.backends.service_format import CLIENT_HEADER, REVISION
from tensorrepo.repo.errors import (
    CommitOutcomeUnknown,
    Error,
    InvalidInputError,
    RateLimitedError,
    StorageError,
    UnauthenticatedError,
    error_classes,
)
from tensorrepo.repo.http_client import USER_AGENT, httpx, verification

TIMEOUT_SECONDS: Final = 60.0
_MAX_WORDS: Final = 2000
# Those that are made of a message alone.
_PLAIN: Final = {
    one.kind: one
    for one in error_classes()
    if not issubclass(one, (CommitOutcomeUnknown, RateLimitedError))
}


class Server:
    """A server, and the token that is sent to it. To be closed, or used as a context."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = server_url(url)
        headers = {"User-Agent": USER_AGENT, CLIENT_HEADER: str(REVISION)}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        # Environment proxies count; redirects do not, but from the old name of a repository of
        # this server to its new one: a token is for this server alone.
        self._client = httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers=headers,
            timeout=TIMEOUT_SECONDS,
            verify=verification(self.url),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """One call; gives what JSON it answers, None for an empty answer.

        Raises:
            Error: the one that the server tells of.
            StorageError: it does not answer, or is no server of tensorrepo.
        """
        answer = self._send(method, path, json=json, params=params, headers=headers)
        if not answer.content:
            return None
        try:
            return answer.json()
        except ValueError as error:
            raise StorageError(
                f"{self.url} answers, but not as a tensorrepo server does"
            ) from error

    def list(self, path: str, **params: Any) -> Iterator[Any]:
        """All items of a list, page by page."""
        cursor = None
        while True:
            page = self.ask(
                "GET", path, params={**params, **({"cursor": cursor} if cursor else {})}
            )
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return

    def lines(self, path: str, **params: Any) -> Iterator[str]:
        """The lines of an answer, as they come."""
        try:
            with self._client.stream("GET", path, params=params) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    raise _error_of(self.url, answer)
                yield from answer.iter_lines()
        except httpx.HTTPError as error:
            raise _unreachable(self.url, error) from error

    def _send(self, method: str, path: str, **values: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **values)
            moved = moved_url(str(answer.url), answer.status_code, answer.headers.get("Location"))
            if moved is not None:  # a repository was renamed
                answer = self._client.request(method, moved, **{**values, "params": None})
        except httpx.HTTPError as error:
            raise _unreachable(self.url, error) from error
        if not answer.is_success:
            raise _error_of(self.url, answer)
        return answer


def server_of(machine: Machine, named: str | None = None) -> Server:
    """The server that a command works with, by its stored token.

    Raises:
        InvalidInputError: none is named, and there are several, or none.
        UnauthenticatedError: this user is not logged in to it.
    """
    url = named or machine.environment.get(SERVER_VARIABLE) or _only_one(machine)
    token = stored_token(machine, url)
    if token is None:
        raise UnauthenticatedError(f"you are not logged in to {url}: `tensorrepo login {url}`")
    return Server(url, token)


def _only_one(machine: Machine) -> str:
    known = sorted(stored_logins(machine))
    if len(known) == 1:
        return known[0]
    if not known:
        raise InvalidInputError(
            "which server? `tensorrepo login URL` first, or name it: --server URL"
        )
    raise InvalidInputError(f"which server? Name one by --server: {', '.join(known[:5])}")


def _error_of(url: str, answer: httpx.Response) -> Error:
    try:
        told = answer.json()
        kind, detail = str(told["kind"]), str(told["detail"])[:_MAX_WORDS]
    except (ValueError, KeyError, TypeError):
        return StorageError(
            f"{url} answers {answer.status_code}, not as a tensorrepo server does: check the URL"
        )
    if kind == RateLimitedError.kind:
        seconds = answer.headers.get("retry-after", "1")
        return RateLimitedError(detail, retry_seconds=float(seconds) if seconds.isdigit() else 1.0)
    return _PLAIN.get(kind, StorageError)(detail)


def _unreachable(url: str, error: httpx.HTTPError) -> StorageError:
    return StorageError(f"{url} does not answer: {error}. Check the URL and the network.")
