"""Statements of DQL as values: an abstract syntax tree, and the text that it prints as.

`str` of a statement is a text that parses to an equal one. Values refuse nonsense when they are
made; what only a place in the text can explain is refused by `grammar`.

Source:
    H. Miao, A. Li, L. S. Davis, A. Deshpande, "Towards Unified Data and Lifecycle Management for
    Deep Learning", ICDE 2017, section "DQL"; docs/guides/dql.md says what differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

from tensorrepo.repo.deferred_dataclass import dataclass

Plain: TypeAlias = str | int | float | bool | None  # a literal
Setting: TypeAlias = Plain | tuple[int, ...]
EVERY: Final = "every"  # version of every commit

TEXTS: Final = ("name", "path", "digest", "author", "message", "commit")
NUMBERS: Final = ("parameters", "bytes", "tensors")
MOMENTS: Final = ("creation_time",)
ATTRIBUTES: Final = (*TEXTS, *NUMBERS, *MOMENTS)
OPERATORS: Final = ("=", "!=", "<=", ">=", "<", ">", "like")
Step = Literal["next", "prev"]


def quoted(value: Setting) -> str:
    """A literal as it is written."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(quoted, value))}]"
    return json.dumps(value)


@dataclass(frozen=True, slots=True)
class Attribute:
    """``m.name``: something that is known of every model; one of `ATTRIBUTES`."""

    variable: str
    name: str

    def __str__(self) -> str:
        return f"{self.variable}.{self.name}"


@dataclass(frozen=True, slots=True)
class MetricOf:
    """``m["accuracy"]``: a metric of a model."""

    variable: str
    name: str

    def __str__(self) -> str:
        return f"{self.variable}[{quoted(self.name)}]"


Value: TypeAlias = Attribute | MetricOf


@dataclass(frozen=True, slots=True)
class Nodes:
    """``m["conv*"].next``: nodes whose name or operation fits a pattern, or neighbours of those."""

    variable: str
    pattern: str
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return f"{self.variable}[{quoted(self.pattern)}]" + "".join(f".{s}" for s in self.steps)


@dataclass(frozen=True, slots=True)
class Operation:
    """``POOL("MAX", stride=2)``: what a node does, its first argument, and settings by name."""

    name: str
    argument: str | None = None
    settings: tuple[tuple[str, Setting], ...] = ()

    def __str__(self) -> str:
        first = [] if self.argument is None else [quoted(self.argument)]
        return (
            f"{self.name}({', '.join([*first, *(f'{k}={quoted(v)}' for k, v in self.settings)])})"
        )


@dataclass(frozen=True, slots=True)
class Compare:
    """``m.name like "alex%"``: a value, one of `OPERATORS`, and a literal."""

    value: Value
    operator: str
    literal: Plain

    def __str__(self) -> str:
        return f"{self.value} {self.operator} {quoted(self.literal)}"


@dataclass(frozen=True, slots=True)
class Among:
    """``m.author in ["Ada", "Bob"]``."""

    value: Value
    literals: tuple[Plain, ...]

    def __str__(self) -> str:
        return f"{self.value} in [{', '.join(map(quoted, self.literals))}]"


@dataclass(frozen=True, slots=True)
class Has:
    """``m["conv*"].next has POOL("MAX")``: at least one of those nodes does that."""

    nodes: Nodes
    operation: Operation

    def __str__(self) -> str:
        return f"{self.nodes} has {self.operation}"


@dataclass(frozen=True, slots=True)
class Not:
    """``not ...``."""

    condition: Condition

    def __str__(self) -> str:
        return f"not {_inside(self.condition)}"


@dataclass(frozen=True, slots=True)
class And:
    """All of at least two conditions."""

    conditions: tuple[Condition, ...]

    def __str__(self) -> str:
        return " and ".join(map(_inside, self.conditions))


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of at least two conditions."""

    conditions: tuple[Condition, ...]

    def __str__(self) -> str:
        return " or ".join(map(_inside, self.conditions))


Condition: TypeAlias = Compare | Among | Has | Not | And | Or


def _inside(condition: Condition) -> str:
    return f"({condition})" if isinstance(condition, And | Or) else str(condition)


def predicates(condition: Condition | None) -> Iterator[Compare | Among | Has]:
    """What a condition is made of, in the order of its text."""
    match condition:
        case Not(inner):
            yield from predicates(inner)
        case And(parts) | Or(parts):
            for part in parts:
                yield from predicates(part)
        case Compare() | Among() | Has():
            yield condition


@dataclass(frozen=True, slots=True)
class ModelScope:
    """Models that a variable stands for.

    Attributes:
        variable: name by which the statement calls one of them.
        at: the commit whose models are meant; None: the one that the caller names; `EVERY`: those
            of all commits.
        where: what holds for them; None: all.
    """

    variable: str
    at: str | None = None
    where: Condition | None = None

    def __str__(self) -> str:
        return " ".join(_parts(self.variable, self._at(), where=self.where))

    def _at(self) -> str | None:
        if self.at is None:
            return None
        return f"at {EVERY if self.at == EVERY else quoted(self.at)}"


@dataclass(frozen=True, slots=True)
class ModelOrder:
    """By which value models are ordered; models that lack it come last."""

    value: Value
    descending: bool = False

    def __str__(self) -> str:
        return f"{self.value}{' desc' if self.descending else ''}"


@dataclass(frozen=True, slots=True)
class Select:
    """``select m where ... order by ... limit ...``."""

    source: ModelScope
    order: ModelOrder | None = None
    limit: int | None = None

    def __str__(self) -> str:
        parts = _parts(f"select {self.source}", order_by=self.order, limit=self.limit)
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Slice:
    """``slice m2 from m1 where ... mutate m2.input = m1["a"] and m2.output = m1["b"]``.

    `first` and `last` are patterns of one node each. `name` is that of the new model, in which
    ``$name`` stands for that of the one it is cut from.
    """

    new: str
    source: ModelScope
    first: str
    last: str
    name: str | None = None

    def __str__(self) -> str:
        old = self.source.variable
        cut = (
            f"mutate {self.new}.input = {Nodes(old, self.first)}"
            f" and {self.new}.output = {Nodes(old, self.last)}"
        )
        return f"slice {self.new} from {self.source} {cut}{_as(self.name)}"


Verb = Literal["insert", "replace", "delete"]


@dataclass(frozen=True, slots=True)
class Change:
    """``m["conv*($1)"].insert = RELU("relu$1")``: what becomes of nodes that fit a pattern.

    An operation to insert stands behind the node, one to replace it in its place; its first
    argument is the name of the new node. None for "delete".
    """

    pattern: str
    verb: Verb
    operation: Operation | None = None


@dataclass(frozen=True, slots=True)
class Construct:
    """``construct m2 from m1 where ... mutate ...``: models of a changed architecture.

    `init` is the rule for tensors that no model has.
    """

    new: str
    source: ModelScope
    changes: tuple[Change, ...]
    init: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        told = " and ".join(map(self._change, self.changes))
        init = "" if self.init is None else f" init {quoted(self.init)}"
        return f"construct {self.new} from {self.source} mutate {told}{init}{_as(self.name)}"

    def _change(self, change: Change) -> str:
        made = "" if change.operation is None else f" = {change.operation}"
        return f"{Nodes(self.source.variable, change.pattern)}.{change.verb}{made}"


@dataclass(frozen=True, slots=True)
class Best:
    """``top(5, m["accuracy"])``: so many with the largest values, or the smallest.

    `iterations` is how long each is trained before it is measured; only for who trains.
    """

    count: int
    metric: str
    ascending: bool = False
    iterations: int | None = None

    def text(self, variable: str) -> str:
        order = " asc" if self.ascending else ""
        more = "" if self.iterations is None else f", {self.iterations}"
        return f"top({self.count}, {MetricOf(variable, self.metric)}{order}{more})"


@dataclass(frozen=True, slots=True)
class Varied:
    """``config.lr in [0.1, 0.01]``: a setting of trainings, and the values that it takes."""

    path: tuple[str, ...]
    values: tuple[Plain, ...]

    def __str__(self) -> str:
        return f"config.{'.'.join(self.path)} in [{', '.join(map(quoted, self.values))}]"


@dataclass(frozen=True, slots=True)
class Evaluate:
    """``evaluate m2 from m1 where ... vary config.lr in [...] keep top(5, m2["accuracy"])``."""

    new: str
    source: ModelScope
    vary: tuple[Varied, ...]
    keep: Best | Condition

    def __str__(self) -> str:
        vary = f" vary {' and '.join(map(str, self.vary))}" if self.vary else ""
        kept = self.keep.text(self.new) if isinstance(self.keep, Best) else self.keep
        return f"evaluate {self.new} from {self.source}{vary} keep {kept}"


Statement: TypeAlias = Select | Slice | Construct | Evaluate


def _as(name: str | None) -> str:
    return "" if name is None else f" as {quoted(name)}"


def _parts(first: str, *rest: str | None, **named: object) -> Iterable[str]:
    yield first
    yield from (part for part in rest if part is not None)
    for word, value in named.items():
        if value is not None:
            yield f"{word.replace('_', ' ')} {value}"
