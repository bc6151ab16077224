"""LMDB reader of the importers' child process: the entries of one database, in the order of keys.

Run as a script by `child_main`, which says why.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from tensorrepo.formats.exchange.child_main import BATCH_BYTES, Refusal, TableFile, library

LMDB_SCHEMA = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])
LMDB_MAGIC = 0xBEEFC0DE
LMDB_MAGIC_AT = 16
_DATABASE_BYTES = 48  # of the record that a named database has in the unnamed one
_ENTRY_BYTES = 10  # that an entry takes at least
_MAX_DATABASES = 128


def open_lmdb(path: str, database: str | None = None) -> TableFile:
    """The entries of one database of an LMDB file in the order of keys, read without locking it."""
    lmdb = library("lmdb", "LMDB files", "lmdb")
    with open(path, "rb") as file:
        if file.read(LMDB_MAGIC_AT + 4)[LMDB_MAGIC_AT:] != LMDB_MAGIC.to_bytes(4, "little"):
            raise Refusal("is no LMDB file: its first page does not say so. Is it cut short?")
    try:
        environment = lmdb.open(
            path, subdir=False, readonly=True, create=False, lock=False, max_dbs=_MAX_DATABASES
        )
        transaction = environment.begin(buffers=True)
        chosen = _find_database(lmdb, environment, transaction, database)
        entries = transaction.stat(chosen)["entries"]
        stored = os.stat(path).st_size
        pages = environment.info()["last_pgno"] + 1
    except lmdb.Error as problem:
        raise Refusal(f"is no readable LMDB file: {_said(problem)}") from problem
    if pages * environment.stat()["psize"] > stored or entries > stored // _ENTRY_BYTES:
        raise Refusal(f"says that it has {pages} pages and {entries} entries. Is it cut short?")

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            entries = iter(transaction.cursor(chosen))
            if database is None:  # then named ones may stand between the entries
                entries = (
                    (key, value)
                    for key, value in entries
                    if _named(lmdb, environment, transaction, bytes(key), value) is None
                )
            yield from _lmdb_batches(entries, stored)
        except lmdb.Error as problem:
            raise Refusal(f"is damaged: {_said(problem)}") from problem

    return TableFile(LMDB_SCHEMA, entries, batches)


def _said(problem: Exception) -> str:
    """What LMDB says, without the path that it says first."""
    return str(problem).rpartition(": ")[2]


def _find_database(lmdb: Any, environment: Any, transaction: Any, name: str | None) -> Any:
    """The database of this name, by default the unnamed one."""
    main = environment.open_db(None, transaction, create=False)
    names: list[Any] = []
    for key, value in transaction.cursor(main):
        inner = _named(lmdb, environment, transaction, bytes(key), value)
        if inner is None and name is None:
            names = []
            break
        if inner is not None and bytes(key) == (name or "").encode():
            return _single_valued(inner, transaction)
        if inner is not None:
            names.append(bytes(key).decode("utf-8", "replace"))
    there = ", ".join(map(repr, sorted(names))) or "only the one without a name"
    if name is not None:
        raise Refusal(f"holds no database {name!r}; there are {there}", "NotFoundError")
    if names:
        raise Refusal(f"holds several databases: {there}. Choose one: database=...")
    return _single_valued(main, transaction)


def _single_valued(database: Any, transaction: Any) -> Any:
    if database.flags(transaction)["dupsort"]:
        raise Refusal("its keys may have several values, which is not read", "UnsupportedError")
    return database


def _named(lmdb: Any, environment: Any, transaction: Any, key: bytes, value: Any) -> Any:
    """The database that an entry of the unnamed one stands for; None for a plain entry."""
    if len(value) != _DATABASE_BYTES:
        return None
    with suppress(lmdb.IncompatibleError, lmdb.NotFoundError):
        return environment.open_db(key, transaction, create=False)
    return None


def _lmdb_batches(entries: Iterable[tuple[Any, Any]], stored: int) -> Iterator[pa.RecordBatch]:
    """The entries of a database, which together cannot be more than the file."""
    keys: list[bytes] = []
    values: list[bytes] = []
    held = total = 0
    for key, value in entries:
        keys.append(bytes(key))
        values.append(bytes(value))
        held += len(key) + len(value)
        total += len(key) + len(value) + _ENTRY_BYTES
        if total > stored:
            raise Refusal("is damaged: its tree has a loop")
        if held >= BATCH_BYTES:
            yield pa.record_batch([keys, values], schema=LMDB_SCHEMA)
            keys, values, held = [], [], 0
    if keys:
        yield pa.record_batch([keys, values], schema=LMDB_SCHEMA)
