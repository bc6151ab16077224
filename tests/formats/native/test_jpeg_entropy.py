"""Huffman coding of JPEG scans: in C and in Python, with identical results."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.native.extensions import codecs
from tensorrepo.formats.native.jpeg_entropy import (
    BLOCK,
    COUNTS,
    NATIVE,
    NO_TABLES,
    PYTHON,
    TABLE_BYTES,
    TABLES,
    Blocks,
    EntropyCoder,
    Scan,
    ScanComponent,
)
from tests.support.builders.native import needs_native

EVERY = pytest.mark.parametrize(
    "coder",
    [
        pytest.param(PYTHON, id="python"),
        pytest.param(NATIVE, id="native", marks=needs_native),
    ],
)
GREY = (ScanComponent(0, 3),)  # 3 x 2 blocks
COLOURS = (ScanComponent(0, 4, 2, 2), ScanComponent(16, 2), ScanComponent(20, 2, 1, 1, 1, 1))
# What each scan takes of coefficients, in an order in which all of them come.
PROGRESSION = [
    Scan(3, 2, GREY, 0, 0),
    Scan(3, 2, GREY, 1, 5, 0, 2),
    Scan(3, 2, GREY, 6, 63, 0, 2),
    Scan(3, 2, GREY, 1, 63, 2, 1),
    Scan(3, 2, GREY, 1, 63, 1, 0),
]


def all_codes() -> np.ndarray:
    """Tables in which every symbol has a code, of 8 bits or of 9."""
    counts = [0] * 7 + [254, 2] + [0] * 7
    table = [*counts, *range(256)]
    return np.array(table * TABLES, np.uint8)


ALL_CODES = all_codes()


@st.composite
def blocks(draw: st.DrawFn, count: int = 6) -> Blocks:
    """Coefficients as of pictures: some of them far from zero, most zero."""
    seed, density = draw(st.integers(0, 1 << 30)), draw(st.sampled_from([0.0, 0.02, 0.3, 1.0]))
    largest = draw(st.sampled_from([1, 3, 40, 1023]))
    rng = np.random.default_rng(seed)
    found = rng.integers(-largest, largest + 1, (count, BLOCK)).astype(np.int16)
    found[rng.random((count, BLOCK)) >= density] = 0
    return found


def read(coder: EntropyCoder, coded: bytes, scan: Scan, into: Blocks) -> int:
    """Read a scan that stands behind its table."""
    values = COUNTS + sum(coded[:COUNTS])
    tables = NO_TABLES.copy()
    place = 4 * TABLE_BYTES if scan.first else 0
    tables[place : place + values] = np.frombuffer(coded[:values], np.uint8)
    return coder.decode_scan(coded, values, tables, scan, into).stop


@EVERY
@given(blocks(24), st.integers(0, 5), st.sampled_from([0, 1]))
def test_sequential_scans_come_back(
    coder: EntropyCoder, given_blocks: Blocks, interval: int, padding: int
) -> None:
    scan = Scan(2, 2, COLOURS, interval=interval)
    coded = coder.encode_scan(given_blocks, ALL_CODES, scan, padding)
    found = np.zeros_like(given_blocks)
    decoded = coder.decode_scan(coded + b"\xff\xd9", 0, ALL_CODES, scan, found)
    assert decoded.stop == len(coded)
    assert decoded.padding in (padding, None)
    assert np.array_equal(found, given_blocks)


@EVERY
@given(blocks())
def test_progressive_scans_come_back_bit_by_bit(coder: EntropyCoder, given_blocks: Blocks) -> None:
    found = np.zeros_like(given_blocks)
    for scan in PROGRESSION:
        coded = coder.encode_scan(given_blocks, NO_TABLES, scan)
        assert read(coder, coded, scan, found) == len(coded)
    assert np.array_equal(found, given_blocks)


@needs_native
@given(blocks())
def test_both_write_the_same_progressive_scans(given_blocks: Blocks) -> None:
    assert NATIVE is not None
    for scan in PROGRESSION:
        by_c, by_python = (
            coder.encode_scan(given_blocks, NO_TABLES, scan) for coder in (NATIVE, PYTHON)
        )
        assert by_c == by_python


@needs_native
@given(blocks(24), st.integers(0, 3))
def test_both_write_the_same_sequential_scans(given_blocks: Blocks, interval: int) -> None:
    assert NATIVE is not None
    scan = Scan(2, 2, COLOURS, interval=interval)
    by_c, by_python = (
        coder.encode_scan(given_blocks, ALL_CODES, scan) for coder in (NATIVE, PYTHON)
    )
    assert by_c == by_python


@needs_native
@given(st.binary(max_size=200), st.binary(max_size=64), st.sampled_from([*PROGRESSION, None]))
def test_both_refuse_and_accept_the_same_bytes(
    data: bytes, codes: bytes, progressive: Scan | None
) -> None:
    assert NATIVE is not None
    scan = progressive or Scan(3, 2, GREY)
    # Tables of whatever: most are refused, as most bytes are.
    tables = ALL_CODES.copy()
    tables[: len(codes)] = np.frombuffer(codes, np.uint8)
    outcomes = []
    for coder in (NATIVE, PYTHON):
        into, told = np.ones((6, BLOCK), np.int16), None
        with suppress(ValueError):
            told = coder.decode_scan(data, 0, tables, scan, into)
        outcomes.append((told, None if told is None else into.tolist()))
    assert outcomes[0] == outcomes[1]


@EVERY
@pytest.mark.parametrize(
    "damage",
    [
        lambda coded: coded[:-1],
        lambda coded: coded + b"\0",
        lambda coded: coded[:4] + b"\xff\xd0" + coded[4:],
        lambda _: b"",
        lambda _: b"\xff",
    ],
)
def test_bits_that_are_missing_or_left_over_are_damage(coder: EntropyCoder, damage: object) -> None:
    rng = np.random.default_rng(3)
    given_blocks = rng.integers(-500, 500, (6, BLOCK)).astype(np.int16)
    scan = Scan(3, 2, GREY)
    coded = damage(coder.encode_scan(given_blocks, ALL_CODES, scan))  # type: ignore[operator]
    with pytest.raises(ValueError, match="damaged"):
        coder.decode_scan(coded, 0, ALL_CODES, scan, np.zeros_like(given_blocks))


@EVERY
@pytest.mark.parametrize(("place", "value"), [(0, 3000), (1, 1024), (5, -1024)])
def test_coefficients_that_no_picture_of_8_bits_has_are_refused(
    coder: EntropyCoder, place: int, value: int
) -> None:
    given_blocks = np.zeros((6, BLOCK), np.int16)
    given_blocks[0, place] = value
    with pytest.raises(ValueError, match="damaged"):
        coder.encode_scan(given_blocks, ALL_CODES, Scan(3, 2, GREY))


@EVERY
def test_a_symbol_without_a_code_is_refused(coder: EntropyCoder) -> None:
    with pytest.raises(ValueError, match="damaged"):
        coder.encode_scan(np.zeros((6, BLOCK), np.int16), NO_TABLES, Scan(3, 2, GREY))


@EVERY
def test_frequencies_of_fibonacci_get_codes_of_16_bits(coder: EntropyCoder) -> None:
    """The longest codes that symbols can want: these must be made shorter."""
    sizes = [(1 << bits) - 1 for bits in range(1, 11)]
    rows, before, after = [], 1, 1
    for size in sizes * 2:
        rows += [size if len(rows) % 2 else -size] * min(after, 2000)
        before, after = after, before + after
    given_blocks = np.zeros((len(rows), BLOCK), np.int16)
    given_blocks[:, 1] = rows
    given_blocks[:, 17 : 17 + 1] = np.array(rows[::-1])[:, None]
    scan = Scan(len(rows), 1, (ScanComponent(0, len(rows)),), 1, 63)
    found = np.zeros_like(given_blocks)
    read(coder, coder.encode_scan(given_blocks, NO_TABLES, scan), scan, found)
    assert np.array_equal(found, given_blocks)


@needs_native
@pytest.mark.parametrize(
    "scan",
    [
        Scan(3, 3, GREY),
        Scan(4, 2, (ScanComponent(0, 3),)),
        Scan(0, 2, GREY),
        Scan(3, 2, (ScanComponent(-1, 3),)),
        Scan(3, 2, (ScanComponent(0, 0),)),
        Scan(1 << 20, 1 << 20, GREY),
        Scan(3, 2, (ScanComponent(0, 3, 1, 1, 4, 0),)),
        Scan(3, 2, GREY, 1, 64),
        Scan(3, 2, GREY, 5, 4),
        Scan(3, 2, GREY, 1, 5, 3, 1),
        Scan(3, 2, GREY, 0, 5),
        Scan(3, 2, (GREY[0], GREY[0]), 1, 5),
    ],
)
def test_scans_of_other_blocks_are_refused_by_the_kernel(scan: Scan) -> None:
    given_blocks = np.zeros((6, BLOCK), np.int16)
    with pytest.raises(ValueError, match="geometry"):
        codecs.encode_scan(given_blocks, ALL_CODES, scan.geometry(), 1)
    with pytest.raises(ValueError, match="geometry"):
        codecs.decode_scan(b"\0" * 99, 0, ALL_CODES, scan.geometry(), given_blocks)
