"""Huffman coding of JPEG scans: bits of baseline and progressive scans to coefficients and back.

Strict, because what is read must be written again to the bit: no markers but the restarts that
belong there, no bytes between, padding of ones or of zeros throughout.

`NATIVE` does it in C (jpeg_entropy.c beside this) where it was built, `PYTHON` everywhere, with
identical results, a few hundred times slower; `BEST` is the first that there is.

Source:
    ITU-T T.81, sections F.1.2, F.2.2, G.1.2, G.2 and K.2; docs/spec/dataset.md, section "Scans".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.native.extensions import codecs
from tensorrepo.repo.deferred_dataclass import dataclass

BLOCK: Final = 64  # coefficients of a block, in zigzag order
COUNTS: Final = 16  # a table: numbers of codes by length, then up to 256 values
TABLE_BYTES: Final = COUNTS + 256
TABLES: Final = 8  # four of DC, four of AC
NO_TABLES: Final = np.zeros(TABLES * TABLE_BYTES, np.uint8)
_MOST_DC = 1024  # of 8-bit pictures: a DC coefficient lies in [-1024, 1024)
_MOST_DC_BITS, _MOST_AC_BITS = 11, 10
_MOST_RUN = 0x7FFF
_MOST_CORRECTIONS = 1000
_RESTART = 0xD0
_LONGEST = 48  # codes before they are made shorter
_SCAN_NUMBERS, _COMPONENT_NUMBERS = 8, 6

Blocks = NDArray[np.int16]


class ScanComponent(NamedTuple):
    """One component of a scan: its block (x, y) is number ``first + y * stride + x``.

    `wide` and `high` are its blocks in a unit of the scan, `dc` and `ac` numbers of tables.
    """

    first: int
    stride: int
    wide: int = 1
    high: int = 1
    dc: int = 0
    ac: int = 0


@dataclass(frozen=True, slots=True)
class Scan:
    """What one scan is of.

    Attributes:
        units_wide: units across; a unit is `wide` x `high` blocks of each component.
        units_high: units down.
        components: 1 to 4; one where `first` is above 0.
        first: first coefficient, in zigzag order.
        last: last coefficient: 63 with `first` 0 for a sequential scan, 0 for one of DC alone.
        high: bits below the lowest that earlier scans brought, 0 for a first scan.
        low: bits that are left to later scans; `high` is one more, or 0.
        interval: units between restarts; 0: there are none. Of sequential scans only.
    """

    units_wide: int
    units_high: int
    components: tuple[ScanComponent, ...]
    first: int = 0
    last: int = BLOCK - 1
    high: int = 0
    low: int = 0
    interval: int = 0

    @property
    def is_sequential(self) -> bool:
        return not self.first and self.last > 0

    def geometry(self) -> NDArray[np.int32]:
        """As the kernel wants it."""
        numbers = [self.units_wide, self.units_high, self.interval]
        numbers += [self.first, self.last, self.high, self.low, 0]
        for each in self.components:
            numbers += each
        return np.array(numbers, np.int32)


class Decoded(NamedTuple):
    """What reading a scan told: where it stops, and the bit that filled its last bytes up."""

    stop: int
    padding: int | None


class EntropyCoder:
    """One symbol at a time, in Python."""

    name = "python"

    def decode_scan(
        self, data: bytes, start: int, tables: NDArray[np.uint8], scan: Scan, blocks: Blocks
    ) -> Decoded:
        """Read a scan that begins at a place of `data` into `blocks`.

        Args:
            data: bytes of a JPEG, or of some of its scans.
            start: place of the scan's first bits.
            tables: uint8 ``(TABLES * TABLE_BYTES,)``, zeros for those that are not there.
            scan: what the scan is of.
            blocks: int16 ``(blocks, 64)``: what earlier scans brought, else zeros. Of any content
                after an error.

        Raises:
            ValueError: the bits are no such scan.
        """
        return _Decoding(memoryview(data), start, tables, scan, blocks).run_through()

    def encode_scan(
        self, blocks: Blocks, tables: NDArray[np.uint8], scan: Scan, padding: int = 1
    ) -> bytes:
        """Write a scan of `blocks`.

        Returns:
            A sequential scan in codes of `tables`, filled up with the bit `padding`. Of any other
            the table that is best for it, as 16 counts and as many values, before its bits.

        Raises:
            ValueError: coefficients that no scan holds, or symbols without a code.
        """
        if scan.is_sequential:
            return _write_sequential(blocks, tables, scan, padding)
        return _ProgressiveScan(scan).write(blocks)


class NativeEntropyCoder(EntropyCoder):
    """In C, without the interpreter lock."""

    name = "native"

    def decode_scan(
        self, data: bytes, start: int, tables: NDArray[np.uint8], scan: Scan, blocks: Blocks
    ) -> Decoded:
        stop, padding = codecs.decode_scan(data, start, tables, scan.geometry(), blocks)
        return Decoded(stop, None if padding < 0 else padding)

    def encode_scan(
        self, blocks: Blocks, tables: NDArray[np.uint8], scan: Scan, padding: int = 1
    ) -> bytes:
        return codecs.encode_scan(blocks, tables, scan.geometry(), padding)


PYTHON: Final = EntropyCoder()
NATIVE: EntropyCoder | None = None if codecs is None else NativeEntropyCoder()
BEST: EntropyCoder = NATIVE or PYTHON


def _damaged() -> ValueError:
    return ValueError("no scan of a JPEG, or a damaged one")


def _units(scan: Scan) -> Iterator[list[tuple[int, int]]]:
    """Of each unit the place of the component and the number of the block, block after block."""
    for y in range(scan.units_high):
        for x in range(scan.units_wide):
            yield [
                (place, of.first + (y * of.high + down) * of.stride + x * of.wide + across)
                for place, of in enumerate(scan.components)
                for down in range(of.high)
                for across in range(of.wide)
            ]


def _codes(stored: NDArray[np.uint8]) -> Iterator[tuple[int, int, int]]:
    """(length, code, value) of every code of a table."""
    code = place = 0
    for length in range(1, COUNTS + 1):
        count = int(stored[length - 1])
        if place + count > 256 or code + count > 1 << length:
            raise _damaged()
        for _ in range(count):
            yield length, code, int(stored[COUNTS + place])
            code, place = code + 1, place + 1
        code <<= 1


def _table(tables: NDArray[np.uint8], number: int) -> NDArray[np.uint8]:
    return tables[number * TABLE_BYTES : (number + 1) * TABLE_BYTES]


# ------------------------------------------------------------------------------ reading


class _Decoding:
    """One scan as it is read."""

    def __init__(
        self,
        data: memoryview,
        start: int,
        tables: NDArray[np.uint8],
        scan: Scan,
        blocks: Blocks,
    ) -> None:
        self._data, self._at, self._scan, self._blocks = data, start, scan, blocks
        self._bits = self._count = 0
        self._padding: int | None = None
        self._run = 0
        self._last_dc = [0] * len(scan.components)
        self._values = [
            {(length, code): value for length, code, value in _codes(_table(tables, number))}
            for number in range(TABLES)
        ]

    def run_through(self) -> Decoded:
        scan, restarts = self._scan, 0
        units, until = scan.units_wide * scan.units_high, scan.interval
        for number, unit in enumerate(_units(scan), 1):
            for place, block in unit:
                self._read_block(place, self._blocks[block])
            until -= 1
            if scan.interval and not until and number < units:
                self._restart(restarts & 7)
                restarts, until = restarts + 1, scan.interval
        if self._run:
            raise _damaged()
        self._end_bits()
        return Decoded(self._at, self._padding)

    def _fill(self, wanted: int) -> bool:
        """Whether there are so many bits."""
        while self._count < wanted:
            data, at = self._data, self._at
            if at >= len(data):
                return False
            if data[at] == 0xFF:
                if at + 1 >= len(data) or data[at + 1]:
                    return False
                self._at += 1
            self._at += 1
            self._bits, self._count = self._bits << 8 | data[at], self._count + 8
        return True

    def _take(self, count: int) -> int:
        if not self._fill(count):
            raise _damaged()
        self._count -= count
        found = self._bits >> self._count
        self._bits &= (1 << self._count) - 1
        return found

    def _symbol(self, table: int) -> int:
        values, code = self._values[table], 0
        for length in range(1, COUNTS + 1):
            code = code << 1 | self._take(1)
            if (length, code) in values:
                return values[length, code]
        raise _damaged()

    def _number(self, bits: int, most: int) -> int:
        """A number as JPEG writes signed ones."""
        if bits > most:
            raise _damaged()
        found = self._take(bits)
        return found if found >> (bits - 1) else found - (1 << bits) + 1

    def _end_bits(self) -> None:
        while self._fill(self._count + 1):
            if self._count > 7:
                raise _damaged()
        if self._count:
            padding = 1 if self._bits else 0
            whole = self._bits in (0, (1 << self._count) - 1)
            if not whole or self._padding not in (None, padding):
                raise _damaged()
            self._padding = padding
        self._bits = self._count = 0

    def _restart(self, number: int) -> None:
        self._end_bits()
        if self._run or self._data[self._at : self._at + 2] != bytes([0xFF, _RESTART + number]):
            raise _damaged()
        self._at += 2
        self._last_dc = [0] * len(self._last_dc)

    def _read_block(self, place: int, block: Blocks) -> None:
        scan, of = self._scan, self._scan.components[place]
        if scan.first:
            read = self._read_refinement if scan.high else self._read_first
            read(4 + of.ac, block)
            return
        bits = self._symbol(of.dc)
        value = self._last_dc[place] + (self._number(bits, _MOST_DC_BITS) if bits else 0)
        if not -_MOST_DC <= value < _MOST_DC:
            raise _damaged()
        self._last_dc[place] = value
        block[0] = value
        if scan.last:
            self._read_sequential(4 + of.ac, block)

    def _read_sequential(self, table: int, block: Blocks) -> None:
        k = 1
        while k < BLOCK:
            symbol = self._symbol(table)
            zeros, bits = symbol >> 4, symbol & 15
            if not bits and not zeros:
                return
            k += zeros
            if bits:
                if k >= BLOCK:
                    raise _damaged()
                block[k] = self._number(bits, _MOST_AC_BITS)
            elif zeros != 15:
                raise _damaged()
            k += 1

    def _start_run(self, bits: int) -> None:
        self._run = (1 << bits) + (self._take(bits) if bits else 0)

    def _read_first(self, table: int, block: Blocks) -> None:
        scan, k = self._scan, self._scan.first
        while not self._run and k <= scan.last:
            symbol = self._symbol(table)
            zeros, bits = symbol >> 4, symbol & 15
            if not bits and zeros < 15:
                self._start_run(zeros)
                break
            k += zeros
            if bits:
                if k > scan.last:
                    raise _damaged()
                block[k] = self._number(bits, _MOST_AC_BITS) << scan.low
            k += 1
        if self._run:
            self._run -= 1

    def _correct(self, k: int, block: Blocks) -> None:
        one, value = 1 << self._scan.low, int(block[k])
        if self._take(1) and not value & one:
            block[k] = value + (one if value >= 0 else -one)

    def _pass_over(self, zeros: int, k: int, block: Blocks) -> int:
        """The place behind so many zeros; coefficients among them are corrected."""
        while k <= self._scan.last:
            if block[k]:
                self._correct(k, block)
            elif not zeros:
                break
            else:
                zeros -= 1
            k += 1
        return k

    def _read_refinement(self, table: int, block: Blocks) -> None:
        scan, k = self._scan, self._scan.first
        while not self._run and k <= scan.last:
            symbol, value = self._symbol(table), 0
            zeros, bits = symbol >> 4, symbol & 15
            if bits:
                if bits != 1:
                    raise _damaged()
                value = (1 if self._take(1) else -1) << scan.low
            elif zeros < 15:
                self._start_run(zeros)
                break
            k = self._pass_over(zeros, k, block)
            if value:
                if k > scan.last:
                    raise _damaged()
                block[k] = value
            k += 1
        if self._run:
            for rest in range(k, scan.last + 1):
                if block[rest]:
                    self._correct(rest, block)
            self._run -= 1


# ------------------------------------------------------------------------------ writing


@dataclass(slots=True)
class _Writer:
    """Bytes with stuffing."""

    data: bytearray = field(default_factory=bytearray)
    bits: int = 0
    count: int = 0

    def put(self, bits: int, count: int) -> None:
        self.bits, self.count = self.bits << count | bits, self.count + count
        while self.count >= 8:
            self.count -= 8
            byte = self.bits >> self.count
            self.bits &= (1 << self.count) - 1
            self.data.append(byte)
            if byte == 0xFF:
                self.data.append(0)

    def pad(self, padding: int) -> None:
        rest = -self.count % 8
        self.put((1 << rest) - 1 if padding else 0, rest)


_Codes = dict[int, tuple[int, int]]  # value: code, length


def _writing(stored: NDArray[np.uint8]) -> _Codes:
    return {value: (code, length) for length, code, value in _codes(stored)}


def _signed(value: int, bits: int) -> int:
    return value if value >= 0 else value + (1 << bits) - 1


def _put_symbol(to: _Writer, codes: _Codes, symbol: int) -> None:
    if symbol not in codes:
        raise _damaged()
    to.put(*codes[symbol])


def _write_sequential(blocks: Blocks, tables: NDArray[np.uint8], scan: Scan, padding: int) -> bytes:
    to, restarts = _Writer(), 0
    codes = [_writing(_table(tables, number)) for number in range(TABLES)]
    last_dc = [0] * len(scan.components)
    units, until = scan.units_wide * scan.units_high, scan.interval
    for number, unit in enumerate(_units(scan), 1):
        for place, at in unit:
            of, block = scan.components[place], blocks[at].tolist()
            _write_block(to, codes[of.dc], codes[4 + of.ac], block, last_dc[place])
            last_dc[place] = block[0]
        until -= 1
        if scan.interval and not until and number < units:
            to.pad(padding)
            to.data += bytes([0xFF, _RESTART + (restarts & 7)])
            last_dc = [0] * len(last_dc)
            restarts, until = restarts + 1, scan.interval
    to.pad(padding)
    return bytes(to.data)


def _write_block(to: _Writer, dc: _Codes, ac: _Codes, block: list[int], last_dc: int) -> None:
    moved = block[0] - last_dc
    bits = abs(moved).bit_length()
    if bits > _MOST_DC_BITS:
        raise _damaged()
    _put_symbol(to, dc, bits)
    to.put(_signed(moved, bits) if bits else 0, bits)
    zeros = 0
    for value in block[1:]:
        if not value:
            zeros += 1
            continue
        for _ in range(zeros // 16):
            _put_symbol(to, ac, 0xF0)
        bits = abs(value).bit_length()
        if bits > _MOST_AC_BITS:
            raise _damaged()
        _put_symbol(to, ac, zeros % 16 << 4 | bits)
        to.put(_signed(value, bits), bits)
        zeros = 0
    if zeros:
        _put_symbol(to, ac, 0)


class _Token(NamedTuple):
    """A symbol, None for none, and the bits behind it."""

    symbol: int | None
    bits: int
    length: int


class _ProgressiveScan:
    """What a scan will be, kept until it is known which symbols are frequent."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._tokens: list[_Token] = []
        self._frequency = [0] * 257
        self._run = 0
        self._corrections: list[int] = []  # bits that wait behind the run
        self._last_dc = [0] * len(scan.components)

    def write(self, blocks: Blocks) -> bytes:
        for unit in _units(self._scan):
            for place, at in unit:
                self._encode(place, blocks[at].tolist())
        self._end_run()
        stored = _best_table(self._frequency)
        codes, to = _writing(np.frombuffer(stored.ljust(TABLE_BYTES, b"\0"), np.uint8)), _Writer()
        for token in self._tokens:
            if token.symbol is not None:
                _put_symbol(to, codes, token.symbol)
            to.put(token.bits, token.length)
        to.pad(1)
        return stored + bytes(to.data)

    def _encode(self, place: int, block: list[int]) -> None:
        scan = self._scan
        if not scan.first:
            moved = block[0] - self._last_dc[place]
            self._last_dc[place] = block[0]
            bits = abs(moved).bit_length()
            if bits > _MOST_DC_BITS:
                raise _damaged()
            self._add(bits, _signed(moved, bits) if bits else 0, bits)
        elif scan.high:
            self._encode_refinement(block)
        else:
            self._encode_first(block)

    def _add(self, symbol: int, bits: int = 0, count: int = 0) -> None:
        self._frequency[symbol] += 1
        self._tokens.append(_Token(symbol, bits, count))

    def _end_run(self) -> None:
        if not self._run:
            return
        bits = self._run.bit_length() - 1
        self._add(bits << 4, self._run & ((1 << bits) - 1), bits)
        self._run = 0
        self._tokens += [_Token(None, bit, 1) for bit in self._corrections]
        self._corrections = []

    def _encode_first(self, block: list[int]) -> None:
        scan, zeros = self._scan, 0
        for value in block[scan.first : scan.last + 1]:
            size = abs(value) >> scan.low
            if not size:
                zeros += 1
                continue
            bits = size.bit_length()
            if bits > _MOST_AC_BITS:
                raise _damaged()
            self._end_run()
            for _ in range(zeros // 16):
                self._add(0xF0)
            self._add(zeros % 16 << 4 | bits, _signed(size if value > 0 else -size, bits), bits)
            zeros = 0
        if zeros:
            self._run += 1
            if self._run == _MOST_RUN:
                self._end_run()

    def _encode_refinement(self, block: list[int]) -> None:
        scan, zeros, own = self._scan, 0, list[int]()
        sizes = [abs(value) >> scan.low for value in block]
        newest = max((k for k in range(scan.first, scan.last + 1) if sizes[k] == 1), default=0)
        for k in range(scan.first, scan.last + 1):
            if not sizes[k]:
                zeros += 1
                continue
            while zeros > 15 and k <= newest:
                self._end_run()
                self._add(0xF0)
                self._tokens += [_Token(None, bit, 1) for bit in own]
                own, zeros = [], zeros - 16
            if sizes[k] > 1:
                own.append(sizes[k] & 1)
                continue
            self._end_run()
            self._add(zeros << 4 | 1, int(block[k] >= 0), 1)
            self._tokens += [_Token(None, bit, 1) for bit in own]
            own, zeros = [], 0
        if zeros or own:
            self._run += 1
            self._corrections += own
            if self._run == _MOST_RUN or len(self._corrections) > _MOST_CORRECTIONS - BLOCK:
                self._end_run()


def _best_table(frequency: list[int]) -> bytes:
    """The shortest codes of up to 16 bits: counts, then values. That of all ones is left out."""
    counts, lengths = [0] * (_LONGEST + 1), _code_lengths([*frequency[:256], 1])
    for length in lengths:
        if length > _LONGEST:
            raise _damaged()
        counts[length] += length > 0
    for length in range(_LONGEST, COUNTS, -1):
        while counts[length]:
            shorter = max(each for each in range(1, length - 1) if counts[each])
            counts[length] -= 2
            counts[length - 1] += 1
            counts[shorter + 1] += 2
            counts[shorter] -= 1
    longest = max(length for length in range(1, COUNTS + 1) if counts[length])
    counts[longest] -= 1  # that of the symbol that is none
    values = [
        value
        for length in range(1, _LONGEST + 1)
        for value in range(256)
        if lengths[value] == length
    ]
    return bytes([*counts[1 : COUNTS + 1], *values])


def _code_lengths(left: list[int]) -> list[int]:
    """Lengths of codes of symbols of these frequencies; of equal ones the last is joined first."""
    lengths, members = [0] * len(left), [[symbol] for symbol in range(len(left))]
    while True:
        used = sorted(
            (symbol for symbol in range(len(left)) if left[symbol]),
            key=lambda symbol: (left[symbol], -symbol),
        )
        if len(used) < 2:
            return lengths
        one, two = used[:2]
        left[one], left[two] = left[one] + left[two], 0
        members[one] += members[two]
        for symbol in members[one]:
            lengths[symbol] += 1
