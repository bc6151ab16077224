"""Catalog handle of the SDK: opened, brought up to date, searched for models by architecture.

It is made when it is first used, and brought up to date before each question.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
from sqlalchemy import Connection, Engine

from tensorrepo.context import Context
from tensorrepo.formats.common.arguments import (
    check_instance,
    counted,
    encodable,
    flag,
    whole,
    wrong,
)
from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.formats.model.graph.derived import derived_graph
from tensorrepo.formats.model.graph.graph import Graph, make_graph
from tensorrepo.formats.model.graph.source import CONFIG, MAX_CONFIG_BYTES
from tensorrepo.formats.model.merging.new_model import WantedTensor, graph_wanted, wanted_of
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.migrations import revisions
from tensorrepo.migrations.revisions import SchemaFit, Standing
from tensorrepo.models.model import Model
from tensorrepo.query import architecture
from tensorrepo.query.architecture import Donor, Owner, PathFound, Ranking
from tensorrepo.query.catalog import database as core
from tensorrepo.query.catalog import tables
from tensorrepo.query.sql.catalog_tables import CatalogTable, DerivedColumn
from tensorrepo.query.sql.pushdown import Scanned
from tensorrepo.query.sync import catch_up as catchup
from tensorrepo.query.sync.catch_up import CatchUpProgress, CaughtUp, Difference, differences
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import (
    CorruptError,
    Error,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tensorrepo.repo.tables import Cell, RecordList, RecordTable, Shown
from tensorrepo.runs.record import state_of

ArchitectureSource: TypeAlias = "Graph | Model | Mapping[str, Any] | Path | str"

MAX_BYTES: Final = 64 << 20


def graph_of(described: ArchitectureSource) -> Graph:
    """The architecture graph of a model, a state dict (also on torch's device "meta"), or a file.

    Raises:
        NotFoundError: no such file.
        InvalidInputError: a file that describes none.
    """
    if isinstance(described, Model):
        return described.graph()
    if isinstance(described, Path | str):
        path = Path(described)
        if path.suffix.lower() != ".json" or path.name.endswith(".index.json"):
            return _graph_of_source(read_model(path))
        return graph_of(read_architecture(path))
    if not isinstance(described, Graph | Mapping):
        raise wrong(
            "an architecture", "a graph, a model, a state dict, or the path of a file", described
        )
    return graph_wanted(described)


def read_architecture(path: Path) -> Graph | dict[str, WantedTensor]:
    """A JSON file: a graph, as `model desc NAME --nodes --json` prints it, or types and shapes."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise NotFoundError(f"there is no {path}") from None
    if size > MAX_BYTES:
        raise InvalidInputError(f"{path}: more than {MAX_BYTES >> 20} MiB is no architecture")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path}: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"{path}: expected a graph, or types and shapes by name")
    if "nodes" in value:
        return _parsed_graph(path, value)
    if "model_type" in value or "architectures" in value:
        raise InvalidInputError(
            f"{path} is a config: it does not tell the shapes of tensors. Give the model file, or "
            "build the module on torch's device meta and pass its state_dict() in Python."
        )
    return wanted_of(value)


def _parsed_graph(path: Path, value: dict[str, Any]) -> Graph:
    try:
        graph = msgspec.convert(value, Graph)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"{path}: no graph: {error}") from error
    return make_graph(graph.source, graph.nodes, graph.outputs, graph.config)


def _graph_of_source(source: ModelSource) -> Graph:
    """The graph that a stored model of these tensors would have, unless they are an ONNX file's."""
    readers = {**source.tensors, **{a: source.tensors[of] for a, of in source.aliases.items()}}
    wanted = [WantedTensor(name, one.type, tuple(one.shape)) for name, one in readers.items()]
    told = source.files.get(CONFIG)
    data = told.read_bytes() if isinstance(told, Path) else told
    try:
        settings = json.loads(data) if data and len(data) <= MAX_CONFIG_BYTES else {}
    except (ValueError, RecursionError):
        settings = {}
    return derived_graph(wanted, settings if isinstance(settings, dict) else {})


@dataclass(frozen=True, slots=True, repr=False)
class CatalogStatus(Shown):
    """How a catalog stands to its repository.

    Attributes:
        url: where the catalog is, without a password.
        state: "current", "behind" (its rows: the next question brings it up to date), "empty",
            "old tables", "newer tables", "half-migrated", "damaged", "not a catalog", "other
            repository" or "rewound".
        revision: revision of its tables; None where there are none.
        newest_revision: the one that this tensorrepo works with.
        generation: the log record that it tells of.
        of_generation: the newest of the repository.
        rows: rows of each table that has any.
        advice: what to do; "" when nothing is to be done.
    """

    url: str
    state: str
    revision: str | None
    newest_revision: str
    generation: int
    of_generation: int
    rows: dict[str, int]
    advice: str

    @property
    def is_usable(self) -> bool:
        """Whether the next question will be answered without anybody's help."""
        return self.state in {"current", "behind", "empty"}

    def to_table(self) -> RecordTable:
        """Where it is and how it stands, above the rows of its tables."""
        tables_of = self.revision or "none yet"
        lines = [
            f"catalog   {self.url}",
            f"state     {self.state}",
            f"tables    revision {tables_of}, newest {self.newest_revision}",
            f"tells of  record {self.generation:,} of {self.of_generation:,}",
            *([self.advice] if self.advice else []),
        ]
        rows = tuple((name, f"{count:,}") for name, count in self.rows.items())
        return RecordTable(tuple(lines), ("table", ">rows") if rows else (), rows)

    def __repr__(self) -> str:
        return f"<catalog {self.url}: {self.state}>"


def model_text(model: PathFound | Donor | Owner) -> str:
    """Where a model stands, and its digest."""
    paths = list(dict.fromkeys(version.path for version in model.versions))
    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    return f"{f'{paths[0]}{more}' if paths else '(a model of no commit)'} {model.model:.12}"


def way_text(model: PathFound, most: int = 8) -> str:
    """The nodes of a way, those in the middle of a long one counted."""
    nodes = model.nodes
    if len(nodes) <= most:
        return " -> ".join(nodes)
    return " -> ".join((*nodes[: most // 2], f"({len(nodes) - most} more)", *nodes[-most // 2 :]))


class FoundModels(RecordList[PathFound]):
    """Models in which a way was found."""

    columns: ClassVar[Mapping[str, Cell]] = {"model": model_text, "way": way_text}


class DonorList(RecordList[Donor]):
    """Models that begin like an architecture, the best first."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "model": model_text,
        ">shared": lambda donor: f"{donor.shared} of {counted(donor.nodes, 'node')}",
        ">value": lambda donor: "-" if donor.value is None else f"{donor.value:.6g}",
    }


class OwnerList(RecordList[Owner]):
    """Models that hold a tensor."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "model": model_text,
        "tensor": "tensor",
        "since": lambda owner: f"{owner.versions[-1].commit:.12}" if owner.versions else "",
    }


def _state_of_run(status: str, due_ns: int, environment: str) -> str:
    return state_of(status, due_ns, json.loads(environment).get("process", ""))


_TOLD = {"run": (DerivedColumn("state", ("status", "due_ns", "environment"), _state_of_run),)}


class Catalog:
    """The SQL catalog of one repository. Safe to share between threads."""

    def __init__(self, repository: RepositoryCore, url: str) -> None:
        self._repository = repository
        self._url = url

    def __repr__(self) -> str:
        return f"<Catalog {self.url} of {self._repository.url}>"

    @cached_property
    def engine(self) -> Engine:
        """The database. `reading` gives a connection to tables that are up to date."""
        return core.connect(self._url)

    @property
    def url(self) -> str:
        """Where it is, without a password."""
        return self._plain.url

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the catalog: the newest of the repository.

        Raises:
            UnsupportedError, CorruptError, InvalidInputError: the tables are not
                such as this version can use; says which command mends them.
        """
        self.catch_up()
        with self._plain.reading() as connection:
            yield connection

    def table(self, name: str, scanned: Scanned) -> CatalogTable | None:
        """A table as SQL over data reads it; None: there is none of this name."""
        table = tables.METADATA.tables.get(name)
        told = _TOLD.get(name, ())
        return None if table is None else CatalogTable(table, self.reading, scanned, told)

    def names(self) -> Iterator[str]:
        """Names of all tables."""
        return iter(tables.METADATA.tables)

    def catch_up(self, *, progress: Callable[[CatchUpProgress], None] | None = None) -> CaughtUp:
        """Take in what happened in the repository since the last time; makes tables at first."""
        self._make_tables()
        return catchup.catch_up(self._repository, self._plain, progress=progress)

    def erase_purged(self) -> None:
        """Take in what was purged, so that nothing of it is left; where there is a catalog."""
        if self._plain.is_there():
            self.catch_up()
            self._plain.shrink()

    def upgrade(self, to: str = revisions.HEAD) -> Standing:
        """Bring the tables to the newest revision, their rows with them.

        Raises:
            UnsupportedError: they are newer than this tensorrepo.
            CorruptError: they are half-migrated: `rebuild`.
            InvalidInputError: they are of another repository, or not ours.
        """
        with self._plain.writing() as connection:
            found = revisions.standing(connection)
            if found.fit in {SchemaFit.DROPPED, SchemaFit.AHEAD, SchemaFit.HALF, SchemaFit.FOREIGN}:
                raise self._misfit(found)
            if found.fit is not SchemaFit.EMPTY:
                catchup.check_owner(self._repository, core.read_owner(connection))
            revisions.upgrade(connection, to)
            return revisions.standing(connection)

    def rebuild(
        self,
        *,
        progress: Callable[[CatchUpProgress], None] | None = None,
        warn: Callable[[str], None] = warnings.warn,
    ) -> CaughtUp:
        """Throw the catalog away and make it anew, whatever its tables hold.

        A SQLite file that is damaged gets another name first.

        Args:
            progress: callback that receives how far it is.
            warn: callback that receives the name that a damaged file got.

        Raises:
            InvalidInputError: the database has tables of that name that are not ours.
            StorageError: the database cannot be reached.
        """
        try:
            return self._rebuild(progress)
        except CorruptError:
            if not self._plain.is_damaged():  # but the repository is
                raise
        url, aside = self.url, self._plain.set_aside()
        warn(f"the catalog {url} was damaged: what is left of it is now {aside}")
        return self._rebuild(progress)

    def _rebuild(self, progress: Callable[[CatchUpProgress], None] | None) -> CaughtUp:
        with self._plain.writing() as connection:
            found = revisions.standing(connection)
            if found.fit is SchemaFit.FOREIGN:
                raise self._misfit(found)
            if found.fit is not SchemaFit.CURRENT:
                revisions.remove(connection)
                revisions.upgrade(connection)
        return catchup.rebuild(self._repository, self._plain, progress=progress)

    def find_models(
        self, first: str, last: str | None = None, *, steps: int | None = None
    ) -> FoundModels:
        """Models of all commits with a node that fits `first`, and a way from it to `last`.

        Args:
            first: a regular expression that fits a node's whole name, or its whole operation.
            last: another one; None: one node is enough.
            steps: edges of the way at most; None: any number.
        """
        encodable("first", first)
        if last is not None:
            encodable("last", last)
        with self.reading() as connection:
            return FoundModels(architecture.models_with_path(connection, first, last, steps=steps))

    def donors(
        self,
        target: ArchitectureSource,
        *,
        metric: str | None = None,
        order_by_metric: bool = False,
        smallest: bool = False,
        limit: int = 10,
    ) -> DonorList:
        """Models of all commits that begin like an architecture, the longest prefix first.

        A model is not a donor to itself.

        Args:
            target: a graph, a model, a state dict (torch's device "meta" is enough), or a file.
            metric: metric of models that decides between equal prefixes.
            order_by_metric: it counts first, among those that share half of the nodes.
            smallest: small values of it are good ones.
            limit: so many at most.
        """
        ranking = Ranking(
            None if metric is None else encodable("metric", metric),
            flag("order_by_metric", order_by_metric),
            flag("smallest", smallest),
            whole("limit", limit, 1),
        )
        own = (target.digest,) if isinstance(target, Model) else ()
        graph = graph_of(target)
        with self.reading() as connection:
            return DonorList(architecture.donors(connection, graph, ranking, without=own))

    def owners(self, model: Model, tensor: str) -> OwnerList:
        """Models of all commits that hold a tensor of `model`, bit for bit."""
        check_instance("model", model, Model, "one of the repository, as repo.model(...) gives it")
        model.spec(encodable("tensor", tensor))  # says which names are near
        with self.reading() as connection:
            return OwnerList(architecture.owners(connection, model.digest, tensor))

    def verify(self) -> list[Difference]:
        """Compare with a catalog made anew beside it, table by table; [] when they are equal."""
        self.catch_up()
        return list(differences(self._repository, self._plain))

    def status(self) -> CatalogStatus:
        """How it stands; changes nothing, and raises nothing for a catalog that is in disorder."""
        view = self._repository.log.refresh()
        try:
            found, cursor, rows = self._look()
        except CorruptError as error:
            newest, of = revisions.newest(), view.generation
            return CatalogStatus(self.url, "damaged", None, newest, 0, of, {}, str(error))
        state, advice = self._state(found)
        if cursor is not None:
            try:
                catchup.check_cursor(self._repository, cursor, view)
            except Error as error:
                other = isinstance(error, InvalidInputError)
                state, advice = ("other repository" if other else "rewound"), str(error)
            else:
                state = "current" if cursor.generation >= view.generation else "behind"
        elif found.fit is SchemaFit.CURRENT:
            state = "empty"
        return CatalogStatus(
            self.url,
            state,
            ", ".join(found.revisions) or None,
            revisions.newest(),
            0 if cursor is None else cursor.generation,
            view.generation,
            rows or {},
            advice,
        )

    def close(self) -> None:
        """Close all connections."""
        self._plain.dispose()

    @cached_property
    def _plain(self) -> core.CatalogDatabase:
        return core.CatalogDatabase(self.engine)

    def _look(self) -> tuple[Standing, core.Cursor | None, dict[str, int] | None]:
        """What is there: its tables, how far they tell, and how many rows they have."""
        with self._plain.reading() as connection:
            found = revisions.standing(connection)
            if found.fit is not SchemaFit.CURRENT:
                return found, None, None
            return found, core.read_cursor(connection), core.count_rows(connection)

    def _make_tables(self) -> None:
        """Make the tables where there are none; refuse those that do not fit."""
        with self._plain.reading() as connection:
            found = revisions.standing(connection)
        if found.fit is SchemaFit.EMPTY:
            with self._plain.writing() as connection:
                found = revisions.standing(connection)  # another process may have been faster
                if found.fit is SchemaFit.EMPTY:
                    revisions.upgrade(connection)
                    return
        if found.fit is not SchemaFit.CURRENT:
            raise self._misfit(found)

    def _misfit(self, found: Standing) -> Error:
        _, advice = self._state(found)
        told = f"the catalog {self.url}: {advice}"
        match found.fit:
            case SchemaFit.BEHIND | SchemaFit.DROPPED | SchemaFit.AHEAD:
                return UnsupportedError(told)
            case SchemaFit.FOREIGN:
                return InvalidInputError(told)
        return CorruptError(told)

    def _state(self, found: Standing) -> tuple[str, str]:
        """What to call the state of the tables, and what to do."""
        at = ", ".join(found.revisions) or "none"
        match found.fit:
            case SchemaFit.BEHIND:
                return "old tables", (
                    f"its tables are of revision {at}, this tensorrepo works with "
                    f"{revisions.newest()}. Run `tensorrepo catalog upgrade`."
                )
            case SchemaFit.DROPPED:
                return "old tables", (
                    f"its tables are of revision {at}, from before the first release, and cannot "
                    "be upgraded. Run `tensorrepo catalog rebuild`: it is only a cache."
                )
            case SchemaFit.AHEAD:
                return "newer tables", (
                    f"its tables are of revision {at}, which this tensorrepo does not know (it "
                    f"knows up to {revisions.newest()}). Update tensorrepo, or name another "
                    "catalog in TENSORREPO_CATALOG."
                )
            case SchemaFit.HALF:
                lacking = f", without {', '.join(found.missing[:5])}" if found.missing else ""
                return "half-migrated", (
                    f"its tables are between revisions (stated: {at}{lacking}). Run `tensorrepo "
                    "catalog rebuild`: it is only a cache."
                )
            case SchemaFit.FOREIGN:
                return "not a catalog", (
                    "the database has tables of other programs with names of ours, and no "
                    "revision. Name another database in TENSORREPO_CATALOG."
                )
        return found.fit.value, ""


_CATALOGS: WeakKeyDictionary[Context, Catalog] = WeakKeyDictionary()


def catalog_of(context: Context) -> Catalog:
    """The catalog of a repository: one for all handles that share a context."""
    if context not in _CATALOGS:
        _CATALOGS[context] = Catalog(context.core, context.catalog_url)
    return _CATALOGS[context]
