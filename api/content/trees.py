"""Trees: what lies in a commit, listed by what its tree pages say: no entry is opened."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from pydantic import Field

from tensorrepo.api.content.commit_content import CommitContent, Record
from tensorrepo.formats.common.summaries import list_entry
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import Entry

FOLDER: Final = "folder"
_BEHIND: Final = "\x7f"  # behind all that paths consist of


class TreeEntry(Record):
    """An entry of a tree, or a folder of some."""

    path: str = Field(examples=["datasets/digits"])
    kind: str = Field(description="dataset, model, view, file, run, ...; folder.")
    digest: str | None = Field(default=None, description="Digest of the content; null of a folder.")
    content: str = Field(default="", description="How much it holds, for people.")
    bytes: int | None = Field(default=None, description="Size of the content, decoded.")
    rows: int | None = Field(default=None, description="Of datasets and views.")
    columns: int | None = Field(default=None, description="Of datasets.")
    tensors: int | None = Field(default=None, description="Of models.")
    of: str | None = Field(default=None, description="Of views: path of the dataset.")


class TreeListing(Record):
    """Some entries of a tree, in the order of paths; `after` names the last where more follow."""

    commit: str = Field(description="Digest of the commit that was listed.")
    entries: tuple[TreeEntry, ...]
    after: str | None = None


def tree_entry(path: str, entry: Entry) -> TreeEntry:
    """What a tree says of an entry."""
    listed = list_entry(path, entry)
    facts = listed.facts
    return TreeEntry(
        path=path,
        kind=listed.kind,
        digest=listed.digest,
        content=listed.content,
        bytes=listed.bytes,
        rows=facts.get("rows"),
        columns=facts.get("column_count"),
        tensors=facts.get("tensors"),
        of=facts.get("of"),
    )


def list_tree(
    content: CommitContent,
    prefix: str = "",
    *,
    folders: bool = False,
    after: str | None = None,
    limit: int = 100,
) -> TreeListing:
    """Entries whose paths begin with `prefix`.

    Args:
        content: commit that is listed.
        prefix: beginning of paths, such as ``datasets/``.
        folders: whether what lies in a folder below `prefix` is told as that folder.
        after: path of the last entry, or folder, of the listing before.
        limit: largest number of entries.
    """
    _check_text(prefix)
    _check_text(after or "")
    found = list(islice(_below(content, prefix, after or "", folders=folders), limit + 1))
    more = len(found) > limit
    entries = tuple(found[:limit])
    return TreeListing(
        commit=content.commit, entries=entries, after=entries[-1].path if more else None
    )


def get_entry(content: CommitContent, path: str) -> TreeEntry:
    """What lies at `path`. Raises NotFoundError."""
    return tree_entry(path, content.entry(path))


def _below(
    content: CommitContent, prefix: str, after: str, *, folders: bool
) -> Iterator[TreeEntry]:
    if not folders:
        for path, entry in content.core.entries(content.tree, prefix, after=after):
            yield tree_entry(path, entry)
        return
    after = f"{after}{_BEHIND}" if after.endswith("/") else after
    while step := next(content.core.entries(content.tree, prefix, after=after), None):
        path, entry = step
        folder, slash, _ = path.removeprefix(prefix).partition("/")
        if slash:
            yield TreeEntry(path=f"{prefix}{folder}/", kind=FOLDER)
            after = f"{prefix}{folder}/{_BEHIND}"
        else:
            yield tree_entry(path, entry)
            after = path


def _check_text(path: str) -> None:
    if not path.isascii() or len(path) > 4096:
        raise InvalidInputError(f"{path!r:.120} is no beginning of a path: those are of ASCII")
