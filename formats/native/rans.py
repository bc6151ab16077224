"""rANS entropy coder for delta frames and byte planes.

`NATIVE` does it in C (rans.c beside this) where it was built, `NUMPY` everywhere, with identical
results; `BEST` is the first that there is.

Source:
    docs/spec/model.md, section "Coder".
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.native.extensions import codecs

Bytes: TypeAlias = NDArray[np.uint8]
Frequencies: TypeAlias = NDArray[np.uint16]

SYMBOLS: Final = 256
TABLE_BITS: Final = 12
TABLE: Final = 1 << TABLE_BITS  # what the frequencies of a context add up to
MANY_LANES: Final = 32
FEW_LANES: Final = 4
MOST_LANES: Final = 64
_LOWEST: Final = 1 << 16


class RansCoder:
    """Packs symbols (bytes) by the frequencies that they have in their context.

    In numpy, all coders' turns at once; some 50 times slower than C.
    """

    name = "numpy"

    def count(self, symbols: Bytes, contexts: Bytes | None, tables: int) -> NDArray[np.uint32]:
        """How often each symbol stands in each context: ``(tables, 256)``.

        Raises:
            ValueError: a context is not below `tables`.
        """
        _check_contexts(symbols.size, contexts, tables)
        cells = symbols if contexts is None else symbols + contexts * np.intp(SYMBOLS)
        counts = np.bincount(cells, minlength=tables * SYMBOLS)
        return counts.astype(np.uint32).reshape(tables, SYMBOLS)

    def pack(
        self, symbols: Bytes, contexts: Bytes | None, frequencies: Frequencies, lanes: int
    ) -> Bytes:
        """The packed symbols, which all have a frequency in their context.

        Args:
            symbols: bytes to pack, ``(symbols,)``.
            contexts: context of each symbol; None where all have context 0.
            frequencies: ``(contexts, 256)``; those of a context add up to TABLE.
            lanes: number of coders that take turns: FEW_LANES, MANY_LANES or MOST_LANES.

        Raises:
            ValueError: contexts or frequencies that make no sense.
        """
        _check(symbols.size, contexts, frequencies, lanes)
        every = (0 if contexts is None else contexts, symbols)
        widths = frequencies.astype(np.uint64)[every]
        starts = (np.cumsum(frequencies, 1) - frequencies).astype(np.uint64)[every]
        states = np.full(lanes, _LOWEST, np.uint64)
        words = []
        for begin in reversed(range(0, symbols.size, lanes)):
            width, start = widths[begin : begin + lanes], starts[begin : begin + lanes]
            turns = states[: width.size]
            full = (turns >> np.uint64(20)) >= width
            words.append(turns[full].astype("<u2"))
            turns[full] >>= np.uint64(16)
            whole, rest = np.divmod(turns, width)
            turns[:] = (whole << np.uint64(TABLE_BITS)) + rest + start
        parts = [states.astype("<u4"), *words[::-1]]
        return np.concatenate([part.view(np.uint8) for part in parts])

    def unpack(
        self, data: Bytes, contexts: Bytes | None, frequencies: Frequencies, lanes: int, out: Bytes
    ) -> bool:
        """Fill `out` with what was packed; whether `data` is exactly that.

        Raises:
            ValueError: contexts or frequencies that make no sense.
        """
        _check(out.size, contexts, frequencies, lanes)
        if data.size < 4 * lanes or data.size % 2:
            return False
        states = np.frombuffer(data[: 4 * lanes].tobytes(), "<u4").astype(np.uint64)
        words = np.frombuffer(data[4 * lanes :].tobytes(), "<u2").astype(np.uint64)
        if (states < _LOWEST).any():
            return False
        symbol, width, place = (table.reshape(-1) for table in _slots(frequencies))
        tables = np.zeros(out.size, np.intp) if contexts is None else contexts.astype(np.intp)
        tables <<= TABLE_BITS
        used = 0
        for begin in range(0, out.size, lanes):
            table = tables[begin : begin + lanes]
            turns = states[: table.size]
            slots = (turns & np.uint64(TABLE - 1)).astype(np.intp) + table
            out[begin : begin + lanes] = symbol[slots]
            turns[:] = width[slots] * (turns >> np.uint64(TABLE_BITS)) + place[slots]
            low = turns < _LOWEST
            taken = words[used : used + np.count_nonzero(low)]
            if taken.size < np.count_nonzero(low):
                return False
            turns[low] = turns[low] << np.uint64(16) | taken
            used += taken.size
        return used == words.size and bool((states == _LOWEST).all())

    def tables(self, data: Bytes, rows: int) -> tuple[Bytes, Frequencies, int] | None:  # noqa: ARG002
        """Tables as they are stored; None: `delta.plane_codec` reads them, and says what is wrong.

        Args:
            data: bytes that begin with tables.
            rows: number of groups that they say they have.

        Returns:
            The group of each of the 256 contexts, frequencies ``(rows, 256)``, bytes of the tables.
        """
        return None


class NativeRans(RansCoder):
    """In C, without the interpreter lock."""

    name = "native"

    def count(self, symbols: Bytes, contexts: Bytes | None, tables: int) -> NDArray[np.uint32]:
        counts = np.zeros((tables, SYMBOLS), np.uint32)
        codecs.count(symbols, contexts, counts)
        return counts

    def pack(
        self, symbols: Bytes, contexts: Bytes | None, frequencies: Frequencies, lanes: int
    ) -> Bytes:
        # A symbol takes 12 bits at most. Written from the end: what is not needed costs nothing.
        out = np.empty(2 * symbols.size + 4 * MOST_LANES + 2 * MOST_LANES, np.uint8)
        start = codecs.pack(symbols, contexts, frequencies, lanes, out)
        assert start >= 0, "there is room for the longest symbols"
        return out[start:]

    def unpack(
        self, data: Bytes, contexts: Bytes | None, frequencies: Frequencies, lanes: int, out: Bytes
    ) -> bool:
        return codecs.unpack(data, contexts, frequencies, lanes, out)

    def tables(self, data: Bytes, rows: int) -> tuple[Bytes, Frequencies, int] | None:
        groups, frequencies = np.empty(SYMBOLS, np.uint8), np.empty((rows, SYMBOLS), np.uint16)
        used = codecs.tables(data, groups, frequencies)
        return None if used < 0 else (groups, frequencies, used)


def _slots(frequencies: Frequencies) -> tuple[NDArray[Any], ...]:
    """For each slot of each context: its symbol, that one's frequency, and the place within."""
    widths = frequencies.reshape(-1).astype(np.intp)
    tables = len(frequencies)
    symbol = np.repeat(np.tile(np.arange(SYMBOLS, dtype=np.uint8), tables), widths)
    starts = (np.cumsum(frequencies, 1) - frequencies).reshape(-1)
    place = np.tile(np.arange(TABLE), tables) - np.repeat(starts, widths)
    return symbol, np.repeat(widths, widths).astype(np.uint64), place.astype(np.uint64)


def _check_contexts(symbols: int, contexts: Bytes | None, tables: int) -> None:
    if contexts is not None and (contexts.size != symbols or contexts.max(initial=0) >= tables):
        raise ValueError(f"{contexts.size} contexts for {symbols} symbols and {tables} tables")


def _check(symbols: int, contexts: Bytes | None, frequencies: Frequencies, lanes: int) -> None:
    if lanes not in {FEW_LANES, MANY_LANES, MOST_LANES}:
        raise ValueError(f"{lanes} coders cannot take turns")
    if (frequencies.sum(1, dtype=np.uint32) != TABLE).any():
        raise ValueError(f"frequencies do not add up to {TABLE}")
    _check_contexts(symbols, contexts, len(frequencies))


NUMPY: Final = RansCoder()
NATIVE: RansCoder | None = None if codecs is None else NativeRans()
BEST: RansCoder = NATIVE or NUMPY
