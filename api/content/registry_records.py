"""Registered models and versions as other registries' clients know them: with tags, the run and the
source that a version is of, stages, and times. What the house lacks of it stands in labels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.content.artifacts import ArtifactPlace, version_source
from tensorrepo.api.content.live_runs import LiveRuns
from tensorrepo.api.content.record_filter import (
    TAG,
    FilterClause,
    FilterFields,
    Lookup,
    parse_filter,
    sort_records,
)
from tensorrepo.api.content.registry import (
    STAGE_LABEL,
    RegisteredModelInfo,
    VersionInfo,
    get_model,
    get_version,
    list_versions,
)
from tensorrepo.api.content.registry_changes import (
    NO_STAGE,
    create_model,
    delete_alias,
    delete_version,
    describe,
    register_version,
)
from tensorrepo.api.content.registry_search import list_registered
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

OWN: Final = "tensorrepo."  # labels that begin so are no tags of clients
SOURCE_LABEL: Final = "tensorrepo.source"
RUN_LABEL: Final = "tensorrepo.run"
MODEL_LABEL: Final = "tensorrepo.model"
MADE_LABEL: Final = "tensorrepo.made_ms"
PROMPT_TAG: Final = "mlflow.prompt.is_prompt"
MODEL_FIELDS: Final = FilterFields(
    texts=frozenset({"name"}),
    numbers=frozenset({"creation_timestamp", "last_updated_timestamp"}),
    kinds=frozenset({TAG}),
    lists=frozenset({"name"}),
    aliases={"timestamp": "last_updated_timestamp"},
)
VERSION_FIELDS: Final = FilterFields(
    texts=frozenset({"name", "run_id", "source_path"}),
    numbers=frozenset({"version_number", "creation_timestamp", "last_updated_timestamp"}),
    kinds=frozenset({TAG}),
    lists=frozenset({"name", "run_id"}),
)
_PAGE: Final = 1000
_NS_OF_MS: Final = 10**6


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """A version of a registered model."""

    info: VersionInfo

    @property
    def tags(self) -> dict[str, str]:
        return own_tags(self.info.labels)

    @property
    def stage(self) -> str:
        return self.info.stage or NO_STAGE

    @property
    def run(self) -> str:
        return self.info.labels.get(RUN_LABEL, "")

    @property
    def model(self) -> str:
        """Id of the logged model that it was; "" where it was none."""
        return self.info.labels.get(MODEL_LABEL, "")

    @property
    def source(self) -> str:
        known = self.info.labels.get(SOURCE_LABEL)
        return known or f"{self.info.source}:{self.info.source_path}"

    @property
    def artifacts(self) -> str:
        """URI of its files."""
        return ArtifactPlace("commits", self.info.commit).uri

    @property
    def made_ms(self) -> int:
        return self.info.time_ns // _NS_OF_MS

    def lookup(self, kind: str, key: str) -> object:
        """Value of a field that `VERSION_FIELDS` has."""
        if kind == TAG:
            return self.tags.get(key)
        attributes: dict[str, object] = {
            "name": self.info.name,
            "run_id": self.run or None,
            "source_path": self.source,
            "version_number": self.info.number,
            "creation_timestamp": self.made_ms,
            "last_updated_timestamp": self.made_ms,
        }
        return attributes.get(key)


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A registered model, and the newest version of each stage."""

    info: RegisteredModelInfo
    newest: tuple[VersionRecord, ...]

    @property
    def tags(self) -> dict[str, str]:
        return own_tags(self.info.labels)

    @property
    def made_ms(self) -> int:
        told = self.info.labels.get(MADE_LABEL, "")
        if told.isdecimal():
            return int(told)
        return min((one.made_ms for one in self.newest), default=0)

    @property
    def changed_ms(self) -> int:
        return max((self.made_ms, *(one.made_ms for one in self.newest)))

    def lookup(self, kind: str, key: str) -> object:
        """Value of a field that `MODEL_FIELDS` has."""
        if kind == TAG:
            return self.tags.get(key)
        attributes: dict[str, object] = {
            "name": self.info.name,
            "creation_timestamp": self.made_ms,
            "last_updated_timestamp": self.changed_ms,
        }
        return attributes.get(key)


def own_tags(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels that are tags of clients."""
    hidden = STAGE_LABEL
    return {name: text for name, text in labels.items() if name != hidden and not _is_own(name)}


def create_record(
    access: RepositoryAccess, name: str, *, description: str, tags: Mapping[str, str | None]
) -> ModelRecord:
    """Name a model. Raises ConflictError: it is there already."""
    check_tags(tags)
    made = str(time.time_ns() // _NS_OF_MS)
    create_model(access, name, description=description, labels={**tags, MADE_LABEL: made})
    return model_record(access, name)


def model_record(access: RepositoryAccess, name: str) -> ModelRecord:
    """A registered model. Raises NotFoundError."""
    return _with_newest(access, get_model(access, name))


def version_record(access: RepositoryAccess, name: str, which: int | str) -> VersionRecord:
    """A version by its number or an alias. Raises NotFoundError."""
    return VersionRecord(get_version(access, name, which))


def create_version(
    access: RepositoryAccess,
    live: LiveRuns,
    name: str,
    source: str,
    *,
    run: str = "",
    model: str = "",
    description: str = "",
    tags: Mapping[str, str | None] | None = None,
    scratch: Path,
) -> VersionRecord:
    """Register what `source` names (see `version_source`) as the next version of a model.

    Raises:
        NotFoundError: there is no such registered model, or nothing at `source`.
        InvalidInputError: `source` is not of this repository.
    """
    check_tags(tags or {})
    get_model(access, name)
    found = version_source(access, live, source, run=run, scratch=scratch)
    made = register_version(access, name, found.path, ref=found.ref)
    told = {SOURCE_LABEL: source, RUN_LABEL: run or None, MODEL_LABEL: model or None}
    labels = {label: text for label, text in {**(tags or {}), **told}.items() if text is not None}
    describe(access, name, made.number, description=description or None, labels=labels)
    return version_record(access, name, made.number)


def version_by_alias(access: RepositoryAccess, name: str, alias: str) -> VersionRecord:
    """The version that an alias names.

    Raises:
        NotFoundError: there is no such model.
        InvalidInputError: it has no such alias, as clients expect it told.
    """
    if alias not in get_model(access, name).aliases:
        raise InvalidInputError(f"Registered model alias {alias:.100} not found.")
    return version_record(access, name, alias)


def remove_alias(access: RepositoryAccess, name: str, alias: str) -> None:
    """Remove an alias; fine where it has none of that name. Raises NotFoundError: no such model."""
    if alias in get_model(access, name).aliases:
        delete_alias(access, name, alias)


def remove_version(access: RepositoryAccess, name: str, number: int) -> None:
    """Remove a version, and the aliases that name it.

    Raises:
        NotFoundError: there is no such version.
        ConflictError: an alias is protected. The version stays.
    """
    for alias in get_version(access, name, number).aliases:
        delete_alias(access, name, alias)
    delete_version(access, name, number)


def latest_versions(
    access: RepositoryAccess, name: str, stages: Sequence[str] = ()
) -> list[VersionRecord]:
    """The newest version of each stage, or of those that are asked for. Raises NotFoundError."""
    wanted = {stage.lower() for stage in stages}
    newest = model_record(access, name).newest
    return [one for one in newest if not wanted or one.stage.lower() in wanted]


def search_models(
    access: RepositoryAccess, filter_text: str, order_by: Sequence[str]
) -> list[ModelRecord]:
    """Registered models that fit, by name unless they are ordered otherwise."""
    clauses = parse_filter(filter_text, MODEL_FIELDS)
    every = (_with_newest(access, info) for info in _registered(access))
    found = [one for one in every if all(_fits(clause, one.lookup) for clause in clauses)]
    return sort_records(found, order_by, MODEL_FIELDS, _lookup_of)


def search_versions(
    access: RepositoryAccess, filter_text: str, order_by: Sequence[str]
) -> list[VersionRecord]:
    """Versions that fit, the newest of each name first unless they are ordered otherwise."""
    clauses = parse_filter(filter_text, VERSION_FIELDS)
    exact = [one for one in clauses if one.key == "name" and one.kind != TAG and one.sign == "="]
    names = [one.value for one in exact[:1]] or [info.name for info in _registered(access)]
    found = [
        one
        for name in names
        for one in _versions(access, name)
        if all(_fits(clause, one.lookup) for clause in clauses)
    ]
    return sort_records(found, order_by, VERSION_FIELDS, _lookup_of)


def check_tags(tags: Mapping[str, str | None]) -> None:
    """Raises InvalidInputError for names that are the house's own."""
    for name in tags:
        if _is_own(name) or name == STAGE_LABEL:
            raise InvalidInputError(f"tag {name!r:.80} is the house's own: choose another name")


def _versions(access: RepositoryAccess, name: str) -> Iterator[VersionRecord]:
    """All versions of a name, none where there is no such name."""
    below: int | None = None
    with suppress(NotFoundError):
        while page := list_versions(access, name, below=below, limit=_PAGE):
            yield from map(VersionRecord, page)
            below = page[-1].number


def _registered(access: RepositoryAccess) -> Iterator[RegisteredModelInfo]:
    page, after = list_registered(access, limit=_PAGE)
    yield from page
    while after is not None:
        page, after = list_registered(access, after=after, limit=_PAGE)
        yield from page


def _with_newest(access: RepositoryAccess, info: RegisteredModelInfo) -> ModelRecord:
    newest: dict[str, VersionRecord] = {}
    if info.latest is not None:
        for one in list_versions(access, info.name, limit=_PAGE):
            record = VersionRecord(one)
            newest.setdefault(record.stage, record)
    return ModelRecord(info, tuple(newest.values()))


def _fits(clause: FilterClause, lookup: Lookup) -> bool:
    found = lookup(clause.kind, clause.key)
    if clause.kind == TAG and clause.key == PROMPT_TAG and found is None:
        return (clause.sign, clause.value) in {("=", "false"), ("!=", "true")}
    return clause.fits(found)


def _lookup_of(record: ModelRecord | VersionRecord) -> Lookup:
    return record.lookup


def _is_own(label: str) -> bool:
    return label.startswith(OWN)
