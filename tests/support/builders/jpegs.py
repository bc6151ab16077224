"""JPEGs made of coefficients by hand: the same bytes with every version of every library."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

import numpy as np

from tensorrepo.formats.images.progressive import arranged
from tensorrepo.formats.native.jpeg_entropy import (
    BLOCK,
    NO_TABLES,
    PYTHON,
    TABLE_BYTES,
    Scan,
    ScanComponent,
)

# All DC symbols with codes of 4 bits, all AC symbols with codes of 8.
DC_TABLE = bytes([0, 0, 0, 12, *[0] * 12, *range(12)])
AC_SYMBOLS = [0, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 11))]
AC_TABLE = bytes([*[0] * 7, len(AC_SYMBOLS), *[0] * 8, *AC_SYMBOLS])


def baseline(
    height: int,
    width: int,
    factors: Sequence[tuple[int, int]] = ((2, 2), (1, 1), (1, 1)),
    *,
    seed: int = 0,
    interval: int = 0,
    padding: int = 1,
    behind: bytes = b"\xff\xd9",
) -> bytes:
    """A picture of a smooth kind: coefficients fall with their frequency.

    `factors` are the sampling factors of each component, across and down.
    """
    count = len(factors)
    across, down = max(x for x, _ in factors), max(y for _, y in factors)
    unit = (1, 1) if count == 1 else (across, down)
    wide, high = _up(width, 8 * unit[0]), _up(height, 8 * unit[1])
    components, first = [], 0
    for x, y in [(1, 1)] if count == 1 else factors:
        components.append(ScanComponent(first, wide * x, x, y))
        first += wide * x * high * y
    rng = np.random.default_rng(seed)
    reach = 60 / (1 + np.arange(BLOCK)) ** 1.2
    blocks = np.trunc(rng.normal(0, 1, (first, BLOCK)) * reach).astype(np.int16)
    for of in components if count > 1 else []:  # what only fills units up has DC alone
        _fill_up(blocks, of, (height, width), unit, high)
    tables = NO_TABLES.copy()
    for place, table in ((0, DC_TABLE), (4, AC_TABLE)):
        at = place * TABLE_BYTES
        tables[at : at + len(table)] = np.frombuffer(table, np.uint8)
    scan = Scan(wide, high, tuple(components), interval=interval)
    return (
        _header(height, width, factors, interval)
        + PYTHON.encode_scan(blocks, tables, scan, padding)
        + behind
    )


def _up(number: int, by: int) -> int:
    return -(-number // by)


def progressive(height: int, width: int, seed: int = 0) -> bytes:
    """A picture that comes as a progressive one."""
    return b"".join(arranged(baseline(height, width, seed=seed), PYTHON).bands)


def _fill_up(
    blocks: np.ndarray, of: ScanComponent, size: tuple[int, int], unit: tuple[int, int], high: int
) -> None:
    own_high = _up(_up(size[0] * of.high, unit[1]), 8)
    own_wide = _up(_up(size[1] * of.wide, unit[0]), 8)
    grid = blocks[of.first : of.first + of.stride * high * of.high]
    shaped = grid.reshape(high * of.high, of.stride, BLOCK)
    shaped[own_high:, :, 1:] = 0
    shaped[:, own_wide:, 1:] = 0


def _header(height: int, width: int, factors: Sequence[tuple[int, int]], interval: int) -> bytes:
    count = len(factors)
    frame = pack(">BHHB", 8, height, width, count)
    for number, (x, y) in enumerate(factors, 1):
        frame += bytes([number, x << 4 | y, 0])
    parts = [
        b"\xff\xd8",
        _segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"),
        _segment(0xDB, bytes([0, *[8] * 64])),
        _segment(0xC0, frame),
        _segment(0xC4, b"\x00" + DC_TABLE + b"\x10" + AC_TABLE),
        _segment(0xDD, pack(">H", interval)) if interval else b"",
    ]
    chosen = b"".join(bytes([number, 0]) for number in range(1, count + 1))
    return b"".join([*parts, _segment(0xDA, bytes([count]) + chosen + b"\0\x3f\0")])


def _segment(marker: int, content: bytes) -> bytes:
    return pack(">BBH", 0xFF, marker, 2 + len(content)) + content
