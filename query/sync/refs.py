"""Where do refs stand now, and what does the tree of each hold?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import bindparam, delete

from tensorrepo.query import tables
from tensorrepo.query.sync.loader import delete_where
from tensorrepo.repo.commits import read_commit
from tensorrepo.repo.errors import CommitExpired, NotFoundError
from tensorrepo.repo.trees import EMPTY_TREE, differences

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection

    from tensorrepo.query.sync.loader import Loader, Rows
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import ObjectSource
    from tensorrepo.repo.trees import Change

Refs = "Mapping[str, Digest]"


def move_refs(
    objects: ObjectSource,
    loader: Loader,
    old: Mapping[str, Digest],
    new: Mapping[str, Digest],
) -> None:
    """Make the rows of refs those of `new`; they are those of `old`."""
    gone = [name for name in old if name not in new]
    for column in (tables.ref.c.name, tables.entry.c.ref):
        delete_where(loader.connection, column, gone)
    changed = [name for name in sorted(new) if old.get(name) != new[name]]
    delete_where(loader.connection, tables.ref.c.name, [name for name in changed if name in old])
    for name in changed:
        loader.add([(tables.ref, (name, name.partition("/")[0], new[name]))])
        _move_entries(objects, loader, name, old.get(name), new[name])


def _move_entries(
    objects: ObjectSource, loader: Loader, ref: str, old: Digest | None, new: Digest
) -> None:
    tree = read_commit(objects, new).tree
    before = EMPTY_TREE
    if old is not None:
        try:
            before = read_commit(objects, old).tree
            changes = list(differences(objects, before, tree))
        except (CommitExpired, NotFoundError):  # collected since: begin anew
            delete_where(loader.connection, tables.entry.c.ref, [ref])
        else:
            _delete_entries(loader.connection, ref, changes)
            loader.add(_entry_rows(ref, iter(changes)))
            return
    loader.add(_entry_rows(ref, differences(objects, EMPTY_TREE, tree)))


def _delete_entries(connection: Connection, ref: str, changes: list[Change]) -> None:
    paths = [{"of": ref, "at": change.path} for change in changes if change.old is not None]
    if paths:
        entry = tables.entry
        which = (entry.c.ref == bindparam("of"), entry.c.path == bindparam("at"))
        connection.execute(delete(entry).where(*which), paths)


def _entry_rows(ref: str, changes: Iterator[Change]) -> Rows:
    for change in changes:
        found = change.new
        if found is not None:
            row = (ref, change.path, found.kind.label, found.digest, found.storage)
            yield tables.entry, row
