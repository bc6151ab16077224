"""How are bytes read from a store behind HTTP, and what do its failures mean?

obstore retries what failed for a moment; what reaches us has failed for good or for long. Its
messages carry URLs and headers, so only what we understood of them, without secrets, goes on.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import (
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from tensorrepo.repo.backends.keys import check_key, check_length
from tensorrepo.repo.errors import (
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorrepo.repo.backends.places import Place
    from tensorrepo.repo.ids import Buffer

# Reading gives up when nothing comes for a while, however much is still to come. What is sent
# cannot be watched like that: its time is bounded as a whole, small requests' more tightly, so that
# a stalled append is noticed and large objects get through a slow line.
READING = {"timeout": "30m", "read_timeout": "30s"}
SENDING_LITTLE = {"timeout": "30s"}
SENDING_MUCH = {"timeout": "10m"}
_RETRY = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
_NO_RETRY = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
_BUSY = {429, 503}
_STREAM_BYTES = 1 << 20
_STATUS = re.compile(r"status code: (\d{3})[ \w]*")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|specified bucket does not exist")
_QUERY = re.compile(r"(https?://[^\s?\"']*)\?[^\s\"']*")
_NO_CREDENTIALS = re.compile(r"169\.254\.169\.254|metadata\.google|\bIMDS\b|169\.254\.170")
# What the debug text of a failed connection says: for people, whether it may pass, what to do.
_CONNECTION = (
    ("BadScheme", "plain HTTP is not allowed", False, "Use https."),
    ("ertificate", "its certificate is not trusted", False, "Check the endpoint and its CA."),
    ("dns error", "the host name is unknown", True, "Check the endpoint and the network."),
    ("ConnectionRefused", "the connection was refused", True, "Check that the server runs."),
    ("kind: Timeout", "no answer in time", True, "Check the network, then repeat."),
)
_FORKED: list[int] = []  # the process whose threads serve obstore, once there is one


class RemoteReader:
    """The reading half of a store behind HTTP."""

    def __init__(self, place: Place) -> None:
        self.url = place.url
        self.local_root = None
        self._place = place
        self._reader = open_store(place, READING)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._place,)

    def read(self, key: str) -> bytes:
        with self._asking("read", key):
            return bytes(obstore.get(self._reader, check_key(key)).bytes())

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        return self._range(self._reader, key, start, stop)

    def read_once(self, key: str, start: int, stop: int) -> Buffer:
        """As `read_range` by a single request: what fails for a moment is raised."""
        return self._range(self._impatient, key, start, stop)

    def _range(self, store: Any, key: str, start: int, stop: int) -> Buffer:
        where = f"{self.url}/{key}"
        data = memoryview(b"")
        if start >= stop:
            self._check_exists(key)
        else:
            with self._asking("read", key, past_end_is_short=True):
                found = obstore.get_range(store, check_key(key), start=start, end=stop)
                data = memoryview(found)
        check_length(where, start, stop, data.nbytes)
        return data

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        flat = buffer.cast("B")
        filled = 0
        if not flat.nbytes:
            self._check_exists(key)
            return
        with self._asking("read", key, past_end_is_short=True):
            options: Any = {"range": (start, start + flat.nbytes)}
            result = obstore.get(self._reader, check_key(key), options=options)
            for chunk in result.stream(min_chunk_size=_STREAM_BYTES):
                part = memoryview(chunk)
                flat[filled : filled + part.nbytes] = part
                filled += part.nbytes
        check_length(f"{self.url}/{key}", start, start + flat.nbytes, filled)

    def size(self, key: str) -> int | None:
        try:
            with self._asking("look up", key):
                return int(obstore.head(self._reader, check_key(key))["size"])
        except NotFoundError:
            return None

    def close(self) -> None:
        """Connections go with the backend."""

    # Made when needed: only training reads so, and a pool of connections takes 16 ms to set up.
    @cached_property
    def _impatient(self) -> Any:
        return open_store(self._place, READING, _NO_RETRY)

    def _check_exists(self, key: str) -> None:
        if self.size(key) is None:
            raise NotFoundError(f"{self.url} has no key {key!r}")

    @contextmanager
    def _asking(self, doing: str, key: str, *, past_end_is_short: bool = False) -> Iterator[None]:
        """Turn what obstore raises into our errors.

        Args:
            doing: the verb of the message.
            key: what it was about.
            past_end_is_short: swallow the answer that a range starts behind the end.
        """
        check_process()
        try:
            yield
        except FileNotFoundError as error:
            raise missing(str(error), self._place, key) from None
        except BaseError as error:
            text = str(error)
            if past_end_is_short and "status code: 416" in text:
                return
            # The original may show secrets and headers: it is not chained.
            raise explain(error, f"cannot {doing} {self.url}/{key}", self._place) from None


def open_store(place: Place, timeouts: Mapping[str, str], retry: Any = _RETRY) -> Any:
    """A pool of connections to `place`; its own settings go before `timeouts`.

    Raises:
        InvalidInputError: obstore does not know a setting, or cannot use its value.
    """
    client: Any = {**timeouts, **place.client}
    url = re.sub("^gcs:", "gs:", place.url)
    try:
        if place.kind == "http":
            if place.config:
                raise InvalidInputError(
                    f"{place.url}: unknown storage options {', '.join(sorted(place.config))}"
                )
            return HTTPStore(url, client_options=client, retry_config=retry)
        stores: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
        config: Any = dict(place.config)
        return stores[place.kind].from_url(
            url, config=config, client_options=client, retry_config=retry
        )
    except UnknownConfigurationKeyError as error:
        name = str(error).partition("'")[2].partition("'")[0]
        raise InvalidInputError(f"{place.url}: unknown storage option {name!r}") from None
    except (BaseError, ValueError) as error:
        raise InvalidInputError(
            f"{place.url}: its settings cannot be used: {_summary(str(error), place)}"
        ) from None


def check_process() -> None:
    """Refuse to work in a process that was forked from one that used obstore.

    Its threads stay behind in the parent, and any call would wait for them for ever.
    """
    if not _FORKED:
        _FORKED.append(os.getpid())
    if _FORKED[0] != os.getpid():
        raise UnsupportedError(
            "this process was forked from one that uses a remote store, which does not survive a "
            "fork. Start workers by 'spawn' or 'forkserver': "
            "multiprocessing.get_context('spawn'), DataLoader(multiprocessing_context='spawn')."
        )


def missing(text: str, place: Place, key: str) -> NotFoundError:
    """What a 404 means: no key, or no bucket."""
    if _NO_BUCKET.search(text):
        return NotFoundError(
            f"{place.url}: there is no such bucket. Make it, or check the URL and the endpoint."
        )
    return NotFoundError(f"{place.url} has no key {key!r}")


def explain(error: BaseError, what: str, place: Place) -> Error:
    """Our error for one of obstore's, without secrets."""
    text = str(error)
    match = _STATUS.search(text)
    status = int(match[1]) if match else 0
    message = f"{what}: {_summary(text, place)}."
    if _NO_BUCKET.search(text):
        return missing(text, place, "")
    if isinstance(error, NotSupportedError) or status == 501:
        return UnsupportedError(f"{message} This server lacks what a repository needs.")
    refused = isinstance(error, (PermissionDeniedError, UnauthenticatedError))
    if refused or status in {401, 403} or _NO_CREDENTIALS.search(text):
        return PermissionDenied(f"{message} {_credentials_advice(place, text)}")
    if 300 <= status < 400 or "without LOCATION" in text:
        return StorageError(f"{message} The bucket lies in another region: set AWS_REGION.")
    if status:
        transient = status in {408, 429} or status >= 500
        return StorageError(message, transient=transient, busy=status in _BUSY)
    for sign, _, transient, advice in _CONNECTION:
        if sign in text:
            return StorageError(f"{message} {advice}", transient=transient)
    return StorageError(message, transient="HTTP error" in text)


def _credentials_advice(place: Place, text: str) -> str:
    if place.kind == "http":
        return "The server asks for a login, which this address does not support."
    names = {
        "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "gs": "GOOGLE_APPLICATION_CREDENTIALS",
        "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    }[place.kind]
    if _NO_CREDENTIALS.search(text):
        return f"There are no credentials: set {names}, or pass storage options."
    listing = " Without s3:ListBucket, S3 says so of missing keys too." * (place.kind == "s3")
    return f"Check {names}, and what they may do in this bucket.{listing}"


def _summary(text: str, place: Place) -> str:
    """The cause in a few words, for people."""
    match, code = _STATUS.search(text), _CODE.search(text)
    if _NO_CREDENTIALS.search(text):
        return "no credentials were found"
    if match:
        status = match[0].removeprefix("status code: ").strip()
        return f"{status} ({code[1]})" if code else status
    for sign, meaning, _, _ in _CONNECTION:
        if sign in text:
            return meaning
    first = _QUERY.sub(r"\1", text.partition("\n")[0])
    for secret in place.secrets:
        first = first.replace(secret, "***")
    return first.rstrip(".")
