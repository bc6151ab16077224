"""Blends of models: average, SLERP, task arithmetic and TIES, computed by stretches.

A blend is a mapping of readers: each computes the stretch that it is asked for from the same
stretch of its parents. Memory is a stretch of each parent, whatever the size of the models. Methods
that need a number of a whole tensor first (an angle, a threshold) read it once, in a pass of its
own.

Everything is elementwise, in float64 (complex128), in a fixed order of operations: a stretch has
the same result whether it is computed alone or within a larger one.

TIES keeps the largest changes. The threshold is found exactly without holding or sorting them:
sizes are compared as the integers that their bits are, whose order is that of the numbers, and each
pass over the numbers settles 16 of 64 bits.

Source:
    average: McMahan et al. 2017 and Wortsman et al. 2022 ("model soups"); SLERP: Shoemake 1985;
    task arithmetic: Ilharco et al. 2023; TIES: Yadav et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from math import acos, ceil, frexp, fsum, ldexp, nan, sin, sqrt
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import first_names
from tensorrepo.formats.common.tensors import TensorReader, TensorType
from tensorrepo.formats.model.layout.fingerprints import frame_bytes
from tensorrepo.formats.model.layout.number_values import ROUNDABLE, read_numbers, rounded
from tensorrepo.formats.model.merging.recipe import Recipe
from tensorrepo.formats.model.stored_model import StoredModel, TensorSpec
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

Values = NDArray[Any]


_SMALL_ANGLE = 1e-4  # below it an arc and a line are one


def average(sides: Sequence[Values], weights: Sequence[float]) -> Values:
    """The weighted mean; weights count by their ratio."""
    total = sum(weights)
    return weighted_sum(sides, [weight / total for weight in weights])


def task_arithmetic(
    base: Values, sides: Sequence[Values], weights: Sequence[float], scale: float
) -> Values:
    """The base, plus the weighted sum of what each side changed."""
    return base + scale * weighted_sum([side - base for side in sides], weights)


def ties(
    base: Values,
    sides: Sequence[Values],
    weights: Sequence[float],
    scale: float,
    thresholds: Sequence[float],
) -> Values:
    """Trim, elect a sign, merge what agrees with it.

    Args:
        base: what the sides were tuned from.
        sides: the tuned ones.
        weights: one for each side, of votes and of the mean.
        scale: factor of the joint change.
        thresholds: one for each side: smaller changes count as none.
    """
    changes = [
        np.where(np.abs(side - base) >= max(threshold, np.finfo(np.float64).tiny), side - base, 0)
        for side, threshold in zip(sides, thresholds, strict=True)
    ]
    elected = np.sign(weighted_sum(changes, weights))
    joint = np.zeros_like(base)
    voters = np.zeros(base.shape, np.float64)
    for change, weight in zip(changes, weights, strict=True):
        agrees = (np.sign(change) == elected) & (change != 0)
        joint = joint + np.where(agrees, weight * change, 0)
        voters = voters + np.where(agrees, weight, 0)
    mean = np.divide(joint, voters, out=np.zeros_like(base), where=voters != 0)
    return base + scale * mean


def arc_shares(dot: float, one: float, two: float, place: float) -> tuple[float, float]:
    """What two tensors of this inner product, and L2 norms `one` and `two`, are multiplied by.

    `place` on the arc between them is 0 at the first, 1 at the second. Shares have 32 binary
    digits: sine and arc cosine may differ in the last ones between two machines, and what is made
    again must have the same bits.
    """
    if not one or not two:
        return 1 - place, place
    angle = acos(max(-1.0, min(1.0, dot / one / two)))
    if sin(angle) < _SMALL_ANGLE:
        return 1 - place, place
    return _rounded(sin((1 - place) * angle) / sin(angle)), _rounded(
        sin(place * angle) / sin(angle)
    )


def weighted_sum(sides: Sequence[Values], weights: Sequence[float]) -> Values:
    """Each side times its weight, added from the first to the last."""
    total = sides[0] * weights[0]
    for side, weight in zip(sides[1:], weights[1:], strict=True):
        total = total + side * weight
    return total


def _rounded(share: float) -> float:
    mantissa, exponent = frexp(share)
    return ldexp(round(mantissa * 2**32), exponent - 32)


_DIGIT_BITS: Final = 16


def kept_from(parts: Callable[[], Iterable[NDArray[Any]]], density: float) -> float:
    """The smallest number of the largest ones; all of equal size are kept, or none.

    Args:
        parts: gives all numbers, none below zero, part by part; called once for each pass.
        density: the share to keep, in (0, 1]; at least one number is kept.

    Returns:
        0.0 when all are kept, or there are none. What is NaN counts as the largest.
    """
    if density >= 1:
        return 0.0
    prefix, rank = 0, -1
    for shift in range(64 - _DIGIT_BITS, -1, -_DIGIT_BITS):
        counts, total = _count(parts(), prefix, shift)
        if rank < 0:
            if not total:
                return 0.0
            rank = max(1, ceil(density * total)) - 1  # of the wanted one, counted from the largest
        above = np.cumsum(counts[::-1])
        digit = len(counts) - 1 - int(np.searchsorted(above, rank, side="right"))
        rank -= int(above[len(counts) - 1 - digit] - counts[digit])
        prefix = prefix << _DIGIT_BITS | digit
    return float(np.array([prefix], np.uint64).view(np.float64)[0])


def _count(parts: Iterable[NDArray[Any]], prefix: int, shift: int) -> tuple[NDArray[np.int64], int]:
    """How many numbers that begin with `prefix` go on with each digit; and how many all are."""
    counts = np.zeros(1 << _DIGIT_BITS, np.int64)
    total = 0
    for part in parts:
        bits = np.ascontiguousarray(part, np.float64).view(np.uint64)
        total += len(bits)
        if shift + _DIGIT_BITS < 64:
            bits = bits[bits >> np.uint64(shift + _DIGIT_BITS) == np.uint64(prefix)]
        digits = bits >> np.uint64(shift) & np.uint64((1 << _DIGIT_BITS) - 1)
        counts += np.bincount(digits.astype(np.int64), minlength=len(counts))
    return counts, total


@dataclass(frozen=True, slots=True)
class Blend:
    """What a recipe makes of its models.

    `tensors` are readers by name. `taken` are the tensors that are the first parent's although
    parents differ: counters, masks, tensors that not all have.
    """

    tensors: Mapping[str, TensorReader]
    aliases: Mapping[str, str]
    taken: tuple[str, ...]


def blend(recipe: Recipe, parents: Sequence[StoredModel], base: StoredModel | None) -> Blend:
    """The tensors of a blend of the models that the recipe names.

    Raises:
        InvalidInputError: models whose tensors do not fit, and the recipe is strict; or tensors of
            blocks that have no mean.
    """
    models = [*parents, base] if base is not None else list(parents)
    first = parents[0]
    if recipe.strict:
        _check_alike(models)
    tensors: dict[str, TensorReader] = {}
    taken: list[str] = []
    aliases = {
        name: target
        for name, target in first.aliases.items()
        if all(model.aliases.get(name) == target for model in models)
    }
    for name in first.keys():  # noqa: SIM118  # a Model is no dict
        if name in aliases:
            continue
        if not all(has_alike(model, name, first.spec(name).form) for model in models):
            taken.append(name)
        elif len({model.content(name) for model in models}) > 1:
            if _has_mean(first.spec(name)):
                readers = [model.tensor(name) for model in parents]
                under = base.tensor(name) if base is not None else None
                tensors[name] = BlendedTensor(recipe, readers, under)
                continue
            taken.append(name)
        tensors[name] = first.tensor(name)
    return Blend(tensors, aliases, tuple(taken))


def _check_alike(models: Sequence[StoredModel]) -> None:
    first = models[0]
    for number, other in enumerate(models[1:], start=2):
        odd = sorted(set(first.keys()) ^ set(other.keys()))
        odd += [
            name
            for name in first
            if name in other and not has_alike(other, name, first.spec(name).form)
        ]
        if odd:
            raise InvalidInputError(
                f"model 1 and model {number} differ in {first_names(odd)}: tensors that one has "
                "not, or with another shape or type. --lenient, in Python strict=False, takes "
                "those of the first model"
            )


def has_alike(model: StoredModel, name: str, form: tuple[TensorType, tuple[int, ...]]) -> bool:
    """Whether a model has a tensor of that name, type and shape."""
    return name in model and model.spec(name).form == form


def _has_mean(spec: TensorSpec) -> bool:
    """Whether the tensor is blended; counters and masks are taken from the first model.

    Raises:
        InvalidInputError: neither: blocks, whose bits mean nothing without their scales.
    """
    if spec.type.name in ROUNDABLE:
        return True
    if spec.type.numpy is not None:
        return False
    raise InvalidInputError(
        f"tensor {spec.name!r}: {spec.type.name} has no mean, and the models differ in it. Blend "
        "models whose weights are not quantised, and quantise the result"
    )


@dataclass(slots=True)
class BlendedTensor:
    """A `TensorReader` that computes what it is asked for. Thread-safe."""

    recipe: Recipe
    parents: Sequence[TensorReader]
    base: TensorReader | None
    _told: tuple[float, ...] | None = None
    _lock: Lock = field(default_factory=Lock)

    @property
    def type(self) -> TensorType:
        return self.parents[0].type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parents[0].shape

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        step = frame_bytes(self.type)
        for at in range(0, buffer.nbytes, step):
            part = buffer[at : at + step]
            values = self._compute(start_byte + at, part.nbytes)
            np.frombuffer(part, np.uint8)[:] = rounded(values, self.type)

    def _compute(self, start: int, size: int) -> Values:
        recipe, sides = self.recipe, [_stretch(one, start, size) for one in self.parents]
        with np.errstate(invalid="ignore", over="ignore"):
            if recipe.method == "average":
                return average(sides, recipe.weights)
            if recipe.method == "slerp":
                return weighted_sum(sides, self._whole(self._shares))
            assert self.base is not None, "a recipe of this method has a base"
            base = _stretch(self.base, start, size)
            if recipe.method == "ties":
                thresholds = self._whole(self._thresholds)
                parts = [_parts(side) for side in sides]
                joined = ties(_parts(base), parts, recipe.weights, recipe.scale, thresholds)
                return joined.view(base.dtype)
            return task_arithmetic(base, sides, recipe.weights, recipe.scale)

    def _whole(self, find: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
        """What must be known of whole tensors, found once."""
        with self._lock:
            if self._told is None:
                self._told = find()
            return self._told

    def _shares(self) -> tuple[float, ...]:
        one, two = self.parents
        dots, ones, twos = [], [], []
        for left, right in zip(_stretches(one), _stretches(two), strict=True):
            dots.append(float(np.add.reduce((left * right.conj()).real)))
            ones.append(float(np.add.reduce((left * left.conj()).real)))
            twos.append(float(np.add.reduce((right * right.conj()).real)))
        place = self.recipe.weights[1] / sum(self.recipe.weights)
        return arc_shares(_total(dots), sqrt(_total(ones)), sqrt(_total(twos)), place)

    def _thresholds(self) -> tuple[float, ...]:
        base = self.base
        assert base is not None, "ties has a base"

        def changes(side: TensorReader) -> Iterator[Values]:
            for left, right in zip(_stretches(side), _stretches(base), strict=True):
                yield np.abs(_parts(left) - _parts(right))

        return tuple(
            kept_from(lambda side=side: changes(side), self.recipe.density)  # type: ignore[misc]
            for side in self.parents
        )


def _parts(values: Values) -> Values:
    """Complex numbers as two each, side by side: only real ones have a sign to agree in."""
    return values.view(np.float64)


def _total(parts: Sequence[float]) -> float:
    """Their sum; NaN where it has none: both infinities, or more than a float holds."""
    try:
        return fsum(parts)
    except (OverflowError, ValueError):
        return nan


def _stretches(tensor: TensorReader) -> Iterator[Values]:
    step, size = frame_bytes(tensor.type), tensor.type.bytes_of(tensor.shape)
    for start in range(0, size, step):
        yield _stretch(tensor, start, min(step, size - start))


def _stretch(tensor: TensorReader, start: int, size: int) -> Values:
    values = read_numbers(tensor, start, size)
    assert values is not None, "only numbers are blended"
    return values
