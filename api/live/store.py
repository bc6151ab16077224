"""Store of live metrics: runs that go on, and points that are not in their repository yet.

Points are durable when `add` returns. Those of one run have ascending ids in the order in which
they can be seen: whoever adds some holds the row of the run.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from tensorrepo.api.database.connection import Database
from tensorrepo.api.database.tables import live_points, live_runs
from tensorrepo.api.database.tables import secrets as service_secrets
from tensorrepo.formats.runs.metrics import MetricPoints, decode_points, encode_points, join_points
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError, RateLimitedError
from tensorrepo.repo.ids import Digest

MOST_WAITING: Final = 1 << 20  # points of one run
KEPT_SECONDS: Final = 600  # in which a batch that is sent again counts once
CLAIM_SECONDS: Final = 120
_IDENTITY: Final = "live-points"
_NO_OBJECT: Final = Digest("0" * 64)  # these payloads lie in no object
_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class RunKey:
    """A run of a served repository."""

    repository: str
    run: str


@dataclass(frozen=True, slots=True)
class LiveRunRow:
    """A run whose metrics come through the service; see the table."""

    key: RunKey
    author: str
    touched_ns: int
    written_ns: int
    done_id: int
    waiting: int
    ended_ns: int | None


@dataclass(frozen=True, slots=True)
class PendingPoints:
    """Points behind an id, by metric, and the id of the last of them."""

    points: Mapping[str, MetricPoints]
    last_id: int

    @property
    def count(self) -> int:
        return sum(map(len, self.points.values()))


class LivePoints:
    """Live metrics of all repositories of a service. Thread-safe."""

    def __init__(self, database: Database, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._database, self._clock = database, clock
        self.identity = self._own_identity()

    def begin(self, key: RunKey, author: str) -> None:
        """Take a run on, whose document was written just now; one that is known goes on."""
        now = self._clock()
        values = {"author": author, "touched_ns": now, "written_ns": now, "ended_ns": None}
        with self._database.write() as connection:
            known = connection.execute(update(live_runs).where(_is(key)).values(**values))
            if not known.rowcount:
                connection.execute(
                    insert(live_runs).values(
                        repository=key.repository, run=key.run, done_id=0, waiting=0, **values
                    )
                )

    def leave(self, key: RunKey) -> None:
        """The run does not go on after all: it was taken on, and nothing was written."""
        with self._database.write() as connection:
            connection.execute(update(live_runs).where(_is(key)).values(ended_ns=self._clock()))

    def find(self, key: RunKey) -> LiveRunRow | None:
        with self._database.read() as connection:
            row = connection.execute(select(live_runs).where(_is(key))).mappings().first()
        return None if row is None else _row(row)

    def going_on(self) -> list[LiveRunRow]:
        """Runs that have not ended."""
        with self._database.read() as connection:
            rows = connection.execute(select(live_runs).where(live_runs.c.ended_ns.is_(None)))
            return [_row(row) for row in rows.mappings()]

    def add(self, key: RunKey, points: Mapping[str, MetricPoints], batch: str | None) -> int:
        """Store points, durable when this returns; a batch of a name that came already counts once.

        Returns:
            Number of points that wait to be written to the repository.

        Raises:
            NotFoundError: the run does not go on here.
            RateLimitedError: too many wait.
        """
        count, now = sum(map(len, points.values())), self._clock()
        try:
            with self._database.write() as connection:
                waiting = self._touch(connection, key, count, now)
                if count:
                    connection.execute(
                        insert(live_points).values(
                            repository=key.repository,
                            run=key.run,
                            batch=batch or secrets.token_hex(16),
                            points=count,
                            payload=encode_points(points),
                            created_ns=now,
                        )
                    )
        except IntegrityError:  # this batch is there: nothing of this call counted
            found = self.find(key)
            return 0 if found is None else found.waiting
        return waiting

    def _touch(self, connection: Connection, key: RunKey, count: int, now: int) -> int:
        """Hold the run's row, so that its points get their ids in order."""
        touched = connection.execute(
            update(live_runs)
            .where(_is(key), live_runs.c.ended_ns.is_(None))
            .values(touched_ns=now, waiting=live_runs.c.waiting + count)
        )
        if not touched.rowcount:
            raise NotFoundError(
                f"run {key.run!r} does not go on in {key.repository}: begin it, or go on with it, "
                "by POST .../-/runs"
            )
        waiting = int(connection.execute(select(live_runs.c.waiting).where(_is(key))).scalar_one())
        if count and waiting > MOST_WAITING:
            raise RateLimitedError(
                f"{waiting:,} points of run {key.run!r} wait to be written to {key.repository}, at "
                f"most {MOST_WAITING:,} may. Send these again later.",
                retry_seconds=10,
            )
        return waiting

    def pending(self, key: RunKey, after: int, *, most: int | None = None) -> PendingPoints:
        """Points behind the id `after`, of whole batches until there are `most` of them."""
        query = (
            select(live_points.c.id, live_points.c.points, live_points.c.payload)
            .where(
                live_points.c.repository == key.repository,
                live_points.c.run == key.run,
                live_points.c.id > after,
            )
            .order_by(live_points.c.id)
        )
        parts: list[dict[str, MetricPoints]] = []
        total, last = 0, after
        with self._database.read() as connection:
            for row in connection.execute(query):
                parts.append(decode_points(row.payload, _NO_OBJECT))
                total, last = total + row.points, row.id
                if most is not None and total >= most:
                    break
        return PendingPoints(_joined(parts), last)

    def claim(self, key: RunKey) -> bool:
        """Whether this call may write the run now; `written` or `release` gives it back."""
        now = self._clock()
        with self._database.write() as connection:
            claimed = connection.execute(
                update(live_runs)
                .where(_is(key), live_runs.c.claimed_ns < now)
                .values(claimed_ns=now + CLAIM_SECONDS * _NS)
            )
            return bool(claimed.rowcount)

    def release(self, key: RunKey) -> None:
        with self._database.write() as connection:
            connection.execute(update(live_runs).where(_is(key)).values(claimed_ns=0))

    def written(self, key: RunKey, done_id: int, *, ended: bool) -> None:
        """The repository has all points up to `done_id`."""
        now = self._clock()
        left = select(func.coalesce(func.sum(live_points.c.points), 0)).where(
            live_points.c.repository == key.repository,
            live_points.c.run == key.run,
            live_points.c.id > done_id,
        )
        with self._database.write() as connection:
            connection.execute(
                update(live_runs)
                .where(_is(key))
                .values(
                    done_id=done_id,
                    written_ns=now,
                    claimed_ns=0,
                    waiting=left.scalar_subquery(),
                    ended_ns=now if ended else None,
                )
            )

    def forget(self, key: RunKey) -> None:
        """The run is gone from its repository: so are its points."""
        with self._database.write() as connection:
            connection.execute(delete(live_runs).where(_is(key)))
            connection.execute(
                delete(live_points).where(
                    live_points.c.repository == key.repository, live_points.c.run == key.run
                )
            )

    def sweep(self) -> None:
        """Delete points that the repository has, and runs that ended, some time after."""
        before = self._clock() - KEPT_SECONDS * _NS
        same = and_(
            live_runs.c.repository == live_points.c.repository, live_runs.c.run == live_points.c.run
        )
        done = select(live_runs.c.done_id).where(same).scalar_subquery()
        with self._database.write() as connection:
            connection.execute(
                delete(live_points).where(
                    live_points.c.created_ns < before,
                    or_(done.is_(None), live_points.c.id <= done),
                )
            )
            connection.execute(delete(live_runs).where(live_runs.c.ended_ns < before))

    def newest(self, keys: Iterable[RunKey]) -> dict[RunKey, tuple[int, bool]]:
        """Of runs: id of the newest batch, and whether the run has ended; one query for all."""
        wanted = set(keys)
        with self._database.read() as connection:
            ids = {
                RunKey(row.repository, row.run): int(row.last)
                for row in connection.execute(
                    select(
                        live_points.c.repository,
                        live_points.c.run,
                        func.max(live_points.c.id).label("last"),
                    ).group_by(live_points.c.repository, live_points.c.run)
                )
            }
            going = {
                RunKey(row.repository, row.run): row.ended_ns is None
                for row in connection.execute(
                    select(live_runs.c.repository, live_runs.c.run, live_runs.c.ended_ns)
                )
            }
        return {key: (ids.get(key, 0), not going.get(key, False)) for key in wanted}

    def has(self, key: RunKey, id_: int) -> bool:
        """Whether the batch of that id is still here: then all behind it are."""
        with self._database.read() as connection:
            query = select(live_points.c.id).where(
                live_points.c.id == id_,
                live_points.c.repository == key.repository,
                live_points.c.run == key.run,
            )
            return connection.execute(query).first() is not None

    def _own_identity(self) -> str:
        """Name of this database in metadata of commits: another one counts ids anew."""
        query = select(service_secrets.c.value).where(service_secrets.c.name == _IDENTITY)
        for _ in range(2):
            with self._database.read() as connection:
                known = connection.execute(query).scalar()
            if known is not None:
                return str(known)
            try:
                with self._database.write() as connection:
                    made = {"name": _IDENTITY, "value": secrets.token_hex(16)}
                    connection.execute(insert(service_secrets).values(**made))
            except IntegrityError:
                continue  # another process was first
        with self._database.read() as connection:
            return str(connection.execute(query).scalar_one())


def _is(key: RunKey) -> ColumnElement[bool]:
    return and_(live_runs.c.repository == key.repository, live_runs.c.run == key.run)


def _row(row: RowMapping) -> LiveRunRow:
    return LiveRunRow(
        RunKey(row["repository"], row["run"]),
        row["author"],
        row["touched_ns"],
        row["written_ns"],
        row["done_id"],
        row["waiting"],
        row["ended_ns"],
    )


def _joined(parts: list[dict[str, MetricPoints]]) -> dict[str, MetricPoints]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: join_points(part[name] for part in parts if name in part) for name in names}
