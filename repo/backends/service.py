"""Backend of a repository behind a tensorrepo service.

Discovery: ``GET URL/repo.json``. A service answers it with a header that says where its API is; a
repository that a web server publishes has none, and is read as before. Values are read by obstore,
small calls by `service_calls`. The service writes the log, and judges what it is sent: objects are
uploads that it verifies, entries go to it in one call (`AppendsEntries`). ``PUT URL/repo.json``
has it make a repository.

A token goes to the origin of the URL only, in a header, and to no message or repr. Over plain HTTP
it goes to this machine alone, unless somebody said that the network is safe.

Source:
    docs/spec/service.md.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from typing import Any, Final, NoReturn
from urllib.parse import unquote, urljoin, urlsplit

import msgspec
import obstore
from obstore.exceptions import BaseError

from tensorrepo.repo.backends.base import (
    Backend,
    FlyingUploads,
    Guarantee,
    Landing,
    LogTail,
    StoredKey,
    ToldState,
    check_prefix,
)
from tensorrepo.repo.backends.direct_reads import DirectReads, StoreAddresses
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.backends.remote import (
    SENDING_MUCH,
    RemoteReader,
    StoreLocation,
    check_process,
    explain,
    find_place,
    open_store,
)
from tensorrepo.repo.backends.service_calls import SECONDS, CallAnswer, ServiceCalls, client_of
from tensorrepo.repo.backends.service_errors import error_of, moved_url, problem_in
from tensorrepo.repo.backends.service_format import (
    ACCESS_HEADER,
    API_HEADER,
    CALLER_HEADER,
    CLIENT_HEADER,
    COMPOSES_HEADER,
    DIRECT_HEADER,
    MAX_HOPS,
    MAX_OBJECTS,
    PIECE_BYTES,
    REVISION,
    SMALL_BYTES,
    Landed,
    MessageHead,
    encode_message,
    way_text,
)
from tensorrepo.repo.errors import (
    ConflictError,
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.http_client import httpx, verification
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.incarnations import parse_object_key
from tensorrepo.repo.threads import ThreadFlights
from tensorrepo.repo.typed_decoding import from_json

PLAIN_VARIABLE: Final = "TENSORREPO_ALLOW_HTTP"
_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_TRIES: Final = 5
_PIECE_SECONDS: Final = 600.0
_PUT_SECONDS: Final = httpx.Timeout(600.0, connect=10.0)
_BATCH_BYTES: Final = 4 << 20
_SENDERS: Final = 4
_BLOCK_BYTES: Final = 1 << 20
_IN_FLIGHT_BYTES: Final = 128 << 20
_MOST_WAYS: Final = 1 << 20
_HELD_BYTES: Final = 4 << 20  # of small objects that wait for the entries that need them
_TOLD_BYTES: Final = 4 << 20  # of objects that came with the answers to appends
_NO_ADDRESSES: Final = 600.0  # seconds, after a service gave none
_BY_ADDRESS: Final = ("objects/", "reach/")
# Settings of obstore's client that a connection of our own would not have.
_OWN_WAYS: Final = frozenset({"proxy_url", "root_certificate", "allow_invalid_certificates"})
_IDENTITY: Final = "repo.json"
_REVISION: Final = {CLIENT_HEADER: str(REVISION)}
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,512}")


def open_http(
    url: str,
    options: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str],
    stored_token: Callable[[str], str | None] = lambda _: None,
) -> Backend:
    """The repository at an ``http(s)://`` URL: of a service, or published by a web server.

    Args:
        url: where it is.
        options: ``token``, and what obstore's HTTP client knows.
        environment: where it says that the network is safe for plain HTTP.
        stored_token: gives the token that this user keeps for a URL.

    Raises:
        UnauthenticatedError: a service asks for a token, and there is none that it takes.
        PermissionDenied: a token would go over plain HTTP to another machine.
    """
    place, given, token, answer = _discover(url, options, environment, stored_token)
    if token is not None and answer.is_error:
        raise error_of(answer.status_code, answer.content, place.url)
    api = answer.headers.get(API_HEADER)
    if api is None or answer.is_error:
        return open_backend(url, given, environment=environment)
    origin = _origin(place.url)
    address = urljoin(place.url, api)
    if _origin(address) != origin:
        raise UnsupportedError(
            f"{place.url} says that its API is at {address:.200}, which is another origin. "
            "Use the URL that the service calls its own."
        )
    kind = PartialBackend if answer.headers.get(ACCESS_HEADER) == "part" else ServiceBackend
    direct = _number(answer.headers.get(DIRECT_HEADER, ""))
    composes = _number(answer.headers.get(COMPOSES_HEADER, "")) or 0
    backend = kind(place.url, address, token, dict(place.client), direct, composes)
    backend.identity = answer.content
    backend.caller = unquote(answer.headers.get(CALLER_HEADER, ""))
    return backend


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def create_http(
    url: str,
    options: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str],
    stored_token: Callable[[str], str | None] = lambda _: None,
) -> Backend:
    """Have a service make a repository at `url`; arguments and errors as of `open_http`.

    Raises:
        ConflictError: there is one already, or was one that can still be brought back.
        PermissionDenied: the token is not that of an admin of the name.
        UnsupportedError: no service answers there, so nothing can be written.
    """
    place, _, token, answer = _discover(url, options, environment, stored_token)
    if answer.is_success:
        raise ConflictError(
            f"there is a repository at {place.url} already. Use it as it is, or name another URL."
        )
    if token is None:
        raise UnsupportedError(
            f"{place.url}: a repository can be made there by a tensorrepo service alone, and none "
            "answers. Check the URL."
        )
    if answer.status_code == httpx.codes.NOT_FOUND:
        with client_of(place.url) as client:
            answer = _call(client, place, "PUT", token)
    if answer.is_error:
        raise error_of(answer.status_code, answer.content, place.url)
    return open_http(url, {**(options or {}), "token": token}, environment=environment)


def _discover(
    url: str,
    options: Mapping[str, str] | None,
    environment: Mapping[str, str],
    stored_token: Callable[[str], str | None],
) -> tuple[StoreLocation, dict[str, str], str | None, httpx.Response]:
    """The place, settings of its client, the token that a service asked for, and what it says."""
    given = dict(options or {})
    told = given.pop("token", None)
    place = find_place(url, given, environment)
    with client_of(place.url) as client:
        return _ask(client, place, given, told, environment, stored_token)


def _ask(
    client: httpx.Client,
    place: StoreLocation,
    given: dict[str, str],
    told: str | None,
    environment: Mapping[str, str],
    stored_token: Callable[[str], str | None],
) -> tuple[StoreLocation, dict[str, str], str | None, httpx.Response]:
    """See `_discover`; both calls go over one connection."""
    answer = _call(client, place, "GET", None)
    if answer.status_code != httpx.codes.UNAUTHORIZED or "tensorrepo" not in answer.headers.get(
        "WWW-Authenticate", ""
    ):
        return place, given, None, answer
    token = told or stored_token(place.url)
    if token is None:
        raise error_of(answer.status_code, answer.content, place.url)
    _refuse_plain(_origin(place.url), environment, given)
    if not urlsplit(place.url).path.strip("/"):
        raise NotFoundError(
            f"{place.url} is a service and no repository: name one of it, such as "
            f"{place.url.rstrip('/')}/team/name. Its page in a browser lists them."
        )
    answer = _call(client, place, "GET", token)
    asked = f"{place.url}/{_IDENTITY}"
    moved = moved_url(asked, answer.status_code, answer.headers.get("Location"))
    if moved is None or not moved.endswith(f"/{_IDENTITY}"):
        return place, given, token, answer
    # It was renamed: once, for a service leads from each old name to the newest.
    place = find_place(moved.removesuffix(f"/{_IDENTITY}"), given, environment)
    with client_of(place.url) as elsewhere:
        return place, given, token, _call(elsewhere, place, "GET", token)


def _call(
    client: httpx.Client, place: StoreLocation, method: str, token: str | None
) -> httpx.Response:
    """What a service says of a repository there, or what became of making one."""
    headers = _REVISION | _authorization(token, place.url)
    try:
        return client.request(method, f"{place.url}/{_IDENTITY}", headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise StorageError(
            f"cannot reach {place.url}: {type(error).__name__}. Check the URL and the network.",
            transient=True,
        ) from None


def _authorization(token: str | None, url: str) -> dict[str, str]:
    if token is None:
        return {}
    if not _TOKEN.fullmatch(token.strip()):
        raise InvalidInputError(f"the token for {url} has characters that no token has")
    return {"Authorization": f"Bearer {token.strip()}"}


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}"


def _refuse_plain(origin: str, environment: Mapping[str, str], options: Mapping[str, str]) -> None:
    parts = urlsplit(origin)
    said = options.get("allow_http") or environment.get(PLAIN_VARIABLE, "")
    if parts.scheme == "http" and parts.hostname not in _LOCAL_HOSTS and said.lower() != "true":
        raise PermissionDenied(
            f"{origin} is not encrypted, and everybody on the way could read your token. Use "
            f"https, or set {PLAIN_VARIABLE}=true where the network is safe."
        )


class ServiceBackend(RemoteReader):
    """A repository behind a service.

    Args:
        url: URL of the repository, for people.
        api: URL of its API.
        token: what the caller is known by.
        client: settings of the HTTP client, as obstore calls them.
        direct_bytes: objects of so many bytes and more may go straight to its store; None: none.
        most_paths: number of paths of a commit that it composes; 0: it composes none.
    """

    def __init__(
        self,
        url: str,
        api: str,
        token: str | None,
        client: Mapping[str, Any],
        direct_bytes: int | None = None,
        most_paths: int = 0,
    ) -> None:
        self.most_paths = most_paths
        self._api, self._token, self._direct_bytes = api.rstrip("/"), token, direct_bytes
        settings = {**client, "allow_http": "true"}
        if token is not None:
            settings["default_headers"] = _authorization(token, url)
        self._client = dict(client)
        super().__init__(StoreLocation("http", f"{self._api}/store", {}, settings))
        self.url = url
        self.guarantee = Guarantee.ATOMIC
        self._gathered = threading.local()
        self._told = LimitedCache[bytes](_TOLD_BYTES)
        self._direct: DirectReads | None = None
        if direct_bytes is not None and not client.keys() & _OWN_WAYS:
            plain = urlsplit(self._api).scheme == "http"
            self._direct = DirectReads(StoreAddresses(self._addresses), plain=plain)
        self.caller = ""  # ``Name <email>`` that the service writes for this client; "": not told
        self.identity: bytes | None = None  # `repo.json` as the discovery gave it, for one read
        self.receipts: dict[str, str] = {}  # of what was sent, for who may read some refs

    def __reduce__(self) -> tuple[object, ...]:
        told = (self.url, self._api, self._token, self._client, self._direct_bytes)
        return type(self), (*told, self.most_paths), {"caller": self.caller}

    def read(self, key: str) -> bytes:
        here = self._waiting.get(key) or self._told.get(key)
        if key == _IDENTITY and self.identity is not None:
            here, self.identity = self.identity, None
        return super().read(key) if here is None else here

    def size(self, key: str) -> int | None:
        here = self._waiting.get(key) or self._told.get(key)
        return super().size(key) if here is None else len(here)

    def _range(self, store: Any, key: str, start: int, stop: int) -> Buffer:
        if self._direct is not None and key.startswith(_BY_ADDRESS):
            check_process()
            data = self._direct.read(key, start, stop)
            if data is not None:
                return data
        return super()._range(store, key, start, stop)

    def expect_keys(self, sizes: Mapping[str, int]) -> None:
        """See `ExpectsKeys`: addresses of those that have one are asked for now."""
        least = self._direct_bytes
        if self._direct is not None and least is not None:
            self._direct.expect([self._reached(key) for key in sizes if sizes[key] >= least])

    def _reached(self, key: str) -> str:
        """The key by which the service gives an object."""
        return key

    def _addresses(self, keys: Sequence[str]) -> tuple[Mapping[str, str], float]:
        """See `StoreAddresses`."""
        try:
            found = self.call("POST", "/addresses", json={"keys": [*keys]}, tries=1).json()
        # Who reads asks the service itself, and is told why. A client that is closed is a
        # RuntimeError of httpx, for who asks ahead.
        except (Error, RuntimeError):
            return {}, _NO_ADDRESSES
        return found["addresses"], found["seconds"]

    def list(self, prefix: str) -> Iterator[StoredKey]:
        cursor: str | None = None
        check_prefix(prefix)
        while True:
            parameters = {"prefix": prefix} | ({} if cursor is None else {"cursor": cursor})
            page = self.call("GET", "/store", params=parameters).json()
            for item in page["items"]:
                yield StoredKey(item["key"], item["bytes"], item["modified_seconds"])
            cursor = page["next"]
            if cursor is None:
                return

    def uploads(self) -> ServiceUploads:
        return ServiceUploads(self)

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        with self.uploads() as uploads:
            uploads.create(key, parts)
            return uploads.finish()[key]

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        self._refuse("overwrite", key, parts)

    def delete(self, key: str) -> None:
        self._refuse("delete", key)

    def close(self) -> None:
        if "_calls" in vars(self):
            self._calls.close()
        if self._direct is not None:
            self._direct.close()

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """See `AppendsEntries`."""
        if getattr(self._gathered, "objects", None) is not None:
            yield
            return
        self._gathered.objects = {}
        try:
            yield
        finally:
            left = self._waiting
            self._gathered.objects = None
            if left:  # whoever put them relies on them
                with suppress(Error):
                    self.send_objects(left)

    def append_entries(self, entries: bytes, generation: int, *, merges: bool) -> Landing:
        """See `AppendsEntries`."""
        return self._append(MessageHead((), msgspec.Raw(entries), generation, merges))

    def append_commit(self, commit: bytes, beside: bytes, generation: int) -> Landing:
        """See `ComposesCommits`."""
        wanted = msgspec.Raw(commit)
        return self._append(MessageHead((), msgspec.Raw(beside), generation, commit=wanted))

    def _append(self, head: MessageHead) -> Landing:
        waiting = self._waiting
        receipts = dict(self.receipts)
        head = msgspec.structs.replace(head, objects=_listed(waiting), receipts=receipts)
        body = encode_message(head, list(waiting.values()))
        answer = self.call("POST", "/append", content=body, tries=1)
        waiting.clear()
        landed = from_json(answer.content, Landed)
        for key, data in landed.objects.items():  # who reads them verifies them, as any
            self._told.put(key, data, len(data))
        records = tuple(record.encode() for record in landed.records)
        return Landing(landed.generation, bytes(landed.entries), records)

    def log_tail(self, generation: int) -> LogTail | None:
        """See `TellsTail`."""
        found = self.call("GET", "/log", params={"after": generation}).json()
        if found["records"] is None:
            return None
        return LogTail(found["digest"], tuple(record.encode() for record in found["records"]))

    def events(self, ref: str, silence_seconds: float) -> Iterator[None]:
        """See `TellsEvents`."""
        limit = httpx.Timeout(SECONDS.connect, read=silence_seconds)
        wanted = {"prefix": ref}
        try:
            with self._calls.client.stream(
                "GET", f"{self._api}/events", params=wanted, timeout=limit
            ) as answer:
                if answer.is_error:
                    raise error_of(answer.status_code, answer.read(), self.url)
                for line in answer.iter_lines():
                    if not line:  # ends an event, a sign of life, and what is said first
                        yield
        except httpx.HTTPError:
            return

    def hold(self, objects: Mapping[str, bytes]) -> bool:
        """Keep small objects for this thread's append; False: nobody gathers, or too much."""
        held: dict[str, bytes] | None = getattr(self._gathered, "objects", None)
        if held is None:
            return False
        size = sum(map(len, held.values())) + sum(map(len, objects.values()))
        if size > _HELD_BYTES or len(held) + len(objects) > MAX_OBJECTS:
            return False
        held |= objects
        return True

    def send_objects(self, objects: Mapping[str, bytes]) -> None:
        """Store small objects, in one call."""
        body = encode_message(MessageHead(_listed(objects)), list(objects.values()))
        self.receipts |= self.call("POST", "/objects", content=body).json()["receipts"]

    def send_large(self, digest: Digest, views: Sequence[memoryview]) -> None:
        """Store one object in pieces, going on where an earlier upload was cut off."""
        total = sum(view.nbytes for view in views)
        known = self.call("GET", f"/uploads/{digest}", params={"bytes": total}).json()
        start = total if known["stored"] else int(known["received"])
        if not start and self._is_sent_past(digest, views, total):
            return
        while start < total:
            stop = min(start + PIECE_BYTES, total)
            self._send_piece(digest, f"{total}/{start}", _cut(views, start, stop))
            start = stop

    def _is_sent_past(self, digest: Digest, views: Sequence[memoryview], total: int) -> bool:
        """Put an object straight into the store; False: it has to go through the service."""
        if self._direct_bytes is None or total < self._direct_bytes:
            return False
        hashed = hashlib.sha256()
        for view in views:
            hashed.update(view)
        path = f"/uploads/{digest}"
        wanted = {"bytes": total, "sha256": hashed.hexdigest()}
        try:
            place = self.call("POST", f"{path}/address", json=wanted).json()
            httpx.put(
                place["url"],
                content=_blocks(views),
                headers=place["headers"],
                timeout=_PUT_SECONDS,
                verify=verification(place["url"]),
            ).raise_for_status()
            put = {"bytes": total, "name": place["name"]}
            state = self.call("POST", f"{path}/incoming", json=put).json()
        except (NotFoundError, StorageError, httpx.HTTPError):
            return False  # this network may lead to the service alone
        self._note_receipt(digest, state)
        return True

    def _note_receipt(self, digest: Digest, state: Mapping[str, Any]) -> None:
        if state["receipt"] is not None:
            self.receipts[digest] = state["receipt"]

    def _send_piece(self, digest: Digest, place: str, views: Sequence[memoryview]) -> None:
        with self._asking("upload", f"object {digest:.12}"):
            obstore.put(self._sender, f"{digest}/{place}", [*views], use_multipart=False)

    def call(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        tries: int = _TRIES,
        **more: Any,
    ) -> CallAnswer:
        """One small call; what fails for a moment is repeated.

        Raises:
            Error: as the service says; StorageError: it does not answer.
        """
        for number in range(1, tries + 1):
            try:
                answer = self._calls.send(method, path, content=content, **more)
                if answer.is_success:
                    return answer
                failure: Error = error_of(answer.status, answer.content, self.url)
            except httpx.HTTPError as error:
                failure = StorageError(
                    f"{self.url}: no answer ({type(error).__name__}). Check the network, then "
                    "repeat.",
                    transient=True,
                )
            if not getattr(failure, "transient", False) or number == tries:
                raise failure
            threading.Event().wait(0.1 * 2**number)
        raise AssertionError("the last try returns or raises")

    # Made when needed: a process that only reads keeps no further connections.
    @cached_property
    def _calls(self) -> ServiceCalls:
        return ServiceCalls(self._api, _REVISION | _authorization(self._token, self.url))

    @cached_property
    def _sender(self) -> Any:
        place = StoreLocation("http", f"{self._api}/uploads", {}, self._place.client)
        return open_store(place, SENDING_MUCH)

    @property
    def _waiting(self) -> dict[str, bytes]:
        """Objects by key that this thread's append will bring."""
        return getattr(self._gathered, "objects", None) or {}

    @contextmanager
    def _asking(self, doing: str, key: str, *, past_end_is_short: bool = False) -> Iterator[None]:
        try:
            with super()._asking(doing, key, past_end_is_short=past_end_is_short):
                yield
        except NotFoundError:
            raise NotFoundError(f"{self.url} has no key {key!r}") from None

    def _explained(self, error: BaseError, what: str) -> Error:
        problem = problem_in(str(error))
        if problem is None:
            return explain(error, what, self._place)
        return error_of(problem.status, problem.body, self.url)

    def _refuse(self, doing: str, what: str, *_: object) -> NoReturn:
        raise UnsupportedError(
            f"cannot {doing} {what!r} at {self.url}: the service that it is behind does that by "
            "itself. Ask whoever runs it."
        )


class PartialBackend(ServiceBackend):
    """A repository of which the caller may read some refs: no log, and objects by their ways.

    A way is the names of the objects that lead to one, from a commit on; the service checks it.
    """

    def __init__(
        self,
        url: str,
        api: str,
        token: str | None,
        client: Mapping[str, Any],
        direct_bytes: int | None = None,
        most_paths: int = 0,
    ) -> None:
        super().__init__(url, api, token, client, direct_bytes, most_paths)
        self._parents: dict[bytes, bytes] = {}

    def read_state(self) -> ToldState:
        """See `TellsState`."""
        found = self.call("GET", "/state").json()
        return ToldState(found["generation"], found["digest"], found["state"].encode())

    def _send_piece(self, digest: Digest, place: str, views: Sequence[memoryview]) -> None:
        path, body = f"/uploads/{digest}/{place}", b"".join(views)
        answer = self.call("PUT", path, content=body, timeout=_PIECE_SECONDS)
        self._note_receipt(digest, answer.json())

    def note_links(self, digest: str, children: Iterable[str]) -> None:
        """See `TellsState`."""
        parent, parents = bytes.fromhex(digest), self._parents
        if len(parents) > _MOST_WAYS:
            for name in list(islice(parents, _MOST_WAYS // 2)):
                parents.pop(name, None)
        for child in children:
            parents.setdefault(bytes.fromhex(child), parent)

    def log_tail(self, generation: int) -> LogTail | None:  # noqa: ARG002
        """Nothing: the log is not for this caller."""
        return None

    def read(self, key: str) -> bytes:
        return super().read(self._reached(key))

    def _range(self, store: Any, key: str, start: int, stop: int) -> Buffer:
        return super()._range(store, self._reached(key), start, stop)

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        super().read_into(self._reached(key), start, buffer)

    def size(self, key: str) -> int | None:
        return super().size(self._reached(key))

    def _reached(self, key: str) -> str:
        """The key by which the service gives an object: its way."""
        parsed = parse_object_key(key) if key.startswith("objects/") else None
        if parsed is None or key in self._waiting:
            return key
        way = [bytes.fromhex(parsed[0])]
        while len(way) < MAX_HOPS:
            above = self._parents.get(way[-1])
            if above is None or above in way:
                break
            way.append(above)
        return "reach/" + "/".join(map(way_text, reversed(way)))


def _listed(objects: Mapping[str, bytes]) -> tuple[tuple[str, int], ...]:
    return tuple((_digest_of(key), len(data)) for key, data in objects.items())


def _digest_of(key: str) -> Digest:
    parsed = parse_object_key(key) if key.startswith("objects/") else None
    if parsed is None:
        raise UnsupportedError(
            f"{key!r}: a client of a service stores objects, and the service all else"
        )
    return parsed[0]


def _cut(views: Sequence[memoryview], start: int, stop: int) -> list[memoryview]:
    """Bytes ``[start, stop)`` of what `views` are together."""
    cut, at = [], 0
    for view in views:
        piece = view[max(start - at, 0) : max(stop - at, 0)]
        if piece.nbytes:
            cut.append(piece)
        at += view.nbytes
    return cut


def _blocks(views: Sequence[memoryview]) -> Iterator[bytes]:
    for view in views:
        for at in range(0, view.nbytes, _BLOCK_BYTES):
            yield bytes(view[at : at + _BLOCK_BYTES])


class ServiceUploads(FlyingUploads):
    """Objects on their way to a service: small ones many at once, large ones in pieces."""

    _flights: ThreadFlights

    def __init__(self, backend: ServiceBackend) -> None:
        super().__init__(ThreadFlights(_SENDERS, _IN_FLIGHT_BYTES, "tensorrepo-upload"))
        self._backend = backend
        self._small: dict[str, bytes] = {}
        self._small_bytes = 0

    def finish(self) -> dict[str, bool]:
        with self._lock:
            batch = self._take()
        if batch and not self._backend.hold(batch):
            self._start(batch)
        return super().finish()

    def abort(self) -> None:
        with self._lock:
            self._take()
        super().abort()

    def _send(self, key: str, views: list[memoryview]) -> None:
        digest, size = _digest_of(key), sum(view.nbytes for view in views)
        self._created[key] = True
        if size > SMALL_BYTES:
            self._flights.submit(lambda: self._backend.send_large(digest, views), size)
            return
        with self._lock:
            self._small[key] = b"".join(views)
            self._small_bytes += size
            full = self._small_bytes >= _BATCH_BYTES or len(self._small) >= MAX_OBJECTS
            batch = self._take() if full else {}
        if batch:
            self._start(batch)

    def _take(self) -> dict[str, bytes]:
        batch, self._small, self._small_bytes = self._small, {}, 0
        return batch

    def _start(self, batch: Mapping[str, bytes]) -> None:
        size = sum(map(len, batch.values()))
        self._flights.submit(lambda: self._backend.send_objects(batch), size)
