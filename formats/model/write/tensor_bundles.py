"""Bundles: small tensors of one type and shape, read, hashed and encoded together.

A model may have thousands of small tensors, and what is done for each of them in Python takes
longer than to encode it. Here some hundred of them are the rows of one array: they are copied,
split into byte planes and packed by few calls for all. What is chosen for each is what would be
chosen for it alone, see `encoding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import read_rows
from tensorrepo.formats.model.delta.distances import encode_against
from tensorrepo.formats.model.delta.frame_codec import MAX_VALUES, numbers_of
from tensorrepo.formats.model.delta.plane_codec import PlaneCodec, StoredPlane
from tensorrepo.formats.model.delta.registry import PALETTE, PLANES
from tensorrepo.formats.model.layout.fingerprints import (
    INLINE_BYTES,
    fingerprints,
    frame_digests,
)
from tensorrepo.formats.model.write.encoding import (
    LEAST_BYTES,
    EncodingChoice,
    pays_alone,
    ways_alone,
)
from tensorrepo.formats.model.write.tensor_chunks import TensorChunk, TensorPart
from tensorrepo.formats.native import encoding
from tensorrepo.formats.native.encoding import MOST_PLANE_BYTES


def is_bundled(part: TensorPart) -> bool:
    """Whether a part may be a row of a bundle: a whole tensor whose planes are small."""
    if not part.is_whole or part.size_bytes <= INLINE_BYTES:
        return False
    return part.size_bytes <= MOST_PLANE_BYTES * numbers_of(part.reader.type).size


class EncodedRow(NamedTuple):
    """How a tensor is stored: its planes, and the way; None: as it is."""

    way: EncodingChoice | None
    planes: Sequence[StoredPlane]


def read_together(chunks: Sequence[TensorChunk]) -> NDArray[np.uint8]:
    """Read and hash whole tensors of one type and shape; their bytes, a row each.

    Raises:
        InvalidInputError: one of them cannot be read.
    """
    part = chunks[0].part
    rows = np.empty((len(chunks), part.size_bytes), np.uint8)
    read = read_rows([chunk.part.reader for chunk in chunks], rows)
    for chunk, row in zip(chunks[read:], rows[read:], strict=True):
        row[:] = np.frombuffer(chunk.frame(0), np.uint8)  # it says what is wrong, and with which
    digests = frame_digests(rows)
    names = fingerprints(part.reader.type, tuple(part.reader.shape), digests)
    for chunk, row, digest, name in zip(chunks, rows, digests, names, strict=True):
        chunk.hold(row, digest, name)
    return rows


def encode_rows_alone(part: TensorPart, rows: NDArray[np.uint8]) -> list[EncodedRow | None]:
    """What `choose_way` and `encode_frame` make of tensors like `part` that have no bases.

    None for one that has few values, for which there is more to try.
    """
    size, element = part.size_bytes, part.reader.type
    if size < LEAST_BYTES:
        return [EncodedRow(None, _as_it_is(row)) for row in rows]
    ways = {way.codec.name: way for way in ways_alone(element, tuple(part.reader.shape))}
    if not ways.keys() <= {PLANES.name, PALETTE.name}:
        return [None] * len(rows)
    has_more_values, dtype = encoding.BEST.has_more_values, numbers_of(element).dtype
    found: list[EncodedRow | None] = []
    for row, planes in zip(rows, PLANES.encode_together(rows, element), strict=True):
        share = sum([len(plane.data) for plane in planes]) / size
        if PALETTE.name in ways and not has_more_values(row.view(dtype), MAX_VALUES):
            found.append(None)
        elif pays_alone(share, size):
            found.append(EncodedRow(ways[PLANES.name], planes))
        else:
            found.append(EncodedRow(None, _as_it_is(row)))
    return found


def encode_rows_against(
    part: TensorPart, rows: NDArray[np.uint8], bases: NDArray[np.uint8]
) -> list[StoredPlane]:
    """What codec `delta` makes of tensors like `part`, each against its base."""
    of = numbers_of(part.reader.type)
    dtype = of.dtype
    return [
        encode_against(row, base, of)
        for row, base in zip(rows.view(dtype), bases.view(dtype), strict=True)
    ]


def _as_it_is(row: NDArray[np.uint8]) -> list[StoredPlane]:
    """The one plane of a row, in memory of its own: a pack would keep all of the bundle's."""
    return [StoredPlane(PlaneCodec.RAW, row.tobytes())]
