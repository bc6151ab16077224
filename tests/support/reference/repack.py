"""A bounded model of repacking beside writers and a collector, explored whole.

A model T links to placement q, which links to pack P. A repack writes q2, which links to P2, and
appends that q2 supersedes q; T's own bytes never change. Another model U has a placement n that
shares pack P. Writer A commits T as it is, B commits U, R repacks; models are deleted; a collector
condemns any part of what is dead, and deletions land whenever they like. Rules that can be dropped:

    fence      before an append, the condemnations since the pin are looked up
    supersede  the fence sees that what it relies on was superseded, and begins anew
    links      the fence looks at what a new placement links to, and not at it alone
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

RULES = frozenset({"fence", "supersede", "links"})
Key = tuple[str, int]

BEGIN, PUT, APPEND, DONE = range(4)


class Setting(NamedTuple):
    writers: str = "AR"
    drops: int = 1
    rounds: int = 1


class Entry(NamedTuple):
    """One record: a commit of "T" or "U", "-T", "-U", "supersede", or "condemn" of `keys`."""

    kind: str
    keys: frozenset[Key] = frozenset()


class Writer(NamedTuple):
    step: int = BEGIN
    pin: int = 0
    used: frozenset[tuple[str, int | None]] = frozenset()
    left: tuple[str, ...] = ()


class World(NamedTuple):
    """`listed` is what a collector saw, None while none is at work."""

    log: tuple[Entry, ...]
    store: frozenset[Key]
    writers: tuple[Writer, ...]
    listed: frozenset[Key] | None
    drops: int
    rounds: int


class Folded(NamedTuple):
    models: frozenset[str]
    superseded: bool

    @property
    def needed(self) -> frozenset[str]:
        """All that the models lead to, through what superseded it."""
        of_t = {"q2", "P2"} if self.superseded else {"q", "P"}
        return frozenset((of_t if "T" in self.models else set()) | self._of_u)

    @property
    def _of_u(self) -> set[str]:
        return {"n", "P"} if "U" in self.models else set()


def fold(log: tuple[Entry, ...]) -> Folded:
    models: set[str] = set()
    for kind, _ in log:
        if kind in ("T", "U"):
            models.add(kind)
        elif kind in ("-T", "-U"):
            models.discard(kind[1])
    return Folded(frozenset(models), any(kind == "supersede" for kind, _ in log))


def beginning(setting: Setting) -> World:
    writers = (Writer(),) * len(setting.writers)
    store = frozenset({("q", 0), ("P", 0)})
    return World((Entry("T"),), store, writers, None, setting.drops, setting.rounds)


def violation(world: World) -> frozenset[str]:
    """What a model needs and nobody has any more."""
    return fold(world.log).needed - {name for name, _ in world.store}


def label(name: str, log: tuple[Entry, ...]) -> int:
    condemned = [
        generation
        for generation, entry in enumerate(log, 1)
        if any(name == buried for buried, _ in entry.keys)
    ]
    return max(condemned, default=0)


def steps(world: World, setting: Setting, rules: frozenset[str]) -> Iterator[tuple[str, World]]:
    """Everything that may happen next, with what it leads to."""
    folded = fold(world.log)
    for number, writer in enumerate(world.writers):
        yield from _written(world, number, writer, setting.writers[number], rules)
    yield from _collected(world, folded)
    condemned = {key for entry in world.log for key in entry.keys}
    for key in sorted(world.store & condemned):
        yield f"delete {key[0]}.{key[1]}", world._replace(store=world.store - {key})
    for model in sorted(folded.models) if world.drops else ():
        log = (*world.log, Entry(f"-{model}"))
        yield f"drop {model}", world._replace(log=log, drops=world.drops - 1)


def _written(
    world: World, number: int, writer: Writer, role: str, rules: frozenset[str]
) -> Iterator[tuple[str, World]]:
    def after(writer: Writer, *log: Entry, store: frozenset[Key] = world.store) -> World:
        writers = (*world.writers[:number], writer, *world.writers[number + 1 :])
        return world._replace(writers=writers, log=(*world.log, *log), store=store)

    if writer.step == BEGIN:
        plan = _plan(fold(world.log), role)
        if plan:
            yield f"{role} pins", after(Writer(PUT, len(world.log), frozenset(), plan))
    elif writer.step == PUT:
        moved, store = _put(world, writer)
        yield f"{role} puts {writer.left[0]}", after(moved, store=store)
    elif writer.step == APPEND:
        folded = fold(world.log)
        if role == "R" and folded.superseded:
            yield "R gives up", after(Writer(DONE))
        elif "fence" in rules and _is_hit(world, writer, role, rules):
            yield f"{role} begins anew", after(Writer())
        else:
            record = Entry({"A": "T", "B": "U", "R": "supersede"}[role])
            yield f"{role} appends {record.kind}", after(Writer(DONE), record)


def _plan(pinned: Folded, role: str) -> tuple[str, ...]:
    """What a writer relies on; nothing for a repack that has nothing to do."""
    if role == "B":
        return ("P", "n")
    if role == "R":
        return () if pinned.superseded or "T" not in pinned.models else ("P2", "q2")
    return ("P2", "q2") if pinned.superseded else ("P", "q")


def _put(world: World, writer: Writer) -> tuple[Writer, frozenset[Key]]:
    """Reuse what is reachable at the pin; put, or adopt, the rest under its label."""
    name, *left = writer.left
    pinned = world.log[: writer.pin]
    put = None if name in fold(pinned).needed else label(name, pinned)
    used = writer.used | {(name, put)}
    store = world.store if put is None else world.store | {(name, put)}
    return Writer(PUT if left else APPEND, writer.pin, used, tuple(left)), store


def _is_hit(world: World, writer: Writer, role: str, rules: frozenset[str]) -> bool:
    folded = fold(world.log)
    relied = {name for name, _ in writer.used}
    if role == "A" and "T" in folded.models:
        return False  # what was pinned is reachable: none of it was condemned
    if role == "A" and folded.superseded and "q" in relied and "supersede" in rules:
        return True
    since = {name for entry in world.log[writer.pin :] for name, _ in entry.keys}
    for name, put in writer.used:
        reachable = put is None and name in folded.needed
        overlooked = name == "P" and "links" not in rules
        if name in since and not reachable and not overlooked:
            return True
    return False


def _collected(world: World, folded: Folded) -> Iterator[tuple[str, World]]:
    """A collector lists, and condemns what is dead at the head that it appends to."""
    if world.listed is None:
        if world.rounds:
            condemned = {key for entry in world.log for key in entry.keys}
            listed = world.store - condemned
            yield "list", world._replace(listed=listed, rounds=world.rounds - 1)
        return
    dead = sorted(key for key in world.listed if key[0] not in folded.needed)
    if not dead:
        yield "nothing to collect", world._replace(listed=None)
    for count in range(1, len(dead) + 1):
        for keys in combinations(dead, count):
            log = (*world.log, Entry("condemn", frozenset(keys)))
            yield f"condemn {keys}", world._replace(log=log, listed=None)


def explore(
    setting: Setting, rules: frozenset[str] = RULES
) -> tuple[frozenset[str], list[str], int]:
    """What gets lost in some order of steps, the shortest way to it, and how many worlds."""
    start = beginning(setting)
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    queue = [start]
    for number, world in enumerate(queue, 1):
        if lost := violation(world):
            return lost, _way_to(world, came_from), number
        for step, after in steps(world, setting, rules):
            if after not in came_from:
                came_from[after] = (world, step)
                queue.append(after)
    return frozenset(), [], len(queue)


def _way_to(world: World, came_from: dict[World, tuple[World, str] | None]) -> list[str]:
    way = []
    while (step := came_from[world]) is not None:
        world, what = step
        way.append(what)
    return way[::-1]
