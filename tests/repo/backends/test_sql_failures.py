"""A database that fails under a commit: clean errors, nothing lost or twice, no secret told."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tensorrepo.repo.backends import sql_connections
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.sql_log import SqlLogBackend
from tensorrepo.repo.changes.repository import (
    LocalState,
    RepositoryCore,
    create_repository,
    open_repository,
)
from tensorrepo.repo.errors import Error, InvalidInputError, PermissionDenied, StorageError
from tensorrepo.repo.log.log_slots import slot_key
from tests.support.builders.histories import verify
from tests.support.builders.repositories import commit_files, files_at, tip_of
from tests.support.servers.postgres import server, shared_server

INSERT = "INSERT INTO tensorrepo_log"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    url = shared_server().database()
    yield url
    shared_server().drop(url)


@pytest.fixture
def repository(database: str, tmp_path: Path) -> RepositoryCore:
    made = create_repository(
        LocalBackend(tmp_path / "store"),
        drivers={},
        local=LocalState(pending=tmp_path / "pending"),
        database=database,
    )
    commit_files(made, {"files/a": b"first"})
    return made


def opened(repository: RepositoryCore, database: str) -> RepositoryCore:
    assert isinstance(repository.backend, SqlLogBackend)
    return open_repository(repository.backend.store, drivers={}, database=lambda _: database)


def commit_many(repository: RepositoryCore, count: int, path: str = "files/a") -> None:
    for at in range(count):
        commit_files(repository, {path: b"%d" % at})


def ask(database: str, *statements: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def cut(connection: Any, database: str) -> None:
    """Let the server end a connection, and wait until the client's side knows."""
    ask(database, f"SELECT pg_terminate_backend({connection.driver.info.backend_pid}, 5000)")


def check_whole(repository: RepositoryCore, content: bytes) -> None:
    """The commit is there once, nothing is damaged, and no question is left."""
    assert files_at(repository, tip_of(repository))["files/a"] == content
    records = [*repository.log.records(1, repository.log.refresh().generation + 1)]
    txns = [entry.txn for record in records for entry in record.entries]
    assert len(txns) == len(set(txns))
    verify(repository.backend)
    assert repository.log.pending is not None
    assert repository.log.pending.unresolved() == ()


def test_records_are_on_the_servers_disk_whatever_its_default_is(database: str) -> None:
    with psycopg.connect(database) as plain:
        assert plain.execute("SHOW synchronous_commit").fetchone() == ("off",)
    connections = sql_connections.SqlConnections(database, "a log", "tensorrepo_log")
    assert [*connections.ask("SHOW synchronous_commit")] == [("on",)]
    connections.close()


@pytest.mark.soak
@pytest.mark.parametrize("round_", range(2))
def test_what_was_acknowledged_outlives_a_server_that_is_cut_off(
    tmp_path: Path, round_: int
) -> None:
    """Its own processes end amid commits of three writers, though its default syncs none."""
    with server({"synchronous_commit": "off", "wal_writer_delay": "10s"}) as running:
        url, local = running.database(), LocalState(pending=tmp_path / "pending")
        made = create_repository(
            LocalBackend(tmp_path / "store"), drivers={}, local=local, database=url
        )
        done: list[tuple[str, bytes]] = []

        def write(number: int) -> None:
            mine = opened(made, url)
            with suppress(Error):
                for at in range(10_000):
                    content = b"%d of %d" % (at, number)
                    commit_files(mine, {f"files/{at}": content}, branch=f"b{number}")
                    done.append((f"b{number}/{at}", content))

        writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for writer in writers:
            writer.start()
        while len(done) < 30 * (round_ + 1):
            time.sleep(0.01)
        running.stop()
        for writer in writers:
            writer.join()
        acknowledged = [*done]
        running.start()
        after = opened(made, url)
        refs = after.log.refresh().state.refs
        found = {b: files_at(after, refs[f"heads/{b}"]) for b in ("b0", "b1", "b2")}
        for place, content in acknowledged:
            branch, _, at = place.partition("/")
            assert found[branch][f"files/{at}"] == content
        verify(after.backend)
        assert isinstance(after.backend, SqlLogBackend)
        after.backend.close()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_connection_cut_in_mid_commit_is_made_again_and_the_record_read_back(
    repository: RepositoryCore, database: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, cuts = sql_connections._rows_of_last, []

    def cutting(connection: Any, text: str, values: Any) -> Any:
        if cuts or not text.startswith(INSERT):
            return real(connection, text, values)
        cuts.append(moment)
        if moment == "before":
            cut(connection, database)
            return real(connection, text, values)
        real(connection, text, values)  # it landed, and nobody hears of it
        cut(connection, database)
        return connection.ask("SELECT 1")

    monkeypatch.setattr(sql_connections, "_rows_of_last", cutting)
    commit_files(repository, {"files/a": b"second"})
    assert cuts == [moment]
    check_whole(repository, b"second")


def test_a_server_that_is_started_again_between_commits_is_not_noticed(
    repository: RepositoryCore, database: str
) -> None:
    others = "pid <> pg_backend_pid() AND datname = current_database()"
    query = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {others}"
    for at in range(3):
        ask(database, query)
        commit_files(repository, {"files/a": b"%d" % at})
    check_whole(repository, b"2")


def test_a_server_that_is_down_is_told_as_such_and_how_to_go_on(tmp_path: Path) -> None:
    backend = SqlLogBackend(LocalBackend(tmp_path), "postgresql://ada@127.0.0.1:1/logs", "id")
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:1/logs.*Is the server up") as raised:
        backend.read_many(["log/hint"])
    assert raised.value.transient


def test_a_user_who_may_only_read_reads_and_is_refused_to_write(
    repository: RepositoryCore, database: str
) -> None:
    role = f"reader_{os.getpid()}"
    ask(database, f"CREATE ROLE {role} LOGIN", f"GRANT SELECT ON tensorrepo_log TO {role}")
    try:
        reading = database.replace("tests@", f"{role}@")
        reader = opened(repository, reading)
        assert files_at(reader, tip_of(reader)) == {"files/a": b"first"}
        with pytest.raises(PermissionDenied, match="permission denied for table"):
            commit_files(reader, {"files/a": b"second"})
        reader.close()
    finally:
        ask(database, f"REVOKE ALL ON tensorrepo_log FROM {role}", f"DROP ROLE {role}")
    commit_files(repository, {"files/a": b"third"})
    check_whole(repository, b"third")


def test_a_schema_has_logs_of_its_own(
    repository: RepositoryCore, database: str, tmp_path: Path
) -> None:
    ask(database, "CREATE SCHEMA IF NOT EXISTS team")
    own = f"{database}?options=-csearch_path%3Dteam"
    local = LocalState(pending=tmp_path / "pending")
    made = create_repository(MemoryBackend(), drivers={}, local=local, database=own)
    commit_files(made, {"files/a": b"of the team"})
    check_whole(made, b"of the team")
    with psycopg.connect(database) as connection:
        (count,) = connection.execute("SELECT count(*) FROM team.tensorrepo_log").fetchone() or ()
    assert count > 2
    check_whole(repository, b"first")


def test_a_full_disk_of_the_server_is_a_clean_error_and_the_commit_can_be_repeated(
    repository: RepositoryCore, database: str
) -> None:
    full = "RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'"
    ask(
        database,
        f"CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {full}; END $$",
        "CREATE TRIGGER full_disk BEFORE INSERT ON tensorrepo_log EXECUTE FUNCTION full_disk()",
    )
    try:
        with pytest.raises(StorageError, match=r"No space left on device.*Free some space"):
            commit_files(repository, {"files/a": b"second"})
    finally:
        ask(database, "DROP FUNCTION full_disk CASCADE")
    check_whole(repository, b"first")
    commit_files(repository, {"files/a": b"second"})
    check_whole(repository, b"second")


def test_a_full_disk_under_sqlite_is_one_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    store, local = LocalBackend(tmp_path / "store"), LocalState(pending=tmp_path / "pending")
    made = create_repository(store, drivers={}, local=local, database=url)
    commit_files(made, {"files/a": b"first"})
    assert isinstance(made.backend, SqlLogBackend)
    connections = made.backend._sql
    connections.ask(f"PRAGMA max_page_count = {connections.ask('PRAGMA page_count')[0][0]}")
    with pytest.raises(StorageError, match=r"full.*Free some space"):
        commit_many(made, 50)
    connections.ask("PRAGMA max_page_count = 1000000")
    commit_files(made, {"files/a": b"last"})
    check_whole(made, b"last")


def test_a_file_that_may_only_be_read_is_refused_to_write(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    made = create_repository(
        MemoryBackend(), drivers={}, local=LocalState(pending=tmp_path / "pending"), database=url
    )
    commit_files(made, {"files/a": b"first"})
    assert isinstance(made.backend, SqlLogBackend)
    made.backend._sql.ask("PRAGMA query_only = 1")  # as of a file system that is mounted so
    with pytest.raises(PermissionDenied, match=r"readonly.*rights of that file"):
        commit_files(made, {"files/a": b"second"})


def test_a_table_that_somebody_locked_is_waited_for(
    repository: RepositoryCore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = f"{sql_connections._SETTINGS}; SET lock_timeout = '20ms'"
    monkeypatch.setattr(sql_connections, "_SETTINGS", settings)
    again = opened(repository, database)
    again.log.refresh()
    real, timeouts = sql_connections._rows, []
    with locked(database) as release:

        def noting(connection: Any, text: str, values: Any) -> Any:
            try:
                return real(connection, text, values)
            except psycopg.errors.LockNotAvailable:
                timeouts.append(text)
                if len(timeouts) == 2:
                    release()
                raise

        monkeypatch.setattr(sql_connections, "_rows", noting)
        commit_files(again, {"files/a": b"second"})
    assert len(timeouts) >= 2
    check_whole(repository, b"second")


def test_an_interrupt_ends_what_a_server_is_asked(database: str) -> None:
    connection = sql_connections._open_server(database)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with on_alarm(interrupted, seconds=0.05), pytest.raises(KeyboardInterrupt):
        connection.ask_together([("BEGIN", ()), ("SELECT 1 FROM pg_sleep(3600)", ())])
    connection.close()


@contextmanager
def on_alarm(handler: Callable[..., None], seconds: float) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_statement_is_answered_alike_before_and_after_it_is_prepared(database: str) -> None:
    connection = sql_connections._open_server(database)
    question = "SELECT ?::text, ?::bytea, length(?::bytea), ?::float8, NULL::text, ?::text = 'b'"
    values = ("a", b"\0\xff", b"123", 1.5, "b")
    try:
        alone = [connection.ask(question, values) for _ in range(5)]
        together = [connection.ask_together([(question, values)] * 2) for _ in range(5)]
    finally:
        connection.close()
    assert alone == [[("a", b"\0\xff", 3, 1.5, None, True)]] * 5
    assert together == [alone[:2]] * 5


@contextmanager
def locked(database: str) -> Iterator[Callable[[], None]]:
    """The table of logs is locked for writers until what this gives is called."""
    with psycopg.connect(database) as connection:
        connection.execute("LOCK TABLE tensorrepo_log IN SHARE MODE")
        yield connection.rollback


def test_writers_of_one_process_take_turns(repository: RepositoryCore) -> None:
    threads = [
        threading.Thread(target=commit_many, args=(repository, 4, f"files/{number}"))
        for number in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert repository.log.refresh().generation == 25
    verify(repository.backend)


def test_who_hangs_in_a_turn_is_passed_by(repository: RepositoryCore, database: str) -> None:
    other = opened(repository, database)
    assert isinstance(other.backend, SqlLogBackend)
    with other.backend.turn() as turn:
        assert turn.take(0)
        commit_files(repository, {"files/a": b"second"})
        assert not repository.backend.turn().take(0)  # type: ignore[attr-defined]  # it has the lock
    check_whole(repository, b"second")


def test_who_waited_has_read_what_came_before_with_its_lock(
    repository: RepositoryCore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = opened(repository, database)
    key = slot_key(other.log.refresh().generation + 1)
    assert isinstance(repository.backend, SqlLogBackend)
    assert isinstance(other.backend, SqlLogBackend)
    with repository.backend.turn() as turn, ThreadPoolExecutor(1) as waiting:
        assert turn.take(0)
        found = waiting.submit(read_in_turn, other.backend, other.log.keys_of_news)
        wait_for_a_waiting_writer(database)
        monkeypatch.setattr(sql_connections, "_rows", lambda *_: pytest.fail("it asked again"))
        repository.backend.create(key, [b"newest"])
        assert found.result()[key] == b"newest"


def read_in_turn(backend: SqlLogBackend, keys: Callable[[], list[str]]) -> dict[str, bytes | None]:
    with backend.turn(keys) as turn:
        assert turn.take(30)
        return backend.read_many(keys())


def wait_for_a_waiting_writer(database: str) -> None:
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(database, autocommit=True) as connection:
        while connection.execute(query).fetchone() == (0,):
            time.sleep(0.01)


def test_connections_are_closed_when_a_cycle_that_holds_them_is_collected(database: str) -> None:
    older = psycopg.connect(database)  # than what holds it: of a cycle it would end first
    info = older.info
    connections = sql_connections.SqlConnections(database, "the log", "tensorrepo_log")
    connections.pool.idle.append(older)
    cycle: list[object] = [connections]
    cycle.append(cycle)
    del older, connections, cycle
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(one.message) for one in told] == []
    assert info.status is psycopg.pq.ConnStatus.BAD


def test_a_forked_child_has_connections_of_its_own(repository: RepositoryCore) -> None:
    child = os.fork()
    if child == 0:
        try:
            commit_files(repository, {"files/child": b"child"})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    commit_files(repository, {"files/a": b"parent"})
    assert files_at(repository, tip_of(repository)) == {
        "files/child": b"child",
        "files/a": b"parent",
    }


SECRETS = ["hun@ter2", "hun/ter2", "hun%ter2", "hun:ter2", "hun ter2", "hun#ter2", "hunter2"]


@pytest.mark.together
@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("place", ["ada:{}@127.0.0.1:1/logs", "127.0.0.1:1/logs?password={}"])
def test_no_part_of_a_password_is_told(
    tmp_path: Path, secret: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend = SqlLogBackend(LocalBackend(tmp_path), f"postgresql://{place.format(secret)}", "id")
    with caplog.at_level(logging.DEBUG), pytest.raises(Error) as raised:
        backend.read_many(["log/hint"])
    told = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + caplog.text
    assert "ter2" not in told
    assert "hun" not in told


def test_a_url_that_cannot_be_read_says_how_one_is_written(tmp_path: Path) -> None:
    backend = SqlLogBackend(LocalBackend(tmp_path), "postgresql://ada:a%zz@host/logs", "id")
    with pytest.raises(InvalidInputError, match="%40"):
        backend.read_many(["log/hint"])
