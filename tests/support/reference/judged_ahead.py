"""A bounded model of groups that are judged while the one before lands, explored whole.

Three transactions come to a service, of which 1 is refused where 0 is in the log. Records of groups
are created, and become durable, while the next group is judged; another process may write a record,
a group may fail, and power may fail at any time. The rules can be dropped one by one, to see that
each is needed:

    turn    a record is created once the one before it is durable
    again   what was judged on a record that did not land is judged anew
    late    a refusal is told when what it was judged on is durable
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

RULES = frozenset({"turn", "again", "late"})
OTHER = 9  # the transaction of another process

Txns = tuple[int, ...]


class Group(NamedTuple):
    """What was judged on `base`, all transactions of the log up to then, for slot `slot`."""

    base: Txns
    slot: int
    txns: Txns = ()
    refused: Txns = ()
    created: bool = False

    def after(self) -> Group:
        """A group that comes after this one."""
        return Group(self.base + self.txns, self.slot + bool(self.txns))


class World(NamedTuple):
    """`log` has for each slot what is there, and on what it was judged; `durable` are slots."""

    waiting: Txns = (0, 1, 2)
    log: tuple[tuple[Txns, Txns], ...] = ()
    durable: frozenset[int] = frozenset()
    landing: Group | None = None
    ahead: Group | None = None
    landed: frozenset[int] = frozenset()  # transactions whose clients were told so
    refused: frozenset[int] = frozenset()
    others: int = 1
    is_dark: bool = False  # power failed: only what is durable is left

    def txns(self) -> Txns:
        return tuple(txn for record, _ in self.log for txn in record)

    def violation(self) -> str | None:
        before: Txns = ()
        for slot, (txns, base) in enumerate(self.log):
            if self.is_dark and slot not in self.durable:
                continue
            if base != before:
                return "a record stands on what is not in the log"
            before += txns
        if len(set(before)) < len(before):
            return "a transaction is there twice"
        kept = {txn for slot in self.durable for txn in self.log[slot][0]}
        if not self.landed <= kept:
            return "a client was told of what is lost"
        if self.refused and 0 not in kept:
            return "a client was refused for what is lost"
        return None


def events(world: World, rules: frozenset[str]) -> Iterator[World]:
    """Everything that may happen next."""
    if world.is_dark:
        return
    yield world._replace(is_dark=True)
    if world.others:
        # Its sync of the log's folder makes the names before its own durable, too.
        log = (*world.log, ((OTHER,), world.txns()))
        yield world._replace(log=log, durable=frozenset(range(len(log))), others=0)
    if world.waiting:
        yield _judge(world, rules)
    if world.landing is None and world.ahead is not None:
        yield _launch(world, world.ahead)
    if world.landing is not None:
        yield from _land(world, world.landing, rules)


def explore(rules: frozenset[str] = RULES) -> tuple[str | None, int]:
    """The first promise that breaks, if any, and the number of worlds."""
    known = {World()}
    queue = [World()]
    for world in queue:
        if (problem := world.violation()) is not None:
            return problem, len(queue)
        for after in events(world, rules):
            if after not in known:
                known.add(after)
                queue.append(after)
    return None, len(queue)


def _judge(world: World, rules: frozenset[str]) -> World:
    txn, *others = world.waiting
    fresh = Group(world.txns(), len(world.log))
    group = world.ahead or (fresh if world.landing is None else world.landing.after())
    if txn == 1 and 0 in group.base + group.txns:
        group = group._replace(refused=(*group.refused, txn))
        told = world.refused if "late" in rules else world.refused | {txn}
    else:
        group, told = group._replace(txns=(*group.txns, txn)), world.refused
    return world._replace(waiting=tuple(others), ahead=group, refused=told)


def _launch(world: World, group: Group) -> World:
    if group.txns:
        return world._replace(landing=group, ahead=None)
    return world._replace(ahead=None, refused=world.refused | set(group.refused))


def _land(world: World, landing: Group, rules: frozenset[str]) -> Iterator[World]:
    if landing.created:
        yield _durable(world._replace(landing=None), landing)
        ahead = world.ahead
        if "turn" not in rules and ahead is not None and ahead.txns:
            yield _durable(_created(world._replace(ahead=None), ahead), ahead)
        return
    yield _judged_anew(
        world._replace(landing=None), (), rules
    )  # its clients are told that it failed
    if landing.slot < len(world.log):
        again = (*landing.txns, *landing.refused)
        yield _judged_anew(world._replace(landing=None), again, rules)
    else:
        yield _created(world._replace(landing=landing._replace(created=True)), landing)


def _created(world: World, group: Group) -> World:
    return world._replace(log=(*world.log, (group.txns, group.base)))


def _durable(world: World, group: Group) -> World:
    return world._replace(
        durable=world.durable | {group.slot},
        landed=world.landed | set(group.txns),
        refused=world.refused | set(group.refused),
    )


def _judged_anew(world: World, again: Txns, rules: frozenset[str]) -> World:
    ahead = world.ahead
    if ahead is not None and "again" in rules:
        again, world = (*again, *ahead.txns, *ahead.refused), world._replace(ahead=None)
    return world._replace(waiting=(*sorted(again), *world.waiting))
