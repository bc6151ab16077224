"""A repository whose log is in SQL keeps the promises of any other."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.sql_connections import shown
from tensorrepo.repo.backends.sql_log import SqlLogBackend
from tensorrepo.repo.changes.fsck import accept_restored_log
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.refs import delete_ref
from tensorrepo.repo.changes.repository import (
    LocalState,
    RepositoryCore,
    create_repository,
    open_repository,
)
from tensorrepo.repo.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    RepositoryRewound,
    UnsupportedError,
)
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.log_slots import HINT_KEY, slot_key
from tensorrepo.repo.log.records import LogEntry, Update
from tests.support.builders.repositories import (
    ADA,
    commit_files,
    files_at,
    tip_of,
)


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


def put_back(core: RepositoryCore, generation: int) -> RepositoryCore:
    """The repository for somebody who never saw more, its database of an older backup."""
    assert isinstance(core.backend, SqlLogBackend)
    for stored in list(core.backend.list("log/")):
        if "/" in stored.key[4:] or stored.key == HINT_KEY or stored.key > slot_key(generation):
            core.backend.delete(stored.key)
    again = SqlLogBackend(core.backend.store, core.backend.database, core.id)
    return open_repository(again, drivers={})


def collected(folder: Path) -> tuple[RepositoryCore, Digest]:
    """What a branch led to was collected after record 2, as the store knows."""
    core, _ = made(folder)
    lost = commit_files(core, {"files/a": b"lost"}, branch="gone").digest
    commit_files(core, {"files/a": b"kept"})
    delete_ref(core, "heads/gone", actor=ADA)
    collect_garbage(core, actor=ADA, rules=CollectionRules(grace_seconds=0, retention_seconds=0))
    return core, lost


def test_a_log_from_before_a_collection_is_read_only_for_all(tmp_path: Path) -> None:
    core, _ = collected(tmp_path)
    again = put_back(core, 2)
    assert files_at(again, tip_of(again)) == {"files/a": b"kept"}
    with pytest.raises(PermissionDenied, match=r"older backup.*fsck --repair"):
        commit_files(again, {"files/a": b"new"})


def test_it_stays_so_while_an_object_of_a_ref_is_missing(tmp_path: Path) -> None:
    core, _ = collected(tmp_path)
    again = put_back(core, 2)
    assert not accept_restored_log(again, deep=False)
    assert put_back(again, 2).log.read_only is not None


def test_it_is_written_to_again_when_every_object_is_there(tmp_path: Path) -> None:
    core, lost = collected(tmp_path)
    again = put_back(core, 2)
    delete = LogEntry("drop", "ref-delete", ADA, 0, updates=(Update("heads/gone", lost, None),))
    again.log.read_only = None
    append(again.log, lambda _: (delete,))
    restored = put_back(again, 3)
    assert accept_restored_log(restored, deep=True)
    commit_files(restored, {"files/a": b"new"})
    fresh = put_back(restored, 4)
    assert fresh.log.read_only is None
    assert files_at(fresh, tip_of(fresh)) == {"files/a": b"new"}


def test_who_deletes_under_a_log_that_was_put_back_is_stopped(tmp_path: Path) -> None:
    core, _ = collected(tmp_path)
    again = put_back(core, 2)
    again.log.refresh()
    with pytest.raises(RepositoryRewound, match="older backup"):
        again.backend.delete("objects/ab/cd")


def test_a_log_is_marked_with_each_checkpoint(tmp_path: Path) -> None:
    core, _ = made(tmp_path)
    for number in range(66):
        note(core, f"txn{number}")
    assert put_back(core, 66).log.read_only is None
    assert put_back(core, 50).log.read_only is not None


def test_a_log_that_lacks_what_was_just_committed_is_read_only_for_who_never_saw_it(
    tmp_path: Path,
) -> None:
    core, _ = made(tmp_path)
    for number in range(3):
        commit_files(core, {"files/a": b"%d" % number})
    head = core.log.refresh().generation
    core.backend.close()
    assert put_back(core, head).log.read_only is None
    assert put_back(core, head - 1).log.read_only is not None


def test_a_process_marks_its_first_record_though_it_never_ends_well(tmp_path: Path) -> None:
    core, _ = made(tmp_path)
    note(core, "first")
    first = core.log.refresh().generation
    for number in range(3):
        note(core, f"txn{number}")
    assert put_back(core, first).log.read_only is None  # within the seconds that it waits
    assert put_back(core, first - 1).log.read_only is not None


def test_rows_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    core, database = made(tmp_path)
    assert isinstance(core.backend, SqlLogBackend)
    with sqlite3.connect(database.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE tensorrepo_log SET value = X'32' WHERE key = 'version'")
    with pytest.raises(UnsupportedError, match="Update tensorrepo"):
        put_back(core, 0)


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
