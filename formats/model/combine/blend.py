"""What are the tensors of a blend, without any of them being made yet?

A blend is a mapping of readers: each computes the stretch that it is asked for from the same
stretch of its parents. Memory is a stretch of each parent, whatever the size of the models. Methods
that need a number of a whole tensor first (an angle, a threshold) read it once, in a pass of its
own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import fsum, nan, sqrt
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorrepo.formats.model.combine.arithmetic import (
    arc_shares,
    average,
    task_arithmetic,
    ties,
    weighted_sum,
)
from tensorrepo.formats.model.combine.threshold import kept_from
from tensorrepo.formats.model.frames import frame_bytes
from tensorrepo.formats.model.rounding import ROUNDABLE, rounded
from tensorrepo.formats.model.values import numbers
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.model.combine.recipe import Recipe
    from tensorrepo.formats.model.read import Model, TensorSpec
    from tensorrepo.formats.tensors import TensorReader, TensorType

    Values = NDArray[Any]

SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Blend:
    """What a recipe makes of its models.

    `tensors` are readers by name, `blended` the names of those that are computed. `taken` are the
    tensors that are the first parent's although parents differ: counters, masks, tensors that
    not all have.
    """

    tensors: Mapping[str, TensorReader]
    aliases: Mapping[str, str]
    blended: tuple[str, ...]
    taken: tuple[str, ...]


def blend(recipe: Recipe, parents: Sequence[Model], base: Model | None) -> Blend:
    """The tensors of a blend.

    Args:
        recipe: how.
        parents: as the recipe names them.
        base: likewise.

    Raises:
        InvalidInputError: models whose tensors do not fit, and the recipe is strict; or tensors of
            blocks that have no mean.
    """
    models = [*parents, base] if base is not None else list(parents)
    first = parents[0]
    if recipe.strict:
        _check_alike(models)
    tensors: dict[str, TensorReader] = {}
    blended: list[str] = []
    taken: list[str] = []
    aliases = {
        name: target
        for name, target in first.aliases.items()
        if all(model.aliases.get(name) == target for model in models)
    }
    for name in first.keys():  # noqa: SIM118  # a Model is no dict
        if name in aliases:
            continue
        if not all(_fits(first.spec(name), model, name) for model in models):
            taken.append(name)
        elif len({model.content(name) for model in models}) > 1:
            if _has_mean(first.spec(name)):
                readers = [model.tensor(name) for model in parents]
                under = base.tensor(name) if base is not None else None
                tensors[name] = BlendedTensor(recipe, readers, under)
                blended.append(name)
                continue
            taken.append(name)
        tensors[name] = first.tensor(name)
    return Blend(tensors, aliases, tuple(blended), tuple(taken))


def _check_alike(models: Sequence[Model]) -> None:
    first = models[0]
    for number, other in enumerate(models[1:], start=2):
        odd = sorted(set(first.keys()) ^ set(other.keys()))
        odd += [
            name for name in first if name in other and not _fits(first.spec(name), other, name)
        ]
        if odd:
            listed = ", ".join(repr(name) for name in odd[:SHOWN])
            more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
            raise InvalidInputError(
                f"model 1 and model {number} differ in {listed}{more}: tensors that one has not, "
                "or with another shape or type. --lenient, in Python strict=False, takes those of "
                "the first model"
            )


def _fits(spec: TensorSpec, model: Model, name: str) -> bool:
    if name not in model:
        return False
    other = model.spec(name)
    return other.type == spec.type and other.shape == spec.shape


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
    data = np.empty(size, np.uint8).data
    tensor.read_into(start, data)
    found = numbers(data, tensor.type)
    assert found is not None, "only numbers are blended"
    return found
