"""Grants: which actions on which refs of which repositories.

Pure: a decision is a function of grants and names. Whoever holds no grant may do nothing.

Source:
    docs/design/service.md, section "Who may do what".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

EVERY: Final = "*"
MAX_NAME_CHARACTERS: Final = 200
REPOSITORY_SEGMENT: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9_])?"
REPOSITORY_NAME: Final = rf"{REPOSITORY_SEGMENT}(?:/{REPOSITORY_SEGMENT})?"
_REPOSITORY = re.compile(REPOSITORY_NAME)
_REF_PATTERN = re.compile(r"[a-z][a-z0-9-]*/[A-Za-z0-9._#+@=/-]*\*?")
# First segments that mean something else in URLs of the service, or of clients that it serves.
RESERVED: Final = frozenset(
    {"api", "cas", "datasets", "health", "login", "logout", "metrics", "models", "settings"}
    | {"spaces", "static", "v2"}
)


class Action(IntEnum):
    """What may be done; each includes those before it.

    `MIRROR` is of the scopes of tokens alone: to set refs that else the service alone sets. Nothing
    that does not name it includes that, see `Caller.mirrors`.
    """

    READ = 1
    WRITE = 2
    MIRROR = 3
    ADMIN = 4

    @property
    def word(self) -> str:
        return self.name.lower()

    @property
    def verb(self) -> str:
        """What is done by it: "may not administer"."""
        return "administer" if self is Action.ADMIN else self.word


@dataclass(frozen=True, slots=True)
class Grant:
    """One permission.

    Attributes:
        repository: name of a repository, ``team/*``, or ``*`` for all.
        action: the most that may be done.
        refs: refs that it is about: ``*`` for all; else one ref, or the beginning of refs followed
            by ``*``. The namespace is literal: ``heads/*`` is no tag.
    """

    repository: str
    action: Action
    refs: str = EVERY

    def __post_init__(self) -> None:
        name = self.repository.removesuffix("/*")
        if self.repository != EVERY and not _REPOSITORY.fullmatch(name):
            raise InvalidInputError(
                f"a grant is for a repository such as 'team/photos', for 'team/*' or for '*', not "
                f"for {self.repository!r:.120}"
            )
        if self.refs != EVERY and not _REF_PATTERN.fullmatch(self.refs):
            raise InvalidInputError(
                f"refs of a grant are '*', or a namespace and a name such as 'heads/main' or "
                f"'heads/dev/*', not {self.refs!r:.120}"
            )

    def is_for(self, repository: str) -> bool:
        if self.repository.endswith("/*"):
            return repository.startswith(self.repository[:-1])
        return self.repository in {EVERY, repository}

    def includes(self, other: Grant) -> bool:
        """Whether whoever holds this one can do all that the other one allows."""
        return (
            self.action >= other.action
            and _pattern_includes(self.repository, other.repository)
            and _pattern_includes(self.refs, other.refs)
        )

    def covers(self, ref: str | None) -> bool:
        """Whether it is about `ref`; None asks for all refs at once."""
        if self.refs == EVERY or ref is None:
            return self.refs == EVERY
        if self.refs.endswith("*"):
            return ref.startswith(self.refs[:-1])
        return ref == self.refs


def _pattern_includes(wide: str, narrow: str) -> bool:
    """Whether every name that fits the pattern `narrow` fits `wide`; only the end may be ``*``."""
    return wide == narrow or (wide.endswith(EVERY) and narrow.startswith(wide[:-1]))


def check_repository_name(name: str) -> str:
    """`name`, when a repository of a service may be called that. Raises InvalidInputError."""
    if not _REPOSITORY.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS or ".." in name:
        raise InvalidInputError(
            f"a repository is called 'name' or 'team/name', of letters, digits, '.', '_' and '-', "
            f"not {name!r:.120}"
        )
    if name.partition("/")[0].lower() in RESERVED or name.lower().endswith((".git", ".lock")):
        raise InvalidInputError(f"{name!r:.120} means something else in URLs: choose another name")
    return name


def allows(grants: Iterable[Grant], action: Action, repository: str, ref: str | None) -> bool:
    """Whether some grant allows `action` on `ref`; with None, on every ref."""
    return any(
        grant.action >= action and grant.is_for(repository) and grant.covers(ref)
        for grant in grants
    )


def most(grants: Iterable[Grant], repository: str) -> Action | None:
    """The most that may be done with any ref of a repository; None: nothing."""
    actions = [grant.action for grant in grants if grant.is_for(repository)]
    return max(actions, default=None)
