"""Symbols packed by their frequencies: in C and in numpy, with identical results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorrepo.formats.native.rans import (
    FEW_LANES,
    MANY_LANES,
    MOST_LANES,
    NATIVE,
    NUMPY,
    SYMBOLS,
    TABLE,
    RansCoder,
)
from tests.support.builders.native import needs_native
from tests.support.effort import sampled

CODERS: list[Any] = [
    pytest.param(NUMPY, id="numpy"),
    pytest.param(NATIVE, id="native", marks=needs_native),
]
EVERY = pytest.mark.parametrize("coder", CODERS)
LANES = pytest.mark.parametrize("lanes", [FEW_LANES, MANY_LANES, MOST_LANES])


def some_symbols(size: int, seed: int, spread: float) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    return np.abs(rng.normal(0, spread, size)).clip(0, 255).astype(np.uint8)


def fair(contexts: int) -> NDArray[np.uint16]:
    """All symbols equally frequent."""
    return np.full((contexts, SYMBOLS), TABLE // SYMBOLS, np.uint16)


def skewed() -> NDArray[np.uint16]:
    """Symbol 0 nearly always; each other as rarely as can be."""
    table = np.ones((1, SYMBOLS), np.uint16)
    table[0, 0] = TABLE - SYMBOLS + 1
    return table


TABLES = pytest.mark.parametrize("table", [fair(1), skewed()], ids=["fair", "skewed"])


@EVERY
@LANES
@TABLES
@pytest.mark.parametrize("size", sampled([0, 1, 3, 31, 32, 33, 63, 64, 65, 4095, 10_001], 5))
def test_symbols_come_back(
    coder: RansCoder, lanes: int, table: NDArray[np.uint16], size: int
) -> None:
    symbols = some_symbols(size, size, 20.0)
    packed = coder.pack(symbols, None, table, lanes)
    out = np.empty_like(symbols)
    assert coder.unpack(packed, None, table, lanes, out)
    assert np.array_equal(out, symbols)


@EVERY
@LANES
def test_contexts_have_tables_of_their_own(coder: RansCoder, lanes: int) -> None:
    symbols, contexts = some_symbols(5000, 1, 9.0), some_symbols(5000, 2, 0.8) & 1
    tables = np.concatenate([skewed(), fair(1)])
    packed = coder.pack(symbols, contexts, tables, lanes)
    out = np.empty_like(symbols)
    assert coder.unpack(packed, contexts, tables, lanes, out)
    assert np.array_equal(out, symbols)
    wrong = np.empty_like(symbols)
    coder.unpack(packed, 1 - contexts, tables, lanes, wrong)
    assert not np.array_equal(wrong, symbols)


@needs_native
@LANES
@given(size=st.integers(0, 300), seed=st.integers(0, 99), spread=st.floats(0.1, 80))
def test_both_pack_to_the_same_bytes(lanes: int, size: int, seed: int, spread: float) -> None:
    assert NATIVE is not None
    symbols, contexts = some_symbols(size, seed, spread), some_symbols(size, seed + 1, 1.0) & 1
    tables = np.concatenate([skewed(), fair(1)])
    ours, theirs = (each.pack(symbols, contexts, tables, lanes) for each in (NATIVE, NUMPY))
    assert np.array_equal(ours, theirs)
    counts = [each.count(symbols, contexts, 2) for each in (NATIVE, NUMPY)]
    assert np.array_equal(*counts)


@EVERY
@LANES
@pytest.mark.parametrize("cut", [1, 2, 128, 4000])
def test_what_is_cut_short_does_not_decode(coder: RansCoder, lanes: int, cut: int) -> None:
    symbols = some_symbols(9000, 3, 30.0)
    packed = coder.pack(symbols, None, fair(1), lanes)
    assert not coder.unpack(packed[:-cut], None, fair(1), lanes, np.empty_like(symbols))


@EVERY
@given(data=st.binary(max_size=400), size=st.integers(0, 200), lanes=st.sampled_from([4, 32, 64]))
def test_no_bytes_do_harm(coder: RansCoder, data: bytes, size: int, lanes: int) -> None:
    out = np.zeros(size + 64, np.uint8)
    coder.unpack(np.frombuffer(data, np.uint8), None, skewed(), lanes, out[:size])
    assert not out[size:].any(), "nothing is written beyond the end"


@needs_native
@LANES
@given(at=st.integers(0, 2000), bit=st.integers(0, 7))
def test_both_make_the_same_of_damaged_bytes(lanes: int, at: int, bit: int) -> None:
    assert NATIVE is not None
    symbols = some_symbols(5000, 4, 3.0)
    packed = NUMPY.pack(symbols, None, fair(1), lanes).copy()
    packed[at] ^= 1 << bit
    outs = [np.zeros_like(symbols) for _ in range(2)]
    fine = [
        each.unpack(packed, None, fair(1), lanes, out)
        for each, out in zip((NATIVE, NUMPY), outs, strict=True)
    ]
    assert fine[0] == fine[1]


@EVERY
@pytest.mark.parametrize(
    ("contexts", "tables", "lanes"),
    [
        (None, np.zeros((1, SYMBOLS), np.uint16), MANY_LANES),
        (None, fair(1) + np.uint16(1), MANY_LANES),
        (np.full(100, 1, np.uint8), fair(1), MANY_LANES),
        (np.zeros(99, np.uint8), fair(1), MANY_LANES),
        (None, fair(1), 7),
    ],
    ids=["no frequency", "too much", "no such context", "too few contexts", "lanes"],
)
def test_what_makes_no_sense_is_refused(
    coder: RansCoder, contexts: Any, tables: NDArray[np.uint16], lanes: int
) -> None:
    symbols = np.zeros(100, np.uint8)
    with pytest.raises(ValueError, match=r"contexts?|frequencies|turns|bytes"):
        coder.pack(symbols, contexts, tables, lanes)
    with pytest.raises(ValueError, match=r"contexts?|frequencies|turns|bytes"):
        coder.unpack(symbols, contexts, tables, lanes, symbols)
