"""The writer of the audit log: several processes, a database that is away, bounded memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tensorrepo.api.audit import writer
from tensorrepo.api.audit.events import AuditEvent, verify
from tensorrepo.api.audit.writer import AuditLog
from tensorrepo.api.database.connection import Database
from tensorrepo.repo.errors import StorageError
from tests.support.servers.postgres import shared_server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path / 'server.db'}"
    return made if request.param == "sqlite" else shared_server().database()


def event(at: int) -> AuditEvent:
    return AuditEvent(at, "write", actor="ann", paths=(f"/{at}",))


def kinds(audit: AuditLog) -> list[str]:
    return [line for block in audit.blocks() for line in block.events]


@pytest.mark.soak
def test_several_processes_write_one_chain(url: str) -> None:
    databases = [Database(url) for _ in range(3)]
    logs = [AuditLog(database, flush_seconds=0.01) for database in databases]

    def write(log: AuditLog) -> None:
        for at in range(10):
            log.record(event(at))
            log.flush()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, logs))
    for log in logs:
        log.close()
    report = verify(logs[0].blocks())
    for database in databases:
        database.close()
    assert (report.events, report.problems) == (30, ())


def test_what_was_recorded_is_durable_when_it_ends(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'server.db'}")
    audit = AuditLog(database, flush_seconds=1000)
    audit.record(event(1))
    audit.close()
    assert len(kinds(audit)) == 1
    database.close()


def test_equal_requests_of_a_second_are_one_event(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'server.db'}")
    audit = AuditLog(database, flush_seconds=1000)
    for at in range(1000):
        audit.record(event(at), key="one transfer")
    audit.close()
    (line,) = kinds(audit)
    database.close()
    assert '"count":1000' in line
    assert len(line) < 2000


def test_while_its_database_is_away_events_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'server.db'}")
    audit = AuditLog(database, flush_seconds=1000)
    audit.record(event(1))
    with monkeypatch.context() as away:
        away.setattr(database, "write", _away)
        with pytest.raises(StorageError):
            audit.flush()
    audit.record(event(2))
    audit.close()
    assert len(kinds(audit)) == 2
    database.close()


def test_what_is_too_much_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MOST_WAITING", 5)
    database = Database(f"sqlite:///{tmp_path / 'server.db'}")
    audit = AuditLog(database, flush_seconds=1000)
    for at in range(12):
        audit.record(event(at))
    audit.close()
    *events, overflow = kinds(audit)
    database.close()
    assert len(events) == 5
    assert '"count":7' in overflow


def _away() -> None:
    raise StorageError("away", transient=True)
