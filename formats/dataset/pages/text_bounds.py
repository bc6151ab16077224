"""Bounds of text: prefixes of the smallest and the largest value of a page.

Order is that of bytes, which for UTF-8 is that of code points and what Arrow and DuckDB compare
by. A value that is longer than its prefix, or ends in zeros as the padding does, is cut. A cut
prefix still bounds from below; from above its successor does, the smallest value that has it not.

Source:
    docs/spec/dataset.md, section "Page index".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Bools
from tensorrepo.formats.dataset.schema.values import BinaryValues

PREFIX_BYTES = 32
TEXT_BOUNDS = np.dtype([("low", f"S{PREFIX_BYTES}"), ("high", f"S{PREFIX_BYTES}"), ("flags", "u1")])
assert TEXT_BOUNDS.itemsize == 65, "docs/spec/dataset.md promises 65 bytes"
HAS_BOUNDS, LOW_IS_CUT, HIGH_IS_CUT = 1, 2, 4
_LARGEST_BYTE = 0xFF


def text_bounds(values: BinaryValues) -> NDArray[Any]:
    """One TEXT_BOUNDS record of all rows that are not null; without any it says nothing."""
    record = np.zeros((), TEXT_BOUNDS)
    extremes = pc.min_max(_arrow_array(values))
    if not extremes["min"].is_valid:
        return record
    low, low_is_cut = _prefix(extremes["min"])
    high, high_is_cut = _prefix(extremes["max"])
    flags = HAS_BOUNDS | LOW_IS_CUT * low_is_cut | HIGH_IS_CUT * high_is_cut
    record[()] = (low, high, flags)
    return record


def _arrow_array(values: BinaryValues) -> pa.Array:
    offsets = np.ascontiguousarray(values.offsets, np.int64)
    valid = None
    if values.valid is not None:
        valid = pa.py_buffer(np.packbits(values.valid, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values.data))]
    return pa.Array.from_buffers(pa.large_binary(), values.rows, buffers)


def _prefix(value: pa.LargeBinaryScalar) -> tuple[bytes, bool]:
    """The bytes of a value that are kept, and whether it is cut."""
    whole = value.as_buffer()
    prefix = whole[:PREFIX_BYTES].to_pybytes()
    return prefix, whole.size != len(prefix.rstrip(b"\0"))


def no_text_bounds(pages: int) -> NDArray[Any]:
    """TEXT_BOUNDS ``(pages,)`` that say nothing."""
    return np.zeros(pages, TEXT_BOUNDS)


def low_and_high(bounds: NDArray[Any]) -> tuple[NDArray[np.bytes_], NDArray[np.bytes_], Bools]:
    """Values that no row of a page is below or above, and where there are such values.

    `bounds` is TEXT_BOUNDS ``(pages,)``. Where a smallest and a largest are equal, all rows are.
    """
    high = np.array(bounds["high"], order="C")
    bounded = (bounds["flags"] & HAS_BOUNDS) > 0
    is_cut = bounded & ((bounds["flags"] & HIGH_IS_CUT) > 0)
    letters = high.view(np.uint8).reshape(-1, PREFIX_BYTES)
    is_full = letters[:, -1] == _LARGEST_BYTE
    letters[is_cut & ~is_full, -1] += 1
    for page in np.flatnonzero(is_cut & is_full).tolist():
        after = successor(letters[page].tobytes())
        high[page], bounded[page] = after, bool(after)
    return bounds["low"], high, bounded


def successor(prefix: bytes) -> bytes:
    """The smallest value above all that begin with `prefix`; nothing where there is none."""
    kept = prefix.rstrip(bytes([_LARGEST_BYTE]))
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""
