"""Processes that catch up at once, or die at it, leave a catalog that is right."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tensorrepo.query.catalog.database import CatalogDatabase
from tensorrepo.query.sync.catch_up import catch_up
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.repository import LocalState, create_repository
from tests.support.builders.repositories import commit_files
from tests.support.processes.forked_command import ForkedProcess
from tests.support.processes.forked_python import start_python
from tests.support.servers.catalogs import fresh_rows, rows_of

CATCH_UP = """
import sys
from pathlib import Path
from tensorrepo.query.catalog.database import CatalogDatabase, connect
from tensorrepo.query.sync import catch_up, loader
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.repository import open_repository

def stop(*_):
    print("halfway", flush=True)
    sys.stdin.readline()

repository = open_repository(LocalBackend(Path(sys.argv[1])), drivers={})
catalog = CatalogDatabase(connect(sys.argv[2]))
loader.BATCH_ROWS = 8  # so that some rows are in the tables when it stops
catch_up.catch_up(repository, catalog, progress=stop if sys.argv[3] == "stop" else None)
"""


def start(store: Path, catalog: CatalogDatabase, how: str) -> ForkedProcess:
    url = catalog.engine.url.render_as_string(hide_password=False)
    return start_python("-c", CATCH_UP, store, url, how, takes_input=True)


def test_one_that_dies_halfway_and_two_at_once_leave_what_a_fresh_one_says(
    tmp_path: Path, catalog: CatalogDatabase
) -> None:
    store = tmp_path / "repo"
    repository = create_repository(LocalBackend(store), drivers={}, local=LocalState())
    for step in range(6):
        commit_files(repository, {f"files/{step}": b"%d" % step})
    with start(store, catalog, "stop") as dying:
        assert dying.stdout.readline() == "halfway\n"
        os.kill(dying.pid, signal.SIGKILL)
    assert rows_of(catalog) == {}
    with start(store, catalog, "go") as one:
        catch_up(repository, catalog)
        assert one.wait(120) == 0
    assert rows_of(catalog) == fresh_rows(repository)
