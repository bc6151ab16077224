"""Warming of the page cache: pages that an iteration will read, fetched before it, by its own walk.

The walk over an epoch says which runs a share opens, and each run which pages it needs of a store.
Those that the cache would keep, and does not hold yet, are fetched as a stream fetches them: joined
into few requests, as many at once as the store bears, proved by their tags. What is there is not
read again, so warming that was cut off goes on when it is repeated.

    expected runs -> their pieces -> not kept: left out, there already: counted -> Downloads
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.common.arguments import bytes_text, counted
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.streaming.load.downloads import Downloads, FetchConfig, means_of
from tensorrepo.formats.dataset.streaming.load.loaders import RoutedLoader, RunLoader
from tensorrepo.formats.dataset.streaming.load.requests import PagePiece, RequestLimits
from tensorrepo.formats.dataset.streaming.stats import FetchStats
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.cache import PageDiskCache
from tensorrepo.repo.objects.envelope import ObjectLink
from tensorrepo.repo.transfer.pace import RateLimit

Progress = Callable[[int, int], None]
_LIMITED: Final = RequestLimits(start=2, least=1, most=4)  # in flight, where a rate is asked for


@dataclass(frozen=True, slots=True)
class WarmReport:
    """What was fetched into the cache, and what was not.

    Attributes:
        pages: pages fetched.
        bytes: bytes of these.
        present_pages: pages that the cache held already.
        present_bytes: bytes of these.
        left_out_bytes: bytes of pages that the cache does not keep, because its limit is too small
            for all that the stream reads.
        single_rows: columns of which single rows are read instead of pages: these are never kept.
        is_local: whether everything lies on this machine, so that there was nothing to fetch.
    """

    pages: int = 0
    bytes: int = 0
    present_pages: int = 0
    present_bytes: int = 0
    left_out_bytes: int = 0
    single_rows: tuple[str, ...] = ()
    is_local: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.is_local:
            return "all of it lies on this machine: there is nothing to fetch"
        lines = [f"fetched {counted(self.pages, 'page')}, {bytes_text(self.bytes)}"]
        if self.present_pages:
            there = f"{counted(self.present_pages, 'page')}, {bytes_text(self.present_bytes)}"
            lines.append(f"there already: {there}")
        if self.left_out_bytes:
            lines.append(
                f"left out: {bytes_text(self.left_out_bytes)}, which the cache has no room for. "
                "`tensorrepo config cache.limit` says how much it may take"
            )
        if self.single_rows:
            names = ", ".join(self.single_rows)
            lines.append(f"read row by row, and never kept: {names}")
        return "\n".join(lines)


def warm(
    stream: BatchStream,
    *,
    rate: RateLimit | None = None,
    progress: Progress = lambda _done, _total: None,
) -> WarmReport:
    """Fetch into the page cache what the next iteration of `stream` will read.

    Args:
        stream: stream with a page cache.
        rate: limit of bytes a second; None: none.
        progress: callback for bytes that are in the cache, and those that will be.

    Raises:
        CorruptError: a page came damaged twice.
        StorageError: the store did not answer, after some tries.
    """
    warming = _Warming.of(stream)
    if warming is None:
        return WarmReport(is_local=True)
    totals = warming.counted()
    progress(totals.present_bytes, totals.present_bytes + totals.bytes)
    if totals.bytes:
        _fetch(stream, warming, totals, rate, progress)
    return totals


def _fetch(
    stream: BatchStream,
    warming: _Warming,
    totals: WarmReport,
    rate: RateLimit | None,
    progress: Progress,
) -> None:
    setup = stream.setup
    threads = setup.options.loading.fetch_threads
    means = means_of(
        warming.loader.objects,
        clock=setup.clock,
        cache=setup.page_cache,
        peers=setup.peers,
        threads=threads,
    )
    if rate is not None:
        means = _limited(means, rate)
    done, known = totals.present_bytes, totals.present_bytes + totals.bytes
    ahead_bytes = setup.options.loading.ahead_bytes
    with closing(Downloads(warming, means, FetchStats(), ahead_bytes=ahead_bytes)) as downloads:
        for runs in warming.walk():
            downloads.expect(runs)
            for run in runs:
                done += sum(downloads.take([run]))
                progress(done, known)


def _limited(means: FetchConfig, rate: RateLimit) -> FetchConfig:
    """The same means, with so many bytes a second at most."""
    read = means.read

    def paced(link: ObjectLink, start: int, stop: int) -> Buffer:
        rate.take(stop - start)
        return read(link, start, stop)

    return replace(means, read=paced, bounds=_LIMITED)


@dataclass(frozen=True, slots=True, eq=False)
class _Warming:
    """The runs of one iteration, of which nothing is decoded: loading one gives bytes fetched."""

    loader: RunLoader | RoutedLoader
    cache: PageDiskCache
    walk: Callable[[], Iterator[list[int]]]
    single_rows: tuple[str, ...]

    @classmethod
    def of(cls, stream: BatchStream) -> _Warming | None:
        """None where nothing that is read could be kept."""
        assembler, cache = stream.upcoming_assembler(), stream.setup.page_cache
        if assembler.loader.is_local or cache is None:
            return None
        seed, epoch = stream.upcoming
        share = stream.options.share(stream.start)

        def walk() -> Iterator[list[int]]:
            items = assembler.plan.items(seed, epoch)
            for stretch in assembler.stretches(share, seed, epoch, items):
                yield stretch.opened.tolist()

        columns = assembler.plan.columns
        by_rows = tuple(column.name for column in columns if column.reading == "rows")
        return cls(assembler.loader, cache, walk, by_rows)

    def counted(self) -> WarmReport:
        """What there is to fetch; pages that several runs need count once."""
        names, sizes, kinds = array("Q"), array("q"), array("b")
        for runs in self.walk():
            for run in runs:
                for piece in self.loader.pieces(run):
                    if piece.tag is not None:
                        names.append(xxh3_64_intdigest(piece.name.encode()))
                        sizes.append(piece.size_bytes)
                        kinds.append(self._kind(piece.name))
        _, first = np.unique(np.frombuffer(names, np.uint64), return_index=True)
        size = np.frombuffer(sizes, np.int64)[first]
        kind = np.frombuffer(kinds, np.int8)[first]
        pages: Ints = np.bincount(kind, minlength=3)
        bytes_of = [int(size[kind == each].sum()) for each in range(3)]
        return WarmReport(
            pages=int(pages[_WANTED]),
            bytes=bytes_of[_WANTED],
            present_pages=int(pages[_PRESENT]),
            present_bytes=bytes_of[_PRESENT],
            left_out_bytes=bytes_of[_LEFT_OUT],
            single_rows=self.single_rows,
        )

    def _kind(self, name: str) -> int:
        if self.cache.holds(name):
            return _PRESENT
        return _WANTED if self.cache.admits(name) else _LEFT_OUT

    # -------------------------------------------------------------- what `Downloads` asks for

    def size_of(self, run: int) -> int:
        return self.loader.size_of(run)

    def pieces(self, run: int) -> list[PagePiece]:
        return [
            piece
            for piece in self.loader.pieces(run)
            if piece.tag is not None and self._kind(piece.name) == _WANTED
        ]

    def reads_more(self, run: int) -> bool:  # noqa: ARG002  what is not kept is not read
        return False

    def arrived(self, piece: PagePiece, data: memoryview) -> None:
        """Nothing is decoded."""

    def damaged(self, piece: PagePiece, error: CorruptError) -> CorruptError:
        return self.loader.damaged(piece, error)

    def load(self, runs: list[int], fetched: Mapping[tuple[int, ...], memoryview]) -> int:  # noqa: ARG002
        return sum(data.nbytes for data in fetched.values())


_WANTED, _PRESENT, _LEFT_OUT = range(3)
