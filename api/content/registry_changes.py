"""Changes of registered models, for one caller: versions, aliases, stages, words.

Who may change what: a new version takes the right to write ``registry/NAME/v/new``, an alias that
of its ref, words that of ``registry/NAME/card``; grants such as ``registry/NAME/*`` cover all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.content.registry import (
    STAGE_LABEL,
    RegisteredModelInfo,
    VersionInfo,
    card_ref,
    get_model,
    get_version,
    memory_of,
    seen,
    unknown,
)
from tensorrepo.formats.common.arguments import path_in
from tensorrepo.repo.changes.refs import reflog
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.registry import versions
from tensorrepo.repo.registry.cards import Card, check_registered_name, edit_card, with_words
from tensorrepo.repo.registry.versions import MODELS, SPACE, alias_ref, version_ref

Stage = Literal["None", "Staging", "Production", "Archived"]
NO_STAGE: Final[Stage] = "None"
ARCHIVED: Final[Stage] = "Archived"
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)


class AliasMoveInfo(BaseModel):
    """One move of an alias."""

    model_config = ConfigDict(frozen=True)

    time_ns: int
    actor: str
    version: int | None = Field(description="Null: it was removed, or that version was.")
    generation: int = Field(description="Record of the log.")


def create_model(
    access: RepositoryAccess,
    name: str,
    *,
    description: str = "",
    labels: Mapping[str, str | None] | None = None,
) -> RegisteredModelInfo:
    """Name a model before its first version.

    Raises:
        ConflictError: it is there already.
    """
    check_registered_name(name, MODELS.folder)
    access.require(Action.WRITE, card_ref(name))
    view = access.view
    memory = memory_of(access)
    card = memory.card(access.core, view, name)
    if card is not None or name in memory.index.at(view):
        raise ConflictError(f"{name!r:.100} is registered already: describe it, or choose another")
    change = with_words(None, description, labels or {})
    edit_card(access.core, name, change, author=access.caller.author)
    return get_model(access, name)


def describe(
    access: RepositoryAccess,
    name: str,
    which: int | str | None = None,
    *,
    description: str | None = None,
    labels: Mapping[str, str | None] | None = None,
) -> None:
    """Say what a model is, or one of its versions.

    Args:
        access: repository.
        name: name of the registered model.
        which: a version; None: the model.
        description: None keeps the one there is.
        labels: to set; a label that is None is removed.

    Raises:
        NotFoundError: there is no such model or version.
    """
    access.require(Action.WRITE, card_ref(name))
    number = None if which is None else get_version(access, name, which).number
    if number is None:
        get_model(access, name)
    change = with_words(number, description, labels or {})
    edit_card(access.core, name, change, author=access.caller.author)


def register_version(
    access: RepositoryAccess,
    name: str,
    path: str,
    *,
    ref: str = "main",
    message: str = "",
    alias: str | None = None,
) -> VersionInfo:
    """Make the model at `path` of the commit that `ref` names the next version.

    Raises:
        NotFoundError: no such commit that the caller may read, or no model there.
        ConflictError: the alias is protected. Nothing changed.
    """
    access.require(Action.WRITE, f"{SPACE}{name}/v/new")
    if alias is not None:
        access.require(Action.WRITE, alias_ref(name, alias))
    made = versions.register(
        access.core,
        name,
        access.resolve(ref).digest,
        path_in("models", path),
        shelf=MODELS,
        author=access.caller.author,
        message=message,
        alias=alias,
    )
    return get_version(access, name, made.number)


def set_stage(
    access: RepositoryAccess, name: str, number: int, stage: Stage, *, archive_existing: bool
) -> VersionInfo:
    """Give a version a stage, for clients that know stages: a label of the version.

    With `archive_existing` all others of that stage are archived in the same change.
    """
    access.require(Action.WRITE, card_ref(name))
    if stage not in STAGES:
        raise InvalidInputError(f"stage {stage!r:.40}: expected one of {', '.join(STAGES)}")
    get_version(access, name, number)

    def change(about: Card) -> Card:
        changed = with_words(number, None, {STAGE_LABEL: None if stage == NO_STAGE else stage})
        about = changed(about)
        if not archive_existing or stage == NO_STAGE:
            return about
        for other, words in about.versions.items():
            if other != str(number) and words.labels.get(STAGE_LABEL) == stage:
                about = with_words(int(other), None, {STAGE_LABEL: ARCHIVED})(about)
        return about

    edit_card(access.core, name, change, author=access.caller.author)
    return get_version(access, name, number)


def set_alias(access: RepositoryAccess, name: str, alias: str, which: int | str) -> VersionInfo:
    """Let an alias name a version. Raises ConflictError when it is protected."""
    access.require(Action.WRITE, alias_ref(name, alias))
    number = get_version(access, name, which).number
    versions.set_alias(access.core, name, alias, number, actor=access.caller.author)
    return get_version(access, name, number)


def delete_alias(access: RepositoryAccess, name: str, alias: str) -> None:
    """Remove an alias; the version stays. Raises ConflictError when it is protected."""
    access.require(Action.WRITE, alias_ref(name, alias))
    versions.delete_alias(access.core, name, alias, actor=access.caller.author)


def protect_alias(access: RepositoryAccess, name: str, alias: str, *, on: bool) -> None:
    """Refuse, or allow again, to move and remove an alias: for admins."""
    access.require(Action.ADMIN, alias_ref(name, alias))
    get_model(access, name)
    versions.protect_alias(access.core, name, alias, actor=access.caller.author, on=on)


def alias_history(access: RepositoryAccess, name: str, alias: str) -> list[AliasMoveInfo]:
    """Where an alias was, and who moved it: the newest first. Raises NotFoundError."""
    ref = alias_ref(name, alias)
    moves = list(reflog(access.core, ref, access.view)) if access.may(Action.READ, ref) else []
    if not moves:
        raise NotFoundError(f"{name} never had an alias {alias!r:.80} that you may read")
    one = memory_of(access).index.at(access.view).get(name)
    numbers = {} if one is None else {commit: number for number, commit in one.versions.items()}
    return [
        AliasMoveInfo(
            time_ns=move.entry.time_ns,
            actor=move.entry.actor,
            version=None if move.update.new is None else numbers.get(move.update.new),
            generation=move.generation,
        )
        for move in moves
    ]


def delete_version(access: RepositoryAccess, name: str, number: int) -> None:
    """Remove a version; its number is not given again. Raises ConflictError: an alias names it."""
    access.require(Action.WRITE, version_ref(name, number))
    versions.delete_version(access.core, name, number, actor=access.caller.author)


def delete_model(access: RepositoryAccess, name: str) -> int:
    """Remove all versions and aliases of a model; gives how many versions there were.

    Raises:
        ConflictError: an alias is protected.
    """
    access.require(Action.WRITE, f"{SPACE}{name}/*")
    view = access.view
    one = seen(access, name, memory_of(access).index.at(view).get(name))
    if one is None and memory_of(access).card(access.core, view, name) is None:
        raise unknown(access, name)
    return versions.delete_registered(access.core, name, actor=access.caller.author)
