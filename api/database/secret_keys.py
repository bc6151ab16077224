"""Keys of the service itself, made when they are first needed and the same in every process."""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import Final

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database

_KEY_BYTES: Final = 32


@lru_cache(maxsize=32)
def secret_key(database: Database, name: str) -> bytes:
    """The key of that name."""
    found = _stored(database, name)
    if found is None:
        try:
            with database.write() as connection:
                connection.execute(
                    insert(tables.secrets).values(name=name, value=secrets.token_hex(_KEY_BYTES))
                )
        except IntegrityError:  # another process was faster
            pass
        found = _stored(database, name)
    assert found is not None, "it was stored"
    return bytes.fromhex(found)


def _stored(database: Database, name: str) -> str | None:
    table = tables.secrets
    with database.read() as connection:
        value = connection.execute(select(table.c.value).where(table.c.name == name)).scalar()
    return None if value is None else str(value)
