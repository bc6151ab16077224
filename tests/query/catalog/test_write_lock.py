"""Who has to wait for another writer of the catalog is told for whom, and not for ever."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tensorrepo.query.catalog import database
from tensorrepo.query.catalog.database import CatalogDatabase, connect
from tensorrepo.repo.errors import StorageError
from tests.support.processes.forked_python import start_python

WRITER = """
import signal, sys
from tensorrepo.query.catalog.database import CatalogDatabase, connect
signal.signal(signal.SIGINT, signal.default_int_handler)
with CatalogDatabase(connect(sys.argv[1])).writing():
    pass
"""


@pytest.fixture
def first(catalog_url: str) -> Iterator[CatalogDatabase]:
    catalog = CatalogDatabase(connect(catalog_url))
    yield catalog
    catalog.dispose()


@pytest.fixture
def second(catalog_url: str) -> Iterator[CatalogDatabase]:
    catalog = CatalogDatabase(connect(catalog_url))
    yield catalog
    catalog.dispose()


def test_who_writes_beside_another_says_for_whom_it_waits_and_hears_an_interrupt(
    first: CatalogDatabase, catalog_url: str
) -> None:
    with first.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE t (a INTEGER)")
        with start_python("-c", WRITER, catalog_url) as writer:
            assert writer.stderr is not None
            told = writer.stderr.readline()
            began = time.monotonic()
            writer.send_signal(signal.SIGINT)
            rest = writer.stderr.read()
            took = time.monotonic() - began
    assert "waiting for another process" in told
    assert "up to 600 s, or until Ctrl-C" in told
    assert str(os.getpid()) in told
    assert "KeyboardInterrupt" in rest
    assert took < 30  # and not the ten minutes that it waits for the other


def test_who_waited_for_another_writer_writes(
    first: CatalogDatabase,
    second: CatalogDatabase,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(database, "TELL_SECONDS", 0.05)

    def write() -> None:
        with second.writing() as connection:
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")

    with ThreadPoolExecutor(1) as threads:
        with first.writing() as connection:
            connection.exec_driver_sql("CREATE TABLE t (a INTEGER)")
            written = threads.submit(write)
            with pytest.raises(TimeoutError):
                written.result(timeout=1)
        written.result(timeout=60)
    with first.reading() as connection:
        assert connection.exec_driver_sql("SELECT a FROM t").scalars().all() == [1]
    assert caplog.text.count("waiting for another process") == 1


def test_who_waits_too_long_gives_up_and_says_what_to_do(
    first: CatalogDatabase, second: CatalogDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "TELL_SECONDS", 0.05)
    monkeypatch.setattr(database, "WAIT_SECONDS", 0.3)
    with (
        first.writing(),
        pytest.raises(StorageError, match=r"gave up .* or end that process") as caught,
        second.writing(),
    ):
        pass
    assert str(os.getpid()) in str(caught.value)


@pytest.mark.parametrize("catalog_url", ["postgresql"], indirect=True)
def test_who_reads_does_not_wait_for_ever_for_tables_that_change(
    first: CatalogDatabase, second: CatalogDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAIT_SECONDS", 0.3)
    with first.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE t (a INTEGER)")
    with first.writing() as connection:
        connection.exec_driver_sql("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StorageError, match="lock timeout"), second.reading() as reader:
            reader.exec_driver_sql("SELECT a FROM t")
