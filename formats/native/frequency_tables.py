"""Frequency tables for contexts: those that are alike share one, scaled to what coders take.

Each context has frequencies of its own; contexts that are alike share them, for a table takes
room. Contexts are ordered (exponents are), so only neighbours are brought together, and a group is
stored as where it begins.

`NATIVE` does it in C (frequency_tables.c beside this) where it was built, `NUMPY` everywhere, with
identical results as far as both round logarithms alike; `BEST` is the first that there is.

Source:
    docs/spec/model.md, section "Coder".
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.native.extensions import codecs
from tensorrepo.formats.native.rans import SYMBOLS, TABLE, TABLE_BITS, Bytes, Frequencies
from tensorrepo.repo.ids import Buffer

CONTEXTS: Final = 256
MAX_GROUPS: Final = 16  # a decoder's tables of so many stay in cache
_MOST_COMPARED: Final = 48
_RAREST: Final = 4096  # contexts with a smaller share than one in so many
_WORTH_A_TABLE: Final = 256  # symbols
_UNITS: Final = 256  # parts of a bit that costs are counted in: whole numbers, the same everywhere
_SYMBOL_COST: Final = 10 * _UNITS  # of one more frequency in a table
WINDOW_BYTES: Final = 64  # of a look for repeated runs; encoding.c says what the others are
_ANCHORS_APART: Final = 8
_RUN: Final = 12
_HASH: Final = np.uint64(0x9E3779B97F4A7C15)
_HASH_SHIFT: Final = np.uint64(64 - 13)


class PackedBytes(NamedTuple):
    """A plane by how frequent its bytes are.

    Attributes:
        share: share of its bytes that is expected.
        most_frequent: how often the most frequent byte stands there; 0 for noise.
        coded: tables and symbols; None where that is no smaller than the plane, or a larger share
            is expected than was asked for, or all bytes are the same.
        may_repeat: whether a look at a sample says that zstd may store less.
        lanes: how many coders took turns; means nothing where nothing is coded.
    """

    share: float
    most_frequent: int
    coded: Buffer | None
    may_repeat: bool
    lanes: int = 0


class TableMaker:
    """Makes tables, and writes them as they are stored; in numpy."""

    name = "numpy"

    def group(self, counts: NDArray[Any]) -> tuple[Bytes, Frequencies, NDArray[np.int64], float]:
        """Tables for symbols that were counted, of which there is one at least.

        Args:
            counts: how often each symbol stands in each context, uint32 ``(contexts, 256)``.

        Returns:
            The group of each of the 256 contexts, ascending; frequencies of each group,
            ``(groups, 256)``, of which each row adds up to TABLE; counts of each group; bits that
            all symbols take.
        """
        used, known = np.flatnonzero(counts.any(1)), np.flatnonzero(counts.any(0))
        starts, rows = _few(used, counts[np.ix_(used, known)].astype(np.int64))
        first, rows = _brought_together(starts.tolist(), list(rows))
        groups = np.zeros(CONTEXTS, np.uint8)
        groups[first[1:]] = 1
        counted = np.zeros((len(rows), SYMBOLS), np.int64)
        counted[:, known] = rows
        frequencies = _frequencies(counted)
        widths = TABLE_BITS - np.log2(np.maximum(frequencies, 1).astype(np.float64))
        bits = float((counted * widths).sum())
        return np.cumsum(groups, dtype=np.uint8), frequencies, counted, bits

    def entropy(self, counts: NDArray[np.uint32]) -> float:
        """Bits of the symbols counted, were there as many as one likes (Miller and Madow)."""
        rows = counts[counts.any(1)].astype(np.float64)
        totals = rows.sum(1)
        bits = (totals * np.log2(totals)).sum() - (rows * np.log2(np.maximum(rows, 1))).sum()
        more = (np.count_nonzero(rows, 1) - 1).sum() / (2 * np.log(2))
        return float(bits + more)

    def look_back(self, plane: Bytes) -> tuple[int, float]:
        """Whether a dictionary coder would find anything in a plane, of 256 KiB at most.

        Returns:
            How many of its whole windows begin with a run that stood at an anchor of an earlier
            one; bits of its bytes by how frequent they are, as `entropy` says them.
        """
        bits = self.entropy(np.bincount(plane, minlength=SYMBOLS).astype(np.uint32)[None])
        windows = plane.size // WINDOW_BYTES
        if not windows:
            return 0, bits
        last = plane.size - _RUN
        anchors = np.arange(0, min(windows * WINDOW_BYTES, last + 1), _ANCHORS_APART)
        looks = np.arange(windows)[:, None] * WINDOW_BYTES + np.arange(_ANCHORS_APART)
        hashes, asked = _hashes(plane, anchors), _hashes(plane, looks)
        # The last anchor of an earlier window with that hash: the one before the window's first.
        order = np.lexsort((anchors, hashes))
        keys = hashes[order] * np.uint64(plane.size) + anchors[order].astype(np.uint64)
        first = looks[:, :1].astype(np.uint64)
        before = np.searchsorted(keys, asked * np.uint64(plane.size) + first) - 1
        found = order[np.maximum(before, 0)]
        known = (before >= 0) & (hashes[found] == asked)
        run = np.arange(_RUN)
        same = plane[anchors[found][..., None] + run] == plane[looks[..., None] + run]
        return int((known & same.all(2)).any(1).sum()), bits

    def pack(self, plane: Bytes, most: float) -> PackedBytes | None:  # noqa: ARG002
        """A plane by how frequent each byte is, in one go; at most `most` bytes are expected.

        None where that cannot be: `delta.plane_codec` takes one step after the other.
        """
        return None

    def encode(self, groups: Bytes, frequencies: Frequencies) -> bytes:
        """Tables as they are stored: groups - 1, where each but the first begins, and of each group
        its first symbol, symbols - 1, and 12 bits for each frequency but the last.
        """
        starts = np.flatnonzero(np.diff(groups)) + 1
        known = frequencies > 0
        first = known.argmax(1)
        last = SYMBOLS - 1 - known[:, ::-1].argmax(1)
        spans = np.stack([first, last - first], 1).astype(np.uint8)
        head = bytes([len(first) - 1]) + starts.astype(np.uint8).tobytes() + spans.tobytes()
        return head + _pack_pairs(frequencies[stored_places(first, last)])


class NativeTables(TableMaker):
    """In C, without the interpreter lock."""

    name = "native"

    def group(self, counts: NDArray[Any]) -> tuple[Bytes, Frequencies, NDArray[np.int64], float]:
        groups = np.empty(CONTEXTS, np.uint8)
        frequencies = np.empty((MAX_GROUPS, SYMBOLS), np.uint16)
        counted = np.empty((MAX_GROUPS, SYMBOLS), np.int64)
        whole = np.ascontiguousarray(counts, np.uint32)
        rows, bits = codecs.group_counts(whole, groups, frequencies, counted)
        return groups, frequencies[:rows], counted[:rows], bits

    def entropy(self, counts: NDArray[np.uint32]) -> float:
        return codecs.entropy(counts)

    def look_back(self, plane: Bytes) -> tuple[int, float]:
        return codecs.look_back(plane)

    def pack(self, plane: Bytes, most: float) -> PackedBytes:
        return PackedBytes(*codecs.pack_bytes(plane, most))

    def encode(self, groups: Bytes, frequencies: Frequencies) -> bytes:
        return codecs.encode_groups(groups, np.ascontiguousarray(frequencies))


def _hashes(plane: Bytes, places: NDArray[np.intp]) -> NDArray[np.uint64]:
    """Hashes of the 8 bytes at each place."""
    eight = plane[places[..., None] + np.arange(8)]
    found: NDArray[np.uint64] = (eight.view("<u8")[..., 0] * _HASH) >> _HASH_SHIFT
    return found


def _few(
    starts: NDArray[np.intp], rows: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Neighbours that are rare are merged without a look, and where contexts are many."""
    total = int(rows.sum())
    for most in (min(_RAREST, 1 + total // _WORTH_A_TABLE), _MOST_COMPARED):
        if len(rows) > most or most > _MOST_COMPARED:
            place = (np.cumsum(rows.sum(1)) - 1) * most // total
            first = np.flatnonzero(np.diff(place, prepend=-1))
            starts, rows = starts[first], np.add.reduceat(rows, first)
    return starts, rows


def _brought_together(
    starts: list[int], rows: list[NDArray[np.int64]]
) -> tuple[list[int], NDArray[np.int64]]:
    """The two neighbours that save most merged while they save, or are too many."""
    costs = _costs(np.stack(rows)).tolist()
    merged = [one + other for one, other in pairwise(rows)]
    joint = _costs(np.stack(merged)).tolist() if merged else []
    saved = [costs[at] + costs[at + 1] - cost for at, cost in enumerate(joint)]
    while saved and (max(saved) > 0 or len(rows) > MAX_GROUPS):
        at = saved.index(max(saved))
        rows[at], costs[at] = merged[at], costs[at] + costs[at + 1] - saved[at]
        for each in (starts, rows, costs):
            del each[at + 1]
        del merged[at], saved[at]
        pairs = range(max(at - 1, 0), min(at + 1, len(merged)))
        for pair in pairs:
            merged[pair] = rows[pair] + rows[pair + 1]
        joint = _costs(np.stack(merged[pairs.start : pairs.stop])).tolist() if pairs else []
        for pair, cost in zip(pairs, joint, strict=True):
            saved[pair] = costs[pair] + costs[pair + 1] - cost
    return starts, np.stack(rows)


def _costs(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """What symbols and table take, for each row of counts, in parts of a bit."""
    entropies = _weighted(rows.sum(-1)) - _weighted(rows).sum(-1)
    found: NDArray[np.int64] = entropies + np.count_nonzero(rows, -1) * _SYMBOL_COST
    return found


def _weighted(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    bits = counts * np.log2(np.maximum(counts, 1)) * _UNITS
    return np.rint(bits).astype(np.int64)


def _frequencies(counts: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Counts of each group scaled to add up to TABLE; what was counted keeps at least 1."""
    totals = counts.sum(1, keepdims=True)
    scaled = (counts * TABLE + totals // 2) // totals
    scaled[(counts > 0) & (scaled == 0)] = 1
    for row, excess in zip(scaled, (scaled.sum(1) - TABLE).tolist(), strict=True):
        left = excess
        while left:
            largest = int(row.argmax())
            # Not all from one: it may be hardly larger than others.
            taken = min(left, int(row[largest]) // 4) if left > 0 else left
            row[largest] -= taken
            left -= taken
    found: NDArray[np.uint16] = scaled.astype(np.uint16)
    return found


def stored_places(first: NDArray[np.intp], last: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which frequencies are stored, ``(groups, 256)``: the last one is what is left."""
    symbols = np.arange(SYMBOLS)
    found: NDArray[np.bool_] = (symbols >= first[:, None]) & (symbols < last[:, None])
    return found


def _pack_pairs(values: NDArray[np.uint16]) -> bytes:
    """Two numbers of 12 bits in three bytes, the first in the lower bits."""
    pairs = np.zeros((len(values) + 1) // 2 * 2, np.uint32)
    pairs[: len(values)] = values
    joined = pairs[::2] | pairs[1::2] << TABLE_BITS
    packed = joined.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return packed[: (3 * len(values) + 1) // 2]


NUMPY: Final = TableMaker()
NATIVE: TableMaker | None = None if codecs is None else NativeTables()
BEST: TableMaker = NATIVE or NUMPY
