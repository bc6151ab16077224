"""Repack plan: bases and codecs that take least space within a bound on read cost.

A tensor has options: whole, or against other tensors, each with the bytes that it takes and what
reading it costs beside reading its bases. Reading a model may cost at most `alpha` times as much as
reading it whole. The problem is NP-hard; greedy algorithms are run, and the best plan taken: one
grows a tree that stays within the limits, one repairs a small tree until it is, one repairs and
improves what is there. The plan is a pure function of the problem.

Samples are really encoded, and really decoded: the cost of a read is the bytes that come from the
store, and the time that decoding takes as the bytes that the store would have sent meanwhile.

Source:
    Miao, Li, Davis, Deshpande: ModelHub, ICDE 2017, "parameter archival storage": PAS-PT, PAS-MT.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import field, replace
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.model.delta.registry import CODECS
from tensorrepo.formats.model.delta.similarity import SIGNATURE_ITEMS
from tensorrepo.formats.model.layout.fingerprints import frame_bytes
from tensorrepo.formats.model.layout.placement import TAG_BYTES, PackEntry
from tensorrepo.formats.model.maintenance.repack_stock import Inventory
from tensorrepo.formats.model.write.base_choice import WrittenBase
from tensorrepo.formats.model.write.encoding import (
    LEAST_BYTES,
    SAMPLE_ELEMENTS,
    EncodingChoice,
    HeldBase,
    shares,
    ways_with,
)
from tensorrepo.formats.model.write.packing import PACK_BYTES, Location
from tensorrepo.formats.model.write.tensor_chunks import (
    TensorChunk,
    TensorPart,
    read_chunk,
)
from tensorrepo.formats.native.frame_memory import FrameMemory
from tensorrepo.formats.native.signatures import BEST
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import DIGEST_BYTES

OptionChoice = tuple[int, ...]  # for each tensor the number of its option


@dataclass(frozen=True, slots=True)
class StorageOption:
    """One way to store a tensor.

    Attributes:
        bases: numbers of the tensors that it is encoded against, each once; none: it is whole.
        stored_bytes: what it takes.
        cost: cost of reading it when its bases are there already, in bytes.
    """

    bases: tuple[int, ...]
    stored_bytes: int
    cost: int


@dataclass(frozen=True, slots=True)
class RepackProblem:
    """Tensors, the options of each, and the models that they belong to.

    Attributes:
        options: options of each tensor; one at least is whole.
        models: numbers of the tensors of each, as often as they are read.
        alpha: how many times what a model costs to read whole it may cost.
        depth: how many bases a read may pass through.
        present: the option by which each is stored now; None: by none of them.
    """

    options: tuple[tuple[StorageOption, ...], ...]
    models: tuple[tuple[int, ...], ...]
    alpha: Fraction
    depth: int
    present: tuple[int | None, ...] = ()

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
class RepackPlan:
    """What was chosen; `found_by` is "grown", "repaired" or "kept"."""

    choice: OptionChoice
    stored_bytes: int
    costs: tuple[int, ...]  # of each model
    found_by: str


def make_plan(problem: RepackProblem) -> RepackPlan:
    """A plan within all limits."""
    limits = problem.limits()
    trees = {
        "grown": _grow(problem, limits),
        "repaired": _smallest(problem),
        "kept": _present(problem),
    }
    for tree in trees.values():
        _repair(tree, limits)
        _improve(tree, limits)
    found_by, best = min(trees.items(), key=lambda one: one[1].stored_bytes())
    return RepackPlan(tuple(best.chosen), best.stored_bytes(), tuple(best.totals), found_by)


class _Tree:
    """Options that were chosen, and what reads cost by them. At first every tensor is whole."""

    def __init__(self, problem: RepackProblem) -> None:
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

    def option(self, at: int) -> StorageOption:
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

    def _cost_of(self, option: StorageOption) -> int:
        return option.cost + sum(self.cost[base] for base in option.bases)

    def _depth_on(self, option: StorageOption) -> int:
        return 1 + max((self.depth[base] for base in option.bases), default=-1)


def _fits(tree: _Tree, limits: tuple[float, ...], at: int, number: int) -> bool:
    """Whether no model that is within its limit would be over it."""
    effect = tree.effect(at, number)
    return effect is not None and all(
        more <= 0 or tree.totals[model] + more <= limits[model] for model, more in effect.items()
    )


def _grow(problem: RepackProblem, limits: tuple[float, ...]) -> _Tree:
    """Tensors join the tree by the smallest option that keeps all models within their limits.

    Those that have not joined count as whole: each can still be stored so.
    """
    tree, joined = _Tree(problem), [False] * len(problem.options)
    resting: list[list[tuple[int, int]]] = [[] for _ in problem.options]  # on each as their base
    for at, options in enumerate(problem.options):
        for number, option in enumerate(options):
            for base in option.bases:
                resting[base].append((at, number))
    heap = [
        (option.stored_bytes, at, number)
        for at, options in enumerate(problem.options)
        for number, option in enumerate(options)
        if not option.bases
    ]
    heapify(heap)
    while heap:
        _, at, number = heappop(heap)
        if joined[at] or not _fits(tree, limits, at, number):
            continue
        tree.choose(at, number)
        joined[at] = True
        for other, its in resting[at]:
            option = problem.options[other][its]
            if not joined[other] and all(joined[base] for base in option.bases):
                heappush(heap, (option.stored_bytes, other, its))
    return tree


def _smallest(problem: RepackProblem) -> _Tree:
    """A small tree, without limits."""
    unlimited = (inf,) * len(problem.models)
    tree = _grow(problem, unlimited)
    _improve(tree, unlimited)
    return tree


def _present(problem: RepackProblem) -> _Tree:
    """What is there. To begin with it finds what no tree grows to: bases of one another.

    A tree that grew from a fine-tune reads the published model through it, and then no other
    fine-tune that joined later can be exchanged for a difference from that model.
    """
    tree = _Tree(problem)
    for at, number in enumerate(problem.present):
        if number is not None and tree.effect(at, number) is not None:
            tree.choose(at, number)
    return tree


def _repair(tree: _Tree, limits: tuple[int, ...]) -> None:
    """Exchange what gains most for a byte until limits hold.

    Ends: a model over its limit has a tensor that is read through bases at more than its whole
    cost, and storing that whole gains.
    """
    while tree.excess(limits):
        over = [total - limit for total, limit in zip(tree.totals, limits, strict=True)]
        _bring_within(tree, limits, over.index(max(over)))


def _bring_within(tree: _Tree, limits: tuple[int, ...], model: int) -> None:
    """Exchange tensors of a model, and their bases, until reading it costs no more than it may.

    An exchange mostly leaves what others gain as it was, or makes it less: each is looked at again
    when it is the best, and not all of them after each exchange.
    """
    heap = [
        (-gain, at, number)
        for at in _read_by(tree, model)
        for number in range(len(tree.problem.options[at]))
        if (gain := _gain(tree, limits, at, number)) > 0
    ]
    heapify(heap)
    while heap and tree.totals[model] > limits[model]:
        _, at, number = heappop(heap)
        gain = _gain(tree, limits, at, number)
        if gain > 0 and heap and -gain > heap[0][0]:
            heappush(heap, (-gain, at, number))
        elif gain > 0:
            tree.choose(at, number)


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
    reached = set(tree.problem.models[model])
    pending = list(reached)
    while pending:
        fresh = set(tree.option(pending.pop()).bases) - reached
        reached |= fresh
        pending += fresh
    return sorted(reached)


def _improve(tree: _Tree, limits: tuple[float, ...]) -> None:
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


CANDIDATES: Final = 3  # bases that are tried for a tensor
_SEARCHED: Final = 256  # tensors between two looks whether somebody wants to stop
STORE_BYTES_PER_SECOND: Final = 200e6  # what time is turned into bytes by
SAMPLED_FRAMES: Final = 8
DECODINGS: Final = 9  # of a codec's sample: the quickest is the one that nothing disturbed
# A base that is only tried needs no place.
UNPLACED: Final = Location(PackEntry(bytes(DIGEST_BYTES), 0, 0, bytes(TAG_BYTES)), 0, 0)


@dataclass(frozen=True, slots=True)
class Measured:
    """An option of the plan, and what it stands for.

    `codec` None: raw. `bases` are those of the option as the codec takes them, which may be one of
    them twice. `is_present`: so it is stored now.
    """

    option: StorageOption
    codec: str | None
    bases: tuple[int, ...] = ()
    params: bytes = b""
    is_present: bool = False


@dataclass(slots=True)
class Scale:
    """Measures options of tensors. `clock` gives seconds of work done."""

    stock: Inventory
    pool: Executor
    clock: Callable[[], float]
    _seconds: dict[str, float] = field(default_factory=dict)  # by codec, to decode one byte

    def options(self, number: int, candidates: list[int]) -> tuple[Measured, ...]:
        """The ways to store one tensor: raw, by the smallest codec for each base, as it is now."""
        holding = self.stock.tensors[number]
        size, is_raw = holding.size_bytes, holding.codec not in CODECS
        plain = Measured(StorageOption((), size, size), None, is_present=is_raw)
        if size < LEAST_BYTES:
            return (plain,)
        chunk = self._chunk(number)
        present = self._present(chunk, number)
        measured = [plain] if present is None else [plain, present]
        for base in (None, *candidates):
            against = () if base is None else (base,)
            if present is not None and present.bases == against:
                continue  # whoever saved it tried the same ways, and on all of it
            bases = () if base is None else (self._base(base),)
            ways = ways_with(chunk, bases, base)
            best = min(shares(chunk, ways), key=lambda one: one[0], default=None)
            if best is not None and best[0] < 1:
                measured.append(self._measured(chunk, int(best[0] * size), best[1], against))
        return tuple(measured)

    def _base(self, number: int) -> HeldBase:
        """A base whose frames are read once for all the ways that are tried with it."""
        return HeldBase(WrittenBase(self.stock.reader(number), UNPLACED), FrameMemory(0))

    def _chunk(self, number: int) -> TensorChunk:
        """The first frames of a tensor."""
        reader, holding = self.stock.reader(number), self.stock.tensors[number]
        stop = min(holding.size_bytes, SAMPLED_FRAMES * frame_bytes(reader.type))
        return read_chunk(TensorPart(holding.name, reader, 0, stop), self.pool)

    def _present(self, chunk: TensorChunk, number: int) -> Measured | None:
        """As it is stored now, if it is encoded against nothing but what is here."""
        holding, bases = self.stock.tensors[number], self.stock.bases(number)
        codec = CODECS.get(holding.codec)
        if codec is None or bases is None:
            return None
        # A base of another type that is cut into several members is cut elsewhere.
        whole = all(self.stock.tensors[base].size_bytes <= PACK_BYTES for base in bases)
        if codec.base_type and not whole:
            return None
        readers = tuple(
            WrittenBase(self.stock.reader(base), UNPLACED, codec.base_type) for base in bases
        )
        way = EncodingChoice(codec, readers, holding.params)
        found = self._measured(chunk, holding.stored_bytes, way, bases)
        return replace(found, is_present=True)

    def _measured(
        self, chunk: TensorChunk, stored_bytes: int, way: EncodingChoice, bases: tuple[int, ...]
    ) -> Measured:
        if way.codec.name not in self._seconds:
            self._seconds[way.codec.name] = self._decoding(chunk, way)
        size = chunk.part.reader.type.bytes_of(tuple(chunk.part.reader.shape))
        seconds = self._seconds[way.codec.name] * size
        cost = stored_bytes + int(seconds * STORE_BYTES_PER_SECOND)
        option = StorageOption(tuple(sorted(set(bases))), stored_bytes, cost)
        return Measured(option, way.codec.name, bases, way.params)

    def _decoding(self, chunk: TensorChunk, way: EncodingChoice) -> float:
        """Seconds that decoding a byte takes, of a sample from the first frame."""
        reader, about = chunk.part.reader, chunk.about(0)
        unit = reader.type.block_bytes
        size = min(about.size_bytes, SAMPLE_ELEMENTS * unit)
        part = about._replace(size_bytes=size, params=way.params)
        theirs = way.codec.base_shape(part).size_bytes
        bases = [base.frame(0, about)[:theirs] for base in way.bases]
        planes = way.codec.encode(chunk.frame(0)[:size], bases, part)
        if planes is None:
            return 0.0
        out = np.empty(size, np.uint8).data
        way.codec.decode(planes, bases, part, out)  # tables and kernels are loaded now
        seconds = []
        for _ in range(DECODINGS):
            began = self.clock()
            way.codec.decode(planes, bases, part, out)
            seconds.append(self.clock() - began)
        return min(seconds) / size


def likely_bases(stock: Inventory) -> list[list[int]]:
    """For each tensor those that are tried as its bases: its present one, then the nearest."""
    groups: dict[object, list[int]] = defaultdict(list)
    for number, holding in enumerate(stock.tensors):
        groups[holding.kind].append(number)
    found: list[list[int]] = [[] for _ in stock.tensors]
    # Model by model, as they are read; where all of a kind are tried, none is looked at.
    signatures = [
        stock.signature(number) if len(groups[holding.kind]) > CANDIDATES + 1 else None
        for number, holding in enumerate(stock.tensors)
    ]
    for kind, numbers in groups.items():
        nearest = _nearest([signatures[number] for number in numbers], numbers)
        for number, near in zip(numbers, nearest, strict=True):
            present = stock.bases(number) or ()
            fit = [one for one in present if stock.tensors[one].kind == kind]
            found[number] = list(dict.fromkeys([*fit, *near]))[:CANDIDATES]
    return found


def _nearest(known: Sequence[NDArray[Any] | None], numbers: Sequence[int]) -> Iterator[list[int]]:
    """For each of these tensors, of signatures `known`, the others whose ones differ least.

    Of equal ones, such as tensors without signatures, those that were taken stock of next to it.
    """
    few = min(CANDIDATES, len(numbers) - 1)
    if not few:
        yield from ([] for _ in numbers)
        return
    signed = np.array([one is not None for one in known])
    words = np.zeros((len(numbers), SIGNATURE_ITEMS), np.uint16)
    for row, one in zip(words, known, strict=True):
        if one is not None:
            row[:] = one
    for first in range(0, len(numbers), _SEARCHED):
        found = np.empty((min(_SEARCHED, len(numbers) - first), few), np.int64)
        BEST.nearest(words.view(np.uint64), signed, few, first, found)
        yield from ([numbers[one] for one in near] for near in found.tolist())
