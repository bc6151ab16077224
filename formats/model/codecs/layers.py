"""What if distances from the base take few values, however large?

The first steps of Adam move every weight by the same length: then no bit of a distance is noise,
and each of its bytes is coded by how frequent it is in its context.

Source:
    docs/spec/model.md, section "Delta".
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorrepo.formats.model.codecs.planecodec import join_buffers, lanes_for
from tensorrepo.formats.model.codecs.tables import Tables, decode_tables, encode_tables, tables_of
from tensorrepo.formats.native import coder, planes
from tensorrepo.formats.native.distances import (
    BEST,
    CONTEXTS,
    Numbers,
    bits_of,
)
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LAYER = Struct("<I")  # bytes of tables and symbols of one layer, which follow
assert _LAYER.size == 4, "docs/spec/model.md promises 4 bytes before each layer"
_SAMPLE: Final = 2048  # numbers in a run
_RUNS: Final = 4
_EACH: Final = np.arange(CONTEXTS, dtype=np.uint8)


def layers_seem_better(
    frame: NDArray[Any],
    base: NDArray[Any],
    of: Numbers,
    tokens: NDArray[np.uint8],
    bits: int,
    tables: Tables,
) -> bool:
    """Whether a sample says that the bits below the tokens, which are `bits`, are no noise."""
    if of.size == 1 or bits < 2 * frame.size or frame.size < _SAMPLE:
        return False
    size = min(_SAMPLE, frame.size)
    starts = sorted({(frame.size - size) * run // (_RUNS - 1) for run in range(_RUNS)})
    where = np.concatenate([np.arange(start, start + size) for start in starts])
    some, some_base, tokens = frame[where], base[where], tokens[where]
    left = int(bits_of(tokens).sum(dtype=np.int64))
    groups = len(tables.frequencies)
    contexts = BEST.contexts(some_base, of, tables.groups)
    moved = BEST.differ(some, some_base, of)
    found, enough = 0.0, 0.9 * (_entropy(coder.BEST.count(tokens, contexts, groups)) + left)
    for layer in planes.BEST.split(moved.view(np.uint8), of.size, turn=False)[::-1]:
        if found < enough:  # the last bytes are what is noise, if anything is
            found += _entropy(coder.BEST.count(layer, contexts, groups))
    return found < enough


def _entropy(counts: NDArray[Any]) -> float:
    """Bits of the symbols counted, were there as many as one likes (Miller and Madow)."""
    rows = counts[counts.any(1)].astype(np.float64)
    totals = rows.sum(1)
    bits = (totals * np.log2(totals)).sum() - (rows * np.log2(np.maximum(rows, 1))).sum()
    more = (np.count_nonzero(rows, 1) - 1).sum() / (2 * np.log(2))
    return float(bits + more)


def encode_layers(frame: NDArray[Any], base: NDArray[Any], of: Numbers) -> NDArray[np.uint8]:
    """All layers, the most significant first."""
    contexts = BEST.contexts(base, of, _EACH)
    moved = BEST.differ(frame, base, of)
    parts: list[Any] = []
    for layer in planes.BEST.split(moved.view(np.uint8), of.size, turn=False):
        tables, _ = tables_of(coder.BEST.count(layer, contexts, CONTEXTS))
        head, coded = encode_tables(tables), np.empty(0, np.uint8)
        if not tables.certain:
            groups = tables.groups[contexts]
            coded = coder.BEST.pack(layer, groups, tables.frequencies, lanes_for(layer.size))
        parts += [_LAYER.pack(len(head) + coded.size), head, coded]
    return join_buffers(*parts)


def decode_layers(
    data: NDArray[np.uint8], base: NDArray[Any], of: Numbers, out: NDArray[Any]
) -> None:
    """Fill `out` with the numbers.

    Raises:
        CorruptError: the layers do not decode to exactly so many.
    """
    contexts = BEST.contexts(base, of, _EACH)
    found = np.empty((of.size, out.size), np.uint8)
    at = 0
    for layer in found:
        if data.size - at < _LAYER.size:
            raise CorruptError("layers: a layer is missing")
        (size,) = _LAYER.unpack_from(data.data, at)
        at += _LAYER.size
        if size > data.size - at:
            raise CorruptError("layers: the plane ends inside a layer")
        _decode_layer(data[at : at + size], contexts, layer)
        at += size
    if at != data.size:
        raise CorruptError(f"layers: {data.size - at} bytes after the last one")
    moved = np.empty(out.size, of.dtype)
    planes.BEST.join(list(found), moved.view(np.uint8), turn=False)
    out[...] = BEST.restore(moved, base, of)


def _decode_layer(
    data: NDArray[np.uint8], contexts: NDArray[np.uint8], out: NDArray[np.uint8]
) -> None:
    tables, used = decode_tables(data)
    coded = data[used:]
    groups = tables.groups[contexts]
    if not coded.size and tables.certain:
        np.take(tables.frequencies.argmax(1).astype(np.uint8), groups, out=out)
    elif not coder.BEST.unpack(coded, groups, tables.frequencies, lanes_for(out.size), out):
        raise CorruptError(f"layers: {coded.size} bytes do not decode to {out.size}")
