"""What are the tensors of a model with adapters put into it?

As with blends, nothing is made before it is asked for: each reader computes a stretch of the base's
tensor with what the adapters change of it, in float64, in a fixed order of elementwise operations
(no matrix product of a library: its last bits differ between machines), and rounds once. Held are
the factors of one tensor for each thread that reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorrepo.formats.model.combine.adapter import ADD, IA3, LORA, REPLACE, adapter_of
from tensorrepo.formats.model.combine.blend import Blend
from tensorrepo.formats.model.frames import frame_bytes
from tensorrepo.formats.model.rounding import ROUNDABLE, rounded
from tensorrepo.formats.model.values import numbers
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.model.combine.adapter import Adapter, Change
    from tensorrepo.formats.model.combine.recipe import Recipe
    from tensorrepo.formats.model.read import Model
    from tensorrepo.formats.tensors import TensorReader, TensorType

    Values = NDArray[Any]

_PARTS: Final = {LORA: 2, IA3: 1, REPLACE: 1, ADD: 1}  # how many tensors of the adapter each takes


def adapt(recipe: Recipe, adapters: Sequence[Model], base: Model) -> Blend:
    """The tensors of a base with adapters put into it, one after the other.

    Args:
        recipe: how; a weight for each adapter, and a scale for all, multiply the adapters' own.
        adapters: as the recipe names them.
        base: likewise.

    Raises:
        InvalidInputError: one is no adapter, or was declared of another model.
        UnsupportedError: one changes the base in a way that is not known here.
        CorruptError: what one was declared to change is not what it holds.
    """
    steps: dict[str, list[_Step]] = {}
    anew: dict[str, TensorReader] = {}
    for model, weight in zip(adapters, recipe.weights, strict=True):
        for name, change in _declared(model, base, strict=recipe.strict).changes.items():
            share = weight * recipe.scale
            _check_change(name, change, model)
            if change.kind in (REPLACE, ADD):
                anew[name] = model.tensor(change.parts[0])
                continue
            if change.kind == IA3 and share != 1:
                raise InvalidInputError(
                    f"an adapter of {name!r} multiplies (IA3): its weight and the scale are 1, got "
                    f"{share}"
                )
            parts = [model.tensor(part) for part in change.parts]
            own = base.aliases.get(name, name)
            scale = 1.0 if change.scale is None else change.scale
            steps.setdefault(own, []).append(_Step(change, share * scale, parts))
    _check_there(steps, base)
    tensors: dict[str, TensorReader] = {
        name: _AdaptedTensor(base.tensor(name), steps[name]) if name in steps else base.tensor(name)
        for name in base.tensors
    }
    keepers: dict[str, str] = {}  # of ties: a replaced tensor is tied to nothing
    for name in sorted(set(base) - set(anew)):
        keepers.setdefault(base.aliases.get(name, name), name)
    ties = {
        name: keepers[own]
        for name, own in base.aliases.items()
        if name not in anew and keepers[own] != name
    }
    kept = {keeper: tensors[own] for own, keeper in keepers.items()}
    return Blend({**kept, **anew}, ties, tuple(sorted({*steps, *anew})), ())


def _declared(model: Model, base: Model, *, strict: bool) -> Adapter:
    found = adapter_of(model.lineage)
    if found is None:
        raise InvalidInputError(
            f"model {model.entry.digest:.12} is no adapter, or was stored without its base: store "
            "it with --adapter-of BASE, in Python save_model(..., adapter_of=...)"
        )
    edge, adapter = found
    if adapter.other:
        raise UnsupportedError(
            f"adapter {model.entry.digest:.12} has tensors of a kind that cannot be put into a "
            f"base here: {adapter.other[0]!r} and {len(adapter.other) - 1} more ({adapter.method})"
        )
    if strict and edge.digest != base.entry.digest:
        raise InvalidInputError(
            f"adapter {model.entry.digest:.12} is of {edge.path} ({edge.digest:.12}), not of model "
            f"{base.entry.digest:.12}. --lenient, in Python strict=False, takes any base that fits"
        )
    return adapter


def _check_change(name: str, change: Change, model: Model) -> None:
    """Whether a change is one that is known here, of tensors that the adapter has."""
    if change.kind not in _PARTS:
        raise UnsupportedError(
            f"adapter {model.entry.digest:.12} changes {name!r:.80} by {change.kind!r:.40}, which "
            "is unknown here. Update tensorrepo."
        )
    there = [part for part in change.parts if part in model]
    if len(change.parts) != _PARTS[change.kind] or there != list(change.parts):
        raise CorruptError(
            f"adapter {model.entry.digest:.12}, {name!r:.80}: {change.kind!r} is of "
            f"{_PARTS[change.kind]} of its tensors, declared are {list(change.parts)!s:.200}"
        )


def _check_there(steps: dict[str, list[_Step]], base: Model) -> None:
    for name, listed in steps.items():
        shape = base.spec(name).shape if name in base else ()
        if shape and base.spec(name).type.name not in ROUNDABLE:
            raise InvalidInputError(
                f"tensor {name!r} of the base is {base.spec(name).type.name}: nothing can be added "
                "to it. Give the base that is not quantised"
            )
        for step in listed:
            if not step.fits(shape):
                raise InvalidInputError(
                    f"tensor {name!r} of the base has shape {list(shape)}, which an adapter does "
                    "not fit"
                )


@dataclass(frozen=True, slots=True)
class _Step:
    """What one adapter does to a tensor."""

    change: Change
    scale: float
    parts: Sequence[TensorReader]

    def fits(self, shape: tuple[int, ...]) -> bool:
        shapes = [tuple(part.shape) for part in self.parts]
        if not shape or not all(shapes):
            return False
        if self.change.kind == LORA:
            made = shapes[0][:1] + shapes[1][1:]
            same_rank = prod(shapes[0][1:]) == shapes[1][0]
            return same_rank and (made[::-1] if self.change.transposed else made) == shape
        rows, *columns = shapes[0][::-1] if self.change.transposed else shapes[0]
        return (rows, prod(columns)) in {(shape[0], 1), (1, prod(shape[1:2]))}

    def whole(self) -> _Loaded:
        """With its factors in memory."""
        values = [_values(part) for part in self.parts]
        if self.change.kind != LORA:
            turned = values[0].T if self.change.transposed else values[0]
            return _Loaded(self, turned, turned)
        left = values[0].reshape(len(values[0]), -1)
        right = values[1].reshape(len(values[1]), -1)
        return _Loaded(self, right.T, left.T) if self.change.transposed else _Loaded(
            self, left, right
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Loaded:
    step: _Step
    left: Values
    right: Values

    def apply(self, block: Values, first: int) -> Values:
        """Rows from `first` on, as they are after this step."""
        rows = slice(first, first + len(block))
        if self.step.change.kind == LORA:
            delta = np.zeros_like(block)
            for rank in range(self.right.shape[0]):
                delta += self.left[rows, rank, None] * self.right[rank, None, :]
            return block + delta * self.step.scale
        scales = self.left.reshape(self.left.shape[0], -1)
        if scales.shape[0] > 1:
            return block * scales[rows]
        inside = block.reshape(len(block), scales.shape[1], -1)
        scaled: Values = inside * scales[0][None, :, None]
        return scaled.reshape(block.shape)


@dataclass(frozen=True, slots=True)
class _AdaptedTensor:
    """A `TensorReader` of a tensor as adapters change it. Thread-safe."""

    base: TensorReader
    steps: Sequence[_Step]

    @property
    def type(self) -> TensorType:
        return self.base.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        loaded = [step.whole() for step in self.steps]
        size = self.type.block_bytes
        columns = prod(self.shape[1:])
        step = frame_bytes(self.type)
        for at in range(0, buffer.nbytes, step):
            part = buffer[at : at + step]
            first, last = (start_byte + at) // size, (start_byte + at + part.nbytes) // size
            rows = first // columns, -(-last // columns)
            block = self._rows(*rows, columns)
            for one in loaded:
                block = one.apply(block, rows[0])
            wanted = block.reshape(-1)[first - rows[0] * columns : last - rows[0] * columns]
            np.frombuffer(part, np.uint8)[:] = rounded(np.ascontiguousarray(wanted), self.type)

    def _rows(self, first: int, stop: int, columns: int) -> Values:
        """Whole rows: a frame may begin and end within one."""
        row = columns * self.type.block_bytes
        data = np.empty((stop - first) * row, np.uint8).data
        self.base.read_into(first * row, data)
        found = numbers(data, self.type)
        assert found is not None, "what is adapted is a number"
        return found.reshape(stop - first, columns)


def _values(tensor: TensorReader) -> Values:
    data = np.empty(tensor.type.bytes_of(tuple(tensor.shape)), np.uint8).data
    tensor.read_into(0, data)
    found = numbers(data, tensor.type)
    if found is None:
        raise UnsupportedError(f"an adapter's factor is of type {tensor.type.name}: no numbers")
    return found.reshape(tuple(tensor.shape))
