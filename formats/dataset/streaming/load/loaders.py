"""Loaders of runs: from pages to rows in memory, verified, of one dataset or of several.

One run is loaded as a whole: its rows of every requested column. Pages that a local disk or the
metadata holds are compared with their xxh3 every time a run is opened, so in every epoch. What a
run needs of a store is told by `pieces` to the fetcher, and given back proved when it is loaded.

Mapped pages that are neither compressed nor hold nulls are not copied to be read: their rows are
gathered from the map. Each of them is proved in every epoch, in one of two ways. Whole: the page is
compared with its xxh3 when its run is opened. Row by row: once the page has been proved whole in
this process, the xxh3 of its table of row sums is remembered. When its run is opened again, the
table is copied and compared with that, and every row is compared with its sum as it is gathered:
memory is read once instead of twice. What is compared then is what is handed out, not what the map
showed some seconds before. That is too late for callers who go on without damaged pages: there,
each page is proved whole in every epoch.

A `RoutedLoader` hands runs on to the loaders of their parts: open groups of a dataset, or datasets
of a mix. Pieces carry the number of their part in front of their keys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.common.dtypes import Bools, Ints, distinct
from tensorrepo.formats.dataset.pages.page import (
    ALIGNMENT,
    DIRECTORY,
    DIRECTORY_FIELD,
    HAS_ROW_SUMS,
    PAGE_COMPRESSED,
    PAGE_PLAIN,
    PAGE_PREVIEW,
    SUMS,
    TABLE,
    decode_page,
    expected_bytes,
    padded,
    verify_page,
)
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    check_absent,
    live_rows,
    page_bytes,
    page_reader,
)
from tensorrepo.formats.dataset.reading.exact_read import proved_rows, rows_at
from tensorrepo.formats.dataset.reading.page_reader import PageReader
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues, concat
from tensorrepo.formats.dataset.streaming.collate.gather import (
    InMemory,
    address_of,
    in_memory,
    is_repeated,
)
from tensorrepo.formats.dataset.streaming.load.requests import PagePiece
from tensorrepo.formats.dataset.streaming.plan.grouped import GroupedPlan, OpenGroup
from tensorrepo.formats.dataset.streaming.plan.pages import ColumnPlan, StreamPlan
from tensorrepo.formats.native.rows import BEST, LEAST_SUMMED_BYTES, RowCopier
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import ExpectsReads, ObjectLink, ObjectSource, ReadsOnce

_SUM_BYTES = 4


class MappedPages:
    """The pages of one column whose rows may be used where they lie. Thread-safe."""

    def __init__(
        self,
        reader: PageReader,
        *,
        copier: RowCopier = BEST,
        by_row: bool = True,
    ) -> None:
        """Prepare to use what `reader`, whose store maps chunks, would read.

        Rows are proved one by one where that costs `copier`, which copies them later, little, and
        `by_row` allows it: damage is then found as late as rows are gathered.
        """
        index = reader.index
        self._reader, self._copier = reader, copier
        self._entries = index.entries
        self._row_bytes = index.storage.row_bytes
        self._offset, self._stored_bytes = index.entries["offset"], index.entries["stored_bytes"]
        # Other writers may give sums to rows that are too small for the kernel to compare.
        by_row &= copier.proves_rows and self._row_bytes >= LEAST_SUMMED_BYTES
        self._sums = by_row & (index.entries["flags"] & HAS_ROW_SUMS > 0)
        self._lock = Lock()
        # Of each chunk, once it is asked for; its address is the last to be set.
        self._payloads: dict[int, memoryview] = {}
        self._address = np.zeros(len(index.chunks), np.int64)
        self._payload_bytes = np.zeros(len(index.chunks), np.int64)

    def usable(self) -> Bools:
        """Which pages those are: fixed rows, uncompressed, without nulls."""
        if self._reader.index.storage.layout is not ColumnLayout.FIXED or not self._row_bytes:
            return np.zeros(len(self._entries), dtype=np.bool_)
        plain: Bools = (self._entries["codec"] == PAGE_PLAIN) & (self._entries["nulls"] == 0)
        return plain

    def values(self, runs: Ints, rows: Ints, pages: Ints) -> InMemory:
        """The rows of some runs, each a page of so many rows.

        Raises:
            CorruptError: a page is not what its entry says.
        """
        if not np.array_equal(rows, self._entries["rows"][pages]):
            raise AssertionError("a run that is used in place is not all of its page")
        chunks = self._reader.index.chunk[pages].astype(np.int64)
        for chunk in distinct(chunks[self._address[chunks] == 0]).tolist():
            self._map(chunk)
        at = self._address[chunks] + self._offset[pages].astype(np.int64)
        values_at = at + DIRECTORY.size
        if not self._sums[pages].all():
            self._prove(pages, rows, at)
            return InMemory(runs, rows, values_at, None, None, None, [(self,)] * len(pages))
        # Nothing is read behind the end of a file that was cut since a page of it was proved.
        ends = (self._offset[pages] + self._stored_bytes[pages]).astype(np.int64)
        for page in pages[ends > self._payload_bytes[chunks]].tolist():
            self._prove_whole(page)
        tables = self._sum_tables(pages, rows, at)
        owners = [(self, tables)] * len(pages)
        sums_at = address_of(tables) + _SUM_BYTES * (np.cumsum(rows) - rows)
        numbers = pages.tolist()

        def prove(place: int, row: int) -> None:
            self._blame(numbers[place], row)

        return InMemory(runs, rows, values_at, None, None, None, owners, sums_at, prove)

    def _sum_tables(self, pages: Ints, rows: Ints, at: Ints) -> NDArray[np.uint32]:
        """The row sums of these pages, copied: what is compared with them later is what was proved.

        Pages that were not proved yet are proved whole.
        """
        values_bytes = rows * self._row_bytes
        sums_at = at + DIRECTORY.size + values_bytes + -values_bytes % padded(1)
        lengths = _SUM_BYTES * rows
        tables = np.empty(int(rows.sum()), np.uint32)
        proved = self._reader.proved_sums
        new = proved[pages] == 0
        self._prove(pages[new], rows[new], at[new])
        self._copier.copy_spans(sums_at, lengths, tables)
        view, start = tables.data.cast("B"), 0
        wanted = zip(pages.tolist(), lengths.tolist(), proved[pages].tolist(), strict=True)
        for page, length, known in wanted:
            found = xxh3_64_intdigest(view[start : start + length])
            if not known:
                proved[page] = found
            elif found != known:
                self._prove_whole(page)
                raise self._reader.located(
                    page, CorruptError("its row sums changed while they were read")
                )
            start += length
        return tables

    def _prove(self, pages: Ints, rows: Ints, at: Ints) -> None:
        """Prove pages whole, all in one call; `at` are their addresses, `rows` their rows."""
        entries = self._entries[pages]
        lengths = entries["stored_bytes"].astype(np.int64)
        ends = self._offset[pages].astype(np.int64) + lengths
        sizes = np.zeros((len(pages), 4), np.int64)
        sizes[:, TABLE] = rows * self._row_bytes
        sizes[:, SUMS] = np.where(entries["flags"] & HAS_ROW_SUMS, _SUM_BYTES * rows, 0)
        whole = DIRECTORY.size + (-(-sizes // ALIGNMENT) * ALIGNMENT).sum(1)
        chunks = self._reader.index.chunk[pages]
        fit = (whole == lengths) & (ends <= self._payload_bytes[chunks])
        if (fit & (lengths >= LEAST_SUMMED_BYTES)).all():
            heads = np.empty((len(pages), DIRECTORY.size), np.uint8)
            if self._copier.check_spans(at, lengths, entries["checksum"].astype(np.uint64)) < 0:
                self._copier.copy_spans(at, np.full(len(pages), DIRECTORY.size), heads)
                fields = heads.view(DIRECTORY_FIELD)
                if (fields["stored_bytes"] == sizes).all() and not fields["codec"].any():
                    return
        for page in pages.tolist():  # one of them is wrong: say which
            self._prove_whole(page)

    def _prove_whole(self, page: int) -> None:
        """Compare a page with its xxh3, and where its values lie with where they must."""
        entry = self._entries[page]
        data = self._page(page)
        with self._reader.locating(page):
            verify_page(data, entry)
            expected = expected_bytes(entry, self._reader.index.storage)
            fields = DIRECTORY.unpack_from(data)
            ends = DIRECTORY.size + sum(map(padded, expected))
            if fields[0::5] != expected or any(fields[1::5]) or len(data) != ends:
                raise CorruptError("its directory contradicts its entry")

    def _blame(self, page: int, row: int) -> None:
        """Say what is wrong with a page of which a row is not what its sum says."""
        self._prove_whole(page)
        raise self._reader.located(
            page,
            CorruptError(
                f"row {row} of the page is not what its sum says, though the page as a whole is "
                "what its checksum says: it changed while it was read. Check memory and disk."
            ),
        )

    def _page(self, page: int) -> memoryview:
        payload = self._payloads[self._reader.index.chunk.item(page)]
        start = self._offset.item(page)
        return payload[start : start + self._stored_bytes.item(page)]

    def _map(self, chunk: int) -> None:
        """Find the payload of a chunk on a local disk or in the metadata, and keep it."""
        payload = self._reader.payload(chunk)
        assert payload is not None, "the store maps all chunks or none"
        with self._lock:  # another thread may have been faster, and its map is in use
            payload = self._payloads.setdefault(chunk, payload.toreadonly())
            self._payload_bytes[chunk] = payload.nbytes
            self._address[chunk] = address_of(np.frombuffer(payload, np.uint8))


# Pieces by key: (place of the column in the plan, page), or for rows without the rest of their page
# (place, page, run, 0 for the rows and 1 for their sums).
Fetched = Mapping[tuple[int, ...], memoryview]
NOTHING: Fetched = MappingProxyType({})
_PAGES_KEPT = 8  # of a column whose pages hold rows of several runs


class RunLoader:
    """Loads the runs of a plan. Thread-safe."""

    def __init__(
        self,
        dataset: StoredDataset,
        plan: StreamPlan,
        nullable: Sequence[bool],
        *,
        by_row: bool = True,
    ) -> None:
        """Prepare to read the runs of `plan`; `nullable` columns are asked for their validity.

        With `by_row`, rows of mapped pages may be proved when they are gathered, not loaded.
        """
        self.objects = dataset.objects
        self._run_bytes = plan.run_bytes
        self._columns = [
            _ColumnLoader(dataset, column, plan, place, nullable=nullable[place], by_row=by_row)
            for place, column in enumerate(plan.columns)
        ]

    @property
    def is_local(self) -> bool:
        """Whether loading is a matter of memory, not of a network."""
        return all(column.is_local for column in self._columns)

    @property
    def is_in_place(self) -> bool:
        """Whether loading is little more than verifying."""
        return all(column.is_in_place for column in self._columns)

    def size_of(self, run: int) -> int:
        """Decoded bytes of a run."""
        return self._run_bytes.item(run)

    def pieces(self, run: int) -> list[PagePiece]:
        """What loading a run needs of the store, but for what is there already."""
        return [piece for column in self._columns for piece in column.pieces(run)]

    def reads_more(self, run: int) -> bool:
        """Whether loading a run reads from the store more than its pieces."""
        return any(column.reads_more(run) for column in self._columns)

    def arrived(self, piece: PagePiece, data: memoryview) -> None:
        """A piece is there, proved as far as its tag can tell; called on any thread."""
        self._columns[piece.key[0]].arrived(piece, data)

    def damaged(self, piece: PagePiece, error: CorruptError) -> CorruptError:
        """What is to be raised when a piece stays damaged."""
        return self._columns[piece.key[0]].damaged(piece, error)

    def load(self, runs: list[int], fetched: Fetched = NOTHING) -> list[list[InMemory]]:
        """All rows of some runs, column by column in the order of the plan.

        Args:
            runs: their numbers.
            fetched: the pieces of all of them, by key, where they lie in a store.

        Raises:
            CorruptError: a page is not what its entry says; the message names it.
            StorageError, NotFoundError: it could not be read.
        """
        return [column.load(np.array(runs), fetched) for column in self._columns]


def remote_bytes(dataset: StoredDataset, plan: StreamPlan) -> int:
    """Stored bytes of the pages of `plan` that come over a network."""
    return sum(column.page_bytes for column in plan.columns if not _is_local(dataset, column))


def _is_local(dataset: StoredDataset, plan: ColumnPlan) -> bool:
    stored = next((chunk for chunk in plan.index.chunks if isinstance(chunk, ObjectLink)), None)
    return stored is None or dataset.objects.map(stored) is not None


class _ColumnLoader:
    def __init__(
        self,
        dataset: StoredDataset,
        plan: ColumnPlan,
        runs: StreamPlan,
        place: int,
        *,
        nullable: bool,
        by_row: bool,
    ) -> None:
        self._dataset = dataset
        self._plan = plan
        self._place = place
        self._start, self._stop = runs.start, runs.stop
        self._nullable = nullable
        self._deleted = live_rows(dataset)
        self._reader = page_reader(dataset, plan.name)
        self._odd = self._odd_runs(runs)
        self._changed: Bools = self._odd | (runs.live != runs.stop - runs.start)
        self._is_shared = plan.reading in ("resident", "page")
        most = plan.index.pages if plan.reading == "resident" else _PAGES_KEPT
        self._kept = LimitedCache[tuple[ColumnValues, int]](most)
        self.is_local = _is_local(dataset, plan)
        self._row_bytes = plan.index.storage.row_bytes
        entries = plan.index.entries
        self._offset, self._stored_bytes = entries["offset"], entries["stored_bytes"]
        self._tags = plan.index.tags
        self._mapped = MappedPages(self._reader, by_row=by_row)
        in_place = self.is_local and not nullable
        self._used_in_place = self._mapped.usable() & np.bool_(in_place)

    @property
    def is_in_place(self) -> bool:
        return self._plan.reading == "resident" or bool(self._used_in_place.all())

    def load(self, runs: Ints, fetched: Fetched) -> list[InMemory]:
        """The rows of `runs` in this column."""
        pages = self._plan.first_page[runs]
        if not (self._plan.stop_page[runs] == pages + 1).all() or self._changed[runs].any():
            return [self._copied(run, fetched) for run in runs.tolist()]
        if self._plan.reading == "resident":
            return self._resident(runs, pages, fetched)
        if self._plan.reading != "page" and self._used_in_place[pages].all():
            rows = self._stop[runs] - self._start[runs]
            return [self._mapped.values(runs, rows, pages)]
        return [self._copied(run, fetched) for run in runs.tolist()]

    def _copied(self, run: int, fetched: Fetched) -> InMemory:
        """One run, decoded, or put together from parts of pages."""
        start, stop = self._start.item(run), self._stop.item(run)
        if self._odd[run]:
            values = self._odd_rows(start, stop)
        else:
            values = concat(self._parts(run, start, stop, fetched))
        alive = self._deleted.alive(start, stop)
        if alive is not None:
            values = values.slice(0, alive.size) if is_repeated(values) else values.take(alive)
        return in_memory(run, values, nullable=self._nullable)

    def _odd_rows(self, start: int, stop: int) -> ColumnValues:
        """Rows whose stored form is not that of the schema; those that are not stored, too."""
        low, last = self._plan.index.page_of(np.array([start, stop - 1])).tolist()
        # One value can stand for all rows of a page, not for some of a run of several.
        if low < last or self._plan.index.storage.layout is not ColumnLayout.FIXED:
            absent = {self._plan.name: self._plan.index}
            check_absent(absent, range(start, stop), advice="Stream other columns: columns=[...]")
        return concat(self._reader.range(start, stop))

    def _parts(self, run: int, start: int, stop: int, fetched: Fetched) -> list[ColumnValues]:
        pages = self._pages_of(run)
        if self._plan.reading in ("leading", "whole"):
            return [self._page(page, fetched) for page in pages]
        if self._plan.reading == "rows":
            return [self._rows_of(page, run, fetched) for page in pages]
        # Copies, so that a few rows do not keep pages that nobody else needs.
        return [self._part(page, start, stop, fetched).copy() for page in pages]

    def _pages_of(self, run: int) -> range:
        return range(self._plan.first_page.item(run), self._plan.stop_page.item(run))

    # ------------------------------------------------------------------ pieces of a store

    def pieces(self, run: int) -> Iterator[PagePiece]:
        """What a run needs of the store and is not there."""
        # In a mix, a local column is asked too: fetching its pages would copy and cache them.
        if self._odd[run] or self.is_local:
            return
        for page in self._pages_of(run):
            link = self._reader.link(page)
            if not isinstance(link, ObjectLink):
                continue
            if self._plan.reading == "rows":
                entry, storage = self._plan.index.entries[page], self._plan.index.storage
                both = rows_at(entry, storage, *self._within(page, run))
                for what, (start, stop) in enumerate(both):
                    yield PagePiece((self._place, page, run, what), link, start, stop, None)
            # A page that is let go of before it is used is read again.
            elif not self._is_shared or self._kept.get(page) is None:
                start = self._offset.item(page)
                stop = start + self._stored_bytes.item(page)
                yield PagePiece((self._place, page), link, start, stop, self._tags[page].tobytes())

    def reads_more(self, run: int) -> bool:
        return bool(self._odd[run])

    def arrived(self, piece: PagePiece, data: memoryview) -> None:
        """Decode what several runs share, once, before any of them is loaded."""
        if self._is_shared:
            self._shared_page(piece.key[1], {piece.key: data})

    def damaged(self, piece: PagePiece, error: CorruptError) -> CorruptError:
        return self._reader.located(piece.key[1], error)

    # ------------------------------------------------------------------ rows without their page

    def _within(self, page: int, run: int) -> tuple[int, int]:
        """Rows ``[first, stop)`` of a page, counted within it, that are of a run."""
        first, end = self._plan.index.first_row[page : page + 2].tolist()
        start, stop = self._start.item(run), self._stop.item(run)
        return max(start, first) - first, min(stop, end) - first

    def _rows_of(self, page: int, run: int, fetched: Fetched) -> ColumnValues:
        """The rows of a page that are of a run: proved by their sums, else from the whole page."""
        first, stop = self._within(page, run)
        values, sums = (fetched.get((self._place, page, run, what)) for what in (0, 1))
        if values is not None and sums is not None:
            with suppress(CorruptError):
                return proved_rows(self._plan.index.storage, values, sums)
        return self._page(page, NOTHING).slice(first, stop).copy()

    # ------------------------------------------------------------------ runs that changed

    def _odd_runs(self, runs: StreamPlan) -> Bools:
        """Runs whose rows are patched, or not just those of pages in the form of the schema."""
        index = self._plan.index
        changed: Bools = np.zeros(runs.start.size, np.bool_)
        if index.patches is not None:
            bounds = np.searchsorted(index.patches.rows, np.stack([runs.start, runs.stop]))
            changed |= bounds[0] < bounds[1]
        plain = np.isin(index.entries["codec"], (PAGE_PLAIN, PAGE_COMPRESSED, PAGE_PREVIEW))
        plain &= index.entries["stored_bytes"] > 0
        odd = ~(plain & (index.stored_as == 0))
        if odd.any():
            odd_before = np.concatenate(([0], np.cumsum(odd)))
            first_page, stop_page = self._plan.first_page, self._plan.stop_page
            changed |= odd_before[stop_page] > odd_before[first_page]
        return changed

    # ------------------------------------------------------------------ pages of several runs

    def _resident(self, runs: Ints, pages: Ints, fetched: Fetched) -> list[InMemory]:
        index, rows = self._plan.index, self._stop[runs] - self._start[runs]
        first = self._start[runs] - index.first_row[pages]
        once = {page: self._shared_page(page, fetched) for page in distinct(pages).tolist()}
        shared = [once[page] for page in pages.tolist()]
        if all(address for _, address in shared):
            at = np.array([address for _, address in shared]) + first * self._row_bytes
            return [InMemory(runs, rows, at, None, None, None, [(values,) for values, _ in shared])]
        bounds = zip(runs.tolist(), shared, first.tolist(), rows.tolist(), strict=True)
        return [
            in_memory(run, values.slice(start, start + count), nullable=self._nullable)
            for run, (values, _), start, count in bounds
        ]

    def _part(self, page: int, start: int, stop: int, fetched: Fetched) -> ColumnValues:
        before = self._plan.index.first_row.item(page)
        return self._shared_page(page, fetched)[0].slice(max(start - before, 0), stop - before)

    def _shared_page(self, page: int, fetched: Fetched) -> tuple[ColumnValues, int]:
        """A page, and the address of its values when that is all there is to know of them."""

        def load() -> tuple[tuple[ColumnValues, int], int]:
            values, address = self._page(page, fetched), 0
            if isinstance(values, FixedValues) and not self._nullable and values.nbytes:
                values = FixedValues(np.ascontiguousarray(values.values))
                address = address_of(values.values)
            return (values, address), 1

        return self._kept.get_or_load(page, load)

    # ------------------------------------------------------------------ one page

    def _page(self, page: int, fetched: Fetched) -> ColumnValues:
        stored = fetched.get((self._place, page))
        if stored is None:
            stored = page_bytes(self._dataset, self._plan.index, page)
        entry = self._plan.index.entries[page]
        with self._reader.locating(page):
            if self.is_local:
                verify_page(stored, entry)  # `page_bytes` proves a mapped page once per process
            return decode_page(stored, entry, self._plan.index.storage)


def loader_of(
    dataset: StoredDataset, plan: StreamPlan, nullable: Sequence[bool], *, by_row: bool
) -> RunLoader | RoutedLoader:
    """Loader of the runs of a plan; see `RunLoader`."""
    if isinstance(plan, GroupedPlan):
        return _group_loader(dataset.objects, plan, nullable, by_row=by_row)
    return RunLoader(dataset, plan, nullable, by_row=by_row)


class RoutedLoader:
    """Loads runs by the loaders of their parts, whose numbers pieces carry. Thread-safe.

    Methods and attributes are those of `RunLoader`.
    """

    def __init__(
        self,
        objects: ObjectSource | RoutedObjects,
        examples: Sequence[RunLoader | RoutedLoader],
        find: Callable[[int], tuple[int, int]],
        loader: Callable[[int], RunLoader | RoutedLoader],
        places: Callable[[int], Sequence[int]],
    ) -> None:
        """Prepare.

        Args:
            objects: reader of the chunks of all parts.
            examples: loaders that those of all parts are like.
            find: gives the number of the part that has a run, and the run's number there.
            loader: gives the loader of a part.
            places: gives the place of each column among those of a part's loader.
        """
        self.objects = objects
        self._find, self._loader, self._places = find, loader, places
        self.is_local: bool = all(loader.is_local for loader in examples)
        self.is_in_place: bool = all(loader.is_in_place for loader in examples)

    def size_of(self, run: int) -> int:
        part, own = self._find(run)
        return self._loader(part).size_of(own)

    def pieces(self, run: int) -> list[PagePiece]:
        part, own = self._find(run)
        pieces = self._loader(part).pieces(own)
        if isinstance(self.objects, RoutedObjects):
            self.objects.expect(part, pieces)
        return [piece._replace(key=(part, *piece.key)) for piece in pieces]

    def reads_more(self, run: int) -> bool:
        part, own = self._find(run)
        return self._loader(part).reads_more(own)

    def arrived(self, piece: PagePiece, data: memoryview) -> None:
        self._loader(piece.key[0]).arrived(piece._replace(key=piece.key[1:]), data)

    def damaged(self, piece: PagePiece, error: CorruptError) -> CorruptError:
        return self._loader(piece.key[0]).damaged(piece._replace(key=piece.key[1:]), error)

    def load(self, runs: list[int], fetched: Fetched = NOTHING) -> list[list[InMemory]]:
        columns: list[list[InMemory]] = []
        by_part: dict[int, dict[int, int]] = {}  # numbers of all by numbers in the part
        for run in runs:
            part, own = self._find(run)
            by_part.setdefault(part, {})[own] = run
        for part, numbers in by_part.items():
            pieces = {key[1:]: data for key, data in fetched.items() if key[0] == part}
            loaded = self._loader(part).load(list(numbers), pieces)
            places = self._places(part)
            columns = columns or [[] for _ in places]
            for column, place in zip(columns, places, strict=True):
                for rows in loaded[place]:
                    named = np.array([numbers[own] for own in rows.runs.tolist()], np.int64)
                    column.append(rows._replace(runs=named))
        return columns


def _group_loader(
    objects: ObjectSource, plan: GroupedPlan, nullable: Sequence[bool], *, by_row: bool
) -> RoutedLoader:
    """Loads the slots of a grouped plan by the loaders of its open groups."""
    lock, columns = Lock(), range(len(nullable))

    def made(group: OpenGroup) -> RunLoader:
        return RunLoader(group.dataset, group.plan, nullable, by_row=by_row)

    def loader(part: int) -> RunLoader:
        group = plan.store.get(part)
        if not group.loader:
            fresh = made(group)
            with lock:
                if not group.loader:
                    group.loader.append(fresh)
        kept: RunLoader = group.loader[0]
        return kept

    # Other groups are taken to be like the sample.
    return RoutedLoader(objects, [made(plan.sample)], plan.slots.where, loader, lambda _: columns)


def mix_loader(
    loaders: Sequence[RunLoader | RoutedLoader],
    places: Sequence[Sequence[int]],
    bounds: Sequence[int],
) -> RoutedLoader:
    """Loads runs that are numbered one dataset after the other.

    Args:
        loaders: loader of each dataset.
        places: per dataset, place of each column of the mix among its own.
        bounds: number of the first run of each dataset, and of all runs.
    """

    def find(run: int) -> tuple[int, int]:
        dataset = bisect_right(bounds, run) - 1
        return dataset, run - bounds[dataset]

    objects = RoutedObjects(loaders)
    return RoutedLoader(objects, loaders, find, loaders.__getitem__, places.__getitem__)


class RoutedObjects:
    """Reads chunks from the stores of several datasets: each from one that has it."""

    def __init__(self, loaders: Sequence[RunLoader | RoutedLoader]) -> None:
        stores = [loader.objects for loader in loaders]
        self._reads = [
            store.read_once if isinstance(store, ReadsOnce) else store.read_range
            for store in stores
        ]
        self._expecting = [
            store.expect_reads if isinstance(store, ExpectsReads) else None for store in stores
        ]
        self._dataset_of: dict[str, int] = {}

    def expect_reads(self, links: Iterable[ObjectLink]) -> None:
        """See `ExpectsReads`; of each, the dataset is known."""
        by_dataset: dict[int, list[ObjectLink]] = {}
        for link in links:
            by_dataset.setdefault(self._dataset_of[link.digest], []).append(link)
        for dataset, theirs in by_dataset.items():
            expecting = self._expecting[dataset]
            if expecting is not None:
                expecting(theirs)

    def expect(self, dataset: int, pieces: Sequence[PagePiece]) -> None:
        """These are to be read, from the store of this dataset."""
        for piece in pieces:
            self._dataset_of[piece.link.digest] = dataset

    def read_once(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        """Payload bytes ``[start, stop)`` of a chunk, by one request where the store can."""
        return self._reads[self._dataset_of[link.digest]](link, start, stop)
