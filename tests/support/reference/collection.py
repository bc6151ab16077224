"""A bounded model of collection beside writers, explored whole: every order of every step.

A manifest M links to content X, and a branch leads to M or nowhere. An object's name never
changes; its key carries a label. Two writers want to commit M: S has the bytes, D has only digests
(staged yesterday, a revert, a rebase) and can but adopt or copy. A collector marks, lists (and may
miss keys) and condemns; a deletion of any key that was ever condemned lands at any time, and any
number of times. The rules can be dropped one by one, to see that each is needed:

    fence        before an append, the condemnations since the pin are looked up
    labels       what was condemned is stored again under another key
    forever      a condemnation is remembered after its deletions are done
    incarnation  only what lies under the newest label is adopted
    closure      the fence looks at all that a reused object leads to, not at it alone
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

RULES = frozenset({"fence", "labels", "forever", "incarnation", "closure"})
OBJECTS = ("X", "M")
Key = tuple[str, int]  # object, label

PIN, PUT_X, PUT_M, APPEND, DONE, EXPIRED = range(6)
IDLE, MARKED, LISTED, DELETED = range(4)


class Setting(NamedTuple):
    """How large the world is. `false_positives`: graves may name more than was condemned."""

    writers: str = "SD"
    begins_live: bool = True
    drops: int = 2
    rounds: int = 2
    false_positives: bool = False
    misses: bool = True


class Event(NamedTuple):
    """What happens next: `kind` by writer `who`; `keys` are what it is about."""

    kind: str
    who: int = -1
    keys: tuple[Key, ...] = ()


class Entry(NamedTuple):
    """One record: "commit", "drop", "condemn" (of `keys`, with `graves`) or "end"."""

    kind: str
    keys: frozenset[Key] = frozenset()
    graves: frozenset[str] = frozenset()


class Writer(NamedTuple):
    """`used` holds what it relies on: with the label it put it under, None when reused."""

    step: int = PIN
    pin: int = 0
    used: frozenset[tuple[str, int | None]] = frozenset()


class Collector(NamedTuple):
    step: int = IDLE
    live: bool = False
    candidates: frozenset[Key] = frozenset()


class World(NamedTuple):
    log: tuple[Entry, ...]
    store: frozenset[Key]
    writers: tuple[Writer, ...]
    collector: Collector
    drops: int
    rounds: int


class Explored(NamedTuple):
    """`problem` is None when no order of events breaks a promise; else `way` leads to it."""

    problem: str | None
    way: list[Event]
    worlds: int


def beginning(setting: Setting) -> World:
    return World(
        (Entry("commit"),) if setting.begins_live else (),
        frozenset((name, 0) for name in OBJECTS),
        (Writer(),) * len(setting.writers),
        Collector(),
        setting.drops,
        setting.rounds,
    )


def is_live(log: tuple[Entry, ...]) -> bool:
    """Whether the branch leads to M."""
    for entry in reversed(log):
        if entry.kind in ("commit", "drop"):
            return entry.kind == "commit"
    return False


def label(name: str, log: tuple[Entry, ...], rules: frozenset[str]) -> int:
    """Under which label who has read `log` stores an object."""
    newest = 0
    for generation, entry in enumerate(log, 1):
        if entry.kind == "condemn" and name in entry.graves and "labels" in rules:
            newest = generation
        if entry.kind == "end" and "forever" not in rules:
            newest = 0
    return newest


def violation(world: World, rules: frozenset[str]) -> str | None:
    if not is_live(world.log):
        return None
    if not {name for name, _ in world.store} >= set(OBJECTS):
        return "lost"
    named = rules >= {"labels", "forever"}
    return "not found" if named and not _are_located(world) else None


def _are_located(world: World) -> bool:
    """Whether a reader finds both without listing: unlabelled, or under the label of a grave."""
    return all(
        any((name, generation) in world.store for generation in (0, *_graves(world, name)))
        for name in OBJECTS
    )


def _graves(world: World, name: str) -> list[int]:
    return [number for number, entry in enumerate(world.log, 1) if name in entry.graves]


def events(world: World, setting: Setting, rules: frozenset[str]) -> Iterator[tuple[Event, World]]:
    """Everything that may happen next, with what it leads to."""
    for number, writer in enumerate(world.writers):
        yield from _written(world, number, writer, setting, rules)
    yield from _collected(world, setting, rules)
    condemned = {key for entry in world.log for key in entry.keys}
    for key in sorted(world.store & condemned):
        yield Event("delete", keys=(key,)), world._replace(store=world.store - {key})
    if world.drops and is_live(world.log):
        log = (*world.log, Entry("drop"))
        yield Event("drop"), world._replace(log=log, drops=world.drops - 1)


def _written(
    world: World, number: int, writer: Writer, setting: Setting, rules: frozenset[str]
) -> Iterator[tuple[Event, World]]:
    def after(writer: Writer, **changes: object) -> World:
        writers = (*world.writers[:number], writer, *world.writers[number + 1 :])
        return world._replace(writers=writers, **changes)  # type: ignore[arg-type]

    head = len(world.log)
    if writer.step == PIN:
        yield Event("pin", number), after(Writer(PUT_X, head))
    elif writer.step in (PUT_X, PUT_M):
        event, moved, store = _put(world, number, writer, setting, rules)
        yield event, after(moved, store=store)
    elif writer.step == APPEND:
        if "fence" in rules and _is_hit(world, writer, rules):
            yield Event("hit", number), after(Writer(PUT_X, head))
        else:
            yield Event("commit", number), after(Writer(DONE), log=(*world.log, Entry("commit")))


def _put(
    world: World, number: int, writer: Writer, setting: Setting, rules: frozenset[str]
) -> tuple[Event, Writer, frozenset[Key]]:
    """Rules W1 and W2: reuse what is reachable at the pin, adopt, upload or copy the rest."""
    name = OBJECTS[writer.step - PUT_X]
    pinned = world.log[: writer.pin]

    def relies(on: int | None) -> Writer:
        return Writer(writer.step + 1, writer.pin, writer.used | {(name, on)})

    if is_live(pinned):
        return Event("reuse", number), relies(None), world.store
    key = (name, label(name, pinned, rules))
    there = any(stored == name for stored, _ in world.store)
    if key in world.store or (there and "incarnation" not in rules):
        return Event("adopt", number, (key,)), relies(key[1]), world.store
    if there or setting.writers[number] == "S":
        return Event("put", number, (key,)), relies(key[1]), world.store | {key}
    return Event("expire", number), Writer(EXPIRED), world.store


def _is_hit(world: World, writer: Writer, rules: frozenset[str]) -> bool:
    """Rule W3. What is reused is safe as long as what was pinned is still reachable."""
    since = {name for entry in world.log[writer.pin :] for name in entry.graves}
    live = is_live(world.log)
    for name, put in writer.used:
        skipped = put is None and (live or ("closure" not in rules and name != "M"))
        if name in since and not skipped:
            return True
    return False


def _collected(
    world: World, setting: Setting, rules: frozenset[str]
) -> Iterator[tuple[Event, World]]:
    step, live, candidates = world.collector
    if step == IDLE and world.rounds:
        collector = Collector(MARKED, is_live(world.log))
        yield Event("mark"), world._replace(collector=collector, rounds=world.rounds - 1)
    elif step == MARKED:
        condemned = {key for entry in world.log for key in entry.keys}
        found = frozenset() if live else world.store - condemned
        yield Event("list"), world._replace(collector=Collector(LISTED, live, found))
    elif step == LISTED:
        # What became reachable since the marking is subtracted.
        if not candidates or is_live(world.log):
            yield Event("nothing"), world._replace(collector=Collector())
        else:
            yield from _condemned(world, sorted(candidates), setting, rules)
    elif step == DELETED:
        log = (*world.log, Entry("end"))
        yield Event("end"), world._replace(log=log, collector=Collector())


def _condemned(
    world: World, candidates: list[Key], setting: Setting, rules: frozenset[str]
) -> Iterator[tuple[Event, World]]:
    fewest = 1 if setting.misses else len(candidates)
    for count in range(fewest, len(candidates) + 1):
        for keys in combinations(candidates, count):
            named = frozenset(name for name, _ in keys)
            for graves in {named, frozenset(OBJECTS) if setting.false_positives else named}:
                log = (*world.log, Entry("condemn", frozenset(keys), graves))
                step = IDLE if "forever" in rules else DELETED
                yield (
                    Event("condemn", keys=keys),
                    world._replace(log=log, collector=Collector(step)),
                )


def explore(setting: Setting, rules: frozenset[str] = RULES) -> Explored:
    """All worlds, breadth first, up to the first that breaks a promise."""
    worlds = [beginning(setting)]
    numbers = {worlds[0]: 0}
    came_from: list[tuple[int, Event] | None] = [None]
    before: list[list[int]] = [[]]  # which worlds lead to each
    for number, world in enumerate(worlds):
        if (problem := violation(world, rules)) is not None:
            return Explored(problem, way_to(number, came_from), number + 1)
        for event, after in events(world, setting, rules):
            known = numbers.setdefault(after, len(worlds))
            if known == len(worlds):
                worlds.append(after)
                came_from.append((number, event))
                before.append([])
            before[known].append(number)
    return Explored(_stuck(worlds, before, setting), [], len(worlds))


def covering_ways(setting: Setting, rules: frozenset[str] = RULES) -> Iterator[list[Event]]:
    """Ways from the beginning that together take every step of every world that can be reached."""
    worlds = [beginning(setting)]
    numbers = {worlds[0]: 0}
    came_from: list[tuple[int, Event] | None] = [None]
    steps: list[list[tuple[Event, int]]] = []  # of each world, those that no way has taken
    for number, world in enumerate(worlds):
        steps.append([])
        for event, after in events(world, setting, rules):
            known = numbers.setdefault(after, len(worlds))
            if known == len(worlds):
                worlds.append(after)
                came_from.append((number, event))
            steps[number].append((event, known))
    for number in range(len(worlds)):
        while steps[number]:
            way, at = way_to(number, came_from), number
            while steps[at]:
                event, at = steps[at].pop()
                way.append(event)
            yield way


def way_to(number: int, came_from: list[tuple[int, Event] | None]) -> list[Event]:
    way = []
    while (step := came_from[number]) is not None:
        number, event = step
        way.append(event)
    return way[::-1]


def _stuck(worlds: list[World], before: list[list[int]], setting: Setting) -> str | None:
    """From everywhere both writers can still finish, and who has the bytes is never refused."""
    if any(
        writer.step == EXPIRED and setting.writers[number] == "S"
        for world in worlds
        for number, writer in enumerate(world.writers)
    ):
        return "refused"
    finished = [
        number
        for number, world in enumerate(worlds)
        if all(writer.step >= DONE for writer in world.writers)
    ]
    good = set(finished)
    while finished:
        for number in before[finished.pop()]:
            if number not in good:
                good.add(number)
                finished.append(number)
    return None if len(good) == len(worlds) else "stuck"
