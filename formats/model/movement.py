"""How far did a tensor move, and which layers moved most?

Both sides are read a frame at a time. Sums are of whole frames, added exactly, so a number does not
depend on how a tensor is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.model.frames import frame_bytes
from tensorrepo.formats.model.graph.cut import module_of
from tensorrepo.formats.model.loading import Tensor
from tensorrepo.formats.model.values import numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from tensorrepo.formats.model.read import Model, TensorSpec


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor of the same type and shape on both sides, with other content.

    `changed` counts blocks (elements, of most types) whose bits differ; None when nothing was
    measured. Of those, `incomparable` have no finite difference: a side is NaN or infinite.
    `max_abs` and `l2` are of the difference, over all others; None for types that are no numbers.
    `norm` is the L2 norm before, `cosine` that of the angle between both sides, over elements that
    are finite on both; None where they were not asked for, or a side is zero.
    """

    spec: TensorSpec
    blocks: int
    changed: int | None = None
    incomparable: int = 0
    max_abs: float | None = None
    l2: float | None = None
    norm: float | None = None
    cosine: float | None = None

    @property
    def changed_fraction(self) -> float | None:
        return None if self.changed is None else self.changed / self.blocks


@dataclass(frozen=True, slots=True)
class LayerMovement:
    """A layer's tensors that changed: the L2 norm of their change, and that over their norm before.

    `relative` is None where norms were not asked for.
    """

    layer: str
    tensors: int
    l2: float
    relative: float | None


def measure_change(
    before: Model, after: Model, spec: TensorSpec, *, whole: bool = False
) -> TensorChange:
    """Measure a tensor that both models have, in one type and shape.

    Args:
        before: one side.
        after: the other.
        spec: of the tensor.
        whole: read frames that are equal, too: without, there are no norm and no cosine.
    """
    sums = _Sums(spec)
    for old, new in _frame_pairs(before.tensor(spec.name), after.tensor(spec.name), whole=whole):
        sums.add(old, new)
    known = sums.largest is not None
    norms = sqrt(fsum(sums.before)), sqrt(fsum(sums.after))
    cosine = fsum(sums.dots) / norms[0] / norms[1] if all(norms) else None
    return TensorChange(
        spec,
        spec.size_bytes // spec.type.block_bytes,
        sums.changed,
        sums.incomparable,
        sums.largest,
        sqrt(fsum(sums.squares)) if known else None,
        norms[0] if known and whole else None,
        cosine if known and whole else None,
    )


def unmeasured(spec: TensorSpec) -> TensorChange:
    """A change of which nothing else is known."""
    return TensorChange(spec, spec.size_bytes // spec.type.block_bytes)


def rank_layers(changes: Iterable[TensorChange]) -> tuple[LayerMovement, ...]:
    """Layers by how far they moved, in relation to their size where that is known."""
    grouped: dict[str, list[TensorChange]] = {}
    for change in changes:
        if change.l2 is not None:
            grouped.setdefault(layer_of(change.spec.name), []).append(change)
    layers = [_layer(name, found) for name, found in grouped.items()]
    return tuple(
        sorted(layers, key=lambda one: (-(one.relative if one.relative is not None else one.l2),
                                        one.layer))
    )  # fmt: skip


def layer_of(tensor: str) -> str:
    """The layer that a tensor belongs to: its name up to its last number, else its module."""
    parts = tensor.split(".")
    numbered = [at for at, part in enumerate(parts[:-1]) if part.isdecimal()]
    return ".".join(parts[: numbered[-1] + 1]) if numbered else module_of(tensor) or tensor


def _layer(name: str, changes: list[TensorChange]) -> LayerMovement:
    moved = sqrt(fsum((change.l2 or 0) ** 2 for change in changes))
    norms = [change.norm for change in changes if change.norm is not None]
    norm = sqrt(fsum(one**2 for one in norms))
    relative = moved / norm if norm and len(norms) == len(changes) else None
    return LayerMovement(name, len(changes), moved, relative)


class _Sums:
    """What is known of a tensor's frames so far."""

    def __init__(self, spec: TensorSpec) -> None:
        self._element = spec.type
        self.changed = self.incomparable = 0
        self.largest: float | None = None
        self.squares: list[float] = []
        self.before: list[float] = []
        self.after: list[float] = []
        self.dots: list[float] = []

    def add(self, old: memoryview, new: memoryview) -> None:
        differs = _differs(old, new, self._element.block_bytes)
        self.changed += int(np.count_nonzero(differs))
        left, right = numbers(old, self._element), numbers(new, self._element)
        if left is None or right is None:
            return
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.abs(right - left)
        finite = np.isfinite(distance)
        if self._element.block_elements == 1:
            self.incomparable += int(np.count_nonzero(differs & ~finite))
        if not finite.all():
            distance, left, right = distance[finite], left[finite], right[finite]
        self.largest = max(self.largest or 0.0, float(distance.max(initial=0)))
        with np.errstate(over="ignore"):
            self.squares.append(_dot(distance, distance))
            self.before.append(_dot(left, left))
            self.after.append(_dot(right, right))
            self.dots.append(_dot(left, right))


def _dot(left: NDArray[Any], right: NDArray[Any]) -> float:
    return float(np.vdot(left, right).real)


def _frame_pairs(
    old: Tensor, new: Tensor, *, whole: bool
) -> Iterator[tuple[memoryview, memoryview]]:
    """The frames that differ, or all; both sides of each. Small tensors are one frame."""
    size, step = old.size_bytes, frame_bytes(old.type)
    for index, start in enumerate(range(0, size, step)):
        equal = _same_frame(old, new, index)
        if equal and not whole:
            continue
        sides = np.empty((2, min(step, size - start)), np.uint8)
        old.read_into(start, sides[0].data)
        if equal:
            sides[1] = sides[0]
        else:
            new.read_into(start, sides[1].data)
        yield sides[0].data, sides[1].data


def _same_frame(old: Tensor, new: Tensor, index: int) -> bool:
    """Whether both sides are known to have one frame; False says nothing."""
    if not old.frames or not new.frames:
        return False
    return old.frames[index].frame.digest == new.frames[index].frame.digest


def _differs(old: memoryview, new: memoryview, block_bytes: int) -> Any:
    """For each block whether its bits differ."""
    left, right = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    if block_bytes in {1, 2, 4, 8}:
        item = f"u{block_bytes}"
        return left.view(item) != right.view(item)
    return (left != right).reshape(-1, block_bytes).any(axis=1)
