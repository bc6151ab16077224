"""Which tensor is stored whole and which as a delta, so that all take least and reads stay quick?

A tensor has options: whole, or against other tensors, each with the bytes that it takes and what
reading it costs beside reading its bases. Reading a model may cost at most `alpha` times as much as
reading it whole. The problem is NP-hard; two greedy algorithms are run, and the better plan taken:
one grows a tree that stays within the limits, the other repairs the smallest tree until it is.

A plan is a pure function of the problem: nothing is read or measured here.

Source:
    Miao, Li, Davis, Deshpande: ModelHub, ICDE 2017, "parameter archival storage": PAS-PT, PAS-MT.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Choice = tuple[int, ...]  # for each tensor the number of its option


@dataclass(frozen=True, slots=True)
class Option:
    """One way to store a tensor.

    Attributes:
        bases: numbers of the tensors that it is encoded against, each once; none: it is whole.
        stored_bytes: what it takes.
        cost: of reading it when its bases are there already, in bytes.
    """

    bases: tuple[int, ...]
    stored_bytes: int
    cost: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Tensors, the options of each, and the models that they belong to.

    Attributes:
        options: of each tensor; one at least is whole.
        models: numbers of the tensors of each, as often as they are read.
        alpha: how many times what a model costs to read whole it may cost.
        depth: how many bases a read may pass through.
    """

    options: tuple[tuple[Option, ...], ...]
    models: tuple[tuple[int, ...], ...]
    alpha: Fraction
    depth: int

    def __post_init__(self) -> None:
        if self.alpha < 1:
            raise InvalidInputError(f"alpha {float(self.alpha)}: expected 1 or more")
        if self.depth < 0:
            raise InvalidInputError(f"depth {self.depth}: expected 0 or more")
        if any(all(option.bases for option in options) for options in self.options):
            raise InvalidInputError("a tensor cannot be stored whole")

    def whole(self, tensor: int) -> int:
        """The whole option of a tensor that is cheapest to read."""
        options = self.options[tensor]
        alone = [number for number, option in enumerate(options) if not option.bases]
        return min(alone, key=lambda number: (options[number].cost, options[number].stored_bytes))

    def limits(self) -> tuple[int, ...]:
        """What reading each model may cost."""
        cost = [options[self.whole(at)].cost for at, options in enumerate(self.options)]
        return tuple(int(self.alpha * sum(cost[at] for at in model)) for model in self.models)


@dataclass(frozen=True, slots=True)
class Plan:
    """What was chosen; `found_by` is "grown", "repaired" or "present"."""

    choice: Choice
    stored_bytes: int
    costs: tuple[int, ...]  # of each model
    found_by: str


def make_plan(problem: Problem, present: Choice | None = None) -> Plan:
    """A plan within all limits.

    `present` is how tensors are stored now: within the limits, the plan takes no more.
    """
    limits = problem.limits()
    trees = {"grown": _grow(problem, limits), "repaired": _repair(problem, limits)}
    if present is not None and (tree := _tree_of(problem, present)) and not tree.excess(limits):
        trees["present"] = tree
    for tree in trees.values():
        _improve(tree, limits)
    found_by, best = min(trees.items(), key=lambda one: one[1].stored_bytes())
    return Plan(tuple(best.chosen), best.stored_bytes(), tuple(best.totals), found_by)


class _Tree:
    """Options that were chosen, and what reads cost by them. At first every tensor is whole."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.chosen = [problem.whole(at) for at in range(len(problem.options))]
        self.cost = [self.option(at).cost for at in range(len(self.chosen))]
        self.depth = [0] * len(self.chosen)
        self.children: list[dict[int, None]] = [{} for _ in self.chosen]
        self.reads: list[Counter[int]] = [Counter() for _ in self.chosen]
        for number, model in enumerate(problem.models):
            for at in model:
                self.reads[at][number] += 1
        self.totals = [sum(self.cost[at] for at in model) for model in problem.models]

    def option(self, at: int) -> Option:
        return self.problem.options[at][self.chosen[at]]

    def stored_bytes(self) -> int:
        return sum(self.option(at).stored_bytes for at in range(len(self.chosen)))

    def excess(self, limits: tuple[int, ...]) -> int:
        """By how much all models together are over their limits."""
        return sum(max(0, total - limit) for total, limit in zip(self.totals, limits, strict=True))

    def below(self, at: int) -> dict[int, int]:
        """A tensor and all that are read through it, and through how many ways, bases first."""
        found, pending = {at}, [at]
        while pending:
            fresh = self.children[pending.pop()].keys() - found
            found |= fresh
            pending += fresh
        ways = {at: 1}
        for one in sorted(found - {at}, key=lambda one: (self.depth[one], one)):
            ways[one] = sum(ways.get(base, 0) for base in self.option(one).bases)
        return ways

    def effect(self, at: int, number: int) -> Mapping[int, int] | None:
        """By how much models change when a tensor is stored otherwise; None: it cannot be so."""
        option, ways = self.problem.options[at][number], self.below(at)
        if any(base in ways for base in option.bases):
            return None
        deeper = self._depth_on(option) - self.depth[at]
        if max(self.depth[one] for one in ways) + deeper > self.problem.depth:
            return None
        more = self._cost_of(option) - self.cost[at]
        changed: Counter[int] = Counter()
        for one, times in ways.items():
            for model, reads in self.reads[one].items():
                changed[model] += more * times * reads
        return changed

    def choose(self, at: int, number: int) -> None:
        """Store a tensor otherwise; `effect` allowed it."""
        for base in self.option(at).bases:
            self.children[base].pop(at, None)
        self.chosen[at] = number
        for base in self.option(at).bases:
            self.children[base][at] = None
        more = self._cost_of(self.option(at)) - self.cost[at]
        ways = self.below(at)
        for one, times in ways.items():
            self.cost[one] += more * times
            for model, reads in self.reads[one].items():
                self.totals[model] += more * times * reads
        # A base may be the deepest of several: depths follow in the order of the old ones.
        for one in ways:
            self.depth[one] = self._depth_on(self.option(one))

    def _cost_of(self, option: Option) -> int:
        return option.cost + sum(self.cost[base] for base in option.bases)

    def _depth_on(self, option: Option) -> int:
        return 1 + max((self.depth[base] for base in option.bases), default=-1)


def _fits(tree: _Tree, limits: tuple[int, ...], at: int, number: int) -> bool:
    """Whether no model that is within its limit would be over it."""
    effect = tree.effect(at, number)
    return effect is not None and all(
        more <= 0 or tree.totals[model] + more <= limits[model] for model, more in effect.items()
    )


def _grow(problem: Problem, limits: tuple[int, ...] | None) -> _Tree:
    """Tensors join the tree by the smallest option that keeps all models within their limits.

    Those that have not joined count as whole: each can still be stored so. None: no limits.
    """
    tree, joined = _Tree(problem), [False] * len(problem.options)
    room = limits if limits is not None else (_unlimited(problem),) * len(problem.models)
    resting = _by_base(problem)
    heap = [
        (option.stored_bytes, at, number)
        for at, options in enumerate(problem.options)
        for number, option in enumerate(options)
        if not option.bases
    ]
    heapify(heap)
    while heap:
        _, at, number = heappop(heap)
        if joined[at] or not _fits(tree, room, at, number):
            continue
        tree.choose(at, number)
        joined[at] = True
        for other, its in resting[at]:
            option = problem.options[other][its]
            if not joined[other] and all(joined[base] for base in option.bases):
                heappush(heap, (option.stored_bytes, other, its))
    return tree


def _unlimited(problem: Problem) -> int:
    """More than any read can cost."""
    most = sum(max(option.cost for option in options) for options in problem.options)
    widest = max((len(one.bases) for options in problem.options for one in options), default=1)
    reads = max((len(model) for model in problem.models), default=1)
    limit: int = (most + 1) * (reads + 1) * (widest + 1) ** (problem.depth + 1)
    return limit


def _by_base(problem: Problem) -> list[list[tuple[int, int]]]:
    """For each tensor the options, (tensor, number), that it is a base of."""
    found: list[list[tuple[int, int]]] = [[] for _ in problem.options]
    for at, options in enumerate(problem.options):
        for number, option in enumerate(options):
            for base in option.bases:
                found[base].append((at, number))
    return found


def _repair(problem: Problem, limits: tuple[int, ...]) -> _Tree:
    """The smallest tree, in which what gains most for a byte is exchanged until limits hold.

    Ends: a model over its limit has a tensor that is read through bases at more than its whole
    cost, and storing that whole gains.
    """
    tree = _grow(problem, None)
    _improve(tree, (_unlimited(problem),) * len(problem.models))
    while tree.excess(limits):
        over = [total - limit for total, limit in zip(tree.totals, limits, strict=True)]
        _bring_within(tree, limits, over.index(max(over)))
    return tree


def _bring_within(tree: _Tree, limits: tuple[int, ...], model: int) -> None:
    """Exchange tensors of a model, and their bases, until reading it costs no more than it may.

    An exchange mostly leaves what others gain as it was, or makes it less: each is looked at again
    when it is the best, and not all of them after each exchange.
    """
    heap = [(-gain, at, number) for at, number, gain in _gains(tree, limits, model)]
    heapify(heap)
    while heap and tree.totals[model] > limits[model]:
        _, at, number = heappop(heap)
        gain = _gain(tree, limits, at, number)
        if gain > 0 and heap and -gain > heap[0][0]:
            heappush(heap, (-gain, at, number))
        elif gain > 0:
            tree.choose(at, number)


def _gains(tree: _Tree, limits: tuple[int, ...], model: int) -> Iterator[tuple[int, int, Fraction]]:
    """What a model can exchange, (tensor, option), and how much each byte for it gains."""
    for at in _read_by(tree, model):
        for number in range(len(tree.problem.options[at])):
            gain = _gain(tree, limits, at, number)
            if gain > 0:
                yield at, number, gain


def _gain(tree: _Tree, limits: tuple[int, ...], at: int, number: int) -> Fraction:
    """How much less all models together would be over their limits, for each byte more."""
    effect = tree.effect(at, number) if number != tree.chosen[at] else None
    if not effect:
        return Fraction(0)
    gain = sum(
        max(0, tree.totals[model] - limits[model])
        - max(0, tree.totals[model] + more - limits[model])
        for model, more in effect.items()
    )
    more_bytes = tree.problem.options[at][number].stored_bytes - tree.option(at).stored_bytes
    return Fraction(gain, max(1, more_bytes))


def _read_by(tree: _Tree, model: int) -> list[int]:
    """The tensors of a model, and the bases that they are read through."""
    found = set(tree.problem.models[model])
    pending = list(found)
    while pending:
        fresh = set(tree.option(pending.pop()).bases) - found
        found |= fresh
        pending += fresh
    return sorted(found)


def _improve(tree: _Tree, limits: tuple[int, ...]) -> None:
    """Exchange options for smaller ones as long as one fits. Ends: bytes only become fewer."""
    changed = True
    while changed:
        changed = False
        for at, options in enumerate(tree.problem.options):
            smaller = sorted(
                (option.stored_bytes, number)
                for number, option in enumerate(options)
                if option.stored_bytes < tree.option(at).stored_bytes
            )
            found = next((one for _, one in smaller if _fits(tree, limits, at, one)), None)
            if found is not None:
                tree.choose(at, found)
                changed = True


def _tree_of(problem: Problem, choice: Choice) -> _Tree | None:
    """The tree of a choice; None when it has a circle or is too deep."""
    tree, waiting = _Tree(problem), dict(enumerate(choice))
    settled: set[int] = set()
    while waiting:
        ready = [
            at
            for at, number in waiting.items()
            if settled.issuperset(problem.options[at][number].bases)
        ]
        if not ready or any(tree.effect(at, waiting[at]) is None for at in ready):
            return None
        for at in ready:
            tree.choose(at, waiting.pop(at))
        settled.update(ready)
    return tree
