"""Connection of a client to a service: requests, answers, and errors as ours.

The token is sent in a header, to the service alone: redirects are not followed, but from the old
name of a repository to its new one. Answers are decoded
into structs that ignore members they do not know, so that an older client understands a newer
service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from tensorrepo.repo.backends.service_errors import error_of, moved_url
from tensorrepo.repo.backends.service_format import CLIENT_HEADER, REVISION
from tensorrepo.repo.errors import Error, StorageError
from tensorrepo.repo.http_client import USER_AGENT, httpx, verification
from tensorrepo.repo.typed_decoding import from_json

AnswerT = TypeVar("AnswerT")
Query = Mapping[str, Any]
SECONDS: Final = httpx.Timeout(60.0, connect=10.0)
_API: Final = "/api/v1"


class _Page(msgspec.Struct, Generic[AnswerT], frozen=True):
    items: list[AnswerT]
    next: str | None = None


class Connection:
    """Requests to one service. Thread-safe."""

    def __init__(self, url: str, token: str | None, *, timeout: httpx.Timeout = SECONDS) -> None:
        self.url = url.rstrip("/")
        headers = {"User-Agent": USER_AGENT, CLIENT_HEADER: str(REVISION)}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            base_url=self.url + _API,
            headers=headers,
            timeout=timeout,
            verify=verification(self.url),
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"Connection({self.url!r})"

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, kind: type[AnswerT], **query: Any) -> AnswerT:
        """The answer to GET as a `kind`. `query` without what is None. Raises Error."""
        return self.send("GET", path, kind, query=query)

    def send(
        self,
        method: str,
        path: str,
        kind: type[AnswerT],
        body: Any = None,
        query: Query | None = None,
    ) -> AnswerT:
        """The answer to any request as a `kind`; `body` is JSON. Raises Error."""
        return self.decoded(self._request(method, path, body, query or {}).content, kind, path)

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> None:
        """A request whose answer does not matter. Raises Error."""
        self._request(method, path, body, query)

    def text(self, path: str, **query: Any) -> str:
        return self._request("GET", path, None, query).text

    def pages(self, path: str, kind: type[AnswerT], **query: Any) -> Iterator[AnswerT]:
        """All items of a list, page by page as they are asked for."""
        cursor: str | None = None
        while True:
            page = self.get(path, _Page[kind], **query, cursor=cursor)  # type: ignore[valid-type]
            yield from page.items
            cursor = page.next
            if cursor is None:
                return

    def decoded(self, data: bytes | str, kind: type[AnswerT], path: str = "") -> AnswerT:
        """JSON of an answer as a `kind`. Raises StorageError."""
        try:
            return from_json(data, kind)
        except msgspec.MsgspecError as error:
            raise self.unexpected(str(error), path) from error

    def unexpected(self, why: str, path: str = "") -> StorageError:
        """The error that says of an answer that no service of ours gives it."""
        return StorageError(
            f"{self.url}{path}: the answer is not as expected: {why}. Is this a tensorrepo "
            "service, and as new as this client?"
        )

    @contextmanager
    def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Iterator[httpx.Response]:
        """An answer whose body is read bit by bit, without a limit of time between events."""
        try:
            with self._http.stream(
                "GET", path, params=_told(query), headers=dict(headers or {})
            ) as answer:
                if answer.is_error or answer.is_redirect:
                    answer.read()
                    raise self._error(answer)
                yield answer
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _request(self, method: str, path: str, body: Any, query: Query) -> httpx.Response:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            answer = self._http.request(
                method, path, content=content, params=_told(query), headers=headers
            )
            moved = moved_url(str(answer.url), answer.status_code, answer.headers.get("Location"))
            if moved is not None:  # the repository was renamed
                answer = self._http.request(method, moved, content=content, headers=headers)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if answer.is_error or answer.is_redirect:
            raise self._error(answer)
        return answer

    def _error(self, answer: httpx.Response) -> Error:
        return error_of(answer.status_code, answer.content, str(answer.url.copy_with(query=None)))

    def _unreachable(self, error: httpx.HTTPError) -> StorageError:
        told = str(error) or type(error).__name__
        return StorageError(
            f"{self.url} does not answer: {told}. Check the URL, and whether the service runs.",
            transient=True,
        )


def segment(name: str) -> str:
    """A name as one or several segments of a path."""
    return quote(name, safe="/")


def one_segment(name: str) -> str:
    """A name as exactly one segment."""
    return quote(name, safe="")


def _told(query: Query) -> dict[str, Any]:
    return {name: _text(value) for name, value in query.items() if value is not None}


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return list(map(str, value)) if isinstance(value, list | tuple) else value
