"""Which values were set after their pages had been written?

A patch index covers one column over a run of fragments. It is a page index whose pages hold the new
values, with two more arrays: the fragment of each page, and the offset in it of each value. Where
two pages set one row, the later page counts.

Source:
    docs/spec/dataset.md, section "Patch index".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.pages.sections import decode_sections, section_array
from tensorrepo.formats.dataset.tree.index import (
    INDEX_MAGIC,
    KNOWN,
    PageIndex,
    encode_index,
    index_of,
)
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.repo.ids import Buffer

FRAGMENT_OF, OFFSETS = 16, 17


@dataclass(frozen=True, slots=True, eq=False)
class PatchIndex:
    """Patches of one column.

    Attributes:
        index: pages of one column; of an entry, `first_row` is the place of its first value in
            `offsets`, `rows` their number.
        fragment: uint32 ``(pages,)``, counted within the span, ascending.
        offsets: uint32 ``(values,)``: ascending within a page.
    """

    index: PageIndex
    fragment: NDArray[np.uint32]
    offsets: NDArray[np.uint32]


def encode_patch_index(patch: PatchIndex) -> bytes:
    """The payload of a patch index; its links are those of `patch.index`."""
    more: dict[int, NDArray[Any]] = {
        FRAGMENT_OF: patch.fragment.astype("<u4"),
        OFFSETS: patch.offsets.astype("<u4"),
    }
    return encode_index(patch.index, more)


def decode_patch_index(payload: Buffer, what: str) -> PatchIndex:
    """Parse the payload of a patch index; `what` names it in errors.

    Raises:
        CorruptError: the parts contradict each other.
    """
    sections = decode_sections(INDEX_MAGIC, payload, what)
    if unknown := sections.keys() - KNOWN - {FRAGMENT_OF, OFFSETS}:
        raise CorruptError(f"{what}: sections {sorted(unknown)} in a patch")
    index = index_of(sections, what)
    fragment = section_array(sections, FRAGMENT_OF, np.dtype("<u4"), what)
    offsets = section_array(sections, OFFSETS, np.dtype("<u4"), what)
    if len(index.columns) != 1 or len(fragment) != len(index.columns[0].entries):
        raise CorruptError(f"{what}: a patch has one column, and a fragment for each page")
    entries = index.columns[0].entries
    if not len(entries) or not entries["rows"].all():
        raise CorruptError(f"{what}: a patch has pages, and none without rows")
    stops = np.cumsum(entries["rows"], dtype=np.int64)
    if (entries["first_row"] != stops - entries["rows"]).any() or stops[-1] != len(offsets):
        raise CorruptError(f"{what}: pages and offsets of a patch do not match")
    rises = np.diff(offsets.astype(np.int64)) > 0
    rises[stops[:-1] - 1] = True
    if (np.diff(fragment.astype(np.int64)) < 0).any() or not rises.all():
        raise CorruptError(f"{what}: fragments or offsets of a patch are out of order")
    return PatchIndex(index, fragment, offsets)


def patched_rows(
    patch: PatchIndex, fragment_start: NDArray[np.int64], fragment_rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The row of the dataset that each value is for, given where the fragments begin in it.

    Raises:
        CorruptError: a fragment beyond those that the span covers, or a row beyond its fragment's.
    """
    if len(patch.fragment) and int(patch.fragment[-1]) >= len(fragment_start):
        raise CorruptError("patch: a fragment beyond those that it covers")
    fragment = np.repeat(patch.fragment, patch.index.columns[0].entries["rows"])
    if (patch.offsets >= fragment_rows[fragment]).any():
        raise CorruptError("patch: a row beyond those of its fragment")
    return fragment_start[fragment] + patch.offsets
