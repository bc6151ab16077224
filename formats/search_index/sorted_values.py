"""Segments of sorted values: a B-tree of two levels, made once and asked in this process.

The values of a column are sorted and cut into blocks, each with the places of its rows; the first
value of each block stands apart, in the file of fences. Whoever looks a value up finds its block
there, and reads that block alone, proved by its digest. So nothing is unpacked beforehand, no
library reads foreign bytes, and a lookup takes the same few kilobytes from a disk and from a store.

Numbers are sorted as what they are, floats of at most 16 bits as float32; nulls and NaN are left
out, for no comparison is true of them. Of text and bytes the first 32 bytes are sorted, so that
rows of longer values are candidates only.

Source:
    docs/spec/search-index.md, section "Sorted values".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints, is_float
from tensorrepo.formats.dataset.pages.text_bounds import PREFIX_BYTES
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.values import BinaryValues, ColumnValues, FixedValues
from tensorrepo.formats.dataset.selecting.pruning import has_bounds, has_text_bounds
from tensorrepo.formats.search_index.stored_index import IndexFile, IndexSegment
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import Kind, ObjectSink, ObjectSource

KeySide: TypeAlias = Literal["left", "right"]

BLOCK_ROWS: Final = 1 << 14  # of a block; more where a segment would have too many of them
MOST_BLOCKS: Final = 1000
FENCES: Final = "fences"  # the first key of each block
_MOST_SORTED: Final = 1 << 24  # rows of a segment, which are sorted in memory
_SORTED_BYTES: Final = 128 << 20  # of their keys
_PLACE: Final = np.dtype("<u4")
_METHOD: Final = re.compile(r"sorted_(?:([iu])(8|16|32|64)|(f)(32|64)|(s)([1-9]|[12]\d|3[012]))")


def check_sortable(column: Column) -> None:
    """Raise InvalidInputError where values of a column have no order that conditions ask for."""
    if not has_bounds(column):
        raise InvalidInputError(
            "an index of kind 'btree' is of a number, class, date, time, decimal, text or bytes in "
            f"each row; column {column.name!r} is {column.type_text}"
        )


def most_rows(column: Column) -> int:
    """How many rows of a column are sorted into one segment."""
    width = PREFIX_BYTES if has_text_bounds(column) else 8
    return min(_MOST_SORTED, _SORTED_BYTES // width)


# ------------------------------------------------------------------------------ keys


@dataclass(frozen=True, slots=True, eq=False)
class SortKeys:
    """What some rows are sorted by.

    Attributes:
        keys: numbers or bytes ``(n,)``, of the rows that have a key.
        present: bool ``(rows,)``: rows that have one, which are neither null nor NaN.
        is_whole: whether equal keys mean equal values.
    """

    keys: NDArray[Any]
    present: Bools
    is_whole: bool


def sort_keys(values: ColumnValues) -> SortKeys:
    """Keys of rows of a column for which `check_sortable` passes."""
    present = np.ones(values.rows, np.bool_) if values.valid is None else values.valid.copy()
    if isinstance(values, BinaryValues):
        keys, is_whole = _prefixes(values, present)
        return SortKeys(keys, present, is_whole)
    assert isinstance(values, FixedValues), "values of one length are"
    numbers = values.values
    if is_float(numbers.dtype):
        if numbers.dtype.itemsize < 4:
            numbers = numbers.astype(np.float32)
        present &= ~np.isnan(numbers)
    elif numbers.dtype.kind == "b":
        numbers = numbers.view(np.uint8)
    return SortKeys(numbers[present], present, True)


def _prefixes(values: BinaryValues, present: Bools) -> tuple[NDArray[Any], bool]:
    """The first bytes of each value that is there, and whether they tell all of them."""
    starts, lengths = values.offsets[:-1][present], np.diff(values.offsets)[present]
    width = int(min(PREFIX_BYTES, max(1, lengths.max(initial=0))))
    letters = np.zeros((len(starts), width), np.uint8)
    for at in range(width):
        some = np.flatnonzero(lengths > at)
        letters[some, at] = values.data[starts[some] + at]
    # numpy takes zeros at the end for padding, as of a value that is shorter.
    last = np.minimum(lengths, width) - 1
    ends_in_zero = letters[np.arange(len(last)), last] == 0
    is_whole = not ((lengths > width) | ((lengths > 0) & ends_in_zero)).any()
    return letters.reshape(-1).view(f"S{width}"), is_whole


def _method(dtype: np.dtype[Any]) -> str:
    """``"sorted_i64"``, ``"sorted_f32"``, ``"sorted_s7"``: what keys are, with bits or bytes."""
    if dtype.kind == "S":
        return f"sorted_s{dtype.itemsize}"
    return f"sorted_{dtype.kind}{8 * dtype.itemsize}"


def _key_dtype(method: str) -> np.dtype[Any]:
    found = _METHOD.fullmatch(method)
    if found is None:
        raise CorruptError(f"a segment of sorted values says it is {method!r:.40}")
    kind, size = (each for each in found.groups() if each)
    return np.dtype(f"S{size}") if kind == "s" else np.dtype(f"<{kind}{int(size) // 8}")


# ------------------------------------------------------------------------------ making


def make_sorted_segment(
    objects: ObjectSink, runs: NDArray[Any], batches: Iterable[SortKeys]
) -> IndexSegment:
    """Sort the values of some rows, and store them.

    Args:
        objects: store of the blocks.
        runs: RUN ``(n,)``: ids of the rows.
        batches: keys of the rows, in the order of `runs`.
    """
    keys, places, first, is_whole = [], [], 0, True
    for batch in batches:
        keys.append(batch.keys)
        places.append((first + np.flatnonzero(batch.present)).astype(_PLACE))
        first += len(batch.present)
        is_whole &= batch.is_whole
    every = np.concatenate(keys) if keys else np.zeros(0, np.uint8)
    if not len(every):
        return IndexSegment(runs, "empty", {}, ())
    every = every.astype(every.dtype.newbyteorder("<"), copy=False)
    place = np.concatenate(places)
    # Stable, so that whoever makes it makes the same.
    order = np.argsort(every, kind="stable")
    block_rows = max(BLOCK_ROWS, -(-len(every) // MOST_BLOCKS))
    files = [
        _store(objects, f"{at // block_rows:04d}", [every[some], place[some]])
        for at in range(0, len(every), block_rows)
        for some in [order[at : at + block_rows]]
    ]
    files.append(_store(objects, FENCES, [every[order[::block_rows]]]))
    options = {"block": block_rows, "values": len(every)} | ({"whole": 1} if is_whole else {})
    return IndexSegment(runs, _method(every.dtype), options, tuple(files))


def _store(objects: ObjectSink, name: str, arrays: Sequence[NDArray[Any]]) -> IndexFile:
    content = b"".join(each.tobytes() for each in arrays)
    return IndexFile(name, len(content), (objects.put(Kind.BLOB, content).digest,))


# ------------------------------------------------------------------------------ asking


@dataclass(frozen=True, slots=True, eq=False)
class KeyBlock:
    """Keys ``(n,)``, ascending, and uint32 ``(n,)``, the places of their rows."""

    keys: NDArray[Any]
    places: NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class SortedSegment:
    """A segment that is asked. Positions count its keys in their order.

    Attributes:
        objects: store that it is read from.
        segment: what is stored of it; it has files.
        blocks: those that were read last, of any segment.
    """

    objects: ObjectSource
    segment: IndexSegment
    blocks: LimitedCache[KeyBlock]

    def __post_init__(self) -> None:
        files = self.segment.files
        names = [*(f"{at:04d}" for at in range(len(files) - 1)), FENCES]
        is_right = 0 < self.values <= self.segment.rows and self.block_rows > 0
        blocks = -(-self.values // max(1, self.block_rows))
        is_right &= all(len(file.parts) == 1 for file in files)  # so that a block is bounded
        if not is_right or len(names) != blocks + 1 or [file.name for file in files] != names:
            raise CorruptError("a segment of sorted values: its parts contradict each other")

    @property
    def values(self) -> int:
        return self.segment.options.get("values", 0)

    @property
    def block_rows(self) -> int:
        return self.segment.options.get("block", 0)

    @property
    def is_whole(self) -> bool:
        """Whether equal keys mean equal values."""
        return self.segment.options.get("whole", 0) == 1

    @cached_property
    def key_dtype(self) -> np.dtype[Any]:
        return _key_dtype(self.segment.method)

    def block(self, number: int) -> KeyBlock:
        """The keys of a block, with their places.

        Raises:
            CorruptError: it is damaged, has another size, or its keys do not ascend.
        """
        rows = min(self.block_rows, self.values - number * self.block_rows)
        return self._read(self.segment.files[number], rows, with_places=True)

    def every_block(self) -> Iterator[KeyBlock]:
        """All blocks, in the order of their keys."""
        for number in range(len(self.segment.files) - 1):
            yield self.block(number)

    def _read(self, file: IndexFile, rows: int, *, with_places: bool) -> KeyBlock:
        def load() -> tuple[KeyBlock, int]:
            content = bytes(self.objects.get(file.parts[0]).payload)
            width = self.key_dtype.itemsize
            if len(content) != rows * (width + with_places * _PLACE.itemsize):
                raise CorruptError(
                    f"{file.name} of a segment of sorted values has {len(content):,} bytes, which "
                    f"are not those of {rows:,} keys of {width}"
                )
            keys = np.frombuffer(content, self.key_dtype, rows)
            places = np.frombuffer(content, _PLACE, offset=rows * width)
            if (keys[1:] < keys[:-1]).any() or places.max(initial=0) >= self.segment.rows:
                raise CorruptError(
                    f"{file.name} of a segment of sorted values: keys out of order, or a place "
                    f"beyond its {self.segment.rows:,} rows"
                )
            return KeyBlock(keys, places), len(content)

        return self.blocks.get_or_load((self.segment.name, file.name), load)

    def positions(self, values: Sequence[Any], side: KeySide) -> Ints:
        """How many keys are smaller than each value; with "right" smaller or equal.

        `values` ascend: numbers, or bytes, as keys are.
        """
        wanted, beyond = self._as_keys(values)
        fences = self._read(self.segment.files[-1], len(self.segment.files) - 1, with_places=False)
        block = np.searchsorted(fences.keys, wanted, side) - 1
        found = np.zeros(len(wanted), np.int64)
        numbers, first = np.unique(block, return_index=True)
        stops = np.append(first[1:], len(block))[: len(first)]
        for number, low, high in zip(numbers.tolist(), first, stops, strict=True):
            if number >= 0:
                keys = self.block(number).keys
                within = np.searchsorted(keys, wanted[low:high], side)
                found[low:high] = number * self.block_rows + within
        return np.where(beyond < 0, 0, np.where(beyond > 0, self.values, found))

    def _as_keys(self, values: Sequence[Any]) -> tuple[NDArray[Any], NDArray[np.int8]]:
        """Values that numpy compares with keys as they are, and -1 or 1 where none is so small
        or large.
        """
        kind = self.key_dtype.kind
        if any(isinstance(each, bytes) != (kind == "S") for each in values):
            raise CorruptError(
                f"a segment of sorted values is {self.segment.method!r}, not of the type of "
                "its column"
            )
        if kind in "iu" and all(isinstance(each, int) for each in values):
            limits = np.iinfo(self.key_dtype)
            beyond = [(each > limits.max) - (each < limits.min) for each in values]
            clipped = [min(max(each, int(limits.min)), int(limits.max)) for each in values]
            return np.array(clipped, self.key_dtype), np.array(beyond, np.int8)
        wanted = np.array(values, "S" if kind == "S" else np.float64)
        return wanted, np.zeros(len(wanted), np.int8)

    def places(self, start: int, stop: int) -> Ints:
        """Places of the rows at positions ``[start, stop)``."""
        found = [np.zeros(0, np.int64)]
        for number in range(start // self.block_rows, -(-stop // self.block_rows)):
            first = number * self.block_rows
            some = self.block(number).places[max(0, start - first) : stop - first]
            found.append(some.astype(np.int64))
        return np.concatenate(found)
