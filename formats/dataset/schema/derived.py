"""Derived columns: size and mode of every image, and small pictures, hidden beside it.

Size and mode are read from the header of its encoded bytes, so that a query can choose images
without touching them. Null where the image is, or where its header cannot be read. Small pictures
are the coarse scans of those that can be written as progressive JPEGs, and the image else.

Source:
    docs/spec/dataset.md, section "Schema".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from tensorrepo.formats.dataset.schema.schema import IMAGE_FACTS, SMALL_IMAGE, Schema
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    binary_of,
    valid_rows,
)
from tensorrepo.formats.images.headers import ImageHeader, header_of
from tensorrepo.formats.images.progressive import small_picture
from tensorrepo.repo.errors import UnsupportedError

MAX_SIZE = (1 << 32) - 1

Headers = Sequence[ImageHeader | None]


def derived_values(
    schema: Schema,
    given: Mapping[str, ColumnValues],
    known: Mapping[str, Headers] = MappingProxyType({}),
) -> dict[str, ColumnValues]:
    """The values of every derived column, by name.

    `given` are values of the columns that they are derived from, `known` headers of images that
    were read before, both by the name of their column.

    Raises:
        UnsupportedError: a fact that this version cannot compute.
    """
    names = {column.id: column.name for column in schema.columns}
    ids = {column.name: column.id for column in schema.columns}
    headers = {ids[name]: each for name, each in known.items()}
    found: dict[str, ColumnValues] = {}
    for column in schema.columns:
        if column.derived is None:
            continue
        source, fact = column.derived
        values = given.get(names.get(source, ""))
        if not isinstance(values, BinaryValues):
            raise UnsupportedError(f"column {column.name!r} is derived from {source}: not an image")
        if fact == SMALL_IMAGE:
            found[column.name] = _small(values)
            continue
        if source not in headers:
            headers[source] = read_headers(values)
        found[column.name] = _fact(fact, headers[source])
    return found


def read_headers(values: BinaryValues) -> Headers:
    """What each image says of itself; None for null rows and where it says nothing."""
    encoded = values.data.data
    bounds = pairwise(values.offsets.tolist())
    present = valid_rows(values).tolist()
    return [
        header_of(encoded[start:stop]) if here else None
        for (start, stop), here in zip(bounds, present, strict=True)
    ]


def _small(values: BinaryValues) -> ColumnValues:
    """The first bands of every picture, as files; of what has none the whole."""
    bounds = pairwise(values.offsets.tolist())
    present = valid_rows(values).tolist()
    return binary_of(
        [
            small_picture(values.data[start:stop].tobytes()) if here else None
            for (start, stop), here in zip(bounds, present, strict=True)
        ]
    )


def _fact(fact: str, headers: Headers) -> ColumnValues:
    if fact not in IMAGE_FACTS:
        raise UnsupportedError(f"images have no {fact!r} that is known here. Update tensorrepo.")
    facts = [None if header is None else getattr(header, fact) for header in headers]
    if fact == "mode":
        return binary_of([mode.encode("ascii") if mode else None for mode in facts])
    values = np.array([size if size and size <= MAX_SIZE else 0 for size in facts], "<u4")
    return FixedValues(values, None if values.all() else values > 0)
