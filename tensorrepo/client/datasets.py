"""Datasets of a repository, by a client: rows as JSON, and as Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

from tensorrepo.client.answers import RowPageAnswer
from tensorrepo.client.connection import Connection, segment
from tensorrepo.repo.deferred_dataclass import dataclass

if TYPE_CHECKING:
    import httpx
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class DatasetsClient:
    """See `RepositoryClient.datasets`."""

    connection: Connection
    base: str

    def describe(self, name: str, *, ref: str = "main") -> dict[str, Any]:
        """Schema, counts, and per column nulls and bounds."""
        found: dict[str, Any] = self.connection.get(self._path(name), dict, ref=ref)
        return found

    def rows(
        self,
        name: str,
        *,
        ref: str = "main",
        columns: Iterable[str] = (),
        where: str = "",
        start: int = 0,
        limit: int = 100,
    ) -> RowPageAnswer:
        """Some rows as JSON.

        Args:
            name: name of the dataset.
            ref: branch, tag or digest.
            columns: names, in this order; none: all.
            where: SQL condition of rows.
            start: first row.
            limit: so many at most.
        """
        return self.connection.get(
            f"{self._path(name)}/-/rows",
            RowPageAnswer,
            ref=ref,
            column=[*columns],
            where=where or None,
            start=start,
            limit=limit,
        )

    @contextmanager
    def arrow(
        self,
        name: str,
        *,
        ref: str = "main",
        columns: Iterable[str] = (),
        where: str = "",
        start: int = 0,
        stop: int | None = None,
    ) -> Iterator[pa.RecordBatchReader]:
        """Rows as a stream of Arrow batches, read as they are asked for, inside of the block."""
        import pyarrow as pa

        with self.connection.stream(
            f"{self._path(name)}/-/arrow",
            ref=ref,
            column=[*columns],
            where=where or None,
            start=start,
            stop=stop,
        ) as answer:
            file = cast("IO[bytes]", _Body(answer))
            with pa.ipc.open_stream(pa.PythonFile(file, "r")) as reader:
                yield reader

    def _path(self, name: str) -> str:
        return f"{self.base}/datasets/{segment(name)}"


class _Body:
    """The body of an answer as a file that is read once, from its beginning."""

    closed = False

    def __init__(self, answer: httpx.Response) -> None:
        self._pieces, self._rest = answer.iter_bytes(), b""

    def read(self, size: int = -1) -> bytes:
        parts, room = [self._rest], size - len(self._rest)
        while size < 0 or room > 0:
            piece = next(self._pieces, None)
            if piece is None:
                break
            parts.append(piece)
            room -= len(piece)
        whole = b"".join(parts)
        taken, self._rest = (whole, b"") if size < 0 else (whole[:size], whole[size:])
        return taken

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
