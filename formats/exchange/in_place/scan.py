"""Interface of scans that adopt one file in place.

A scan looks at one file and says which columns it has; afterwards it says where the rows of
fragments lie in it. No row is copied, except those so small that a reference would be larger.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.external.foreign import VERSION, ForeignFile, ForeignPlace
from tensorrepo.formats.dataset.external.outside import Outside, Stat
from tensorrepo.formats.dataset.external.outside_read import OutsideFile
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.repo.deferred_dataclass import dataclass

FRAGMENT_BYTES = 64 << 20
FRAGMENT_ROWS = 1 << 20  # however small the rows are
PAGE_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AdoptedSource:
    """One file to adopt: `version` is what it is now, `hash` its BLAKE3 or empty."""

    url: str
    outside: Outside
    version: Stat
    hash: bytes = b""

    def file(self) -> OutsideFile:
        """Its bytes, for decoders that read where they like."""
        return OutsideFile(self.outside, self.url, self.version)

    def open(self) -> IO[bytes]:
        """Its bytes, read ahead."""
        return cast("IO[bytes]", io.BufferedReader(self.file(), _BUFFER_BYTES))

    def describe(self, format_name: str, columns: dict[str, ForeignPlace]) -> ForeignFile:
        """The object that stands for it; `columns` by their ids."""
        version = self.version
        return ForeignFile(
            VERSION, format_name, self.url, version.size, version.etag, self.hash, columns
        )


@dataclass(frozen=True, slots=True, eq=False)
class AdoptedFragment:
    """Rows of one file: PAGE_ENTRY records by column id, the pages of each as `file` has them."""

    rows: int
    file: ForeignFile
    entries: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class FileScan:
    """One file, looked at. `fragments` is given the schema with the ids that columns have."""

    schema: Schema
    fragments: Callable[[Schema], Iterator[AdoptedFragment]]
    notes: tuple[str, ...] = ()


def page_bounds(sizes: NDArray[np.int64]) -> list[int]:
    """Where pages end, for all columns at the same rows.

    Args:
        sizes: int64 ``(rows, columns)``, bytes of each value; at least one row.

    Returns:
        Row numbers from 0 to the number of rows; the bytes of a page are at most `PAGE_BYTES`,
        unless it is a single row.
    """
    ends = np.cumsum(sizes, axis=0)
    bounds = [0]
    while bounds[-1] < len(sizes):
        at = bounds[-1]
        before = ends[at - 1] if at else np.zeros(sizes.shape[1], np.int64)
        stops = [
            int(np.searchsorted(column, start + PAGE_BYTES, side="right"))
            for column, start in zip(ends.T, before.tolist(), strict=True)
        ]
        bounds.append(max(at + 1, min(stops)))
    return bounds
