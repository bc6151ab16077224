"""Commits of many processes at once: on the log in PostgreSQL, in SQLite and in files.

    python benchmarks/bench_log.py [case ...] [--folder DIR] [--rounds N] [--scale X]

One commit is `with repo.transaction(branch) as tx: tx.save_file(name, content)` of a process that
has the repository open: one of its four files of 1 KiB anew, durable when it returns, as are its
two objects and its record. `p99_to_p50` tells how fair the queue of writers is, `fewest` and `most`
how many commits a writer made. Sides take turns: each round measures all of them, for two seconds
times `--scale`. What no log can go beyond is measured beside it: eight clients that insert rows of
a record's size in transactions of their own, eight that write, sync and link files, and eight
(`floor`) that do what a commit asks of server and disk and nothing else: its three statements
through psycopg, one after the other in a queue, and its two files with their folders. `early` is
that floor where a turn ends before its record is synced, and each client syncs outside of it
(docs/design/251-a-turn-that-ends-before-its-sync-was-measured.md). `grouped` is that floor where
whoever has the lock writes what others left in a table, in one record with one sync
(docs/design/237-a-group-of-commits-was-measured.md).

PostgreSQL is as Debian installs it: it syncs each commit (synchronous_commit on, fsync on).
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from harness import ROOT, Case, Options, Skipped, run

sys.path.insert(0, str(ROOT))

import tensorrepo
from tests.support.servers import postgres

WRITERS = 8
MANY_WRITERS = 30
LOGS = ("postgres", "sqlite", "files")  # the sides that are ours
RECORD_BYTES = 640
FILES = 4  # of each writer
AUTHOR = "Bench <bench@example.org>"
SECONDS = 2.0
Step = Callable[[int], int]  # the work that is counted: of a growing number, gives its attempts


def own_branches(folder: Path, options: Options) -> dict[str, Any]:
    """Each writer has a branch of its own, as runs and people have."""
    return _measured(folder, options, lambda writer: f"writer-{writer}")


def one_branch(folder: Path, options: Options) -> dict[str, Any]:
    """All commit disjoint files to one branch: each commit stands on the one before it."""
    return _measured(folder, options, lambda _: "main")


def thirty_writers(folder: Path, options: Options) -> dict[str, Any]:
    """As `own_branches`, of thirty: what the least lucky of them gets done, and the luckiest."""
    told = _measured(folder, options, lambda writer: f"writer-{writer}", MANY_WRITERS, LOGS)
    return told | {"goal": "fewest 1 of each log, and not far from most"}


def _measured(
    folder: Path,
    options: Options,
    branch: Callable[[int], str],
    writers: int = WRITERS,
    chosen: tuple[str, ...] = (),
) -> dict[str, Any]:
    """All sides in turns, or those that are `chosen`."""
    if postgres.programs() is None:
        raise Skipped("no programs of a PostgreSQL server here")
    seconds = SECONDS * options.scale
    found: dict[str, list[dict[str, float]]] = {}
    with postgres.server({}) as server:
        for at in range(options.rounds):
            place = folder / str(at)
            place.mkdir()
            database = server.database()
            sides = {
                "inserts": (_inserts, database),
                "linked_files": (_linked_files, str(place / "linked")),
                "floor": (_floor, server.database(), str(place / "floor")),
                "early": (_early, server.database(), str(place / "early")),
                "grouped": (_grouped, server.database(), str(place / "grouped")),
                "postgres": (_commits, str(place / "postgres"), database),
                "sqlite": (_commits, str(place / "sqlite"), f"sqlite:///{place}/log.db"),
                "files": (_commits, str(place / "files"), None),
            }
            for name in chosen or sides:
                prepare, *where = sides[name]
                found.setdefault(name, []).append(
                    _together(prepare, where, [branch(each) for each in range(writers)], seconds)
                )
    told = {
        name: {key: round(statistics.median(each[key] for each in rounds), 2) for key in rounds[0]}
        for name, rounds in found.items()
    }
    if "inserts" not in found:
        return told
    ratios = [
        a["per_s"] / b["per_s"] for a, b in zip(found["postgres"], found["inserts"], strict=True)
    ]
    goal = "postgres 500 per_s; files, sqlite and postgres 10 p99_to_p50 at most"
    told["postgres_to_floor"] = round(told["postgres"]["per_s"] / told["floor"]["per_s"], 2)
    return told | {"postgres_to_inserts": round(statistics.median(ratios), 2), "goal": goal}


def _together(
    prepare: Callable[..., Step], where: list[Any], branches: list[str], seconds: float
) -> dict[str, float]:
    """What one process a branch does in so many seconds, all ready before the first begins."""
    spawning = multiprocessing.get_context("spawn")
    maker = spawning.Process(target=_make, args=(prepare, where))
    maker.start()
    maker.join()
    ready, answers = spawning.Barrier(len(branches)), spawning.SimpleQueue()
    started = [
        spawning.Process(target=_work, args=(prepare, where, branch, at, seconds, ready, answers))
        for at, branch in enumerate(branches)
    ]
    for process in started:
        process.start()
    took, processor_seconds, attempts = [], 0.0, 0
    counts = []
    for _ in started:
        each, used, tried = answers.get()
        took += each
        counts.append(len(each))
        processor_seconds += used
        attempts += tried
    for process in started:
        process.join()
    took.sort()
    median, slow = took[len(took) // 2], took[len(took) * 99 // 100]
    return {
        "per_s": len(took) / seconds,
        "p50_ms": median * 1e3,
        "attempts": attempts / len(took),
        "p99_ms": slow * 1e3,
        "p99_to_p50": slow / median,
        "fewest": min(counts),
        "most": max(counts),
        "processor_ms": processor_seconds / len(took) * 1e3,
    }


def _make(prepare: Callable[..., Step], where: list[Any]) -> None:
    prepare(*where, "first", make=True)(0)


def _work(
    prepare: Callable[..., Step],
    where: list[Any],
    branch: str,
    writer: int,
    seconds: float,
    ready: Any,
    answers: Any,
) -> None:
    step = prepare(*where, branch, writer=writer)
    step(0)
    ready.wait()
    took, attempts, used = [], 0, time.process_time()
    stop = time.perf_counter() + seconds
    while (began := time.perf_counter()) < stop:
        attempts += step(len(took) + 1)
        took.append(time.perf_counter() - began)
    answers.put((took, time.process_time() - used, attempts))


def _commits(
    url: str, database: str | None, branch: str, writer: int = 0, *, make: bool = False
) -> Step:
    opened = tensorrepo.init if make else tensorrepo.open
    repository = opened(url, author=AUTHOR, log=database)

    def commit(number: int) -> int:
        with repository.transaction(branch, "measure") as change:
            content = b"%d %d " % (writer, number) * 100
            change.save_file(f"w{writer}/{number % FILES}", content[:1024])
        assert change.commit is not None
        return change.commit.attempts

    return commit


def _inserts(database: str, branch: str, writer: int = 0, *, make: bool = False) -> Step:
    connection = psycopg.connect(database, autocommit=True)
    if make:
        connection.execute("CREATE TABLE rows (key TEXT PRIMARY KEY, value BYTEA)")

    def insert(number: int) -> int:
        row = (f"{branch}-{writer}-{number}", b"x" * RECORD_BYTES)
        connection.execute("INSERT INTO rows VALUES (%s, %s)", row)
        return 1

    return insert


def _make_log(connection: psycopg.Connection[Any]) -> None:
    """The table of `sql_log`, with a first record."""
    connection.execute(
        'CREATE TABLE log (repository TEXT, key TEXT COLLATE "C", value BYTEA, '
        "written DOUBLE PRECISION, PRIMARY KEY (repository, key))"
    )
    connection.execute("INSERT INTO log VALUES ('r', %s, '', 0)", (f"{0:020d}",))


def _floor(
    database: str,
    folder: str,
    branch: str,
    writer: int = 0,
    *,
    make: bool = False,
    settings: str = "",
    after: str = "",
) -> Step:
    """What a commit asks of server and disk: statements as of `sql_log`, files as of `local`.

    `settings` stands at the beginning of a turn, `after` behind its end.
    """
    news = "SELECT key, value FROM log WHERE repository = %s AND key BETWEEN %s AND %s"
    files = _linked_files(folder, branch, writer)
    connection = psycopg.connect(database, autocommit=True)
    if make:
        _make_log(connection)
    newest = 0

    def refresh() -> None:
        nonlocal newest
        while True:
            rows = connection.execute(news, sought()).fetchall()
            newest = max(int(key) for key, _ in rows)
            if len(rows) < 13:
                return

    def sought() -> tuple[str, str, str]:
        return "r", f"{newest:020d}", f"{newest + 12:020d}"

    def commit(number: int) -> int:
        nonlocal newest
        refresh()
        files(2 * number)
        files(2 * number + 1)
        cursor = psycopg.ClientCursor(connection)
        begin = f"BEGIN; {settings}SELECT pg_advisory_xact_lock(1); {news}"
        cursor.execute(begin, sought())
        while cursor.nextset():
            pass
        rows = cursor.fetchall()
        newest = max(int(key) for key, _ in rows)
        if len(rows) == 13:
            refresh()
        cursor = psycopg.ClientCursor(connection)
        row = ("r", f"{newest + 1:020d}", b"x" * RECORD_BYTES, 0.0)
        insert = "INSERT INTO log VALUES (%s, %s, %s, %s) RETURNING 1"
        cursor.execute(f"{insert}; COMMIT{after}", row)
        return 1

    return commit


def _early(database: str, folder: str, branch: str, writer: int = 0, *, make: bool = False) -> Step:
    """As `_floor`, where the lock is let go before the sync, which many clients then share."""
    # The message is a write, without which the second transaction would not wait for the disk.
    return _floor(
        database, folder, branch, writer, make=make,
        settings="SET LOCAL synchronous_commit = off; ",
        after="; SELECT pg_logical_emit_message(true, 'bench', '')",
    )  # fmt: skip


def _grouped(
    database: str, folder: str, branch: str, writer: int = 0, *, make: bool = False
) -> Step:
    """As `_floor`, in groups: a writer leaves its entry, and finds it written with the lock."""
    files = _linked_files(folder, branch, writer)
    connection = psycopg.connect(database, autocommit=True)
    if make:
        _make_log(connection)
        connection.execute("CREATE UNLOGGED TABLE waiting (txn TEXT PRIMARY KEY, entry BYTEA)")
    newest, mine = 0, b""

    def refresh() -> bool:
        """Read what is new; whether this writer's entry is in it."""
        nonlocal newest
        rows = connection.execute(
            "SELECT key, value FROM log WHERE repository = %s AND key BETWEEN %s AND %s",
            ("r", f"{newest:020d}", f"{newest + 12:020d}"),
        ).fetchall()
        newest = max(int(key) for key, _ in rows)
        found = any(mine in value for _, value in rows)
        return found or (len(rows) == 13 and refresh())

    def commit(number: int) -> int:
        nonlocal mine
        mine = f"<{branch}-{writer}-{number}>".encode()
        files(2 * number)
        files(2 * number + 1)
        cursor = psycopg.ClientCursor(connection)
        entry = (mine.decode(), mine + b"x" * (RECORD_BYTES - len(mine)))
        cursor.execute(
            "BEGIN; INSERT INTO waiting VALUES (%s, %s); COMMIT; "
            "BEGIN; SELECT pg_advisory_xact_lock(1)",
            entry,
        )
        if refresh():
            connection.execute("COMMIT")
            return 0
        taken = connection.execute("DELETE FROM waiting RETURNING entry").fetchall()
        row = ("r", f"{newest + 1:020d}", b"".join(bytes(each) for (each,) in taken), 0.0)
        cursor.execute("INSERT INTO log VALUES (%s, %s, %s, %s); COMMIT", row)
        return 1

    return commit


def _linked_files(folder: str, branch: str, writer: int = 0, **_: bool) -> Step:
    own = Path(folder) / f"{branch}-{writer}"
    own.mkdir(parents=True, exist_ok=True)

    def write(number: int) -> int:
        temporary = own / "temporary"
        fd = os.open(temporary, os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"x" * RECORD_BYTES)
        os.fsync(fd)
        os.close(fd)
        os.link(temporary, own / str(number))
        temporary.unlink()
        fd = os.open(own, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        return 1

    return write


CASES: dict[str, Case] = {
    "own_branches": own_branches,
    "one_branch": one_branch,
    "thirty_writers": thirty_writers,
}

if __name__ == "__main__":
    run(CASES, "Measure commits of many processes at once.", rounds=3)
