"""Summaries of entries, as tree items hold them: what a listing shows without opening the entry.

A summary follows from the content alone: whoever stores an entry makes its summary here, and `fsck`
makes it again.

Source:
    docs/spec/trees.md, section "Summary".
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from tensorrepo.formats.common.arguments import counted
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.history.tree_pages import MAX_SUMMARY_BYTES
from tensorrepo.repo.history.trees import FILE_SUMMARY, Entry
from tensorrepo.repo.objects.envelope import Kind

DATASET_SUMMARY: Final = Struct("<QQQ")  # rows, columns, stored bytes
MODEL_SUMMARY: Final = Struct("<QQ")  # tensors, aliases counted; bytes of all tensors
VIEW_SUMMARY: Final = Struct("<QQ")  # rows, bytes of the view; the path of its dataset follows
_PATH_BYTES: Final = MAX_SUMMARY_BYTES - VIEW_SUMMARY.size


@dataclass(frozen=True, slots=True)
class EntrySummary:
    """An entry in a listing.

    Attributes:
        kind: kind of the entry, in a word.
        content: how much it holds, for people.
        bytes: bytes of its content when decoded.
    """

    kind: str
    content: str
    bytes: int


def dataset_summary(*, rows: int, columns: int, stored_bytes: int) -> bytes:
    return DATASET_SUMMARY.pack(rows, columns, stored_bytes)


def model_summary(*, tensors: int, tensor_bytes: int) -> bytes:
    return MODEL_SUMMARY.pack(tensors, tensor_bytes)


def view_summary(*, rows: int, view_bytes: int, path: str) -> bytes:
    """Of a view, with as much of its dataset's path as there is room for."""
    return VIEW_SUMMARY.pack(rows, view_bytes) + path.encode("ascii")[:_PATH_BYTES]


def read_summary(entry: Entry) -> EntrySummary:
    """What the summary of an entry says.

    Raises:
        CorruptError: it has no summary of its kind.
    """
    kind = "file" if entry.kind is Kind.BLOB else entry.kind.label
    form, rest = _FORMS.get(entry.kind, (_EMPTY, 0))
    beyond = len(entry.summary) - form.size
    if not 0 <= beyond <= rest:
        raise CorruptError(
            f"{kind} {entry.digest:.12}: expected a summary of {form.size} bytes, found "
            f"{len(entry.summary)}. `tensorrepo fsck` checks all."
        )
    values = form.unpack_from(entry.summary)
    if entry.kind is Kind.DATASET:
        rows, columns, size_bytes = values
        return EntrySummary(kind, f"{rows:,} rows x {columns} columns", size_bytes)
    if entry.kind is Kind.MODEL:
        tensors, size_bytes = values
        return EntrySummary(kind, counted(tensors, "tensor"), size_bytes)
    if entry.kind is Kind.VIEW:
        rows, size_bytes = values
        path = entry.summary[form.size :].decode("ascii", "replace")
        cut = "..." if len(path) == _PATH_BYTES else ""
        return EntrySummary(kind, f"{counted(rows, 'row')} of {path}{cut}", size_bytes)
    size_bytes = values[0] if values else 0
    return EntrySummary(kind, f"{size_bytes:,} bytes", size_bytes)


_EMPTY: Final = Struct("")
# kind: form of the summary, and how many bytes may follow
_FORMS: Final = {
    Kind.BLOB: (FILE_SUMMARY, 0),
    Kind.DATASET: (DATASET_SUMMARY, 0),
    Kind.MODEL: (MODEL_SUMMARY, 0),
    Kind.VIEW: (VIEW_SUMMARY, _PATH_BYTES),
}
