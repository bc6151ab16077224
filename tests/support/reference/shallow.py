"""A bounded model of history that is given up beside writers and a collector, explored whole.

Commit B is the child of A, whose content X no later commit has. A branch leads to B, for ever. An
entry of the log makes B shallow: then nothing is reachable through it but its own content, and A
and X are garbage, unless a ref names A. Four at a time or fewer act beside a collector:

    R restores X into a new commit on B: it reuses what was reachable where it began
    U sets a ref to A, as undo, reset and branch do; it has only digests
    D fetches what lies before B again, and takes back that B is shallow; it has the bytes
    E gives up what lies before B

A collector condemns any part of what is dead at the head, and a deletion of any key that was ever
condemned lands at any time. Rules that can be dropped:

    fence     before an append, the condemnations since the pin are looked up
    shortcut  the fence takes its short cut ("what I began on is still reachable") only where
              nothing was given up since
    stop      the fence does not walk through a commit that is shallow
    deepen    what lies before a commit goes through the fence before it is reachable again
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

RULES = frozenset({"fence", "shortcut", "stop", "deepen"})
OLD = ("A", "X")
Key = tuple[str, int]

BEGIN, PUT, APPEND, DONE, EXPIRED = range(5)


class Setting(NamedTuple):
    """Who acts, how often a ref to A is deleted, and how often a collector begins."""

    writers: str = "RE"
    drops: int = 1
    rounds: int = 2
    begins_shallow: bool = False


class Event(NamedTuple):
    """What happens next: `kind` by writer `who`; `keys` are what it is about."""

    kind: str
    who: int = -1
    keys: tuple[Key, ...] = ()


class Entry(NamedTuple):
    """One record: "shallow", "deepen", "restore", "ref", "drop", or "condemn" of `keys`."""

    kind: str
    keys: frozenset[Key] = frozenset()


class Writer(NamedTuple):
    """`used` holds what it relies on: with the label it put it under, None when reused."""

    step: int = BEGIN
    pin: int = 0
    used: frozenset[tuple[str, int | None]] = frozenset()


class World(NamedTuple):
    """`listed` is what a collector saw, None while none is at work."""

    log: tuple[Entry, ...]
    store: frozenset[Key]
    writers: tuple[Writer, ...]
    listed: frozenset[Key] | None
    drops: int
    rounds: int


class Folded(NamedTuple):
    """`shallow`: B has no parent here. `named`: a ref names A. `restored`: a child of B has X."""

    shallow: bool = False
    named: bool = False
    restored: bool = False

    @property
    def needed(self) -> frozenset[str]:
        if not self.shallow or self.named:
            return frozenset(OLD)
        return frozenset("X") if self.restored else frozenset()


def fold(log: tuple[Entry, ...]) -> Folded:
    held = Folded()
    for kind, _ in log:
        if kind in ("shallow", "deepen"):
            held = held._replace(shallow=kind == "shallow")
        elif kind in ("ref", "drop"):
            held = held._replace(named=kind == "ref")
        elif kind == "restore":
            held = held._replace(restored=True)
    return held


def beginning(setting: Setting) -> World:
    log = (Entry("shallow"),) if setting.begins_shallow else ()
    store = frozenset((name, 0) for name in OLD)
    writers = (Writer(),) * len(setting.writers)
    return World(log, store, writers, None, setting.drops, setting.rounds)


def violation(world: World) -> frozenset[str]:
    """What is reachable and nobody has any more."""
    return fold(world.log).needed - {name for name, _ in world.store}


def label(name: str, log: tuple[Entry, ...]) -> int:
    condemned = (
        generation
        for generation, entry in enumerate(log, 1)
        if any(name == buried for buried, _ in entry.keys)
    )
    return max(condemned, default=0)


def events(world: World, setting: Setting, rules: frozenset[str]) -> Iterator[tuple[Event, World]]:
    """Everything that may happen next, with what it leads to."""
    for number, writer in enumerate(world.writers):
        yield from _written(world, number, writer, setting.writers[number], rules)
    yield from _collected(world)
    condemned = {key for entry in world.log for key in entry.keys}
    for key in sorted(world.store & condemned):
        yield Event("delete", keys=(key,)), world._replace(store=world.store - {key})
    if world.drops and fold(world.log).named:
        log = (*world.log, Entry("drop"))
        yield Event("drop"), world._replace(log=log, drops=world.drops - 1)


def _written(
    world: World, number: int, writer: Writer, role: str, rules: frozenset[str]
) -> Iterator[tuple[Event, World]]:
    def after(writer: Writer, *log: Entry, store: frozenset[Key] = world.store) -> World:
        writers = (*world.writers[:number], writer, *world.writers[number + 1 :])
        return world._replace(writers=writers, log=(*world.log, *log), store=store)

    held, head = fold(world.log), len(world.log)
    if writer.step == BEGIN:
        if role == "E":
            ends = () if held.shallow else (Entry("shallow"),)
            yield Event("give up", number), after(Writer(DONE), *ends)
        else:
            yield Event("pin", number), after(Writer(PUT, head))
    elif writer.step == PUT:
        yield from _put(world, number, writer, role, after)
    elif writer.step == APPEND:
        if _is_hit(world, writer, role, rules):
            yield Event("hit", number), after(Writer(PUT, head))
            return
        kind = {"R": "restore", "U": "ref", "D": "deepen"}[role]
        done = (role == "D" and not held.shallow) or (role == "U" and held.named)
        yield Event(kind, number), after(Writer(DONE), *(() if done else (Entry(kind),)))


def _put(
    world: World, number: int, writer: Writer, role: str, after: object
) -> Iterator[tuple[Event, World]]:
    """The next thing that it relies on: reused where it was reachable, else adopted or put."""
    assert callable(after)
    wanted = ("X",) if role == "R" else OLD
    name = wanted[len(writer.used)]
    pinned = world.log[: writer.pin]
    key = (name, label(name, pinned))

    def relying(on: int | None) -> Writer:
        used = writer.used | {(name, on)}
        return Writer(APPEND if len(used) == len(wanted) else PUT, writer.pin, used)

    if name in fold(pinned).needed:
        yield Event("reuse", number), after(relying(None))
    elif key in world.store:
        yield Event("adopt", number, (key,)), after(relying(key[1]))
    elif role == "D" or any(stored == name for stored, _ in world.store):
        yield Event("put", number, (key,)), after(relying(key[1]), store=world.store | {key})
    else:
        yield Event("expire", number), after(Writer(EXPIRED))


def _is_hit(world: World, writer: Writer, role: str, rules: frozenset[str]) -> bool:
    """Rule W3, with its short cut: what was reachable where one began still is."""
    if "fence" not in rules or (role == "D" and "deepen" not in rules):
        return False
    since = world.log[writer.pin :]
    condemned = {name for entry in since for name, _ in entry.keys}
    before, now = fold(world.log[: writer.pin]), fold(world.log)
    # B itself is always reachable. That was all the short cut asked before commits were shallow.
    intact = now.shallow == before.shallow or "shortcut" not in rules
    reachable = now.needed
    if "stop" not in rules:
        reachable = frozenset(OLD)  # it walks through B, whatever the log says of it
    return any(
        name in condemned
        for name, put in writer.used
        if not (
            put is None and ((role == "R" and intact and not before.named) or name in reachable)
        )
    )


def _collected(world: World) -> Iterator[tuple[Event, World]]:
    needed = fold(world.log).needed
    if world.listed is None:
        if world.rounds:
            condemned = {key for entry in world.log for key in entry.keys}
            listed = world.store - condemned
            yield Event("list"), world._replace(listed=listed, rounds=world.rounds - 1)
        return
    # What became reachable since the listing is subtracted: the record follows this very head.
    dead = sorted(key for key in world.listed if key[0] not in needed)
    yield Event("nothing"), world._replace(listed=None)
    for count in range(1, len(dead) + 1):
        for keys in combinations(dead, count):
            log = (*world.log, Entry("condemn", frozenset(keys)))
            yield Event("condemn", keys=keys), world._replace(log=log, listed=None)


def explore(
    setting: Setting, rules: frozenset[str] = RULES
) -> tuple[frozenset[str], list[Event], int]:
    """What is lost first and the shortest way to it, or nothing; and how many worlds were seen."""
    worlds = [beginning(setting)]
    came_from: dict[World, tuple[World, Event] | None] = {worlds[0]: None}
    for world in worlds:
        if lost := violation(world):
            return lost, _way_to(world, came_from), len(came_from)
        for event, after in events(world, setting, rules):
            if after not in came_from:
                came_from[after] = (world, event)
                worlds.append(after)
    return frozenset(), [], len(came_from)


def _way_to(world: World, came_from: dict[World, tuple[World, Event] | None]) -> list[Event]:
    way = []
    while (step := came_from[world]) is not None:
        world, event = step
        way.append(event)
    return way[::-1]
