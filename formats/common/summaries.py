"""Summaries of entries, as tree items hold them: what a listing shows without opening the entry.

A summary follows from the content alone: whoever stores an entry makes its summary here, and `fsck`
makes it again.

Source:
    docs/spec/trees.md, section "Summary".
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from tensorrepo.formats.common.arguments import counted
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.history.tree_pages import MAX_SUMMARY_BYTES
from tensorrepo.repo.history.trees import FILE_SUMMARY, Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind

DATASET_SUMMARY: Final = Struct("<QQQ")  # rows, columns, stored bytes
MODEL_SUMMARY: Final = Struct("<QQ")  # tensors, aliases counted; bytes of all tensors
VIEW_SUMMARY: Final = Struct("<QQ")  # rows, bytes of the view; the path of its dataset follows
INDEX_SUMMARY: Final = Struct("<QQ")  # rows, bytes of its files; its kind follows
_PATH_BYTES: Final = MAX_SUMMARY_BYTES - VIEW_SUMMARY.size
_KIND_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """An entry in a listing.

    Attributes:
        path: path of the entry.
        kind: kind of the entry, in a word.
        content: how much it holds, for people.
        bytes: bytes of its content when decoded.
        digest: digest of the entry.
        facts: what `content` says, for programs: numbers of rows and columns, or of tensors.
    """

    path: str
    kind: str
    content: str
    bytes: int
    digest: Digest
    facts: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        named = {"path": self.path, "kind": self.kind, "digest": self.digest, "bytes": self.bytes}
        return named | dict(self.facts)


def dataset_summary(*, rows: int, columns: int, stored_bytes: int) -> bytes:
    return DATASET_SUMMARY.pack(rows, columns, stored_bytes)


def model_summary(*, tensors: int, tensor_bytes: int) -> bytes:
    return MODEL_SUMMARY.pack(tensors, tensor_bytes)


def summarized_model(entry: Entry) -> tuple[int, int] | None:
    """Tensors, aliases counted, and bytes of a model, as its summary says; None: it has none."""
    if entry.kind is not Kind.MODEL or len(entry.summary) != MODEL_SUMMARY.size:
        return None
    tensors, size_bytes = MODEL_SUMMARY.unpack(entry.summary)
    return tensors, size_bytes


def view_summary(*, rows: int, view_bytes: int, path: str) -> bytes:
    """Of a view, with as much of its dataset's path as there is room for."""
    return VIEW_SUMMARY.pack(rows, view_bytes) + path.encode("ascii")[:_PATH_BYTES]


def index_summary(*, rows: int, index_bytes: int, kind: str) -> bytes:
    return INDEX_SUMMARY.pack(rows, index_bytes) + kind.encode("ascii")[:_KIND_BYTES]


def decoded_bytes(path: str, entry: Entry) -> int:
    """Bytes of the content of the entry at `path` when decoded; see `list_entry`."""
    return list_entry(path, entry).bytes


def list_entry(path: str, entry: Entry) -> ListedEntry:
    """What the tree says of the entry at `path`; nothing is read for it.

    Raises:
        CorruptError: it has no summary of its kind.
    """
    form, most = _FORMS.get(entry.kind, (_EMPTY, 0))
    rest = entry.summary[form.size :]
    if len(entry.summary) < form.size or len(rest) > most:
        raise CorruptError(
            f"{path}: expected a summary of {form.size} bytes, found {len(entry.summary)}. "
            "`tensorrepo fsck` checks all."
        )
    counts = form.unpack_from(entry.summary)
    kind = "file" if entry.kind is Kind.BLOB else entry.kind.label
    size_bytes = counts[-1] if counts else 0
    content, facts = _content(entry.kind, counts, rest), _facts(entry.kind, counts, rest)
    return ListedEntry(path, kind, content, size_bytes, entry.digest, facts)


def _content(kind: Kind, counts: tuple[int, ...], rest: bytes) -> str:
    if kind is Kind.DATASET:
        return shape_text(counts[0], counts[1])
    if kind is Kind.MODEL:
        return counted(counts[0], "tensor")
    if kind is Kind.VIEW:
        cut = "..." if len(rest) == _PATH_BYTES else ""
        return f"{counted(counts[0], 'row')} of {rest.decode('ascii', 'replace')}{cut}"
    if kind is Kind.SEARCH_INDEX:
        return f"{rest.decode('ascii', 'replace')} of {counted(counts[0], 'row')}"
    return counted(counts[0] if counts else 0, "byte")


def shape_text(rows: int, columns: int) -> str:
    """``1,000 rows x 3 columns``."""
    return f"{counted(rows, 'row')} x {counted(columns, 'column')}"


def _facts(kind: Kind, counts: tuple[int, ...], rest: bytes) -> dict[str, Any]:
    if kind is Kind.DATASET:
        return {"rows": counts[0], "column_count": counts[1]}
    if kind is Kind.MODEL:
        return {"tensors": counts[0]}
    if kind is Kind.VIEW:
        whole = len(rest) < _PATH_BYTES
        return {"rows": counts[0], "of": rest.decode("ascii", "replace") if whole else None}
    if kind is Kind.SEARCH_INDEX:
        return {"rows": counts[0], "index": rest.decode("ascii", "replace")}
    return {}


_EMPTY: Final = Struct("")
# kind: form of the summary, and how many bytes may follow
_FORMS: Final = {
    Kind.BLOB: (FILE_SUMMARY, 0),
    Kind.DATASET: (DATASET_SUMMARY, 0),
    Kind.MODEL: (MODEL_SUMMARY, 0),
    Kind.VIEW: (VIEW_SUMMARY, _PATH_BYTES),
    Kind.SEARCH_INDEX: (INDEX_SUMMARY, _KIND_BYTES),
}
