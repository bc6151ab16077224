"""Stored tables are read alike in C and in numpy, whole and damaged."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorrepo.formats.model.delta.plane_codec import (
    _decode_tables,
    decode_tables,
    encode_tables,
    tables_of,
)
from tensorrepo.formats.native import rans
from tensorrepo.repo.errors import CorruptError
from tests.support.faults.damage import FLIPS, places

needs_native = pytest.mark.skipif(rans.NATIVE is None, reason="the kernel was not built")


def stored(seed: int, contexts: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    counts = np.zeros((contexts, 256), np.int64)
    widths = rng.integers(1, 60, contexts)
    for row, width in zip(counts, widths, strict=True):
        row[:width] = rng.integers(0, 900, width)
        row[rng.integers(0, 200)] += 1
    tables, _, _ = tables_of(counts)
    return np.frombuffer(encode_tables(tables) + b"what follows", np.uint8)


def read(data: NDArray[np.uint8], *, native: bool) -> tuple[bytes, bytes, int] | None:
    """The tables, or None for those that are refused."""
    rows = int(data[0]) + 1 if data.size else 99
    try:
        if native and rows <= 16 and data.size >= 3 * rows:
            assert rans.NATIVE is not None
            found = rans.NATIVE.tables(data, rows)
            return None if found is None else (found[0].tobytes(), found[1].tobytes(), found[2])
        if rows > 16 or data.size < 3 * rows:
            return None
        tables, used = _decode_tables(data, rows)
    except CorruptError:
        return None
    return tables.groups.tobytes(), tables.frequencies.tobytes(), used


@needs_native
@pytest.mark.parametrize("contexts", [1, 256])
@pytest.mark.parametrize("seed", range(4))
def test_both_read_the_same(seed: int, contexts: int) -> None:
    data = stored(seed, contexts)
    found = read(data, native=True)
    assert found is not None
    assert found == read(data, native=False)
    assert found[2] == data.size - len(b"what follows")


@needs_native
@pytest.mark.parametrize("contexts", [1, 256])
def test_both_refuse_the_same_damage(contexts: int) -> None:
    data = stored(1, contexts)
    damaged = [data[:at] for at in places(data.size)]
    for at in places(data.size):
        for flip in FLIPS:
            damaged.append(data.copy())
            damaged[-1][at] ^= flip
    ours = [read(one, native=True) for one in damaged]
    assert ours == [read(one, native=False) for one in damaged]
    assert None in ours


def test_damaged_tables_are_refused_in_words() -> None:
    data = stored(2, 256).copy()
    data[1] = 0
    with pytest.raises(CorruptError, match="not ascending"):
        decode_tables(data)
