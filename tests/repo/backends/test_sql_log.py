"""A repository whose log is in SQL keeps the promises of any other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.sql_connections import shown
from tensorrepo.repo.backends.sql_log import SqlLogBackend
from tensorrepo.repo.changes.repository import (
    LocalState,
    RepositoryCore,
    create_repository,
    open_repository,
)
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, RepositoryRewound
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.log_slots import slot_key
from tensorrepo.repo.log.records import LogEntry


def made(folder: Path) -> tuple[RepositoryCore, str]:
    database = f"sqlite:///{folder}/log.db"
    local = LocalState(memory=folder / "memory")
    store = LocalBackend(folder / "store")
    return create_repository(store, drivers={}, local=local, database=database), database


def note(core: RepositoryCore, txn: str) -> None:
    append(core.log, lambda _: (LogEntry(txn, "noop", "ada", 0),))


def test_the_log_is_in_the_database_and_nowhere_else(tmp_path: Path) -> None:
    core, database = made(tmp_path)
    note(core, "one")
    again = open_repository(
        LocalBackend(tmp_path / "store"), drivers={}, database=lambda _: database
    )
    assert again.log.refresh().generation == 1
    assert not (tmp_path / "store" / "log").exists()


def test_a_client_without_the_database_is_told_what_to_set(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(InvalidInputError, match="TENSORREPO_LOG"):
        open_repository(LocalBackend(tmp_path / "store"), drivers={})


def test_another_database_is_no_empty_log(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "other").mkdir()
    _, other = made(tmp_path / "other")
    with pytest.raises(NotFoundError, match="another database"):
        open_repository(LocalBackend(tmp_path / "store"), drivers={}, database=lambda _: other)


def test_a_database_from_an_older_backup_is_a_rewind(tmp_path: Path) -> None:
    core, database = made(tmp_path)
    note(core, "one")
    note(core, "two")
    core.backend.delete(slot_key(2))
    local = LocalState(memory=tmp_path / "memory")
    store = LocalBackend(tmp_path / "store")
    again = open_repository(store, drivers={}, local=local, database=lambda _: database)
    with pytest.raises(RepositoryRewound):
        again.log.refresh()


def test_writers_at_once_each_get_a_record(tmp_path: Path) -> None:
    core, _ = made(tmp_path)
    names = [f"txn{number}" for number in range(8)]
    threads = [threading.Thread(target=note, args=(core, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    head = core.log.refresh().generation
    found = [entry.txn for record, _ in core.log.judged(1, head + 1) for entry in record.entries]
    assert sorted(found) == names


def test_no_secret_of_a_url_is_shown(tmp_path: Path) -> None:
    url = "postgresql://ada:hunter2@127.0.0.1:9/logs?password=hunter2"
    backend = SqlLogBackend(LocalBackend(tmp_path), url, "id")
    assert shown(url) == "postgresql://127.0.0.1:9/logs"
    assert "hunter2" not in repr(backend)
