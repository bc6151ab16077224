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

Others have the bytes, and open a lease on what they put or reused; by that alone they commit later.
L is a staging area: its commit closes the lease. P has a part, whose lease goes after the commit. T
is as L, but names a tree page T that links to M, put when the lease is opened. Leases are renewed,
given up, and closed by somebody when they ran out, at any time: no clock is relied on.

    leased       whoever opens a lease passes the fence, for all that it keeps
    renewed      so does who renews one, which may have run out and be closed
    staged       the fence of L's commit looks at the condemnations since the first object was put
    adopted      P adopts what its part leads to, and does not trust in the lease
    late         the collector takes back what leases keep that were opened since it marked
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import NamedTuple

COMMIT_RULES = frozenset({"fence", "labels", "forever", "incarnation", "closure"})
LEASE_RULES = frozenset({"leased", "renewed", "staged", "adopted", "late"})
RULES = COMMIT_RULES | LEASE_RULES
OBJECTS = ("X", "M")
PAGE = "T"
LEASING = frozenset("LPT")
Key = tuple[str, int]  # object, label

PIN, PUT_X, PUT_M, APPEND, DONE, EXPIRED, PUT_PAGE, OPEN, HELD, SECURE, CLOSE = range(11)
IDLE, MARKED, LISTED, DELETED = range(4)


class Setting(NamedTuple):
    """How large the world is. `false_positives`: graves may name more than was condemned.

    Leases run out `lapses` times, and are renewed `renewals` times.
    """

    writers: str = "SD"
    begins_live: bool = True
    drops: int = 2
    rounds: int = 2
    false_positives: bool = False
    misses: bool = True
    lapses: int = 0
    renewals: int = 0


class Event(NamedTuple):
    """What happens next: `kind` by writer `who`; `keys` are what it is about."""

    kind: str
    who: int = -1
    keys: tuple[Key, ...] = ()


class Entry(NamedTuple):
    """One record: "commit", "drop", "condemn" (of `keys`, with `graves`), "end", "open", "close".

    A lease is that of the writer `lease`; it keeps `kept`. A commit closes one, too.
    """

    kind: str
    keys: frozenset[Key] = frozenset()
    graves: frozenset[str] = frozenset()
    lease: int = -1
    kept: frozenset[str] = frozenset()


class Writer(NamedTuple):
    """`used` holds what it relies on: with the label it put it under, None when reused.

    Who has a lease put the first object after `since`. What it stores again on its way to step
    `then` are the objects from number `secured` on, of all that it needs there.
    """

    step: int = PIN
    pin: int = 0
    used: frozenset[tuple[str, int | None]] = frozenset()
    since: int = 0
    secured: int = 0
    then: int = 0


class Collector(NamedTuple):
    step: int = IDLE
    live: frozenset[str] = frozenset()
    candidates: frozenset[Key] = frozenset()


class World(NamedTuple):
    log: tuple[Entry, ...]
    store: frozenset[Key]
    writers: tuple[Writer, ...]
    collector: Collector
    drops: int
    rounds: int
    lapses: int
    renewals: int


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
        setting.lapses,
        setting.renewals,
    )


def is_live(log: tuple[Entry, ...]) -> bool:
    """Whether the branch leads to M."""
    for entry in reversed(log):
        if entry.kind in ("commit", "drop"):
            return entry.kind == "commit"
    return False


def leases(log: tuple[Entry, ...]) -> dict[int, frozenset[str]]:
    """What each open lease keeps, by its writer."""
    held: dict[int, frozenset[str]] = {}
    for entry in log:
        if entry.kind == "open":
            held[entry.lease] = entry.kept
        else:
            held.pop(entry.lease, None)
    return held


def kept_by(log: tuple[Entry, ...]) -> frozenset[str]:
    """What roots lead to: the branch and the leases."""
    live = frozenset(OBJECTS) if is_live(log) else frozenset()
    return live.union(*leases(log).values())


def without_leases(log: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(entry for entry in log if entry.kind != "open")


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
    kept = kept_by(world.log)
    if not {name for name, _ in world.store} >= kept:
        return "lost"
    named = rules >= {"labels", "forever"}
    return "not found" if named and not _are_located(world, kept) else None


def _are_located(world: World, kept: frozenset[str]) -> bool:
    """Whether a reader finds all without listing: unlabelled, or under the label of a grave."""
    return all(
        any((name, generation) in world.store for generation in (0, *_graves(world, name)))
        for name in kept
    )


def _graves(world: World, name: str) -> list[int]:
    return [number for number, entry in enumerate(world.log, 1) if name in entry.graves]


def events(world: World, setting: Setting, rules: frozenset[str]) -> Iterator[tuple[Event, World]]:
    """Everything that may happen next, with what it leads to."""
    for number, writer in enumerate(world.writers):
        leasing = setting.writers[number] in LEASING
        written = _leased if leasing else _written
        yield from written(world, number, writer, setting, rules)
    yield from _collected(world, setting, rules)
    condemned = {key for entry in world.log for key in entry.keys}
    for key in sorted(world.store & condemned):
        yield Event("delete", keys=(key,)), world._replace(store=world.store - {key})
    if world.drops and is_live(world.log):
        log = (*world.log, Entry("drop"))
        yield Event("drop"), world._replace(log=log, drops=world.drops - 1)
    for number in sorted(leases(world.log)) if world.lapses else ():
        log = (*world.log, Entry("close", lease=number))
        yield Event("lapse", number), world._replace(log=log, lapses=world.lapses - 1)


def _written(
    world: World, number: int, writer: Writer, setting: Setting, rules: frozenset[str]
) -> Iterator[tuple[Event, World]]:
    after = partial(_after, world, number)
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


def _after(world: World, number: int, writer: Writer, **changes: object) -> World:
    writers = (*world.writers[:number], writer, *world.writers[number + 1 :])
    return world._replace(writers=writers, **changes)  # type: ignore[arg-type]


def _leased(
    world: World, number: int, writer: Writer, setting: Setting, rules: frozenset[str]
) -> Iterator[tuple[Event, World]]:
    """L, P and T: put, lease, and later commit, give up or renew."""
    after, head = partial(_after, world, number), len(world.log)
    kind, step = setting.writers[number], writer.step
    if step == PIN:
        yield Event("pin", number), after(Writer(PUT_X, head, since=head))
    elif step in (PUT_X, PUT_M):
        event, moved, store = _put(world, number, writer, setting, rules)
        at = moved.step if moved.step != APPEND else PUT_PAGE if kind == "T" else OPEN
        # The lease asks since when, and not how each object came to be there.
        yield event, after(moved._replace(step=at, used=frozenset()), store=store)
    elif step == PUT_PAGE:  # by the labels of now; the lease still says since when all was put
        key = (PAGE, label(PAGE, world.log, rules))
        if any(stored == "M" for stored, _ in world.store):
            opening = writer._replace(step=OPEN)
            yield Event("page", number, (key,)), after(opening, store=world.store | {key})
        else:
            yield Event("gone", number), after(Writer())
    elif step == SECURE:
        yield from _secured(world, number, writer, setting, rules)
    elif step in (OPEN, APPEND):
        yield from _rooted(world, number, writer, setting, rules)
    elif step == HELD:
        yield from _held(world, number, writer, setting, rules)
    elif step == CLOSE:
        log = (*world.log, Entry("close", lease=number))
        yield Event("close", number), after(Writer(DONE), log=log)


def needed(kind: str, then: int) -> tuple[str, ...]:
    """What is looked up by the fence of a lease, or of the commit of what it keeps."""
    return (*OBJECTS, PAGE) if kind == "T" and then == OPEN else OBJECTS


def _rooted(
    world: World, number: int, writer: Writer, setting: Setting, rules: frozenset[str]
) -> Iterator[tuple[Event, World]]:
    """Open or renew the lease, or commit what it keeps: past the fence."""
    after, kind = partial(_after, world, number), setting.writers[number]
    names = needed(kind, writer.step)
    since = {name for entry in world.log[writer.pin :] for name in entry.graves}
    opening = "renewed" if writer.then == HELD else "leased"
    fenced = writer.step != OPEN or opening in rules
    if fenced and since & {*names}:
        moved = writer._replace(step=SECURE, pin=len(world.log), secured=0, then=writer.step)
        yield Event("hit", number), after(moved)
    elif writer.step == OPEN:
        log = (*world.log, Entry("open", lease=number, kept=frozenset(names)))
        yield Event("open", number), after(Writer(HELD, since=writer.since), log=log)
    elif kind == "P":
        log = (*world.log, Entry("commit"))
        yield Event("commit", number), after(Writer(CLOSE), log=log)
    else:
        log = (*world.log, Entry("commit", lease=number))
        yield Event("commit", number), after(Writer(DONE), log=log)


def _held(
    world: World, number: int, writer: Writer, setting: Setting, rules: frozenset[str]
) -> Iterator[tuple[Event, World]]:
    """Another process goes on, which knows of the lease and since when its objects are there."""
    after, head, since = partial(_after, world, number), len(world.log), writer.since
    if setting.writers[number] == "P":
        step = SECURE if "adopted" in rules else APPEND
        yield Event("begin", number), after(Writer(step, head, since=since, then=APPEND))
    else:
        pin = since if "staged" in rules else head
        yield Event("begin", number), after(Writer(APPEND, pin, since=since))
    yield Event("release", number), after(Writer(CLOSE))
    if world.renewals and setting.writers[number] != "P":
        renewing = Writer(OPEN, since, since=since, then=HELD)
        yield Event("renew", number), after(renewing, renewals=world.renewals - 1)


def _secured(
    world: World, number: int, writer: Writer, setting: Setting, rules: frozenset[str]
) -> Iterator[tuple[Event, World]]:
    """The next object, without its bytes, under the label of the pin; or begin anew."""
    after, names = partial(_after, world, number), needed(setting.writers[number], writer.then)
    name = names[writer.secured]
    key = (name, label(name, world.log[: writer.pin], rules))
    step = SECURE if writer.secured + 1 < len(names) else writer.then
    moved = writer._replace(step=step, secured=writer.secured + 1)
    if step != SECURE:
        moved = moved._replace(secured=0, then=0)
    if all(stored != name for stored, _ in world.store):
        yield Event("gone", number), after(Writer())
    else:
        yield Event("secure", number, (key,)), after(moved, store=world.store | {key})


def _put(
    world: World, number: int, writer: Writer, setting: Setting, rules: frozenset[str]
) -> tuple[Event, Writer, frozenset[Key]]:
    """Rules W1 and W2: reuse what is reachable at the pin, adopt, upload or copy the rest."""
    name = OBJECTS[writer.step - PUT_X]
    pinned = world.log[: writer.pin]

    def relies(on: int | None) -> Writer:
        return writer._replace(step=writer.step + 1, used=writer.used | {(name, on)})

    if is_live(pinned):
        return Event("reuse", number), relies(None), world.store
    key = (name, label(name, pinned, rules))
    there = any(stored == name for stored, _ in world.store)
    if key in world.store or (there and "incarnation" not in rules):
        return Event("adopt", number, (key,)), relies(key[1]), world.store
    if there or setting.writers[number] != "D":
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
        collector = Collector(MARKED, kept_by(world.log))
        yield Event("mark"), world._replace(collector=collector, rounds=world.rounds - 1)
    elif step == MARKED:
        condemned = {key for entry in world.log for key in entry.keys}
        found = frozenset(key for key in world.store - condemned if key[0] not in live)
        yield Event("list"), world._replace(collector=Collector(LISTED, live, found))
    elif step == LISTED:
        # What became reachable since the marking is subtracted.
        now = kept_by(world.log) if "late" in rules else kept_by(without_leases(world.log))
        dead = sorted(key for key in candidates if key[0] not in now)
        if dead:
            yield from _condemned(world, dead, setting, rules)
        else:
            yield Event("nothing"), world._replace(collector=Collector())
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
            for graves in {
                named,
                frozenset((*OBJECTS, PAGE)) if setting.false_positives else named,
            }:
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
        if all(writer.step in (DONE, EXPIRED) for writer in world.writers)
    ]
    good = set(finished)
    while finished:
        for number in before[finished.pop()]:
            if number not in good:
                good.add(number)
                finished.append(number)
    return None if len(good) == len(worlds) else "stuck"
