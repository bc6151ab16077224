"""A bounded model of appending, explored whole: every order of every event for two writers.

Each writer has one transaction. No reply to a create ever arrives; creates land at any time or
never; the hint is overwritten with anything that was once true. The rules can be dropped one by
one, to see that each is needed:

    resend      a writer that finds its slot absent sends the same bytes again; dropped, it takes
                the write for lost and goes on with a new record
    permanent   slots are never removed; dropped, one is
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

FIXED = frozenset({"resend", "permanent"})
MAX_SENDS = 3

SEEKING, WAITING, TOLD_OK = range(3)


class Writer(NamedTuple):
    step: int = SEEKING
    slot: int = 0
    sends: int = 0


class Event(NamedTuple):
    """What happens next.

    `kind` is "send" (a writer finds the head and creates the slot behind it), "read" (it looks
    into its slot), "land" (a create reaches the store), "hint" or "remove".
    """

    kind: str
    writer: int = -1
    slot: int = 0
    send: int = 0


class World(NamedTuple):
    """`history` is what won each slot, for ever; `store` is what can be read there now."""

    history: tuple[int, ...] = ()
    store: frozenset[tuple[int, int]] = frozenset()
    hint: int = 0
    writers: tuple[Writer, ...] = (Writer(), Writer())
    flying: frozenset[tuple[int, int, int]] = frozenset()  # writer, slot, send
    removals: int = 1

    def holds(self, slot: int) -> int | None:
        return next((held for at, held in self.store if at == slot), None)

    def head(self) -> int:
        found = self.hint
        while self.holds(found + 1) is not None:
            found += 1
        return found

    def violation(self) -> str | None:
        for txn, writer in enumerate(self.writers):
            if self.history.count(txn) > 1:
                return f"transaction {txn} is there twice"
            if writer.step == TOLD_OK and self.store_without(txn):
                return f"writer {txn} was told that it won, and did not"
        return None

    def store_without(self, txn: int) -> bool:
        return txn not in {held for _, held in self.store}


def events(world: World, rules: frozenset[str]) -> Iterator[tuple[Event, World]]:
    """Everything that may happen next, with what it leads to."""
    for number, writer in enumerate(world.writers):
        if writer.step == SEEKING and writer.sends < MAX_SENDS:
            yield Event("send", number), _send(world, number, world.head() + 1)
        if writer.step == WAITING:
            after = _read(world, number, rules)
            if after is not None:
                yield Event("read", number), after
    for number, slot, send in sorted(world.flying):
        yield Event("land", number, slot, send), _land(world, number, slot, send)
    for hint in range(len(world.history) + 1):
        if hint != world.hint:
            yield Event("hint", slot=hint), world._replace(hint=hint)
    if "permanent" not in rules and world.removals and world.history:
        gone = len(world.history)
        store = frozenset(held for held in world.store if held[0] != gone)
        yield Event("remove", slot=gone), world._replace(store=store, removals=0)


def explore(rules: frozenset[str] = FIXED) -> tuple[str | None, dict[World, list[Event]]]:
    """All worlds with a shortest way to each, up to the first that breaks a promise."""
    ways: dict[World, list[Event]] = {World(): []}
    queue = [World()]
    for world in queue:
        if (problem := world.violation()) is not None:
            return problem, {world: ways[world]}
        for event, after in events(world, rules):
            if after not in ways:
                ways[after] = [*ways[world], event]
                queue.append(after)
    return None, ways


def is_final(world: World) -> bool:
    """Nothing is left to happen but to the hint."""
    return not any(event.kind != "hint" for event, _ in events(world, FIXED))


def _with(world: World, number: int, writer: Writer) -> tuple[Writer, ...]:
    return (*world.writers[:number], writer, *world.writers[number + 1 :])


def _send(world: World, number: int, slot: int) -> World:
    sends = world.writers[number].sends + 1
    return world._replace(
        writers=_with(world, number, Writer(WAITING, slot, sends)),
        flying=world.flying | {(number, slot, sends)},
    )


def _read(world: World, number: int, rules: frozenset[str]) -> World | None:
    writer = world.writers[number]
    held = world.holds(writer.slot)
    if held == number:
        after = Writer(TOLD_OK, writer.slot, writer.sends)
        return world._replace(writers=_with(world, number, after))
    if held is not None or "resend" not in rules:
        return world._replace(writers=_with(world, number, Writer(sends=writer.sends)))
    return _send(world, number, writer.slot) if writer.sends < MAX_SENDS else None


def _land(world: World, number: int, slot: int, send: int) -> World:
    flying = world.flying - {(number, slot, send)}
    if world.holds(slot) is not None:
        return world._replace(flying=flying)
    return world._replace(
        flying=flying,
        store=world.store | {(slot, number)},
        history=(*world.history, number),
    )
