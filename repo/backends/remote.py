"""Reads over HTTP by obstore: locations, settings, failures, and published repositories.

obstore retries what failed for a moment; what reaches us has failed for good or for long. Its
messages carry URLs and headers, so only what we understood of them, without secrets, goes on.

Settings come from the options that somebody passed, then from the environment. Options have the
names of obstore's configuration, or those that fsspec's file systems use for the same thing.

Keys are files below the URL. A web server has no listing and no create: what needs either is
refused, and says so.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from tensorrepo.repo.backends.base import (
    CommonBackend,
    Guarantee,
    StoredKey,
    Uploads,
    check_key,
    check_length,
)
from tensorrepo.repo.backends.credentials import ADVICE, LoginChain, find_chain
from tensorrepo.repo.backends.urls import SCHEMES
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.cache import LimitedCache

_T = TypeVar("_T")

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
_PIECE_BYTES = 128 << 10  # what has not come whole is lost when a transfer is killed
WHOLE_FILE_BYTES = 64 << 20  # of a file on a server without ranges
_CUT_BODIES = 3  # answers that ended too early, until the next one is the last
_CUT = re.compile("request or response body error|error decoding response body")
_STATUS = re.compile(r"status code: (\d{3})[ \w]*")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|specified bucket does not exist")
_QUERY = re.compile(r"(https?://[^\s?\"']*)\?[^\s\"']*")
_LOGIN = re.compile(r"(https?://)[^\s/@]*@")
_NO_KEYS = re.compile(r"External \w+ credential provider: \w+: (.*)")
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


class RemoteReader(CommonBackend):
    """The reading half of a store behind HTTP."""

    def __init__(self, place: StoreLocation) -> None:
        self.url = place.url
        self.local_root = None
        self._place = place
        self._reader = open_store(place, READING)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._place,)

    def read(self, key: str) -> bytes:
        with self._asking("read", key):
            return _whole(lambda: bytes(obstore.get(self._reader, check_key(key)).bytes()))

    def read_up_to(self, key: str, most_bytes: int) -> bytes | int:
        """See `ReadsUpTo`."""

        def ask() -> bytes | int:
            result = obstore.get(self._reader, check_key(key))
            size = int(result.meta["size"])
            return bytes(result.bytes()) if size <= most_bytes else size  # no more of it is read

        with self._asking("read", key):
            return _whole(ask)

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
                ask = partial(obstore.get_range, store, check_key(key), start=start, end=stop)
                data = memoryview(ask() if store is not self._reader else _whole(ask))
        check_length(where, start, stop, data.nbytes)
        return data

    def stream_range(self, key: str, start: int, stop: int) -> Iterator[Buffer]:
        """See `StreamsRanges`."""
        return self._pieces(key, start, stop, self._stream(key, start, stop))

    def _stream(self, key: str, start: int, stop: int) -> Iterator[Buffer]:
        with self._asking("read", key):
            result = obstore.get(self._reader, check_key(key), options={"range": (start, stop)})
            return iter(result.stream(min_chunk_size=_PIECE_BYTES))

    def _pieces(
        self, key: str, start: int, stop: int, stream: Iterator[Buffer]
    ) -> Iterator[Buffer]:
        """What `stream` gives; where it breaks off, the rest is asked for anew."""
        at, cut = start, 0
        while at < stop:
            try:
                with self._asking("read", key):
                    piece = next(stream, None)
            except StorageError as error:
                cut += 1
                if not error.transient or cut > _CUT_BODIES:
                    raise
                stream = self._stream(key, at, stop)
                continue
            if piece is None:
                check_length(f"{self.url}/{key}", start, stop, at - start)
                return
            at += memoryview(piece).nbytes
            yield piece

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        flat = buffer.cast("B")
        filled = 0
        if not flat.nbytes:
            self._check_exists(key)
            return

        def fill() -> int:
            options: Any = {"range": (start, start + flat.nbytes)}
            result = obstore.get(self._reader, check_key(key), options=options)
            filled = 0
            for chunk in result.stream(min_chunk_size=_STREAM_BYTES):
                part = memoryview(chunk)
                flat[filled : filled + part.nbytes] = part
                filled += part.nbytes
            return filled

        with self._asking("read", key, past_end_is_short=True):
            filled = _whole(fill)
        check_length(f"{self.url}/{key}", start, start + flat.nbytes, filled)

    def size(self, key: str) -> int | None:
        try:
            with self._asking("look up", key):
                return int(obstore.head(self._reader, check_key(key))["size"])
        except NotFoundError:
            return None

    # Made when needed: only training reads so, and a pool of connections takes 16 ms to set up.
    @cached_property
    def _impatient(self) -> Any:
        return open_store(self._place, READING, _NO_RETRY)

    def _check_exists(self, key: str) -> None:
        if self.size(key) is None:
            raise self.no_key(key)

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
            raise self._explained(error, f"cannot {doing} {self.url}/{key}") from None

    def _explained(self, error: BaseError, what: str) -> Error:
        """Our error for one of obstore's."""
        return explain(error, what, self._place)


def _whole(ask: Callable[[], _T]) -> _T:
    """What `ask` gives, asked anew where a body was cut: obstore repeats requests only."""
    for _ in range(_CUT_BODIES):
        try:
            return ask()
        except BaseError as error:
            if not _CUT.search(str(error)):
                raise
    return ask()


def open_store(place: StoreLocation, timeouts: Mapping[str, str], retry: Any = _RETRY) -> Any:
    """A pool of connections to `place`; its own settings go before `timeouts`.

    Raises:
        InvalidInputError: obstore does not know a setting, or cannot use its value.
    """
    config: Any = dict(place.config)
    client: Any = {**place.client}
    more: Any = {}
    if place.chain is not None:
        config = place.chain.settings() | config
        _allow_http(place.kind, config.get("endpoint", ""), client)
        if (provider := place.chain.provider()) is not None:
            more["credential_provider"] = provider
    client = {**timeouts, **client}
    url = re.sub("^gcs:", "gs:", place.url)
    try:
        if place.kind == "http":
            if place.config:
                raise InvalidInputError(
                    f"{place.url}: unknown storage options {', '.join(sorted(place.config))}"
                )
            return HTTPStore(url, client_options=client, retry_config=retry)
        stores: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
        return stores[place.kind].from_url(
            url, config=config, client_options=client, retry_config=retry, **more
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


def missing(text: str, place: StoreLocation, key: str) -> NotFoundError:
    """What a 404 means: no key, or no bucket."""
    if _NO_BUCKET.search(text):
        return NotFoundError(
            f"{place.url}: there is no such bucket. Make it, or check the URL and the endpoint."
        )
    return NotFoundError(f"{place.url} has no key {key!r}")


def explain(error: BaseError, what: str, place: StoreLocation) -> Error:
    """Our error for one of obstore's, without secrets."""
    text = str(error)
    match = _STATUS.search(text)
    status = int(match[1]) if match else 0
    message = f"{what}: {_summary(text, place)}."
    if (problem := _NO_KEYS.search(text)) is not None:
        return PermissionDenied(f"{what}: {problem[1]}")
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
    return StorageError(message, transient="HTTP error" in text or bool(_CUT.search(text)))


def _credentials_advice(place: StoreLocation, text: str) -> str:
    if place.kind == "http":
        return "The server asks for a login, which this address does not support."
    if _NO_CREDENTIALS.search(text):
        return f"There are no credentials: {ADVICE[place.kind]}; or pass storage options."
    listing = " Without s3:ListBucket, S3 says so of missing keys too." * (place.kind == "s3")
    return f"Check the login, and what it may do in this bucket: {ADVICE[place.kind]}.{listing}"


def _summary(text: str, place: StoreLocation) -> str:
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
    first = _LOGIN.sub(r"\1", _QUERY.sub(r"\1", text.partition("\n")[0]))
    for secret in place.secrets:
        first = first.replace(secret, "***")
    return first.rstrip(".")


_CLIENT_OPTIONS = frozenset(
    {"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_excludes", "proxy_url"}
    | {"root_certificate", "timeout", "user_agent"}
)
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_SHORTEST_SECRET = 6  # shorter values are words, and words must stay readable in messages


def _called_so(prefix: str, names: str) -> dict[str, str]:
    """Variables that are called as the settings are, behind a prefix."""
    return {prefix + name.upper(): name for name in names.split()}


# Environment variable: setting. The first one that is set wins.
_ENVIRONMENT: dict[str, dict[str, str]] = {
    "s3": {
        **dict.fromkeys(("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "endpoint"),
        **_called_so("AWS_", "endpoint access_key_id secret_access_key session_token region"),
        "AWS_DEFAULT_REGION": "region",
        **_called_so("AWS_", "container_credentials_relative_uri container_credentials_full_uri"),
        **_called_so("AWS_", "container_authorization_token_file metadata_endpoint"),
        **_called_so("AWS_", "role_arn role_session_name web_identity_token_file"),
        "AWS_ENDPOINT_URL_STS": "sts_endpoint",
        **_called_so("AWS_", "allow_http skip_signature request_payer"),
        **_called_so("AWS_", "virtual_hosted_style_request"),
    },
    "gs": {
        **_called_so("GOOGLE_", "application_credentials service_account service_account_key"),
        "GOOGLE_SERVICE_ACCOUNT_PATH": "service_account",
        "STORAGE_EMULATOR_HOST": "emulator",
        **_called_so("GOOGLE_", "bearer_token base_url allow_http skip_signature"),
    },
    "az": {
        **_called_so("AZURE_STORAGE_", "account_name account_key token endpoint"),
        "AZURE_STORAGE_ACCOUNT": "account_name",
        **dict.fromkeys(("AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY"), "account_key"),
        **dict.fromkeys(("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"), "sas_key"),
        **_called_so("AZURE_", "endpoint client_id client_secret tenant_id federated_token_file"),
        "IDENTITY_ENDPOINT": "msi_endpoint",
        **_called_so("AZURE_", "allow_http skip_signature"),
    },
    "http": {},
}
# The names that s3fs, gcsfs and adlfs use.
_ALIASES: dict[str, dict[str, str]] = {
    "s3": {
        "key": "access_key_id",
        "secret": "secret_access_key",
        "token": "session_token",
        "endpoint_url": "endpoint",
        "region_name": "region",
        "anon": "skip_signature",
        "requester_pays": "request_payer",
    },
    "gs": {"token": "service_account", "endpoint_url": "base_url", "anon": "skip_signature"},
    "az": {"sas_token": "sas_key", "anon": "skip_signature", "credential": "token"},
    "http": {},
}
_PUBLIC = frozenset(
    {"account_name", "allow_http", "base_url", "endpoint", "region", "request_payer"}
    | {"skip_signature", "virtual_hosted_style_request"}
)


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """One cloud store.

    `kind` is ``s3``, ``gs``, ``az`` or ``http``; `url` holds no secret; `config` and `client` are
    obstore's settings of the store and of its HTTP client. They may hold secrets: the repr does
    not show them, a pickle has them. `chain` is where a login is found that they do not hold.
    """

    kind: str
    url: str
    config: Mapping[str, str] = field(repr=False)
    client: Mapping[str, Any] = field(repr=False)
    chain: LoginChain | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may show, the longest first."""
        found = [value for name, value in self.config.items() if name not in _PUBLIC]
        found += [self.client[name] for name in ("proxy_url",) if name in self.client]
        return tuple(sorted((v for v in found if len(v) >= _SHORTEST_SECRET), key=len)[::-1])


def find_place(
    url: str, options: Mapping[str, str], environment: Mapping[str, str]
) -> StoreLocation:
    """The store that `url` means.

    Raises:
        InvalidInputError: no bucket, or credentials in the URL, or an endpoint without TLS that
            nobody allowed.
    """
    kind = SCHEMES[urlsplit(url).scheme.lower()]
    _check_url(kind, url)
    settings = dict(_from_environment(kind, environment))
    settings |= dict(_from_options(kind, options))
    client = {name: settings.pop(name) for name in _CLIENT_OPTIONS & settings.keys()}
    if kind == "gs" and "emulator" in settings:
        _use_emulator(settings, client)
    chain = find_chain(kind, settings, environment)
    endpoint = url if kind == "http" else settings.get("endpoint") or settings.get("base_url", "")
    _allow_http(kind, endpoint, client)
    return StoreLocation(kind, url.rstrip("/"), settings, client, chain)


def _check_url(kind: str, url: str) -> None:
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    # abfss://container@account... is a name, everything else before an @ is a credential.
    names = parts.scheme.lower() in {"abfs", "abfss"} and ":" not in parts.netloc
    if "@" in parts.netloc and not names:
        raise InvalidInputError(
            f"{shown}: credentials do not belong into a URL, which is shown and stored. Put them "
            "into the environment or the storage options."
        )
    if parts.query or parts.fragment:
        raise InvalidInputError(f"{shown}: a repository's URL has no '?' and no '#'")
    if not parts.netloc:
        what = "host" if kind == "http" else "container" if kind == "az" else "bucket"
        raise InvalidInputError(f"{shown}: the URL names no {what}, expected {parts.scheme}://NAME")


def _from_environment(kind: str, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    # The first variable wins: it comes last into the dictionary that is made of this.
    for variable, name in reversed(_ENVIRONMENT[kind].items()):
        if environment.get(variable):
            yield name, environment[variable]


def _from_options(kind: str, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for given, value in options.items():
        name = given.lower().removeprefix(
            {"s3": "aws_", "gs": "google_", "az": "azure_"}.get(kind, "")
        )
        if name == "client_kwargs":
            yield from _from_options(kind, _object(value))
        elif kind == "gs" and name == "token" and value == "anon":
            yield "skip_signature", "true"
        elif name != "project":  # gcsfs asks for it; nothing here needs it
            yield _ALIASES[kind].get(name, name), _text(value)


def _object(value: object) -> Mapping[str, str]:
    """The nested options of fsspec, as a mapping or, from a command line, as JSON."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidInputError("storage option client_kwargs must be a JSON object")
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _use_emulator(settings: dict[str, str], client: dict[str, str]) -> None:
    """An emulator of GCS: an account that signs nothing, the only kind that may write unsigned."""
    host = settings.pop("emulator")
    account = {
        "gcs_base_url": host if "://" in host else f"http://{host}",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    settings.setdefault("service_account_key", json.dumps(account))
    client.setdefault("allow_http", "true")


def _allow_http(kind: str, endpoint: str, client: dict[str, str]) -> None:
    """Let plain HTTP through to this machine, or where somebody said so."""
    parts = urlsplit(endpoint)
    if parts.scheme.lower() != "http" or client.get("allow_http", "").lower() in {"true", "1"}:
        return
    if kind == "http" or parts.hostname in _LOCAL_HOSTS:
        client["allow_http"] = "true"
        return
    variable = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}[kind]
    raise InvalidInputError(
        f"the endpoint http://{parts.netloc.rpartition('@')[2]} is not encrypted: use https, or "
        f"allow it by {variable}=true or the storage option allow_http=true"
    )


class HttpBackend(RemoteReader):
    """Files below an HTTP(S) URL, for reading only.

    Of a server that knows no ranges files are read whole, the last ones kept in memory; large
    ones are refused, as every range of them would bring all of it.
    """

    def __init__(self, place: StoreLocation) -> None:
        super().__init__(place)
        self.guarantee = Guarantee.READ_ONLY
        self._whole: LimitedCache[bytes] | None = None  # once a server was seen to know no ranges

    def _range(self, store: Any, key: str, start: int, stop: int) -> Buffer:
        if self._whole is None:
            try:
                return super()._range(store, key, start, stop)
            except UnsupportedError:
                self._whole = LimitedCache(2 * WHOLE_FILE_BYTES)
        data = self._read_whole(key)
        check_length(f"{self.url}/{key}", start, stop, max(0, min(stop, len(data)) - start))
        return memoryview(data)[start:stop]

    def stream_range(self, key: str, start: int, stop: int) -> Iterator[Buffer]:
        if self._whole is None:
            with suppress(UnsupportedError):  # it knows no ranges
                return super().stream_range(key, start, stop)
        return iter((self._range(self._reader, key, start, stop),))

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        flat = buffer.cast("B")
        flat[:] = self._range(self._reader, key, start, start + flat.nbytes)

    def _read_whole(self, key: str) -> bytes:
        whole = self._whole
        assert whole is not None, "a server without ranges"
        if (known := whole.get(key)) is not None:
            return known
        with self._asking("read", key):
            result = obstore.get(self._reader, check_key(key))
            if result.meta["size"] > WHOLE_FILE_BYTES:
                raise UnsupportedError(
                    f"{self.url}/{key}: this server gives whole files only, and this one has "
                    f"{result.meta['size']:,} bytes, more than {WHOLE_FILE_BYTES:,}. Serve the "
                    "repository by one that knows ranges, such as nginx or caddy, or copy it."
                )
            data = bytes(result.bytes())
        whole.put(key, data, len(data))
        return data

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        self._refuse("create", key, parts)

    def uploads(self) -> Uploads:
        self._refuse("create", "keys")

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        self._refuse("write", key, parts)

    def delete(self, key: str) -> None:
        self._refuse("delete", key)

    def list(self, prefix: str) -> Iterator[StoredKey]:
        self._refuse("list", prefix)

    def _refuse(self, doing: str, what: str, *_: object) -> NoReturn:
        raise UnsupportedError(
            f"cannot {doing} {what!r} at {self.url}: a web server can only be read, key by key. "
            "Open the repository where it is kept."
        )
