"""One simulation: seed in, trace out, and whatever promise was broken raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.log.log_slots import slot_key
from tensorrepo.repo.objects.incarnations import parse_object_key
from tests.support.builders.histories import verify
from tests.support.builders.repositories import files_at, new_repository
from tests.support.simulation.clients import ERASED, Client, content_digest
from tests.support.simulation.store import FaultyStore, Rates
from tests.support.simulation.world import Actor, World, simulated

DAY_SECONDS = 86_400.0
RATES = (Rates(), Rates(fault=0.01), Rates(fault=0.003))  # long actions come through with the last
SINGLE = frozenset(  # of these each appends at most one record
    ["commit", "late_commit", "merge", "revert", "branch", "tag", "reset", "undo", "redo", "delete"]
)


@dataclass(frozen=True)
class Simulated:
    """What happened: every operation and every action, and how often each ended how."""

    trace: list[tuple[object, ...]]
    outcomes: Counter[tuple[str, str]]
    faults: Counter[str]
    records: int


def simulate(
    seed: int,
    actions: int,
    *,
    clients: int = 4,
    skew: bool = False,
    placed: Callable[[Backend], Backend] = lambda store: store,
) -> Simulated:
    """So many actions of some clients.

    Args:
        seed: of all chance.
        actions: of all clients together.
        clients: number of them.
        skew: whether the clocks of clients and store are wrong by up to a day.
        placed: gives a store another log, such as one in a database.
    """
    with TemporaryDirectory(prefix="tensorrepo-simulation-") as folder:
        return _simulate(seed, actions, clients, skew, placed, Path(folder))


def _simulate(
    seed: int,
    actions: int,
    clients: int,
    skew: bool,
    placed: Callable[[Backend], Backend],
    folder: Path,
) -> Simulated:
    world, rates = World(seed), RATES[seed % len(RATES)]

    def skewed() -> float:
        return world.chance.choice([-DAY_SECONDS, 0.0, DAY_SECONDS]) if skew else 0.0

    stored_skew = skewed()
    backend = placed(MemoryBackend(clock=lambda: world.now + stored_skew))
    with simulated(world):
        new_repository(backend)
        people = [
            Client(
                Actor(f"c{number}", skewed()),
                FaultyStore(backend, world, f"c{number}", rates),
                actions // clients,
                folder / f"c{number}",
            )
            for number in range(clients)
        ]
    world.run([(client.actor, client.live) for client in people])
    with simulated(world):
        world.current = None
        check(backend, world, people)
    told = [each for client in people for each in client.told]
    outcomes = Counter((each.what, each.outcome) for each in told)
    faults = Counter(str(step[3]) for step in world.trace if len(step) == 4 and step[3])
    return Simulated(world.trace, outcomes, faults, len(entries_of(backend)))


def entries_of(backend: Backend) -> list[list[dict[str, object]]]:
    """Entries of all records, read as plain JSON: by none of the product's code."""
    found = []
    for stored in backend.list("log/"):
        if stored.key == slot_key(len(found) + 1):
            found.append(msgspec.json.decode(backend.read(stored.key))["entries"])
    return found


def check(backend: Backend, world: World, clients: list[Client]) -> None:
    """What must hold when all are done, before and after the last request has arrived."""
    fresh = open_repository(backend, drivers={})
    told_before = {}
    for client in clients:
        for told in client.told:
            if told.is_open:
                client.ask(told, fresh)
        told_before.update(client.resolved)
    world.land(all_of_them=True)
    fresh = open_repository(backend, drivers={})
    landed = check_log(backend, fresh)
    for client in clients:
        check_told(client, landed)
    check_whole(fresh)
    for client in clients:
        client.desk.check(fresh)
    check_commits(fresh, clients)
    check_purges(fresh, world, clients)
    for home in (home for client in clients for home in client.homes):
        copy = open_repository(home.inner, drivers={})
        check_log(home.inner, copy)
        check_whole(copy)


def check_whole(fresh: RepositoryCore) -> None:
    """All that anything leads to is there and as it was written."""
    verify(fresh.backend)
    state = fresh.log.refresh().state
    assert [*check_objects(fresh.objects, state, ObjectTotals(), deep=True)] == []


@dataclass(frozen=True)
class Landed:
    """Transactions of a log that count, and all moves of refs that they made."""

    txns: set[str]
    moves: set[tuple[object, object]]


def check_log(backend: Backend, fresh: RepositoryCore) -> Landed:
    """Refs are the fold of the log, and no transaction is there twice; gives what counts."""
    records = entries_of(backend)
    assert fresh.log.refresh().generation == len(records)
    folded: dict[str, object] = {}
    landed = Landed(set(), set())
    seen: set[str] = set()
    for entries in records:
        here = {str(entry["txn"]) for entry in entries}
        assert not here & seen, f"{here & seen} is there twice"
        seen |= here
        for entry in entries:
            updates = entry.get("updates") or []
            assert isinstance(updates, list)
            moves = [(one["ref"], one.get("old"), one.get("new")) for one in updates]
            if all(folded.get(ref) == old for ref, old, _ in moves):
                landed.txns.add(str(entry["txn"]))
                landed.moves.update((ref, new) for ref, _, new in moves)
                folded |= {ref: new for ref, _, new in moves}
    assert dict(fresh.log.refresh().state.refs) == {r: c for r, c in folded.items() if c}
    return landed


def check_told(client: Client, landed: Landed) -> None:
    """What was acknowledged is there, what was refused is not, what was unknown has one truth."""
    for told in client.told:
        there = [txn for txn in told.txns if txn in landed.txns]
        assert landed.moves.issuperset(told.moved), f"{told} was acknowledged and is not there"
        if told.commit is not None:
            assert there, f"{told} was acknowledged and is not there"
        if told.what in SINGLE and told.outcome.startswith("refused"):
            assert not there, f"{told} was refused and is there"
        assert told.what not in SINGLE or len(there) <= 1, f"{told} was done twice"
    for txn, outcome in client.resolved:
        assert (outcome == "landed") == (txn in landed.txns), f"{txn} was said to be {outcome}"


def check_commits(fresh: RepositoryCore, clients: list[Client]) -> None:
    """Acknowledged commits that anything still leads to hold what was written."""
    kept = {digest for digest, _ in walk(fresh.objects, _commits(fresh))}
    for client in clients:
        for told in client.told:
            if told.commit is not None and told.commit.digest in kept and told.files:
                written = {path: now(fresh, content) for path, content in told.files.items()}
                assert written.items() <= files_at(fresh, told.commit.digest).items()


def now(fresh: RepositoryCore, content: bytes) -> bytes:
    """What a file of some content holds, as purges left it."""
    is_purged = content_digest(content) in fresh.log.refresh().state.purges
    return ERASED if is_purged else content


def check_purges(fresh: RepositoryCore, world: World, clients: list[Client]) -> None:
    """What was acknowledged as purged is in no commit, and in no object after a collection."""
    purges = fresh.log.refresh().state.purges
    assert purges.keys() <= {content_digest(content) for content in world.secrets}
    for client in clients:
        for told in client.told:
            assert purges.keys() >= set(told.purged), f"{told} was acknowledged and is not there"
    erased = {content for content in world.secrets if content_digest(content) in purges}
    for digest, _ in walk(fresh.objects, _commits(fresh)):
        assert erased.isdisjoint(files_at(fresh, digest).values())
    collect_garbage(fresh, actor="check", rules=CollectionRules(grace_seconds=0.0))
    for stored in fresh.backend.list("objects/"):
        parsed = parse_object_key(stored.key)
        assert parsed is not None
        assert parsed[0] not in purges, f"{stored.key} was purged and is there"
    check_whole(fresh)


def _commits(fresh: RepositoryCore) -> set[str]:
    state = fresh.log.refresh().state
    return {*state.refs.values(), *state.retained}
