"""A second reader of pictures in bands, written from docs/spec/dataset.md and T.81 alone.

Bits are text of zeros and ones here, codes are keys of a dict: it is slow, short, and shares no
code with the package. It lacks the checks that a reader of hostile bytes needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import unpack_from
from typing import Any

import numpy as np
import zstandard
from blake3 import blake3
from xxhash import xxh3_64_intdigest as xxh3

BANDS = 4
Blocks = dict[int, dict[tuple[int, int], list[int]]]  # by component and place; zigzag order
Component = tuple[int, int, int, int, int]  # number, factors across and down, blocks across, down


def joined(stored: bytes, table: bytes) -> bytes:
    """The bytes of all rows as they came, given the row table of the page."""
    kinds, lengths, bands, recipes = parted(stored)
    ends, out, recipe_at = np.frombuffer(table, "<u8").tolist(), b"", 0
    for row, kind in enumerate(kinds):
        scans = b"".join(band[row] for band in bands)
        recipe = recipes[recipe_at : recipe_at + lengths[BANDS][row]]
        recipe_at += len(recipe)
        out += made(scans, recipe) if kind == 1 else scans
        assert len(out) == ends[row]
    assert recipe_at == len(recipes)
    return out


def parted(stored: bytes) -> tuple[bytes, list[list[int]], list[list[bytes]], bytes]:
    """Kinds, lengths, the bands that are there by row, and recipes."""
    rows, count, *zeros, recipe_bytes = unpack_from("<IBBBBQ", stored)
    assert (count, any(zeros)) == (BANDS, False)
    kinds, at = stored[16 : 16 + rows], 16 + rows + -rows % 8
    lengths = np.frombuffer(stored, "<u4", 5 * rows, at).reshape(5, rows).tolist()
    at += 20 * rows
    bands: list[list[bytes]] = []
    for band in range(BANDS):
        at += -at % 64
        cuts = np.cumsum([at, *lengths[band]]).tolist()
        if cuts[-1] <= len(stored):
            bands.append([stored[a:b] for a, b in pairwise(cuts)])
        at = cuts[-1]
    at += -at % 64
    recipes = zstandard.ZstdDecompressor().decompress(stored[at:]) if stored[at:] else b""
    assert len(recipes) in (recipe_bytes, 0)
    return kinds, lengths, bands, recipes


def prove_previews(records: Sequence[tuple[Any, ...]], page: bytes) -> None:
    """Compare what an index says of the beginnings of a page."""
    fields = [unpack_from("<QB", page, 16 * which) for which in range(4)]
    assert len(records) == (BANDS if fields[3][1] == 4 else 0)
    start = 64 + sum(size + -size % 64 for size, _ in fields[:3])
    for at, (_, band, stored, data, largest, checksum, tag, _side, plain) in enumerate(records):
        small = page[:stored]
        assert (band, xxh3(small)) == (at, checksum)
        assert blake3(small, derive_key_context="tensorrepo content v1").digest()[:16] == tag
        kinds, _, bands, _ = parted(small[start:])
        assert len(bands) >= at + 1
        whole = [b"".join(band[row] for band in bands[: at + 1]) for row in range(len(kinds))]
        sizes = [
            len(each) + 2 * (kind != 0 and not each.endswith(b"\xff\xd9"))
            for kind, each in zip(kinds, whole, strict=True)
        ]
        assert (sum(sizes), max(sizes)) == (data, largest)
        assert plain == sum(not kind and size > 0 for kind, size in zip(kinds, sizes, strict=True))


# ------------------------------------------------------------------------------ JPEG


def segments(data: bytes, at: int) -> Iterator[tuple[int, bytes, int]]:
    """Marker, content and end of each segment, up to the next start of scan with it."""
    marker = 0
    while marker != 0xDA:
        marker, length = unpack_from(">xBH", data, at)
        yield marker, data[at + 4 : at + 2 + length], at + 2 + length
        at += 2 + length


def codes(content: bytes, into: dict[int, dict[str, int]]) -> None:
    """The codes of a segment of tables, by class and number of the table."""
    while content:
        table: dict[str, int] = {}
        code, at = 0, 17
        for length in range(1, 17):
            for _ in range(content[length]):
                table[format(code, f"0{length}b")] = content[at]
                code, at = code + 1, at + 1
            code *= 2
        into[content[0]] = table
        content = content[at:]


def frame(content: bytes) -> tuple[list[Component], int, int]:
    """The components, and the units of a scan of all of them across and down."""
    height, width, count = unpack_from(">xHHB", content)
    factors = range(6, 6 + 3 * count, 3)
    given = [(content[at], content[at + 1] >> 4, content[at + 1] & 15) for at in factors]
    if count == 1:
        given = [(given[0][0], 1, 1)]
    h, v = max(each[1] for each in given), max(each[2] for each in given)
    sized = [
        (number, x, y, up(up(width * x, h), 8), up(up(height * y, v), 8)) for number, x, y in given
    ]
    return sized, up(width, 8 * h), up(height, 8 * v)


def up(number: int, by: int) -> int:
    return -(-number // by)


def places(
    chosen: Sequence[Component], across: int, down: int
) -> Iterator[list[tuple[int, tuple[int, int]]]]:
    """The blocks of each unit of a scan: component's number, and row and column."""
    if len(chosen) == 1:
        number, *_, across, down = chosen[0]
        chosen = [(number, 1, 1, across, down)]
    for y in range(down):
        for x in range(across):
            yield [
                (number, (y * b + j, x * a + i))
                for number, a, b, *_ in chosen
                for j in range(b)
                for i in range(a)
            ]


class Bits:
    """The bits of a scan, and where it ends."""

    def __init__(self, data: bytes, start: int) -> None:
        self.stop = start
        while data[self.stop] != 0xFF or not data[self.stop + 1]:
            self.stop += 1 + (data[self.stop] == 0xFF)
        plain = data[start : self.stop].replace(b"\xff\0", b"\xff")
        self.text, self.at = "".join(format(each, "08b") for each in plain), 0

    def take(self, count: int) -> str:
        self.at += count
        return self.text[self.at - count : self.at]

    def symbol(self, table: dict[str, int]) -> int:
        length = 1
        while self.text[self.at : self.at + length] not in table:
            length += 1
        return table[self.take(length)]

    def number(self, count: int) -> int:
        bits = self.take(count)
        return 0 if not bits else int(bits, 2) - (0 if bits[0] == "1" else (1 << count) - 1)


def read_scans(data: bytes, into: Blocks) -> None:
    """The coefficients of a progressive picture of 8 bits."""
    tables: dict[int, dict[str, int]] = {}
    components: list[Component] = []
    at, across, down = 2, 0, 0
    while data[at : at + 2] != b"\xff\xd9":
        for marker, content, stop in segments(data, at):
            at = stop
            if marker == 0xC2:
                components, across, down = frame(content)
            elif marker == 0xC4:
                codes(content, tables)
        numbers = content[1 : 1 + 2 * content[0] : 2]
        chosen = [each for each in components if each[0] in numbers]
        which = dict(zip(numbers, content[2 : 2 + 2 * content[0] : 2], strict=True))
        first, last, high, low = content[-3], content[-2], content[-1] >> 4, content[-1] & 15
        bits, run, dc = Bits(data, at), 0, dict.fromkeys(numbers, 0)
        for unit in places(chosen, across, down):
            for number, place in unit:
                block = into[number].setdefault(place, [0] * 64)
                if not first:
                    dc[number] += bits.number(bits.symbol(tables[which[number] >> 4]))
                    block[0] = dc[number]
                    continue
                table = tables[16 + (which[number] & 15)]
                read = refined if high else begun
                run = read(bits, table, block, range(first, last + 1), low, run)
        at = bits.stop


def begun(
    bits: Bits, table: dict[str, int], block: list[int], spectrum: range, low: int, run: int
) -> int:
    """One block of a first scan; gives how many more blocks end at once."""
    if run:
        return run - 1
    k = spectrum.start
    while k < spectrum.stop:
        zeros, size = divmod(bits.symbol(table), 16)
        if not size and zeros < 15:
            return (1 << zeros) + int("0" + bits.take(zeros), 2) - 1
        k += zeros
        if size:
            block[k] = bits.number(size) * (1 << low)
        k += 1
    return 0


def refined(
    bits: Bits, table: dict[str, int], block: list[int], spectrum: range, low: int, run: int
) -> int:
    """One block of a scan that brings one more bit."""
    one, k = 1 << low, spectrum.start

    def correct(at: int) -> None:
        if bits.take(1) == "1":
            block[at] += one if block[at] > 0 else -one

    while not run and k < spectrum.stop:
        zeros, size = divmod(bits.symbol(table), 16)
        if not size and zeros < 15:
            run = (1 << zeros) + int("0" + bits.take(zeros), 2)
            break
        new = (one if bits.take(1) == "1" else -one) if size else 0
        while k < spectrum.stop and (block[k] or zeros):
            if block[k]:
                correct(k)
            else:
                zeros -= 1
            k += 1
        if new:
            block[k] = new
        k += 1
    if run:
        for rest in range(k, spectrum.stop):
            if block[rest]:
                correct(rest)
        return run - 1
    return 0


def made(scans: bytes, recipe: bytes) -> bytes:
    """The baseline picture that a recipe makes of a progressive one."""
    padding, *zeros, size = unpack_from("<BBHI", recipe)
    assert not any(zeros)
    header, rest = recipe[8 : 8 + size], recipe[8 + size :]
    tables: dict[int, dict[str, int]] = {}
    interval = 0
    for marker, content, _ in segments(header, 2):
        if marker in (0xC0, 0xC1):
            components, across, down = frame(content)
        elif marker == 0xC4:
            codes(content, tables)
        elif marker == 0xDD:
            (interval,) = unpack_from(">H", content)
    blocks: Blocks = {each[0]: {} for each in components}
    read_scans(scans, blocks)
    written = {number: {v: k for k, v in table.items()} for number, table in tables.items()}
    which = dict(zip(content[1:-3:2], content[2:-3:2], strict=True))
    out, text, dc = b"", "", dict.fromkeys(which, 0)
    for at, unit in enumerate(places(components, across, down)):
        if interval and at and not at % interval:
            out += stuffed(text, padding) + bytes([0xFF, 0xD0 + (at // interval - 1) % 8])
            text, dc = "", dict.fromkeys(which, 0)
        for number, place in unit:
            block, tables_of = blocks[number][place], which[number]
            text += coded(block, dc[number], written[tables_of >> 4], written[16 + tables_of % 16])
            dc[number] = block[0]
    return header + out + stuffed(text, padding) + rest


def stuffed(text: str, padding: int) -> bytes:
    text += str(padding) * (-len(text) % 8)
    return int("0" + text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")


def coded(block: list[int], before: int, dc: dict[int, str], ac: dict[int, str]) -> str:
    """The bits of a block of a sequential scan."""
    moved = block[0] - before
    text, zeros = dc[moved.bit_length()] + signed(moved), 0
    for value in block[1:]:
        if not value:
            zeros += 1
            continue
        text += ac.get(0xF0, "") * (zeros // 16)
        text += ac[zeros % 16 * 16 + value.bit_length()] + signed(value)
        zeros = 0
    return text + (ac[0] if zeros else "")


def signed(value: int) -> str:
    size = value.bit_length()
    return format(value if value > 0 else value + (1 << size) - 1, f"0{size}b") if value else ""
