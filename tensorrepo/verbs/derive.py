"""Derivation on a stage: which source, function and columns are meant; how a killed one goes on.

From time to time a long derivation opens a lease on what it has made, called by what is derived of
what: a later call, from any machine, finds it there and goes on behind it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from tensorrepo.formats.common.arguments import check_instance, chosen, path_in, real, whole, wrong
from tensorrepo.formats.common.buffer_codecs import DEFAULT_CODEC, parse_codec
from tensorrepo.formats.common.function_identity import FunctionIdentity, identify
from tensorrepo.formats.common.provenance import DERIVED_FROM, IDENTITY, ProvenanceEdge
from tensorrepo.formats.common.ray_tasks import remote_call
from tensorrepo.formats.dataset.changing.row_function import Convert, RowFunction
from tensorrepo.formats.dataset.derive import (
    DerivationOptions,
    DerivationReport,
    derive_dataset,
)
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, InputBatch, Schema, type_to_json
from tensorrepo.formats.dataset.schema.types import TypeLike, as_type
from tensorrepo.formats.dataset.write import CHECKPOINT_BYTES
from tensorrepo.repo.changes.leases import secure_kept
from tensorrepo.repo.changes.transaction import CommitTransaction
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.log.state import Lease
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tensorrepo.verbs.exchange import open_source

Types = Mapping[str, TypeLike | Column] | Schema | None
LEASE_SECONDS: Final = 14 * 24 * 3600
_RULES: Final = "1"  # of what an identity is made: another number makes all derived datasets anew


@dataclass(frozen=True, slots=True)
class DeriveRequest:
    """What `Transaction.derive` was asked for; it says what each means."""

    name: str
    source: str
    function: Callable[[pa.RecordBatch], Any]
    columns: Iterable[str] | None = None
    types: Types = None
    batch: int = 256
    version: str | None = None
    explode: bool = False
    check: float = 0.0
    executor: str = "thread"
    workers: int | None = None
    codec: str = DEFAULT_CODEC
    checkpoint_bytes: int = CHECKPOINT_BYTES
    progress: Callable[[int, int], None] = lambda _done, _total: None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise wrong("fn", "a function of batches", self.function)
        whole("batch", self.batch, 1)
        real("check", self.check, 0, 1)
        chosen("executor", self.executor, ("thread", "ray"))
        if self.workers is not None:
            whole("workers", self.workers, 1)
        if self.version is not None:
            check_instance("version", self.version, str, "text")


def derive(
    core: CommitTransaction, outside: Outside, request: DeriveRequest, actor: str
) -> tuple[DerivationReport, str | None]:
    """Stage a dataset as the function makes it of another.

    Args:
        core: transaction in which both are.
        outside: files that may be read in place.
        request: what is derived, and how.
        actor: holder of leases.

    Returns:
        What was done, and the lease that the commit ends, if there is one.
    """
    path, source_path = path_in("datasets", request.name), path_in("datasets", request.source)
    entry = core.entry(source_path)
    if entry is None or entry.kind is not Kind.DATASET or path == source_path:
        raise NotFoundError(
            f"no {source_path} in branch {core.branch!r} to derive {path} from: the source is "
            "another dataset of the branch"
        )
    source = open_dataset(core.objects, entry.digest, outside)
    found = identify(request.function, request.version)
    function = _function(request, found, source, source_path)
    edge = _edge(core, request, found, function, source, entry, source_path)
    there = core.entry(path)
    lease = _Lease(core, path, actor, _lease_name(core, path, edge, there))
    known = lease.known()
    derived = known or there
    link, report = derive_dataset(
        core.objects,
        source,
        None if derived is None else open_dataset(core.objects, derived.digest, outside),
        function,
        edge,
        _options(request, source, lease.keep),
    )
    if there is None or link.digest != there.digest:
        made = open_dataset(core.objects, link.digest, outside).entry
        core.stage(path, made, since=lease.since if lease.is_open else None)
    return report, lease.name if lease.is_open else None


# ------------------------------------------------------------------------------ what is meant


def _function(
    request: DeriveRequest, found: FunctionIdentity, source: StoredDataset, path: str
) -> RowFunction:
    names = None if request.columns is None else tuple(request.columns)
    if isinstance(request.columns, str) or names == ():
        raise wrong("columns", "names of columns of the source", request.columns)
    call, threads = request.function, request.workers or os.cpu_count() or 1
    if request.executor == "ray":  # threads of this process wait for what workers make
        call, cpus = remote_call(request.function)
        threads = request.workers or max(1, cpus)
    return RowFunction(
        call,
        _convert(request.types),
        found.name,
        path,
        source.schema.select(names).names,
        request.batch,
        threads,
        request.explode,
    )


def _convert(types: Types) -> Convert:
    given = {} if types is None else _columns(types)

    def convert(rows: Any, schema: Schema | None) -> tuple[Schema, Iterable[InputBatch]]:
        reading = open_source(rows, schema=schema, types=given if schema is None else None)
        return reading.schema, reading.batches

    return convert


def _columns(types: Mapping[str, TypeLike | Column] | Schema) -> dict[str, Column]:
    if isinstance(types, Schema):
        return {column.name: column for column in types.without_ids().columns}
    check_instance("types", types, Mapping, "{'name': type}, or a schema")
    return {
        name: kind if isinstance(kind, Column) else Column(name, as_type(kind))
        for name, kind in types.items()
    }


def _options(
    request: DeriveRequest, source: StoredDataset, keep: Callable[[ObjectLink], None]
) -> DerivationOptions:
    schema = None
    # Without rows nothing else says the columns.
    if isinstance(request.types, Schema) or (request.types and not source.rows):
        schema = Schema(tuple(_columns(request.types).values()))
    return DerivationOptions(
        schema,
        request.check,
        parse_codec(request.codec),
        request.progress,
        keep,
        request.checkpoint_bytes,
    )


def _edge(
    core: CommitTransaction,
    request: DeriveRequest,
    found: FunctionIdentity,
    function: RowFunction,
    source: StoredDataset,
    entry: Entry,
    path: str,
) -> ProvenanceEdge:
    """What lineage says: the function, all that its rows follow from, and the source."""
    reads = [[name, type_to_json(source.schema.column(name).type)] for name in function.columns]
    gives = [] if request.types is None else _columns(request.types).values()
    told = {
        "rules": _RULES,
        "function": found.digest,
        "columns": reads,
        "types": [[column.name, type_to_json(column.type), column.nullable] for column in gives],
        "explode": request.explode,
    }
    identity = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    details: dict[str, Any] = {
        "function": found.name,
        IDENTITY: identity,
        "columns": list(function.columns),
    }
    details |= {"packages": dict(found.packages)} if found.packages else {}
    details |= {"version": request.version} if request.version is not None else {}
    details |= {"explode": True} if request.explode else {}
    is_committed = path not in core.staged
    return ProvenanceEdge(
        DERIVED_FROM, path, entry.digest, core.base if is_committed else None, details
    )


# ------------------------------------------------------------------------------ going on


def _lease_name(
    core: CommitTransaction, path: str, edge: ProvenanceEdge, there: Entry | None
) -> str:
    """The same for whoever derives the same of the same, onto the same."""
    before = "" if there is None else there.digest
    told = "\0".join([core.ref, path, edge.digest, str(edge.details[IDENTITY]), before])
    return f"derive-{hashlib.sha256(told.encode()).hexdigest()[:32]}"


class _Lease:
    """What a lease keeps of a derivation, and since when; nothing is written until it is long."""

    def __init__(self, core: CommitTransaction, path: str, actor: str, name: str) -> None:
        self.name = name
        self.is_open = False
        self.since = core.pin.generation
        self._core, self._path, self._actor = core, path, actor

    def known(self) -> Entry | None:
        """What an earlier call had made, if it was cut off."""
        lease = self._core.repository.log.refresh().state.leases.get(self.name)
        if lease is None or len(lease.keep) != 1:
            return None
        self.is_open, self.since = True, _since(lease, self.since)
        return open_dataset(self._core.objects, lease.keep[0]).entry

    def keep(self, link: ObjectLink) -> None:
        """Let the lease keep this, and nothing else."""
        self._core.objects.flush()
        now = _now()
        txn = secrets.token_hex(16)
        opened = LogEntry(
            txn,
            "lease-open",
            self._actor,
            now,
            f"derive {self._path} since {self.since}",
            data={
                "id": self.name,
                "keep": (link.digest,),
                "expires": now + LEASE_SECONDS * 10**9,
            },
        )

        def decide(view: LogView) -> tuple[LogEntry, ...]:
            what = f"derived rows of {self._path}"
            secure_kept(self._core.repository, view, [link.digest], self.since, what)
            if self.name not in view.state.leases:
                return (opened,)
            closed = LogEntry(txn, "lease-close", self._actor, now, data={"id": self.name})
            return (closed, opened)

        append(self._core.repository.log, decide)
        self.is_open = True


def _since(lease: Lease, latest: int) -> int:
    """Generation of the log at which the first of what a lease keeps was stored."""
    told = lease.note.rpartition(" ")[2]
    if not told.isdigit():
        raise InvalidInputError(f"lease {lease.note!r:.80} is of no derivation")
    return min(int(told), latest)


def _now() -> int:
    return time.time_ns()
