"""Storage backend for S3, GCS and Azure.

One create-only PUT per key. A lost reply, a 5xx that obstore repeats, or a 409 leave the outcome
of a create in doubt; such a create says "exists" or raises, and the caller reads the key.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal

import obstore
from obstore.exceptions import AlreadyExistsError

from tensorrepo.repo.backends.base import (
    NO_HEADERS,
    FlyingUploads,
    Guarantee,
    StoredKey,
    byte_views,
    check_key,
    check_prefix,
)
from tensorrepo.repo.backends.remote import (
    SENDING_LITTLE,
    SENDING_MUCH,
    RemoteReader,
    StoreLocation,
    open_store,
)
from tensorrepo.repo.backends.s3_signing import bound_to
from tensorrepo.repo.errors import StorageError, UnsupportedError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.threads import Flights, aborted

# S3 takes 5 GiB in one PUT, Azure 5,000 MiB. Above this an object is sent in parts, which are
# joined without a condition: whoever comes last wins, with the same bytes, because large values
# are objects, whose keys are the digests of their bytes.
SINGLE_PUT_BYTES = 4 << 30
_PART_BYTES = 64 << 20
_MOST_PARTS = 9_000  # S3 allows 10,000
_PARTS_IN_FLIGHT = 4
_MUCH_BYTES = 8 << 20
_REQUESTS = 16
_IN_FLIGHT_BYTES = 256 << 20
_STREAM_BYTES = 512 << 10
_CONFLICT_TRIES = 5
_CONFLICT_SECONDS = 0.2


class CloudBackend(RemoteReader):
    """A bucket, or a prefix of one.

    Args:
        place: location of the store, and how to get there.
        single_put_bytes: most bytes of a value that is not sent in parts.
        part_bytes: bytes of a part, or more where that would be too many of them.
    """

    def __init__(
        self,
        place: StoreLocation,
        *,
        single_put_bytes: int = SINGLE_PUT_BYTES,
        part_bytes: int = _PART_BYTES,
    ) -> None:
        super().__init__(place)
        self.guarantee = Guarantee.ATOMIC
        self._single_put_bytes = single_put_bytes
        self._part_bytes = part_bytes

    def with_parts(self, part_bytes: int) -> CloudBackend:
        """See `SendsParts`."""
        return CloudBackend(self._place, single_put_bytes=part_bytes, part_bytes=part_bytes)

    def uploads(self) -> CloudUploads:
        return CloudUploads(self)

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        views = byte_views(parts)
        store = self._sender(sum(view.nbytes for view in views))
        with self._asking("write", key):
            obstore.put(store, check_key(key), views, use_multipart=False)

    def delete(self, key: str) -> None:
        with self._asking("delete", key):
            try:
                obstore.delete(self._little, check_key(key))
            except FileNotFoundError:
                return

    def list(self, prefix: str) -> Iterator[StoredKey]:
        return self._pages(check_prefix(prefix))

    async def send_range(self, key: str, start: int, stop: int) -> AsyncIterator[Buffer]:
        """See `SendsRanges`."""
        options: Any = {"range": (start, stop)}
        with self._asking("read", key):
            result = await obstore.get_async(self._reader, check_key(key), options=options)
            async for piece in result.stream(min_chunk_size=_STREAM_BYTES):
                yield memoryview(piece)

    def signed_url(
        self,
        key: str,
        seconds: int,
        *,
        method: Literal["GET", "PUT"] = "GET",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> str | None:
        """See `SignsRequests`."""
        secret = self._place.config.get("secret_access_key")
        if self._place.kind != "s3" or (secret is None and method != "GET"):
            return None
        with self._asking("sign a URL of", key):
            life = timedelta(seconds=seconds)
            url = str(obstore.sign(self._reader, method, check_key(key), expires_in=life))
        return url if secret is None or not headers else bound_to(url, method, headers, secret)

    # Made when needed: a pool of connections takes 16 ms to set up, and many commands only read.
    @cached_property
    def _little(self) -> Any:
        return open_store(self._place, SENDING_LITTLE)

    @cached_property
    def _much(self) -> Any:
        return open_store(self._place, SENDING_MUCH)

    def _sender(self, size_bytes: int) -> Any:
        return self._much if size_bytes > _MUCH_BYTES else self._little

    async def send(self, key: str, views: Sequence[memoryview], size_bytes: int) -> bool:
        """Create `key`; False when it exists."""
        with self._asking("create", key):
            if size_bytes > self._single_put_bytes:
                return await self._send_parts(key, views, size_bytes)
            for _ in range(_CONFLICT_TRIES):
                try:
                    await obstore.put_async(
                        self._sender(size_bytes), key, views, mode="create", use_multipart=False
                    )
                except AlreadyExistsError as error:
                    # A 409 says that somebody is creating the key, which may yet fail.
                    if "status code: 409" not in str(error) or await self._exists(key):
                        return False
                else:
                    return True
                await asyncio.sleep(_CONFLICT_SECONDS)
        raise StorageError(
            f"{self.url}/{key}: others keep creating this key and none succeeds. Repeat.",
            transient=True,
        )

    async def _send_parts(self, key: str, views: Sequence[memoryview], size_bytes: int) -> bool:
        if await self._exists(key):
            return False
        part_bytes = max(self._part_bytes, -(-size_bytes // _MOST_PARTS))
        await obstore.put_async(
            self._much, key, views, use_multipart=True,
            chunk_size=part_bytes, max_concurrency=_PARTS_IN_FLIGHT,
        )  # fmt: skip
        return True

    async def _exists(self, key: str) -> bool:
        try:
            await obstore.head_async(self._reader, key)
        except FileNotFoundError:
            return False
        return True

    def _pages(self, prefix: str) -> Iterator[StoredKey]:
        previous = ""
        pages: Any = obstore.list(self._reader, prefix or None)
        while True:
            with self._asking("list", prefix):
                page = next(pages, None)
            if page is None:
                return
            for entry in page:
                if entry["path"] <= previous:
                    raise UnsupportedError(
                        f"{self.url} lists its keys in no order, as S3's directory buckets do. "
                        "Use a general purpose bucket."
                    )
                previous = entry["path"]
                yield StoredKey(previous, entry["size"], entry["last_modified"].timestamp())


class CloudUploads(FlyingUploads):
    """Objects on their way, a few requests at a time; Ctrl-C cancels them in the middle."""

    _flights: LoopFlights

    def __init__(self, backend: CloudBackend) -> None:
        super().__init__(LoopFlights(_REQUESTS, _IN_FLIGHT_BYTES, "tensorrepo-upload"))
        self._backend = backend

    def _send(self, key: str, views: list[memoryview]) -> None:
        size_bytes = sum(view.nbytes for view in views)

        async def send() -> None:
            self._created[key] = await self._backend.send(key, views, size_bytes)

        self._flights.submit(send, size_bytes)


class LoopFlights(Flights):
    """Coroutines on the event loop of one thread, cancelled when it is stopped.

    Args:
        calls: number of coroutines that run at once.
        limit_bytes: most bytes that they hold together.
        name: name of the thread.
    """

    def __init__(self, calls: int, limit_bytes: int, name: str) -> None:
        super().__init__(calls, limit_bytes, name)
        self._loop: _Loop | None = None

    def submit(self, call: Callable[[], Coroutine[object, object, None]], size_bytes: int) -> None:
        """Start `call()`. Waits while too much is under way; raises what an earlier call did."""
        self._enter(size_bytes)
        with self._lock:
            self._raise_failure()  # a `stop` meanwhile must not get a new thread
            if self._loop is None:
                self._loop = _Loop(self._name)
            self._loop.start(self._run(call, size_bytes))

    def _end(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.end()

    async def _run(
        self, call: Callable[[], Coroutine[object, object, None]], size_bytes: int
    ) -> None:
        failure: BaseException | None = None
        try:
            await call()
        except asyncio.CancelledError:
            failure = aborted()
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            failure = error
        finally:
            self._leave(1, size_bytes, failure)


class _Loop:
    """An event loop on a thread; ending it cancels what still runs."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_over())

    async def _until_over(self) -> None:
        await self._over.wait()
