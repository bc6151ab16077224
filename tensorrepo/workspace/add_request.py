"""What is to be added, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import Literal

from tensorrepo.context import Context
from tensorrepo.formats.common.buffer_codecs import DEFAULT_CODEC
from tensorrepo.formats.common.provenance import (
    DERIVED_FROM,
    TRAINED_ON,
    ProvenanceEdge,
)
from tensorrepo.formats.dataset.schema.lenient import Misfit, OnMisfit
from tensorrepo.formats.dataset.versions.conflicts import SideName
from tensorrepo.formats.exchange.remote import RemoteSource
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import check_path
from tensorrepo.verbs.exchange import SourceProgress
from tensorrepo.verbs.provenance import named_edge, relation_to
from tensorrepo.verbs.stage import Stage
from tensorrepo.workspace.session import WorkspaceSession


class AddMode(Enum):
    """What to do with a name that exists."""

    NEW = "new"
    APPEND = "append"
    SYNC = "sync"
    MIRROR = "mirror"
    REPLACE = "replace"
    UPSERT = "upsert"


ROW_MODES = frozenset({AddMode.APPEND, AddMode.UPSERT, AddMode.MIRROR})
SYNC_MODES = frozenset({AddMode.SYNC, AddMode.MIRROR, AddMode.REPLACE})


@dataclass(frozen=True, slots=True)
class AddRequest:
    """What is to be added. `space` is the top folder of the tree: datasets, models or files.

    `source` is a path of this machine; with `url`, one that is made when it is added.
    """

    source: Path
    space: str
    name: str
    mode: AddMode = AddMode.NEW
    format: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    on_error: OnMisfit = "raise"
    codec: str = DEFAULT_CODEC
    key: tuple[str, ...] = ()  # of AddMode.UPSERT, and of those that match rows
    prefer: SideName | None = None  # of AddMode.SYNC: who decides cells that both sides changed
    base: str | None = None  # of a model: REF:models/NAME to store the difference from
    derived_from: tuple[str, ...] = ()  # [REF:]NAME or URLs
    adapter_of: str | None = None  # of a model: it is an adapter to REF:NAME
    adapter_scale: float | None = None  # of its products, where no config of it says so
    more: tuple[Path, ...] = ()  # further paths, whose rows come behind those of `source`
    workers: Context | None = None  # workers of a cluster, which open it, store the rows
    url: str | None = None  # where to get `source` from, which is no path then
    remote: RemoteSource | None = None  # what `source` is a copy of
    progressive: bool | Literal["beside"] = False  # see `Image`; of a new dataset

    @property
    def path(self) -> str:
        return f"{self.space}/{self.name}"

    @property
    def place(self) -> str:
        """What the source is called."""
        return str(self.source) if self.remote is None else self.remote.url


@dataclass(frozen=True, slots=True)
class Added:
    """One entry that was staged; `changed` False: the name held exactly that already.

    `rows` are those that were added; a sync has updated and deleted others.
    """

    path: str
    rows: int
    bytes: int
    changed: bool
    notes: tuple[str, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry that was stored, and what the user is told of it.

    `source` is what the files hold, where the entry has changes that they have not.
    """

    entry: Entry
    added: Added
    source: Digest | None = None


def origins(session: WorkspaceSession, request: AddRequest) -> Iterator[ProvenanceEdge]:
    """What a user says that it was made of, or a model trained on."""
    of_rows = TRAINED_ON if request.space == "models" else DERIVED_FROM
    for name in request.derived_from:
        if "://" in name:
            yield named_edge(None, name, DERIVED_FROM)
            continue
        revision, path, entry = session.find(name)
        relation = relation_to(path, of_rows)
        yield ProvenanceEdge(relation, path, entry.digest, revision.digest)


def existing_entry(stage: Stage, request: AddRequest) -> Entry | None:
    """The entry that the request is about, when there is one.

    Raises:
        ConflictError: there is one, and the request does not say what to do with it.
    """
    existing = stage.entry(request.path)
    if existing is not None and request.mode is AddMode.NEW:
        raise ConflictError(f"{request.path} exists. {_ways_on(request)}")
    if request.mode in ROW_MODES and request.space != "datasets":
        raise InvalidInputError(f"--{request.mode.value} is about rows of datasets; use --replace")
    return existing


def _ways_on(request: AddRequest) -> str:
    """What can be said of an entry that exists; rows are added to datasets alone."""
    if request.space != "datasets":
        return "Choose another name, or give --replace."
    return (
        "Say what you mean: --append adds rows to it, --upsert KEY updates those whose key it has, "
        "--sync puts on it what changed in the path, --mirror makes its rows those of the path, "
        "--replace its columns as well."
    )


def check_source(request: AddRequest) -> None:
    """Raise NotFoundError where there is no source, InvalidInputError where its name is none."""
    if not request.source.exists():
        raise NotFoundError(f"there is no {request.source} to add")
    check_path(request.path)


def behind(added: Sequence[Added], progress: SourceProgress) -> SourceProgress:
    """The progress of what comes after some that were added."""
    before = sum(each.bytes for each in added)

    def advance(done: int, total: int | None = None, /) -> None:
        progress(before + done, None if total is None else before + total)

    return advance
