"""Refs of the registry: numbered versions of an entry of any kind, and aliases that name them.

    registry/<name>/v/<n>           version n: a commit that holds the entry alone; its parent is
                                    the commit that it was taken from
    registry/<name>/alias/<alias>   names one version; moves, and the log keeps where it was

All of it is refs: what is registered is never collected, and travels with the repository.
`registering` changes them, `about` holds what people say about them.

Source:
    docs/spec/registry.md.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Final

from tensorrepo.repo import refs
from tensorrepo.repo.commits import read_commit
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError
from tensorrepo.repo.names import check_ref

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View
    from tensorrepo.repo.refs import Move
    from tensorrepo.repo.repository import Repository

SPACE: Final = "registry/"
REGISTERED: Final = "registered"  # the key of a version's commit metadata
PROTECTED: Final = "protected_refs"

_REF = re.compile(r"registry/(?P<name>.+)/(?:v/(?P<number>[1-9][0-9]{0,8})|alias/(?P<alias>[^/]+))")
_DIGITS = re.compile(r"[0-9]+")
_MOST_DIGITS: Final = 9  # of a version, as in `_REF`; of thousands Python makes no number
_ALIAS = re.compile(r"(?![0-9]+$)[A-Za-z0-9_][A-Za-z0-9._-]{0,254}(?<!\.)")


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
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


def registered(view: View) -> dict[str, Registered]:
    """Every name that has versions or aliases, in order."""
    found: dict[str, Registered] = {}
    for ref, commit in view.state.refs.items():
        if (parts := _REF.fullmatch(ref)) is None:
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
    repository: Repository, name: str, which: int | str | None = None
) -> RegisteredVersion:
    """A version by its number or by an alias; None: the newest.

    Raises:
        NotFoundError: no such name, version or alias; says which there are.
    """
    view = repository.log.refresh()
    one = existing(view, name)
    return _read_version(repository, name, number_of(one, name, which), one)


def versions(repository: Repository, name: str) -> Iterator[RegisteredVersion]:
    """All versions of a name, the newest first. Raises NotFoundError for one without any."""
    one = existing(repository.log.refresh(), name)
    return (_read_version(repository, name, number, one) for number in reversed(one.versions))


def protected_refs(view: View) -> tuple[str, ...]:
    """Refs, and beginnings of refs with ``*``, that may neither be deleted nor reset."""
    found = view.state.config.get(PROTECTED, ())
    assert isinstance(found, (list, tuple))
    return tuple(map(str, found))


def alias_history(repository: Repository, name: str, alias: str) -> Iterator[tuple[Move, int]]:
    """Every move of an alias, the newest first, and the version it named then; 0: none, or gone."""
    one = registered(repository.log.refresh()).get(name, Registered())
    for move in refs.reflog(repository, alias_ref(name, alias)):
        new = move.update.new
        yield move, (one.number_of(new) or 0) if new is not None else 0


def _read_version(
    repository: Repository, name: str, number: int, one: Registered
) -> RegisteredVersion:
    digest = one.versions[number]
    commit = read_commit(repository.objects, digest)
    facts = commit.metadata.get(REGISTERED)
    path = facts.get("path") if isinstance(facts, dict) else None
    if not isinstance(path, str) or len(commit.parents) != 1:
        raise CorruptError(
            f"{version_ref(name, number)} names commit {digest:.12}, which does not say where the "
            "entry was taken from: it was not made by `register`"
        )
    aliases = tuple(alias for alias, at in one.aliases.items() if at == digest)
    return RegisteredVersion(
        name, number, digest, commit.parents[0], path, commit.author, commit.time_ns, aliases
    )


def existing(view: View, name: str) -> Registered:
    every = registered(view)
    if name in every:
        return every[name]
    near = difflib.get_close_matches(name, every, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`tensorrepo registry ls` lists them."
    raise NotFoundError(f"nothing is registered as {name!r:.100}; {hint}")


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
        listed = ", ".join(map(str, list(one.versions)[-8:]))
        raise NotFoundError(f"{name} has no version {which!s:.40}; there are {listed}")
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
