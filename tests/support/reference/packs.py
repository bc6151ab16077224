"""A bounded model of history packs and merged graves beside writers and a collector.

It is explored whole.

One object X lies under keys of its own, one for each label, and in packs that the log lists.
Writer A makes a ref to it, which is dropped again; a packer K lists, makes worn packs anew, packs
or joins, and frees keys; a collector buries X while nothing leads to it; tables of graves are
merged; and deletions land whenever they like. Rules that can be dropped:

    fence   before an append, the condemnations since the pin are looked up
    home    a key is freed only where a pack was made since X was buried last
    listed  a key is freed only where such a pack is listed at the very head
    worn    a pack forgets only what was buried since it was made
    newest  a merged table has the newest label of each name
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

RULES = frozenset({"fence", "home", "listed", "worn", "newest"})

BEGIN, PUT, APPEND, REWRITE, PACK, FREE, DONE = range(7)


class Setting(NamedTuple):
    writers: str = "AK"
    runs: int = 2  # of each packer
    drops: int = 1
    rounds: int = 1  # of the collector
    merges: int = 0


class Pack(NamedTuple):
    """One that has X, made by who knew the log up to `generation`."""

    maker: int
    generation: int


class Entry(NamedTuple):
    """One record: "ref", "-ref", "packs" (makes and drops some), "condemn" or "merge".

    Keys are labels of X. A condemnation of what is garbage buries X, that of a packer does not.
    """

    kind: str
    keys: frozenset[int] = frozenset()
    buries: bool = False
    made: Pack | None = None
    dropped: frozenset[Pack] = frozenset()


class Writer(NamedTuple):
    step: int = BEGIN
    pin: int = 0
    put: int | None = None  # label that X was put under; None: it was reachable at the pin
    keys: frozenset[int] = frozenset()  # that a packer saw
    runs: int = 0


class World(NamedTuple):
    log: tuple[Entry, ...]
    store: frozenset[int]  # labels under which X lies
    writers: tuple[Writer, ...]
    listed: frozenset[int] | None  # what a collector saw
    drops: int
    rounds: int
    merges: int


class Folded(NamedTuple):
    """What a log adds up to; `graves` are generations of tables, with the label of X in each."""

    ref: bool
    packs: frozenset[Pack]
    graves: tuple[tuple[int, int], ...]

    @property
    def label(self) -> int:
        return max((label for _, label in self.graves), default=0)

    def has_home(self, rules: frozenset[str]) -> bool:
        least = self.label if "home" in rules else 0
        return any(pack.generation >= least for pack in self.packs)


def fold(log: tuple[Entry, ...], rules: frozenset[str]) -> Folded:
    ref, packs, graves = False, frozenset[Pack](), list[tuple[int, int]]()
    for generation, entry in enumerate(log, 1):
        if entry.kind in ("ref", "-ref"):
            ref = entry.kind == "ref"
        elif entry.kind == "packs":
            packs = packs - entry.dropped | ({entry.made} if entry.made else set())
        elif entry.kind == "condemn" and entry.buries:
            graves.append((generation, generation))
        elif entry.kind == "merge":
            chosen = max if "newest" in rules else min
            label = chosen(label for _, label in graves)
            graves = [(max(generation for generation, _ in graves), label)]
    return Folded(ref, packs, tuple(graves))


def beginning(setting: Setting) -> World:
    writers = tuple(Writer(runs=setting.runs) for _ in setting.writers)
    counts = setting.drops, setting.rounds, setting.merges
    return World((Entry("ref"),), frozenset({0}), writers, None, *counts)


def is_lost(world: World, rules: frozenset[str]) -> bool:
    """Whether a ref leads to X, and it lies nowhere."""
    folded = fold(world.log, rules)
    return folded.ref and not world.store and not folded.packs


def steps(world: World, setting: Setting, rules: frozenset[str]) -> Iterator[tuple[str, World]]:
    """Everything that may happen next, with what it leads to."""
    folded = fold(world.log, rules)
    for number, writer in enumerate(world.writers):
        does = _written if setting.writers[number] == "A" else _packed
        for what, after, store, entry in does(world, number, writer, folded, rules):
            writers = (*world.writers[:number], after, *world.writers[number + 1 :])
            log = world.log if entry is None else (*world.log, entry)
            yield what, world._replace(writers=writers, store=store, log=log)
    yield from _collected(world, folded)
    for key in sorted(world.store & {key for entry in world.log for key in entry.keys}):
        yield f"delete X.{key}", world._replace(store=world.store - {key})
    if folded.ref and world.drops:
        yield "drop", world._replace(log=(*world.log, Entry("-ref")), drops=world.drops - 1)
    if world.merges and len(folded.graves) > 1:
        yield "merge", world._replace(log=(*world.log, Entry("merge")), merges=world.merges - 1)


_Step = tuple[str, Writer, frozenset[int], Entry | None]


def _written(
    world: World, _number: int, writer: Writer, folded: Folded, rules: frozenset[str]
) -> Iterator[_Step]:
    store = world.store
    if writer.step == BEGIN and not folded.ref:
        yield "A pins", Writer(PUT, len(world.log)), store, None
    elif writer.step == PUT:
        pinned = fold(world.log[: writer.pin], rules)
        put = Writer(APPEND, writer.pin, pinned.label)
        yield f"A puts X.{pinned.label}", put, store | {pinned.label}, None
    elif writer.step == APPEND:
        since = any(generation > writer.pin for generation, _ in folded.graves)
        if folded.ref:
            yield "A gives up", Writer(DONE), store, None
        elif since and "fence" in rules:
            yield "A begins anew", Writer(), store, None
        else:
            yield "A appends", Writer(DONE), store, Entry("ref")


def _packed(
    world: World, number: int, writer: Writer, folded: Folded, rules: frozenset[str]
) -> Iterator[_Step]:
    """What a packer does: it decides on what it saw at its pin, and appends at the head."""
    store, pinned = world.store, fold(world.log[: writer.pin], rules)
    if writer.step == BEGIN and writer.runs:
        seen = Writer(REWRITE, len(world.log), keys=store, runs=writer.runs - 1)
        yield "K lists", seen, store, None
    elif writer.step == REWRITE:
        packs = pinned.packs & folded.packs
        worn = {one for one in packs if "worn" not in rules or pinned.label > one.generation}
        then = writer._replace(step=PACK)
        yield "K keeps its packs", then, store, None
        if worn:
            yield "K drops what is worn", then, store, Entry("packs", dropped=frozenset(worn))
    elif writer.step == PACK:
        then = writer._replace(step=FREE)
        yield "K packs nothing", then, store, None
        whole = {one for one in pinned.packs & folded.packs if one.generation >= pinned.label}
        is_loose = pinned.ref and not pinned.has_home(rules) and (store or folded.packs)
        if is_loose or whole:
            made = Entry("packs", made=Pack(number, writer.pin), dropped=frozenset(whole))
            yield "K packs" if is_loose else "K joins", then, store, made
    elif writer.step == FREE:
        then = writer._replace(step=BEGIN, keys=frozenset())
        is_home = "listed" not in rules or folded.has_home(rules)
        is_freed = bool(writer.keys) and pinned.ref and is_home
        yield "K frees", then, store, Entry("condemn", writer.keys) if is_freed else None


def _collected(world: World, folded: Folded) -> Iterator[tuple[str, World]]:
    """A collector lists, and buries X if it is dead at the head that it appends to."""
    if world.listed is None:
        if world.rounds:
            gone = {key for entry in world.log for key in entry.keys}
            yield "list", world._replace(listed=world.store - gone, rounds=world.rounds - 1)
        return
    if folded.ref or not (world.listed or folded.packs):
        yield "nothing to collect", world._replace(listed=None)
        return
    for count in range(len(world.listed) + 1):
        for keys in combinations(sorted(world.listed), count):
            log = (*world.log, Entry("condemn", frozenset(keys), buries=True))
            yield f"bury {keys}", world._replace(log=log, listed=None)


def explore(setting: Setting, rules: frozenset[str] = RULES) -> tuple[bool, list[str], int]:
    """Whether X gets lost in some order of steps, the shortest way to it, and how many worlds."""
    start = beginning(setting)
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    queue = [start]
    for number, world in enumerate(queue, 1):
        if is_lost(world, rules):
            return True, _way_to(world, came_from), number
        for step, after in steps(world, setting, rules):
            if after not in came_from:
                came_from[after] = (world, step)
                queue.append(after)
    return False, [], len(queue)


def _way_to(world: World, came_from: dict[World, tuple[World, str] | None]) -> list[str]:
    way = []
    while (step := came_from[world]) is not None:
        world, what = step
        way.append(what)
    return way[::-1]
