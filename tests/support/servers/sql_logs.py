"""Logs in SQL for tests: the same tests again, with the log of every store in a database.

`LOGS` says which modules of tests run on which databases: `pytest_generate_tests` in tests/conftest
makes a case of each of their tests for every one. Their stores in memory, and those of what helps
them, then keep the log in a database, and all else where they did.

Processes of a test find the log by a file beside the store, see `backend_at`.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.sql_log import SqlLogBackend
from tests.support.effort import soaking
from tests.support.servers.catalogs import catalog_url

DATABASES = ("sqlite", "postgresql")
ALWAYS = {  # modules whose tests run on SQLite, too, each time
    "tests.repo.log.test_append",
    "tests.repo.changes.test_gc_collect",
    "tests.repo.changes.test_gc_fence",
}
IN_SOAK = {  # and on both databases in soak, as those above
    "tests.repo.log.test_reader",
    "tests.repo.log.test_checkpoints",
    "tests.repo.log.test_segments",
    "tests.repo.log.test_log_check",
    "tests.repo.log.test_past_commits",
    "tests.repo.log.test_pending",
    "tests.repo.test_append_model",
    "tests.repo.test_collection_model",
    "tests.crash.test_crash",
    "tests.crash.test_lost_replies",
    "tests.crash.test_collection",
}
_HELPERS = (
    "tests.support.builders.log",
    "tests.support.builders.repositories",
    "tests.support.builders.histories",
    "tests.support.reference.append_replay",
    "tests.support.reference.collection_replay",
    "tests.support.reference.shallow_replay",
)
_NUMBERS = itertools.count()


def databases_of(module: str) -> tuple[str, ...]:
    """The databases that the tests of a module run on beside the store itself."""
    if soaking():
        return DATABASES if module in ALWAYS | IN_SOAK else ()
    return DATABASES[:1] if module in ALWAYS else ()


@contextmanager
def memory_in(url: str) -> Iterator[None]:
    """Stores in memory that tests and helpers make in the body keep their logs at `url`."""

    def made(name: str | None = None, **options: Any) -> SqlLogBackend:
        store = MemoryBackend(name, **options)
        return in_sql(store, url, store.url if name else f"unnamed-{next(_NUMBERS)}")

    with pytest.MonkeyPatch.context() as patch:
        for name in [*_HELPERS, *ALWAYS, *IN_SOAK]:
            module = sys.modules.get(name)
            if module is not None and hasattr(module, "MemoryBackend"):
                patch.setattr(module, "MemoryBackend", made)
        yield


def in_sql(store: Backend, url: str, repository: str = "tests") -> SqlLogBackend:
    """A store whose log is in the database at `url`."""
    made = SqlLogBackend(store, url, repository)
    made.prepare(b"tests")
    return made


@contextmanager
def log_url(kind: str) -> Iterator[str]:
    """A URL of an empty database, in memory where the machine has such a folder."""
    shared = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="tensorrepo-log-", dir=shared if shared.is_dir() else None)
    try:
        with catalog_url(kind, Path(folder)) as url:
            yield url
    finally:
        shutil.rmtree(folder)


def note_log(folder: Path, url: str | None) -> None:
    """Say that the log of the store in this folder is at `url`; None: in the store itself."""
    if url is not None:
        (folder / "log-url").write_text(url)


def backend_at(folder: Path) -> Backend:
    """The store in this folder, as each of its processes opens it."""
    store, told = LocalBackend(folder / "store"), folder / "log-url"
    return in_sql(store, told.read_text(), store.url) if told.exists() else store
