"""Experiments: names that runs are sorted under, for clients that ask for one first.

All of a repository's stand in one file of the branch ``meta/experiments``; a run says by a tag
which it belongs to, and to `DEFAULT` where it says nothing. They are read, and changed, by who may
read, or write, that branch or all runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
)
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import file_entry, lookup
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.names import check_text
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.typed_decoding import from_json

BRANCH: Final = "meta/experiments"
DEFAULT: Final = "0"
MAX_EXPERIMENTS: Final = 10_000
MAX_TAGS: Final = 1000
_REF: Final = f"heads/{BRANCH}"
_ALL_RUNS: Final = "runs/*"
_PATH: Final = "files/experiments.json"
_TRIES: Final = 20
_MAX_NAME_BYTES: Final = 500
_MAX_TAG_BYTES: Final = 64 << 10


class Experiment(msgspec.Struct, frozen=True):
    """One experiment. Times are UTC in ms."""

    id: str
    name: str
    created_ms: int
    updated_ms: int
    is_deleted: bool = False
    tags: dict[str, str] = {}


class _Experiments(msgspec.Struct, frozen=True):
    """Content of the file; `last` is the largest id that was given."""

    experiments: dict[str, Experiment] = {}
    last: int = 0
    version: int = 1


def list_experiments(access: RepositoryAccess) -> list[Experiment]:
    """All experiments, those that were deleted too, in the order of their ids."""
    _require(access, Action.READ)
    return sorted(_known(access).values(), key=lambda one: int(one.id))


def get_experiment(access: RepositoryAccess, id_: str) -> Experiment:
    """The experiment of that id. Raises NotFoundError."""
    _require(access, Action.READ)
    return _found(_known(access), id_)


def find_experiment(access: RepositoryAccess, name: str) -> Experiment:
    """The experiment of that name. Raises NotFoundError."""
    _require(access, Action.READ)
    found = [one for one in _known(access).values() if one.name == name]
    if not found:
        raise NotFoundError(f"there is no experiment {name!r:.200} in {access.name}")
    return found[0]


def create_experiment(
    access: RepositoryAccess, name: str, tags: Mapping[str, str | None] | None = None
) -> Experiment:
    """A new experiment.

    Raises:
        ConflictError: there is one of that name, perhaps deleted.
    """
    checked = _checked_name(name)

    def change(stored: _Experiments) -> tuple[_Experiments, Experiment]:
        for one in _with_default(stored).values():
            if one.name == checked:
                gone = ", deleted: restore it" if one.is_deleted else ""
                raise ConflictError(f"experiment {name!r:.200} is there already{gone}")
        if len(stored.experiments) >= MAX_EXPERIMENTS:
            raise InvalidInputError(f"a repository has {MAX_EXPERIMENTS} experiments at most")
        now, number = _now_ms(), stored.last + 1
        made = Experiment(str(number), checked, now, now, tags=_joined({}, tags or {}))
        return _replaced(stored, made, number), made

    return _edit(access, change, f"Begin experiment {checked}")


def change_experiment(
    access: RepositoryAccess,
    id_: str,
    *,
    name: str | None = None,
    tags: Mapping[str, str | None] | None = None,
    is_deleted: bool | None = None,
) -> Experiment:
    """Call an experiment something else, set its tags (None removes one), delete or restore it.

    Raises:
        NotFoundError: there is no such experiment.
        ConflictError: another one has that name.
    """

    def change(stored: _Experiments) -> tuple[_Experiments, Experiment]:
        known = _with_default(stored)
        old = _found(known, id_)
        called = old.name if name is None else _checked_name(name)
        if any(one.name == called and one.id != id_ for one in known.values()):
            raise ConflictError(f"experiment {called!r:.200} is there already")
        made = msgspec.structs.replace(
            old,
            name=called,
            tags=_joined(old.tags, tags or {}),
            is_deleted=old.is_deleted if is_deleted is None else is_deleted,
            updated_ms=_now_ms(),
        )
        return _replaced(stored, made, stored.last), made

    return _edit(access, change, f"Change experiment {id_}")


def _edit(
    access: RepositoryAccess,
    change: Callable[[_Experiments], tuple[_Experiments, Experiment]],
    message: str,
) -> Experiment:
    _require(access, Action.WRITE)
    for last in reversed(range(_TRIES)):
        with begin(access.core, BRANCH) as transaction:
            stored, made = change(_read(access.core, transaction.base))
            data = msgspec.json.format(msgspec.json.encode(stored, order="sorted"), indent=1)
            transaction.stage(_PATH, file_entry(transaction.objects.put(Kind.BLOB, data)))
            try:
                transaction.commit(message, author=access.caller.author)
            except ConflictError:
                if not last:
                    raise
            else:
                return made
    raise AssertionError("the last try returns or raises")


def _known(access: RepositoryAccess) -> dict[str, Experiment]:
    return _with_default(_at(access.core, access.view))


def _at(core: RepositoryCore, view: LogView) -> _Experiments:
    return _read(core, view.state.refs.get(_REF))


def _read(core: RepositoryCore, commit: Digest | None) -> _Experiments:
    if commit is None:
        return _Experiments()
    entry = lookup(core.objects, read_commit(core.objects, commit).tree, _PATH)
    if entry is None:
        return _Experiments()
    try:
        return from_json(core.objects.get(entry.digest).payload, _Experiments)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"{_PATH} of branch {BRANCH}: {error}") from error


def _with_default(stored: _Experiments) -> dict[str, Experiment]:
    return {DEFAULT: Experiment(DEFAULT, "Default", 0, 0), **stored.experiments}


def _found(known: Mapping[str, Experiment], id_: str) -> Experiment:
    if id_ not in known:
        raise NotFoundError(f"there is no experiment of id {id_!r:.40}")
    return known[id_]


def _replaced(stored: _Experiments, made: Experiment, last: int) -> _Experiments:
    return _Experiments({**stored.experiments, made.id: made}, last)


def _joined(tags: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    joined = {**tags, **changes}
    for name, text in changes.items():
        check_text(name, "the name of a tag", limit_bytes=255, lines=False)
        check_text(text or "", f"tag {name!r:.80}", limit_bytes=_MAX_TAG_BYTES, lines=True)
    if len(joined) > MAX_TAGS:
        raise InvalidInputError(f"{len(joined)} tags, an experiment has {MAX_TAGS} at most")
    return {name: text for name, text in sorted(joined.items()) if text is not None}


def _checked_name(name: str) -> str:
    if not name.strip():
        raise InvalidInputError("an experiment has a name, such as 'learning rates'")
    return check_text(name, "the name of an experiment", limit_bytes=_MAX_NAME_BYTES, lines=False)


def _require(access: RepositoryAccess, action: Action) -> None:
    if not (access.may(action, _REF) or access.may(action, _ALL_RUNS)):
        raise PermissionDenied(
            f"{access.caller.name or 'nobody'} may not {action.word} the experiments of "
            f"{access.name}: that takes a grant for {_ALL_RUNS} or {_REF}"
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
