"""A database whose connections are all in use is one that does not answer."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import QueuePool

from tensorrepo.api.database.connection import Database
from tensorrepo.repo.errors import StorageError


def test_who_is_given_no_connection_is_told_to_try_again(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'service.db'}")
    pool = database._engine.pool
    assert isinstance(pool, QueuePool)
    pool._timeout = 0.01
    with ExitStack() as held:
        for _ in range(pool.size() + pool._max_overflow):
            held.enter_context(database.read())
        with pytest.raises(StorageError, match="does not answer") as raised:
            held.enter_context(database.read())
    assert raised.value.transient
    database.close()
