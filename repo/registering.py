"""Registry writes: give an entry the next version number, move an alias, protect it.

Each verb appends one record, decided anew on every head: of two who register at once, one gets the
next number, and the other the one after it. A number is given once, also when it is deleted.

Source:
    docs/spec/registry.md.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec

from tensorrepo.repo.about import About, about_at, check_registered_name, edit_about
from tensorrepo.repo.attempt import Attempt
from tensorrepo.repo.commits import read_commit
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.records import MAX_RECORD_BYTES, LogEntry, Update
from tensorrepo.repo.refs import refuse_taken
from tensorrepo.repo.registry import (
    PROTECTED,
    REGISTERED,
    Registered,
    RegisteredVersion,
    alias_ref,
    existing,
    find_version,
    no_alias,
    number_of,
    protected_refs,
    registered,
    version_ref,
)
from tensorrepo.repo.series import begin_beside
from tensorrepo.repo.trees import EMPTY_TREE, update

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorrepo.repo.commits import Json
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View
    from tensorrepo.repo.repository import Repository

MOST_AT_ONCE: Final = MAX_RECORD_BYTES * 3 // 4  # bytes of updates in a record that has others
_UPDATE_BYTES: Final = 128  # of an update beside its ref: a digest, and what JSON puts around


@dataclass(frozen=True, slots=True)
class Shelf:
    """What is registered: entries of one kind.

    Attributes:
        kind: kind that an entry must have.
        noun: name of such an entry, in messages and in the metadata of a version's commit.
        folder: folder of the entry in the tree of a version's commit, with its slash.
    """

    kind: Kind
    noun: str
    folder: str


def register(
    repository: Repository,
    name: str,
    source: Digest,
    path: str,
    *,
    shelf: Shelf,
    author: str,
    message: str = "",
    alias: str | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> RegisteredVersion:
    """Make the entry at `path` of commit `source` the next version of `name`.

    Args:
        repository: repository that holds the entry.
        name: name to register it under; one without versions begins with 1.
        source: commit to take the entry from.
        path: path of the entry in `source`.
        shelf: kind of entry that is registered, and how it is called.
        author: author of the registration.
        message: message of the version's commit.
        alias: alias that names the new version from then on, moved in the same record.
        clock: UTC in ns.

    Raises:
        NotFoundError: nothing at `path`.
        InvalidInputError: the entry is of another kind, or `name` cannot be registered.
        ConflictError: the alias is protected. Nothing changed.
    """
    check_registered_name(name, shelf.folder)
    if alias is not None:
        alias_ref(name, alias)
    entry = repository.entry(read_commit(repository.objects, source).tree, path)
    if entry is None:
        raise NotFoundError(f"no {path} in commit {source:.12}: nothing was registered")
    if entry.kind is not shelf.kind:
        raise InvalidInputError(f"{path} is a {entry.kind.label}: versions are of {shelf.noun}s")
    facts: dict[str, Json] = {shelf.noun: name, "path": path, "id": secrets.token_hex(8)}
    with begin_beside(repository, version_ref(name, 1)) as transaction:
        transaction.stage(f"{shelf.folder}{name}", entry, since=0)
        tree = update(transaction.objects, EMPTY_TREE, transaction.staged)
        attempt = _Numbered(
            transaction,
            lambda _: tree,
            message or f"Register {path} as a version of {name}",
            author,
            clock(),
            {REGISTERED: facts},
            others=(source,),
            name=name,
            alias=alias,
        )
        made = attempt.run()
    aliases = () if alias is None else (alias,)
    return RegisteredVersion(
        name, attempt.number, made.digest, source, path, author, made.commit.time_ns, aliases
    )


def delete_version(repository: Repository, name: str, number: int, *, actor: str) -> Digest:
    """Remove a version; its number is not given again, and its commit comes back by its digest.

    Raises:
        ConflictError: an alias names it. Nothing changed.
    """
    one = existing(repository.log.refresh(), name)
    number_of(one, name, number)
    if number == max(one.versions):
        edit_about(repository, name, _given(number), author=actor)

    def decide(view: View) -> LogEntry:
        now = existing(view, name)
        commit = now.versions[number_of(now, name, number)]
        if naming := [alias for alias, at in now.aliases.items() if at == commit]:
            raise ConflictError(
                f"version {number} of {name} has the alias {naming[0]!r}: move or remove it first"
            )
        return _entry("ref-delete", actor, Update(version_ref(name, number), commit, None))

    _append(repository, decide)
    return one.versions[number]


def delete_registered(repository: Repository, name: str, *, actor: str) -> int:
    """Remove all versions and aliases of a name; gives how many versions there were.

    What was said about it goes, too; the largest number that was given stays known. A version that
    somebody registers meanwhile stays, as if it had been registered right after.

    Raises:
        NotFoundError: there is no such name.
        ConflictError: an alias is protected. Nothing changed.
    """
    view = repository.log.refresh()
    about = about_at(repository, view, name)
    if about is None or about.gone:
        existing(view, name)
    one = registered(view).get(name, Registered())
    for alias in one.aliases:
        _refuse_protected(view, name, alias)
    edit_about(repository, name, _forgotten(max(one.versions, default=0)), author=actor)

    def decide(view: View) -> LogEntry | None:
        going = _going(view, name, one)
        for alias in registered(view).get(name, Registered()).aliases:
            if alias_ref(name, alias) in going:
                _refuse_protected(view, name, alias)
        updates = [Update(ref, commit, None) for ref, commit in going.items()]
        return _entry("ref-delete", actor, *_that_fit(updates)) if updates else None

    while _going(repository.log.refresh(), name, one):
        _append(repository, decide)
    return len(one.versions)


def set_alias(
    repository: Repository, name: str, alias: str, which: int | str, *, actor: str
) -> int:
    """Let an alias name a version, by its number or by another alias; gives the number.

    Raises:
        ConflictError: the alias is protected. Nothing changed.
    """
    ref = alias_ref(name, alias)

    def decide(view: View) -> LogEntry | None:
        one = existing(view, name)
        old, new = one.aliases.get(alias), one.versions[number_of(one, name, which)]
        told = f"version {one.number_of(new)}"
        if old == new:
            return None
        if old is None:
            return _entry("ref-create", actor, Update(ref, None, new), note=told)
        _refuse_protected(view, name, alias)
        return _entry("ref-reset", actor, Update(ref, old, new), note=told)

    _append(repository, decide)
    return find_version(repository, name, alias).number


def delete_alias(repository: Repository, name: str, alias: str, *, actor: str) -> None:
    """Remove an alias; the version stays. Raises ConflictError when it is protected."""
    ref = alias_ref(name, alias)

    def decide(view: View) -> LogEntry:
        one = existing(view, name)
        if alias not in one.aliases:
            raise NotFoundError(no_alias(one, name, alias))
        _refuse_protected(view, name, alias)
        return _entry("ref-delete", actor, Update(ref, one.aliases[alias], None))

    _append(repository, decide)


def protect_alias(
    repository: Repository, name: str, alias: str, *, actor: str, on: bool = True
) -> None:
    """Refuse, or allow again, to move and remove an alias; it need not exist yet."""
    ref = alias_ref(name, alias)

    def decide(view: View) -> LogEntry | None:
        existing(view, name)
        held = protected_refs(view)
        wanted = (*held, ref) if on else tuple(one for one in held if one != ref)
        if wanted == held or (on and ref in held):
            return None
        return LogEntry(
            secrets.token_hex(16),
            "config",
            actor,
            time.time_ns(),
            data={"set": {PROTECTED: tuple(sorted(set(wanted)))}},
        )

    _append(repository, decide)


def _refuse_protected(view: View, name: str, alias: str) -> None:
    """The log refuses it anyhow; here it is said in the words of a registry."""
    if alias_ref(name, alias) in protected_refs(view):
        raise ConflictError(
            f"alias {alias!r} of {name} is protected: it may neither move nor go. "
            f"`tensorrepo registry protect {name} {alias} --off` allows it again."
        )


def _append(repository: Repository, decide: Callable[[View], LogEntry | None]) -> None:
    """Append what is decided on the head; None: nothing has to change."""

    def entries(view: View) -> tuple[LogEntry, ...]:
        entry = decide(view)
        return () if entry is None else (entry,)

    repository.append(entries)


def _entry(kind: str, actor: str, *updates: Update, note: str = "") -> LogEntry:
    return LogEntry(secrets.token_hex(16), kind, actor, time.time_ns(), note, updates)


def _given(number: int) -> Callable[[About], About]:
    """Notes that versions up to `number` were given once."""
    return lambda about: msgspec.structs.replace(about, last=max(about.last, number))


def _forgotten(number: int) -> Callable[[About], About]:
    """Says nothing any more, but which numbers were given."""
    return lambda about: About(last=max(about.last, number), gone=True)


def _going(view: View, name: str, gone: Registered) -> dict[str, Digest]:
    """Refs of the versions in `gone` that are there still, behind aliases that would name none.

    Only these numbers are noted as given: a version that came later would be numbered twice.
    """
    now = registered(view).get(name, Registered())
    stays = {commit for number, commit in now.versions.items() if number not in gone.versions}
    aliases = {alias_ref(name, alias): at for alias, at in now.aliases.items() if at not in stays}
    versions = {
        version_ref(name, number): commit
        for number, commit in now.versions.items()
        if number in gone.versions
    }
    return aliases | versions


def _that_fit(updates: list[Update]) -> list[Update]:
    """The first of these, as many as one record takes."""
    ends = accumulate(len(update.ref.encode()) + _UPDATE_BYTES for update in updates)
    return [update for update, end in zip(updates, ends, strict=True) if end <= MOST_AT_ONCE]


@dataclass(slots=True)
class _Numbered(Attempt):
    """An attempt whose ref is the next version of a name, whichever that is when it lands.

    `alias` names the version from then on.
    """

    name: str = ""
    alias: str | None = None
    number: int = 0

    def tip(self, view: View) -> Digest | None:
        repository = self.transaction.repository
        given = registered(view).get(self.name, Registered()).versions
        about = about_at(repository, view, self.name) or About()
        self.number = 1 + max((0, about.last, *given))
        self.transaction.branch = f"{self.name}/v/{self.number}"
        refuse_taken(view, self.transaction.ref)
        return None

    def after(self, view: View, moved: Update) -> tuple[LogEntry, ...]:
        if self.alias is None:
            return ()
        ref = alias_ref(self.name, self.alias)
        old = view.state.refs.get(ref)
        if old is not None:
            _refuse_protected(view, self.name, self.alias)
        kind = "ref-create" if old is None else "ref-reset"
        named = Update(ref, old, moved.new)
        note = f"version {self.number}"
        return (LogEntry(self.txn, kind, self.author, self.time_ns, note, (named,)),)
