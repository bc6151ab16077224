"""Backup of a service, and a service made of one.

    service.json                what it is: version, repositories, how far each log was
    database.jsonl              rows of all tables, by table
    repositories/<number>       a mirror of each repository in the service's own storage

The database is read in one transaction, and before the logs: what its rows know of a log is in the
log that is copied. Repositories that lie elsewhere are named with their generation alone, and
whoever restores is told where one has less.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, insert, select

from tensorrepo.api.access.accounts import Accounts
from tensorrepo.api.database.connection import Database
from tensorrepo.api.database.tables import METADATA, repositories
from tensorrepo.api.repositories.directory import Listed, place_of
from tensorrepo.api.repositories.opening import drivers, open_served
from tensorrepo.api.service import Service
from tensorrepo.api.settings import Settings
from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, CorruptError, NotFoundError, RepositoryRewound
from tensorrepo.repo.log.log_slots import COPY_KEY, IDENTITY_KEY
from tensorrepo.repo.transfer.mirror import begin_mirror, follow
from tensorrepo.repo.transfer.receive import TransferOptions
from tensorrepo.repo.typed_decoding import from_json

VERSION: Final = 1
_HEAD: Final = "service.json"
_ROWS: Final = "database.jsonl"
_BATCH: Final = 500
_BLOCK: Final = 8 << 20


class SavedRepository(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One repository of a backup. `folder` is None where it lies elsewhere, and was not copied."""

    name: str
    url: str
    id: str
    generation: int
    folder: str | None


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    repositories: tuple[SavedRepository, ...]


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup has, or what was restored: repositories, and rows of the database."""

    repositories: tuple[SavedRepository, ...]
    rows: int


def back_up(service: Service, folder: Path, environment: Mapping[str, str]) -> BackupReport:
    """Write a running service to a folder, which must not be there yet.

    Raises:
        ConflictError: there is something at `folder`.
    """
    _require_empty(folder)
    with service.database.snapshot() as connection:
        rows = _write_rows(connection, folder / _ROWS)
    saved = tuple(
        _save(service, one, number, folder, environment)
        for number, one in enumerate(service.directory.listed())
    )
    head = msgspec.json.encode(_Head(VERSION, saved))
    (folder / _HEAD).write_bytes(msgspec.json.format(head, indent=2) + b"\n")  # last: it is whole
    return BackupReport(saved, rows)


def restore(settings: Settings, folder: Path, environment: Mapping[str, str]) -> BackupReport:
    """Make a service of a backup, with other settings.

    Raises:
        NotFoundError: no whole backup is there.
        ConflictError: the new service's database, or its storage, is not empty.
        RepositoryRewound: a repository that lies elsewhere has less than when this was written.
    """
    try:
        head = from_json((folder / _HEAD).read_bytes(), _Head)
    except (OSError, msgspec.MsgspecError) as error:
        why = getattr(error, "strerror", None) or error
        raise NotFoundError(f"{folder / _HEAD}: no whole backup of a service: {why}") from error
    database = Database(settings.database_url)
    try:
        if Accounts(database).has_users():
            raise ConflictError(f"the database {database.where} is not empty: name a new one")
        saved = head.repositories
        urls = {one.name: _restored(one, settings, folder, environment) for one in saved}
        rows = _read_rows(database, folder / _ROWS, urls)
    finally:
        database.close()
    return BackupReport(head.repositories, rows)


def _require_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise ConflictError(f"there is something at {folder}: name a folder that is not there yet")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # it has hashes of tokens, and secrets


def _write_rows(connection: Connection, path: Path) -> int:
    rows = 0
    with path.open("xb") as file:
        for table in METADATA.sorted_tables:
            for row in connection.execute(select(table)).mappings():
                plain = {str(key): _plain(value) for key, value in row.items()}
                line = {"table": str(table.name), "row": plain}
                file.write(msgspec.json.encode(line) + b"\n")
                rows += 1
    return rows


def _plain(value: object) -> object:
    """A value as JSON has it: bytes as an object of one member."""
    is_bytes = isinstance(value, (bytes, memoryview))
    return {"base64": base64.b64encode(value).decode()} if is_bytes else value  # type: ignore[arg-type]


def _read_rows(database: Database, path: Path, urls: Mapping[str, str]) -> int:
    """Put all rows into empty tables, in one transaction."""
    rows = 0
    tables = METADATA.tables
    with database.write() as connection, path.open("rb") as file:
        for name, batch in _batches(file):
            for row in batch:
                if name == repositories.name:
                    row["url"] = urls.get(row["name"], row["url"])
            connection.execute(insert(tables[name]), batch)
            rows += len(batch)
    return rows


def _batches(lines: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Rows of one table at a time, in the order of the file, which is that of foreign keys."""
    held: list[dict[str, Any]] = []
    name = ""
    for line in lines:
        try:
            parsed = from_json(line, dict[str, Any])
        except msgspec.DecodeError as error:
            raise CorruptError(f"a row of the backup's tables is damaged: {error}") from error
        if held and (parsed["table"] != name or len(held) == _BATCH):
            yield name, held
            held = []
        name = parsed["table"]
        held.append({key: _stored(value) for key, value in parsed["row"].items()})
    if held:
        yield name, held


def _stored(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"])
    return value


def _save(
    service: Service, one: Listed, number: int, folder: Path, environment: Mapping[str, str]
) -> SavedRepository:
    served = service.directory.open(one.name)
    own = one.url.startswith(f"{service.settings.storage_url.rstrip('/')}/")
    generation = served.core.log.refresh().generation
    place = f"repositories/{number}" if own else None
    if place is not None:
        _mirror(served.core, folder / place, environment)
    return SavedRepository(one.name, one.url, served.core.id, generation, place)


def _mirror(origin: RepositoryCore, folder: Path, environment: Mapping[str, str]) -> None:
    backend = open_backend(str(folder), environment=environment)
    begin_mirror(origin, backend)
    mirror = open_repository(backend, drivers=drivers())
    try:
        follow(origin, mirror, TransferOptions("tensorrepo serve", folder / "parts"))
    finally:
        mirror.close()


def _restored(
    one: SavedRepository, settings: Settings, folder: Path, environment: Mapping[str, str]
) -> str:
    """The URL of a repository in the new service; copied there, where it was the service's own."""
    if one.folder is None:
        core = open_served(one.url, data=settings.data, environment=environment)
        try:
            if core.log.refresh().generation < one.generation:
                raise RepositoryRewound(
                    f"{one.url} had {one.generation} log records when the backup was written, and "
                    "has fewer now: restore it first"
                )
        finally:
            core.close()
        return one.url
    url = place_of(settings.storage_url, one.name)
    source = open_backend(str(folder / one.folder), environment=environment)
    target = open_backend(url, environment=environment)
    try:
        if target.size(IDENTITY_KEY) is not None:
            raise ConflictError(f"there is a repository at {url} already: name another storage")
        for stored in source.list(""):
            if stored.key not in (COPY_KEY, IDENTITY_KEY):
                _copy(source, target, stored.key, stored.bytes)
        _copy(source, target, IDENTITY_KEY, source.size(IDENTITY_KEY) or 0)  # last: it is whole
    finally:
        source.close()
        target.close()
    return url


def _copy(source: Backend, target: Backend, key: str, size: int) -> None:
    parts = [
        source.read_range(key, start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK)
    ]
    target.create(key, parts)
