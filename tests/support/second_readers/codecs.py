"""A second decoder of models' codecs, written from docs/spec/model.md alone.

It shares no code with the package: numpy and zstandard. Slow where the package has C, and short, so
that the page can be read beside it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

EXPONENTS = {"F16": 5, "BF16": 8, "F32": 8, "F64": 11, "C32": 5, "C64": 8, "C128": 11}
COMPLEX = {"C32", "C64", "C128"}
SMALL_FLOATS = {"F8_E5M2", "F8_E4M3", "F8_E5M2FNUZ", "F8_E4M3FNUZ"}


@dataclass(frozen=True)
class Numbers:
    """What a frame of a type consists of: bytes of a number, and its bits of an exponent."""

    size: int
    signed: bool
    exponent: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"<u{self.size}")


def numbers_of(name: str, block: tuple[int, int]) -> Numbers:
    size = block[1] // (2 if name in COMPLEX else 1)
    if block[0] > 1 or size not in (1, 2, 4, 8):
        return Numbers(1, signed=False, exponent=0)
    return Numbers(size, name in EXPONENTS or name in SMALL_FLOATS, EXPONENTS.get(name, 0))


@dataclass(frozen=True)
class Frame:
    """A stored frame: its planes (plane codec, bytes), its place, and its bases decoded."""

    planes: Sequence[tuple[int, bytes]]
    size_bytes: int
    of: Numbers
    bases: Sequence[bytes] = ()
    row_numbers: int = 1
    first_number: int = 0


def decode(codec: str, frame: Frame) -> bytes:
    """The bytes of a frame of one of the codecs that are decoded here."""
    known = {
        "raw": _raw,
        "planes": _planes,
        "palette": _palette,
        "delta": _delta,
        "rows": _rows,
        "cast": _cast,
    }
    return known[codec](frame)


def _raw(frame: Frame) -> bytes:
    ((plane, data),) = frame.planes
    assert plane == 0
    return data


def _planes(frame: Frame) -> bytes:
    of, count = frame.of, frame.size_bytes // frame.of.size
    whole = np.zeros(count, np.uint64)
    for plane in frame.planes:
        whole = whole << np.uint64(8) | _plane(*plane, count).astype(np.uint64)
    if of.exponent:
        low = np.uint64(8 * of.size - 16)
        top = whole >> low
        turned = (top >> 7 & 1) << 15 | top >> 8 << 7 | top & 127
        whole = whole & (np.uint64(1) << low) - np.uint64(1) | turned << low
    return whole.astype(of.dtype).tobytes()


def _palette(frame: Frame) -> bytes:
    (plane, table), places = frame.planes
    assert plane == 0
    numbers = np.frombuffer(table, frame.of.dtype)
    return numbers[_plane(*places, frame.size_bytes // frame.of.size)].tobytes()


def _delta(frame: Frame) -> bytes:
    base = np.frombuffer(frame.bases[0], frame.of.dtype)
    return _moved(frame.planes[0], base, frame.of).tobytes()


def _cast(frame: Frame) -> bytes:
    bits = [_rounded(number, frame.of) for (number,) in struct.iter_unpack("<I", frame.bases[0])]
    return _moved(frame.planes[0], np.array(bits, frame.of.dtype), frame.of).tobytes()


def _rounded(number: int, of: Numbers) -> int:
    """The nearest float16 or bfloat16 of a float32, all as bits: by exact fractions."""
    sign, exponent, mantissa = number >> 31 << 15, number >> 23 & 255, number & 0x7FFFFF
    wide = 8 - of.exponent  # bits that the exponent loses
    kept = 15 - of.exponent
    infinity = ((1 << of.exponent) - 1) << kept
    if exponent == 255:
        return sign | infinity | (1 << kept - 1 if mantissa else 0)
    value = Fraction((mantissa | (1 << 23 if exponent else 0)) << max(exponent, 1), 1 << 150)
    lowest = 1 - (127 >> wide)  # exponent of the smallest normal number
    power = lowest
    while value >= Fraction(2) ** (power + 1):
        power += 1
    steps = round(value / Fraction(2) ** (power - kept))  # of two equally near ones the even one
    return sign | min(steps + (power - lowest << kept), infinity)


def _rows(frame: Frame) -> bytes:
    base = np.frombuffer(frame.bases[0], frame.of.dtype)
    row = frame.first_number + np.arange(base.size)
    row = row // frame.row_numbers - row[0] // frame.row_numbers
    bitmap = np.frombuffer(_plane(*frame.planes[0], int(row[-1]) // 8 + 1).tobytes(), np.uint8)
    changed = np.unpackbits(bitmap, bitorder="little")[row] == 1
    out = base.copy()
    out[changed] = _moved(frame.planes[1], base[changed], frame.of)
    return out.tobytes()


def _plane(codec: int, data: bytes, count: int) -> NDArray[np.uint8]:
    if codec == 0:
        found = np.frombuffer(data, np.uint8)
    elif codec == 1:
        found = np.frombuffer(zstandard.decompress(data), np.uint8)
    elif codec == 3:
        (found,) = (np.full(count, byte, np.uint8) for byte in data)
    else:
        assert codec in (4, 7)
        tables, used = _tables(data)
        found = _symbols(data[used:], tables, np.zeros(count, np.uint8), codec == 7)
    assert found.size == count
    return found


def _moved(plane: tuple[int, bytes], base: NDArray[Any], of: Numbers) -> NDArray[Any]:
    """Numbers by their distances from a base."""
    codec, data = plane
    if codec == 0:
        return np.frombuffer(data, of.dtype)
    assert codec in (5, 6, 8)
    found = _layers(data, base, of) if codec == 6 else _tokens(data, base, of, codec == 8)
    distances = found.astype(of.dtype)
    top = of.dtype.type(1 << (8 * of.size - 1))
    negative = base & top != 0 if of.signed else np.zeros(base.size, bool)
    order = np.where(negative, ~base, base ^ top) if of.signed else base
    step = np.where(distances & 1, ~(distances >> 1), distances >> 1)
    moved = order + np.where(negative, -step, step)
    if not of.signed:
        return moved
    return np.where(moved & top != 0, moved ^ top, ~moved)


def _contexts(base: NDArray[Any], of: Numbers) -> NDArray[np.uint8]:
    if of.size == 1:
        return base
    exponent = base >> (8 * of.size - 1 - of.exponent) & ((1 << of.exponent) - 1)
    if of.exponent == 11:
        exponent = np.clip(exponent.astype(np.int64) - 896, 0, 255)
    return exponent.astype(np.uint8) if of.exponent else np.zeros(base.size, np.uint8)


def _layers(data: bytes, base: NDArray[Any], of: Numbers) -> NDArray[np.uint64]:
    whole = np.zeros(base.size, np.uint64)
    for _ in range(of.size):
        stop = 4 + int.from_bytes(data[:4], "little")
        tables, used = _tables(data[4:stop])
        layer = _symbols(data[4 + used : stop], tables, _contexts(base, of))
        whole, data = whole << np.uint64(8) | layer.astype(np.uint64), data[stop:]
    assert not data
    return whole


def _tokens(data: bytes, base: NDArray[Any], of: Numbers, is_long: bool) -> NDArray[np.uint64]:
    tables, used = _tables(data[4:])
    stop = 4 + used + int.from_bytes(data[:4], "little")
    symbols = _symbols(data[4 + used : stop], tables, _contexts(base, of), is_long)
    tokens = symbols.astype(np.int64)
    stream, distances = int.from_bytes(data[stop:], "little"), np.zeros(base.size, np.uint64)
    for at, token in enumerate(tokens.tolist()):
        if token < 16:
            distances[at] = token
            continue
        width = 4 + (token - 16) // 4 - 2
        distances[at] = (4 + (token - 16) % 4) << width | stream & (1 << width) - 1
        stream >>= width
    assert not stream
    return distances


def _tables(data: bytes) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], int]:
    """The group of each context and the groups' frequencies; and the bytes that they take."""
    count = data[0] + 1
    groups = np.zeros(256, np.int64)
    groups[list(data[1:count])] = 1
    spans = [(data[count + 2 * at], data[count + 2 * at + 1]) for at in range(count)]
    at, stored = 3 * count, sum(more for _, more in spans)
    size = (3 * stored + 1) // 2
    bits = int.from_bytes(data[at : at + size], "little")
    frequencies = np.zeros((count, 256), np.int64)
    for group, (first, more) in enumerate(spans):
        for symbol in range(first, first + more):
            frequencies[group, symbol], bits = bits & 4095, bits >> 12
        frequencies[group, first + more] = 4096 - frequencies[group].sum()
    assert not bits
    return (np.cumsum(groups), frequencies), at + size


def _symbols(
    data: bytes,
    tables: tuple[NDArray[np.int64], NDArray[np.int64]],
    contexts: NDArray[np.uint8],
    is_long: bool = False,
) -> NDArray[np.uint8]:
    """Interleaved rANS: one symbol of each coder in a round, who needs a word takes the next."""
    groups, frequencies = tables
    group = groups[contexts]
    if not data and (frequencies.max(1) == 4096).all():
        return frequencies.argmax(1).astype(np.uint8)[group]
    starts = np.cumsum(frequencies, 1) - frequencies
    known = [np.repeat(np.arange(256), row) for row in frequencies]
    symbol_at = np.stack(known).astype(np.uint8)
    coders = 64 if is_long else 32 if contexts.size >= 4096 else 4
    states = np.frombuffer(data[: 4 * coders], "<u4").astype(np.int64)
    words, taken = np.frombuffer(data[4 * coders :], "<u2").astype(np.int64), 0
    out = np.zeros(contexts.size, np.uint8)
    for at in range(0, contexts.size, coders):
        own = group[at : at + coders]
        x = states[: own.size]
        out[at : at + coders] = symbol = symbol_at[own, x % 4096]
        x = frequencies[own, symbol] * (x // 4096) + x % 4096 - starts[own, symbol]
        short = x < 65536
        x[short] = 65536 * x[short] + words[taken : taken + np.count_nonzero(short)]
        taken += np.count_nonzero(short)
        states[: own.size] = x
    assert (states == 65536).all()
    assert taken == words.size
    return out
