"""How do Arrow's threads read a stream of ours without outliving whoever lent it?

Arrow reads CSV ahead on threads of its own. After an error, or when nobody asks for more, they may
still be about to call Python; a program that ends in this moment is aborted. So whatever they call
is lent, and whoever lent it waits until they have let go of it: then nobody can call it any more.
"""

from __future__ import annotations

import time
import traceback
import weakref
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    import pyarrow.csv as pc

    Handler = Callable[[Any], str]
    Open = Callable[["LentStream", "Handler | None"], pc.CSVStreamingReader]

_PATIENCE_SECONDS = 30.0  # then it is given up: an abort is less than a program that hangs
_LOOK_SECONDS = 0.0005


class LentStream:
    """As much of a file as Arrow asks of one. Called by any thread."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = Lock()
        self._is_over = False

    def read(self, size: int) -> bytes:
        with self._lock:
            return b"" if self._is_over else self._stream.read(size)

    def end(self) -> None:
        """From here on there is nothing to read. Returns when nobody reads any more."""
        with self._lock:
            self._is_over = True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Whoever lent it closes it."""


class _LentHandler:
    """Calls a handler of odd rows, which itself outlives Arrow's use of it."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def __call__(self, row: Any) -> str:
        return self._handler(row)


class LentReader:
    """A reader of Arrow over a stream of ours, for one `with` block.

    After it no thread of Arrow has anything of ours.
    """

    def __init__(self, stream: IO[bytes], opener: Open, handler: Handler | None = None) -> None:
        self._stream: LentStream | None = LentStream(stream)
        self._handler = None if handler is None else _LentHandler(handler)
        lent = (self._stream, self._handler)
        # Without callbacks: those of a reader that the garbage collector closes are never called.
        self._watched = [weakref.ref(each) for each in lent if each is not None]
        self._reader: pc.CSVStreamingReader | None = None
        self._opener = opener

    def __enter__(self) -> Self:
        assert self._stream is not None, "a stream is lent once"
        try:
            self._reader = self._opener(self._stream, self._handler)
        except BaseException as problem:
            problem.__traceback__ = None  # its frames hold the stream
            self._take_back()
            raise
        return self

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> None:
        if problem is not None:
            traceback.clear_frames(problem.__traceback__)  # that of `read` holds the stream
        self._take_back()

    @property
    def schema(self) -> pa.Schema:
        assert self._reader is not None, "asked in the `with` block"
        return self._reader.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while self._reader is not None:
            try:
                batch = self._reader.read_next_batch()
            except StopIteration:
                return
            yield batch

    def _take_back(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()
        del stream
        self._reader = self._handler = None
        self._opener = _opened
        until = time.monotonic() + _PATIENCE_SECONDS
        while any(each() is not None for each in self._watched) and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)


def _opened(*_: object) -> pc.CSVStreamingReader:
    raise AssertionError("a stream is lent once")
