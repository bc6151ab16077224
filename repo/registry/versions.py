"""Registry: numbered versions of an entry of any kind, and aliases that name them.

    registry/<name>/v/<n>           version n: a commit that holds the entry alone; its parent is
                                    the commit that it was taken from
    registry/<name>/alias/<alias>   names one version; moves, and the log keeps where it was

All of it is refs: what is registered is never collected, and travels with the repository. `cards`
holds descriptions and labels.

Each verb appends one record, decided anew on every head: of two concurrent registrations one gets
the next number, the other the one after it. A number is given once, also when it is deleted.

Source:
    docs/spec/registry.md.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from itertools import accumulate
from operator import index
from typing import Any, ClassVar, Final

import msgspec

from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.refs import Move, refuse_taken
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import CommitAttempt, begin_beside
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tensorrepo.repo.history.commits import MetadataValue, read_commit
from tensorrepo.repo.history.trees import EMPTY_TREE, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import MAX_RECORD_BYTES, LogEntry, Update
from tensorrepo.repo.names import check_ref
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.registry.cards import Card, card_at, check_registered_name, edit_card
from tensorrepo.repo.suggest import did_you_mean
from tensorrepo.repo.tables import Cell, RecordList, RecordTable, Shown, moment_text

SPACE: Final = "registry/"
REGISTERED: Final = "registered"  # the key of a version's commit metadata
PROTECTED: Final = "protected_refs"

_REF = re.compile(r"registry/(?P<name>.+)/(?:v/(?P<number>[1-9][0-9]{0,8})|alias/(?P<alias>[^/]+))")
_DIGITS = re.compile(r"[0-9]+")
_MOST_DIGITS: Final = 9  # of a version, as in `_REF`; of thousands Python makes no number
_ALIAS = re.compile(r"(?![0-9]+$)[A-Za-z0-9_][A-Za-z0-9._-]{0,254}(?<!\.)")


@dataclass(frozen=True, slots=True, repr=False)
class RegisteredVersion(Shown):
    """One version of a registered entry.

    Attributes:
        name: name that the entry is registered under.
        number: number of the version, from 1; each number is given once.
        commit: commit that holds the entry alone.
        source: commit that the entry was taken from.
        source_path: path of the entry in `source`.
        author: author of the registration.
        time_ns: time of the registration, UTC in ns.
        aliases: names of the aliases that name this version now.
    """

    name: str
    number: int
    commit: Digest
    source: Digest
    source_path: str
    author: str
    time_ns: int
    aliases: tuple[str, ...]

    @property
    def ref(self) -> str:
        return version_ref(self.name, self.number)

    def to_table(self) -> RecordTable:
        """Its number, and where the entry was taken from."""
        aliases = f" ({', '.join(self.aliases)})" if self.aliases else ""
        title = f"version {self.number} of {self.name}{aliases}"
        origin = f"{self.source_path} in commit {self.source:.12}"
        return RecordTable((title, f"{origin}, by {self.author}, {moment_text(self.time_ns)}"))


class VersionList(RecordList[RegisteredVersion]):
    """Versions of a registered entry."""

    columns: ClassVar[Mapping[str, Cell]] = {
        ">version": "number",
        "aliases": lambda one: ", ".join(one.aliases),
        "registered": lambda one: moment_text(one.time_ns),
        "by": lambda one: one.author.partition(" <")[0],
        "from": lambda one: f"{one.source_path} in {one.source:.12}",
    }


@dataclass(frozen=True, slots=True)
class Registered:
    """What the refs say about one name: versions by number, and aliases by name."""

    versions: dict[int, Digest] = field(default_factory=dict)
    aliases: dict[str, Digest] = field(default_factory=dict)

    def number_of(self, commit: Digest) -> int | None:
        return next((number for number, at in self.versions.items() if at == commit), None)


def version_ref(name: str, number: int) -> str:
    return f"{SPACE}{name}/v/{number}"


def alias_ref(name: str, alias: str) -> str:
    """Raises InvalidInputError for what cannot be an alias: a number means a version."""
    if not isinstance(alias, str) or not _ALIAS.fullmatch(alias):
        raise InvalidInputError(
            f"alias {alias!r:.80} cannot be used: letters, digits, . _ and - make an alias, and it "
            "is no number, which means a version"
        )
    return check_ref(f"{SPACE}{name}/alias/{alias}")


def registered(view: LogView) -> dict[str, Registered]:
    """Every name that has versions or aliases, in order."""
    return registered_in(view.state.refs)


def registered_in(refs: Mapping[str, Digest]) -> dict[str, Registered]:
    """What these refs register, by name, in order."""
    found: dict[str, Registered] = {}
    for ref, commit in refs.items():
        if not ref.startswith(SPACE) or (parts := _REF.fullmatch(ref)) is None:
            continue
        one = found.setdefault(parts["name"], Registered())
        if parts["alias"] is not None:
            one.aliases[parts["alias"]] = commit
        else:
            one.versions[int(parts["number"])] = commit
    return {
        name: Registered(dict(sorted(one.versions.items())), dict(sorted(one.aliases.items())))
        for name, one in sorted(found.items())
    }


def find_version(
    repository: RepositoryCore, name: str, which: int | str | None = None
) -> RegisteredVersion:
    """A version by its number or by an alias; None: the newest.

    Raises:
        NotFoundError: no such name, version or alias; says which there are.
    """
    one = existing(repository.log.refresh(), name)
    return read_version(repository, name, number_of(one, name, which), one)


def versions(repository: RepositoryCore, name: str) -> Iterator[RegisteredVersion]:
    """All versions of a name, the newest first. Raises NotFoundError for one without any."""
    one = existing(repository.log.refresh(), name)
    return (read_version(repository, name, number, one) for number in reversed(one.versions))


def protected_refs(view: LogView) -> tuple[str, ...]:
    """Refs, and beginnings of refs with ``*``, that may neither be deleted nor reset."""
    found = view.state.config.get(PROTECTED, ())
    assert isinstance(found, (list, tuple))
    return tuple(map(str, found))


def alias_history(repository: RepositoryCore, name: str, alias: str) -> Iterator[tuple[Move, int]]:
    """Every move of an alias, the newest first, and the version it named then; 0: none, or gone."""
    one = registered(repository.log.refresh()).get(name, Registered())
    for move in refs.reflog(repository, alias_ref(name, alias)):
        new = move.update.new
        yield move, (one.number_of(new) or 0) if new is not None else 0


def read_version(
    repository: RepositoryCore, name: str, number: int, one: Registered
) -> RegisteredVersion:
    """Version `number` of a name that has it, as `one` says."""
    digest = one.versions[number]
    commit = read_commit(repository.objects, digest)
    facts = commit.metadata.get(REGISTERED)
    path = facts.get("path") if isinstance(facts, dict) else None
    parents = commit.parents or commit.beyond
    if not isinstance(path, str) or len(parents) != 1:
        raise CorruptError(
            f"{version_ref(name, number)} names commit {digest:.12}, which does not say where the "
            "entry was taken from: it was not made by `register`"
        )
    aliases = tuple(alias for alias, at in one.aliases.items() if at == digest)
    return RegisteredVersion(
        name, number, digest, parents[0], path, commit.author, commit.time_ns, aliases
    )


def existing(view: LogView, name: str) -> Registered:
    every = registered(view)
    if name in every:
        return every[name]
    hint = did_you_mean(name, every.keys(), "`tensorrepo registry ls` lists them.")
    raise NotFoundError(f"nothing is registered as {name!r:.100}.{hint}")


def number_of(one: Registered, name: str, which: int | str | None) -> int:
    """The version that a number, a number as text, an alias or None (the newest) means."""
    if which is None:
        return max(one.versions)
    if isinstance(which, str) and not _DIGITS.fullmatch(which):
        if which not in one.aliases:
            raise NotFoundError(no_alias(one, name, which))
        found = one.number_of(one.aliases[which])
        if found is None:
            raise NotFoundError(f"alias {which!r} of {name} names a version that was deleted")
        return found
    number = _number(which)
    if number not in one.versions:
        newest = [*one.versions][-8:]
        there = "there is only" if len(newest) == 1 else "there are"
        more = ", and older ones" if len(one.versions) > len(newest) else ""
        listed = ", ".join(map(str, newest))
        raise NotFoundError(f"{name} has no version {which!s:.40}; {there} {listed}{more}")
    return number


def _number(which: int | str) -> int:
    if isinstance(which, str):
        return int(which) if len(which) <= _MOST_DIGITS else 0
    try:
        return index(which)
    except TypeError as error:
        raise InvalidInputError(
            f"a version is a whole number, or an alias as text; got {type(which).__name__}"
        ) from error


def no_alias(one: Registered, name: str, alias: str) -> str:
    listed = f"there are {', '.join(one.aliases)}" if one.aliases else "it has none"
    return f"{name} has no alias {alias!r:.80}; {listed}"


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


MODELS: Final = Shelf(Kind.MODEL, "model", "models/")


def register(
    repository: RepositoryCore,
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
    facts: dict[str, MetadataValue] = {shelf.noun: name, "path": path, "id": secrets.token_hex(8)}
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


def delete_version(repository: RepositoryCore, name: str, number: int, *, actor: str) -> Digest:
    """Remove a version; its number is not given again, and its commit comes back by its digest.

    Raises:
        ConflictError: an alias names it. Nothing changed.
    """
    one = existing(repository.log.refresh(), name)
    number_of(one, name, number)
    if number == max(one.versions):
        edit_card(repository, name, _given(number), author=actor)

    def decide(view: LogView) -> LogEntry:
        now = existing(view, name)
        commit = now.versions[number_of(now, name, number)]
        if naming := [alias for alias, at in now.aliases.items() if at == commit]:
            raise ConflictError(
                f"version {number} of {name} has the alias {naming[0]!r}: move or remove it first"
            )
        return _entry("ref-delete", actor, Update(version_ref(name, number), commit, None))

    _append(repository, decide)
    return one.versions[number]


def delete_registered(repository: RepositoryCore, name: str, *, actor: str) -> int:
    """Remove all versions and aliases of a name; gives how many versions there were.

    What was said about it goes, too; the largest number that was given stays known. A version that
    somebody registers meanwhile stays, as if it had been registered right after.

    Raises:
        NotFoundError: there is no such name.
        ConflictError: an alias is protected. Nothing changed.
    """
    view = repository.log.refresh()
    about = card_at(repository, view, name)
    if about is None or about.gone:
        existing(view, name)
    one = registered(view).get(name, Registered())
    for alias in one.aliases:
        _refuse_protected(view, name, alias)
    edit_card(repository, name, _forgotten(max(one.versions, default=0)), author=actor)

    def decide(view: LogView) -> LogEntry | None:
        going = _going(view, name, one)
        for alias in registered(view).get(name, Registered()).aliases:
            if alias_ref(name, alias) in going:
                _refuse_protected(view, name, alias)
        updates = [Update(ref, commit, None) for ref, commit in going.items()]
        return _entry("ref-delete", actor, *_that_fit(updates)) if updates else None

    while _going(repository.log.refresh(), name, one):
        _append(repository, decide)
    return len(one.versions)


def rename_registered(repository: RepositoryCore, name: str, new: str, *, actor: str) -> None:
    """Let a name be called `new`: its versions keep their numbers, aliases and words go with them.

    What is at a version's commit stays as it was registered, under the former name too.

    Raises:
        NotFoundError: there is no such name.
        ConflictError: `new` is taken, or an alias is protected. Nothing changed.
        UnsupportedError: it has too many versions and aliases for one record of the log.
    """
    view = repository.log.refresh()
    about, taken = card_at(repository, view, name), card_at(repository, view, new)
    if about is None or about.gone:
        existing(view, name)
    words = Card() if about is None else about
    is_taken = f"{new!r:.100} is registered already: choose another name"
    if taken is not None and not taken.gone:
        raise ConflictError(is_taken)

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        one = registered(view).get(name, Registered())
        if new in registered(view):
            raise ConflictError(is_taken)
        for alias in one.aliases:
            _refuse_protected(view, name, alias)
        gone = _going(view, name, one)
        start = f"{SPACE}{name}/"
        made = [
            Update(f"{SPACE}{new}/{ref.removeprefix(start)}", None, at) for ref, at in gone.items()
        ]
        ends = [Update(ref, at, None) for ref, at in gone.items()]
        if len(_that_fit([*made, *ends])) < len(made) + len(ends):
            raise UnsupportedError(
                f"{name} has {len(one.versions)} versions and {len(one.aliases)} aliases, too many "
                "to be renamed at once: register the newest under the new name"
            )
        for one_made in made:
            refuse_taken(view, one_made.ref)
        if not gone:
            return ()
        return (
            _entry("ref-create", actor, *made, note=f"rename from {name}"),
            _entry("ref-delete", actor, *ends, note=f"rename to {new}"),
        )

    decide(view)  # before anything is said about the new name
    last = max(words.last, *(registered(view).get(name, Registered()).versions or (0,)))
    held = 0 if taken is None else taken.last
    moved = msgspec.structs.replace(words, last=max(words.last, held), gone=False)
    edit_card(repository, new, lambda _: moved, author=actor)
    repository.append(decide)
    edit_card(repository, name, _forgotten(last), author=actor)


def set_alias(
    repository: RepositoryCore, name: str, alias: str, which: int | str, *, actor: str
) -> int:
    """Let an alias name a version, by its number or by another alias; gives the number.

    Raises:
        ConflictError: the alias is protected. Nothing changed.
    """
    ref = alias_ref(name, alias)

    def decide(view: LogView) -> LogEntry | None:
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


def delete_alias(repository: RepositoryCore, name: str, alias: str, *, actor: str) -> None:
    """Remove an alias; the version stays. Raises ConflictError when it is protected."""
    ref = alias_ref(name, alias)

    def decide(view: LogView) -> LogEntry:
        one = existing(view, name)
        if alias not in one.aliases:
            raise NotFoundError(no_alias(one, name, alias))
        _refuse_protected(view, name, alias)
        return _entry("ref-delete", actor, Update(ref, one.aliases[alias], None))

    _append(repository, decide)


def protect_alias(
    repository: RepositoryCore, name: str, alias: str, *, actor: str, on: bool = True
) -> None:
    """Refuse, or allow again, to move and remove an alias; it need not exist yet."""
    ref = alias_ref(name, alias)

    def decide(view: LogView) -> LogEntry | None:
        existing(view, name)
        held = protected_refs(view)
        wanted = (*held, ref) if on else tuple(one for one in held if one != ref)
        if wanted == held or (on and ref in held):
            return None
        return _entry("config", actor, data={"set": {PROTECTED: tuple(sorted(set(wanted)))}})

    _append(repository, decide)


def _refuse_protected(view: LogView, name: str, alias: str) -> None:
    """The log refuses it anyhow; here it is said in the words of a registry."""
    if alias_ref(name, alias) in protected_refs(view):
        raise ConflictError(
            f"alias {alias!r} of {name} is protected: it may neither move nor go. "
            f"`tensorrepo registry protect {name} {alias} --off` allows it again."
        )


def _append(repository: RepositoryCore, decide: Callable[[LogView], LogEntry | None]) -> None:
    """Append what is decided on the head; None: nothing has to change."""
    repository.append(lambda view: tuple(entry for entry in (decide(view),) if entry is not None))


def _entry(kind: str, actor: str, *updates: Update, note: str = "", **more: Any) -> LogEntry:
    return LogEntry(secrets.token_hex(16), kind, actor, time.time_ns(), note, updates, **more)


def _given(number: int) -> Callable[[Card], Card]:
    """Notes that versions up to `number` were given once."""
    return lambda about: msgspec.structs.replace(about, last=max(about.last, number))


def _forgotten(number: int) -> Callable[[Card], Card]:
    """Says nothing any more, but which numbers were given."""
    return lambda about: Card(last=max(about.last, number), gone=True)


def _going(view: LogView, name: str, gone: Registered) -> dict[str, Digest]:
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


def _last_version(view: LogView, name: str) -> int:
    """The largest number of a version that is there; 0: there is none.

    Every registration asks, among all refs: there may be many thousands.
    """
    start = version_ref(name, 0)[:-1]
    ends = [ref[len(start) :] for ref in view.state.refs if ref.startswith(start)]
    return max((int(end) for end in ends if end.isdecimal()), default=0)


@dataclass(slots=True)
class _Numbered(CommitAttempt):
    """An attempt whose ref is the next version of a name, whichever that is when it lands.

    `alias` names the version from then on.
    """

    name: str = ""
    alias: str | None = None
    number: int = 0

    def tip(self, view: LogView) -> Digest | None:
        repository = self.transaction.repository
        about = card_at(repository, view, self.name) or Card()
        self.number = 1 + max(about.last, _last_version(view, self.name))
        self.transaction.branch = f"{self.name}/v/{self.number}"
        refuse_taken(view, self.transaction.ref)
        return None

    def after(self, view: LogView, moved: Update) -> tuple[LogEntry, ...]:
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
