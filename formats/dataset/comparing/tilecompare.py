"""Which rows of a tiled column have the same tiles in two versions for certain?

Tile tables tell, without reading a tile: each record holds the truncated BLAKE3 of its tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.columns.types import Layout, Storage
from tensorrepo.formats.dataset.columns.values import BinaryValues
from tensorrepo.formats.dataset.comparing.cellequal import differing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.values import TiledValues
    from tensorrepo.formats.dataset.rows.pageread import PageReader

_BYTES = Storage(Layout.BINARY, "uint8", ())


def same_tiles(
    old: PageReader,
    new: PageReader,
    old_rows: NDArray[np.int64],
    new_rows: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Whether row ``old_rows[i]`` is row ``new_rows[i]``, tile by tile; False: nobody knows yet."""
    same = np.zeros(len(old_rows), np.bool_)
    pages = np.stack([old.index.page_of(old_rows), new.index.page_of(new_rows)])
    for page, other in np.unique(pages, axis=1).T.tolist():
        if old.is_tiled(page) and new.is_tiled(other) and old.storage(page) == new.storage(other):
            at = np.flatnonzero((pages[0] == page) & (pages[1] == other))
            one = old.tile_table(page).take(old_rows[at] - old.index.first_row[page])
            two = new.tile_table(other).take(new_rows[at] - new.index.first_row[other])
            same[at] = ~_differing(one, two)
    for reader, rows in ((old, old_rows), (new, new_rows)):
        if reader.index.patches is not None:
            same[reader.index.patches.among(rows)[0]] = False
    return same


def _differing(old: TiledValues, new: TiledValues) -> NDArray[np.bool_]:
    found = differing(_proofs(old), _proofs(new), _BYTES, _BYTES)
    found |= (old.dims != new.dims).any(axis=1)
    return found


def _proofs(table: TiledValues) -> BinaryValues:
    """Of each row what proves its tiles, as bytes: their tags, and the codecs that decode them."""
    used = table.tiles[table.offsets[0] : table.offsets[-1]]
    proofs = np.zeros((len(used), 17), np.uint8)
    proofs[:, :16] = np.frombuffer(used["tag"].tobytes(), np.uint8).reshape(-1, 16)
    proofs[:, 16] = used["codec"]
    return BinaryValues((table.offsets - table.offsets[0]) * 17, proofs.reshape(-1), table.valid)
