"""Which models are registered, as the refs and the branch of descriptions say now?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from tensorrepo.query import tables
from tensorrepo.query.sync.values import as_json
from tensorrepo.repo.about import BRANCH, About, Words, described
from tensorrepo.repo.registry import SPACE, registered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection

    from tensorrepo.query.sync.loader import Loader, Rows
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View
    from tensorrepo.repo.registry import Registered
    from tensorrepo.repo.repository import Repository

_TABLES = (tables.registered_model, tables.registered_version, tables.registered_alias)


def move_registry(repository: Repository, loader: Loader, old: View, new: View) -> None:
    """Make the rows of the registry those of `new`, when it changed since `old`.

    Called when the refs are those of `new`, and their entries are in the tables.
    """
    if _its_refs(old) == _its_refs(new):
        return
    for table in _TABLES:
        loader.connection.execute(table.delete())
    commit = new.state.refs.get(f"heads/{BRANCH}")
    found = () if commit is None else described(repository, commit)
    said = {model: about for model, about in found if not about.gone}
    loader.add(_rows(loader.connection, registered(new), said))
    loader.flush()


def _its_refs(view: View) -> dict[str, Digest]:
    branch = f"heads/{BRANCH}"
    refs = view.state.refs.items()
    return {ref: at for ref, at in refs if ref.startswith(SPACE) or ref == branch}


def _rows(
    connection: Connection, known: Mapping[str, Registered], said: Mapping[str, About]
) -> Rows:
    digests = dict(_digests(connection))
    for model in sorted({*known, *said}):
        about = said.get(model, About())
        yield tables.registered_model, (model, *_words(about.entry))
        one = known.get(model)
        for number, commit in one.versions.items() if one else ():
            path, digest = f"models/{model}", digests.get(f"{SPACE}{model}/v/{number}", "")
            words = _words(about.of(number))
            yield tables.registered_version, (model, number, commit, path, digest, *words)
        for alias, commit in one.aliases.items() if one else ():
            number_of = one.number_of(commit) if one else None
            yield tables.registered_alias, (model, alias, number_of or 0, commit)


def _digests(connection: Connection) -> Iterator[tuple[str, str]]:
    """What each version's tree holds: its one entry."""
    entry = tables.entry
    query = select(entry.c.ref, entry.c.digest).where(
        entry.c.ref >= SPACE,
        entry.c.ref < SPACE[:-1] + "0",  # "0" comes behind "/"
    )
    for row in connection.execute(query):
        yield row.ref, row.digest


def _words(words: Words) -> tuple[Any, str]:
    return words.description, as_json(words.labels)
