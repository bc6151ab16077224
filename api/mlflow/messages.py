"""Messages of MLflow's REST contract: what is asked, as JSON or behind the path, and answers.

Numbers may come as texts, as protocol buffers write those of 64 bits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from fastapi import Request, Response

from tensorrepo.repo.errors import InvalidInputError

T = TypeVar("T")
MOST_RESULTS: Final = 50_000
_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class Pair(msgspec.Struct, frozen=True):
    """A tag or a parameter."""

    key: str
    value: str = ""


class MetricValue(msgspec.Struct, frozen=True):
    """A value of a metric; `timestamp` is UTC in ms."""

    key: str
    value: float
    timestamp: int = 0
    step: int = 0
    model_id: str | None = None
    dataset_name: str | None = None
    dataset_digest: str | None = None


def body_of(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """A dependency: the JSON body of a request, as a `kind`."""

    async def parse(request: Request) -> T:
        try:
            return msgspec.json.decode(await request.body() or b"{}", type=kind, strict=False)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidInputError(f"the body of this request: {error}") from error

    return parse


def query_of(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """A dependency: what stands behind the path, as a `kind`; a list is a name that is repeated."""
    lists = {
        one.encode_name
        for one in msgspec.structs.fields(kind)  # type: ignore[arg-type]  # all are structs
        if "list" in str(one.type) or "tuple" in str(one.type)
    }

    async def parse(request: Request) -> T:
        query = request.query_params
        told: dict[str, Any] = {
            name: query.getlist(name) if name in lists else query[name] for name in query
        }
        try:
            return msgspec.convert(told, kind, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInputError(f"behind the path: {error}") from error

    return parse


def answer(value: object) -> Response:
    """An answer as JSON."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def number(value: float) -> float | str:
    """A number as JSON has it: what is not finite is a text."""
    return _NOT_FINITE.get(str(value), value)


def pairs(values: dict[str, str]) -> list[dict[str, str]]:
    """Tags or parameters as a list."""
    return [{"key": name, "value": text} for name, text in values.items()]


def by_key(told: Sequence[Pair]) -> dict[str, str]:
    """Tags or parameters by name; of equal names the last one counts."""
    return {one.key: one.value for one in told}


def page(found: Sequence[T], token: str, most: int, default: int) -> tuple[Sequence[T], str]:
    """One page of what was found, and the token of the next; "" where there is none.

    Raises:
        InvalidInputError: no token of ours, or a page that is too large.
    """
    size = most or default
    if not 0 < size <= MOST_RESULTS:
        raise InvalidInputError(
            f"Invalid value {size} for parameter 'max_results': expected 1 to {MOST_RESULTS}"
        )
    if token and not (token.isascii() and token.isdecimal() and len(token) < 10):
        raise InvalidInputError(f"Invalid page token {token!r:.80}: take it from an answer")
    start = int(token or 0)
    return found[start : start + size], str(start + size) if start + size < len(found) else ""
