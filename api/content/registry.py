"""Registered models: names, versions, aliases and what is said about them, for one caller.

A caller sees the versions and aliases whose refs they may read. What is said about a name (its
description, labels, those of its versions) is for who may read any of these, or the branch that
holds it; it is changed by who may write ``registry/NAME/card``, which no ref has, but grants such
as ``registry/NAME/*`` cover.

Source:
    docs/spec/registry.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.content.registry_memory import RegistryMemory, VersionFacts
from tensorrepo.api.repositories.opening import ServedRepository
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.registry.cards import BRANCH, Card
from tensorrepo.repo.registry.versions import (
    SPACE,
    Registered,
    alias_ref,
    number_of,
    protected_refs,
    version_ref,
)

STAGE_LABEL: Final = "stage"
_NOTHING: Final = Registered()


class RegisteredModelInfo(BaseModel):
    """A name that versions of a model are registered under."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(examples=["vision/classifier"])
    versions: int = Field(description="Number of its versions.")
    latest: int | None = Field(description="Largest number of a version; null: there is none.")
    aliases: dict[str, int] = Field(description="Number of the version that each alias names.")
    protected: list[str] = Field(description="Aliases that may neither move nor go.")
    description: str = Field(default="", description="Markdown.")
    labels: dict[str, str] = {}


class VersionInfo(BaseModel):
    """A version of a registered model. Its number, content and origin never change."""

    model_config = ConfigDict(frozen=True)

    name: str
    number: int
    commit: str = Field(description="Commit that holds this model alone.")
    source: str = Field(description="Commit that it was taken from.")
    source_path: str = Field(description="Path of the model in that commit.")
    author: str
    time_ns: int
    message: str
    digest: str = Field(description="Digest of the model.")
    tensors: int
    bytes: int = Field(description="Bytes of its tensors in memory.")
    metrics: dict[str, Any]
    aliases: list[str]
    stage: str | None = Field(default=None, description="For clients that know stages.")
    description: str = ""
    labels: dict[str, str] = {}


def memory_of(access: RepositoryAccess) -> RegistryMemory:
    return access.served.kept(_memory)


def get_model(access: RepositoryAccess, name: str) -> RegisteredModelInfo:
    """One registered model. Raises NotFoundError, also for one that the caller may not see."""
    view = access.view
    memory = memory_of(access)
    one = seen(access, name, memory.index.at(view).get(name))
    card = _card(access, view, name, one)
    if one is None and card is None:
        raise unknown(access, name)
    return model_info(view, name, one or _NOTHING, card)


def known_model(access: RepositoryAccess, name: str) -> RegisteredModelInfo | None:
    """As `get_model`, where it takes no reading; None: ask `get_model`."""
    view = access.served.known_view
    if view is None:
        return None
    memory = memory_of(access)
    names = memory.index.known(view)
    is_known, card = memory.known_card(view, name)
    one = None if names is None else seen(access, name, names.get(name))
    if one is None or not is_known:
        return None
    return model_info(view, name, one, card)


def get_version(access: RepositoryAccess, name: str, which: int | str) -> VersionInfo:
    """A version by its number, or by an alias. Raises NotFoundError."""
    view = access.view
    memory = memory_of(access)
    one = seen(access, name, memory.index.at(view).get(name))
    card = _card(access, view, name, one)
    if one is None or not one.versions:
        if one is None and card is None:
            raise unknown(access, name)
        raise NotFoundError(f"{name} has no version {which}: it is registered, and has none")
    number = number_of(one, name, which)
    facts = memory.facts_of(access.core, name, number, one)
    return version_info(name, facts, one, card)


def known_version(access: RepositoryAccess, name: str, which: int | str) -> VersionInfo | None:
    """As `get_version`, where it takes no reading; None: ask `get_version`."""
    view = access.served.known_view
    if view is None:
        return None
    memory = memory_of(access)
    names = memory.index.known(view)
    is_known, card = memory.known_card(view, name)
    one = None if names is None else seen(access, name, names.get(name))
    if one is None or not one.versions or not is_known:
        return None
    facts = memory.known_facts(one.versions[number_of(one, name, which)])
    return None if facts is None else version_info(name, facts, one, card)


def list_versions(
    access: RepositoryAccess, name: str, *, below: int | None = None, limit: int = 100
) -> list[VersionInfo]:
    """Versions of a name, the newest first, of numbers less than `below`. Raises NotFoundError."""
    view = access.view
    memory = memory_of(access)
    one = seen(access, name, memory.index.at(view).get(name))
    card = _card(access, view, name, one)
    if one is None and card is None:
        raise unknown(access, name)
    held = one or _NOTHING
    numbers = [number for number in reversed(held.versions) if below is None or number < below]
    return [
        version_info(name, memory.facts_of(access.core, name, number, held), held, card)
        for number in numbers[:limit]
    ]


def seen(access: RepositoryAccess, name: str, one: Registered | None) -> Registered | None:
    """What of a name the caller may read; None: nothing."""
    if one is None or access.reads_all or access.may(Action.READ, f"{SPACE}{name}/*"):
        return one
    versions = {
        number: commit
        for number, commit in one.versions.items()
        if access.may(Action.READ, version_ref(name, number))
    }
    aliases = {
        alias: commit
        for alias, commit in one.aliases.items()
        if access.may(Action.READ, alias_ref(name, alias))
    }
    return Registered(versions, aliases) if versions or aliases else None


def reads_card(access: RepositoryAccess, name: str, one: Registered | None) -> bool:
    """Whether the caller may read what is said about a name, of which they see `one`."""
    return (
        one is not None
        or access.may(Action.READ, card_ref(name))
        or access.may(Action.READ, f"heads/{BRANCH}")
    )


def card_ref(name: str) -> str:
    """What grants cover to say something about a name; no ref is called so."""
    return f"{SPACE}{name}/card"


def unknown(access: RepositoryAccess, name: str) -> NotFoundError:
    return NotFoundError(
        f"nothing that you may read is registered as {name!r:.100} in {access.name}; "
        "GET .../-/registry lists what is"
    )


def model_info(view: LogView, name: str, one: Registered, card: Card | None) -> RegisteredModelInfo:
    start = f"{SPACE}{name}/alias/"
    protected = [ref.removeprefix(start) for ref in protected_refs(view) if ref.startswith(start)]
    about = (card or Card()).entry
    return RegisteredModelInfo.model_construct(
        name=name,
        versions=len(one.versions),
        latest=max(one.versions, default=None),
        aliases={alias: number for alias, number in _numbers(one).items() if number},
        protected=protected,
        description=about.description,
        labels=about.labels,
    )


def version_info(name: str, facts: VersionFacts, one: Registered, card: Card | None) -> VersionInfo:
    """A version as it is called now: its facts may tell the name that it was registered under."""
    version = facts.version
    about = (card or Card()).of(version.number)
    return VersionInfo.model_construct(
        name=name,
        number=version.number,
        commit=version.commit,
        source=version.source,
        source_path=version.source_path,
        author=version.author,
        time_ns=version.time_ns,
        message=facts.message,
        digest=facts.entry.digest,
        tensors=facts.tensors,
        bytes=facts.bytes,
        metrics=dict(facts.metrics),
        aliases=[alias for alias, commit in one.aliases.items() if commit == version.commit],
        stage=about.labels.get(STAGE_LABEL),
        description=about.description,
        labels=about.labels,
    )


def _numbers(one: Registered) -> Mapping[str, int]:
    numbers = {commit: number for number, commit in one.versions.items()}
    return {alias: numbers.get(commit, 0) for alias, commit in one.aliases.items()}


def _card(
    access: RepositoryAccess, view: LogView, name: str, one: Registered | None
) -> Card | None:
    if not reads_card(access, name, one):
        return None
    memory = memory_of(access)
    memory.described(access.core, view)  # from here on `known_card` knows them
    return memory.card(access.core, view, name)


def _memory(_: ServedRepository) -> RegistryMemory:
    return RegistryMemory()
