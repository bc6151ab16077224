"""Differences between two models: which tensors changed, and how far their numbers moved.

Equal fingerprints need no reading, and of a tensor that changed only the frames that changed are
read, two at a time: memory is bounded whatever the size of the models. (For cosines and norms all
frames of a tensor that changed are read, the equal ones once.)

Both sides are read a frame at a time. Sums are of whole frames, added exactly, so a number does not
depend on how a tensor is stored.

Pieces have fingerprints of their own. Where two tensors are cut alike, those are compared and
nothing is read. A state that was saved by four ranks and then by two is cut in another way: then
the whole tensors are read, in order and in bounded memory, and named as if each were one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from itertools import chain
from math import fsum, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.tensors import TensorReader
from tensorrepo.formats.model.graph.graph import module_of
from tensorrepo.formats.model.graph.source import model_config
from tensorrepo.formats.model.layout.fingerprints import (
    INLINE_BYTES,
    fingerprint,
    frame_bytes,
    frame_digest,
)
from tensorrepo.formats.model.layout.number_values import numbers
from tensorrepo.formats.model.read.loading import LoadableTensor
from tensorrepo.formats.model.stored_model import StoredModel, TensorSpec, open_model
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import ObjectSource
from tensorrepo.repo.tables import RecordTable, Shown


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
    changed: int | None = None
    incomparable: int = 0
    max_abs: float | None = None
    l2: float | None = None
    norm: float | None = None
    cosine: float | None = None

    @property
    def changed_fraction(self) -> float | None:
        blocks = self.spec.size_bytes // self.spec.type.block_bytes
        return None if self.changed is None else self.changed / blocks


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
    before: StoredModel, after: StoredModel, spec: TensorSpec, *, whole: bool = False
) -> TensorChange:
    """Measure a tensor that both models have, in one type and shape.

    Only with `whole` frames that are equal are read, too, and there are a norm and a cosine.
    """
    sums = _Sums(spec)
    for old, new in _frame_pairs(before.tensor(spec.name), after.tensor(spec.name), whole=whole):
        sums.add(old, new)
    known = sums.largest is not None
    norms = sqrt(fsum(sums.before)), sqrt(fsum(sums.after))
    cosine = fsum(sums.dots) / norms[0] / norms[1] if all(norms) else None
    return TensorChange(
        spec,
        sums.changed,
        sums.incomparable,
        sums.largest,
        sqrt(fsum(sums.squares)) if known else None,
        norms[0] if known and whole else None,
        cosine if known and whole else None,
    )


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
    old: LoadableTensor, new: LoadableTensor, *, whole: bool
) -> Iterator[tuple[memoryview, memoryview]]:
    """The frames that differ, or all; both sides of each. Small tensors are one frame."""
    size, step = old.size_bytes, frame_bytes(old.type)
    for index, start in enumerate(range(0, size, step)):
        # Both sides may be known to have one frame; where not, that says nothing.
        known = bool(old.frames and new.frames)
        equal = known and old.frames[index].frame.digest == new.frames[index].frame.digest
        if equal and not whole:
            continue
        sides = np.empty((2, min(step, size - start)), np.uint8)
        old.read_into(start, sides[0].data)
        if equal:
            sides[1] = sides[0]
        else:
            new.read_into(start, sides[1].data)
        yield sides[0].data, sides[1].data


def _differs(old: memoryview, new: memoryview, block_bytes: int) -> Any:
    """For each block whether its bits differ."""
    left, right = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    if block_bytes in {1, 2, 4, 8}:
        item = f"u{block_bytes}"
        return left.view(item) != right.view(item)
    return (left != right).reshape(-1, block_bytes).any(axis=1)


def contents_of(models: Sequence[StoredModel], name: str) -> tuple[bytes, ...]:
    """Of each model what is equal for those in which the tensor has the same bits.

    All have it, in one type and shape.
    """
    grids = [_grid(model, name) for model in models]
    return tuple(
        model.content(name)
        if len(grid) == 1 or len(set(grids)) == 1
        else content_of(model.tensor(name))
        for model, grid in zip(models, grids, strict=True)
    )


def content_of(tensor: TensorReader) -> bytes:
    """What `StoredModel.content` would say of a tensor once it is stored in one piece."""
    size, step = tensor.type.bytes_of(tuple(tensor.shape)), frame_bytes(tensor.type)
    data = np.empty(min(size, step), np.uint8).data
    if size <= INLINE_BYTES:
        tensor.read_into(0, data)
        return bytes(data)
    digests = bytearray()
    for start in range(0, size, step):
        part = data[: min(step, size - start)]
        tensor.read_into(start, part)
        digests += frame_digest(part)
    return fingerprint(tensor.type, tuple(tensor.shape), digests)


def _grid(model: StoredModel, name: str) -> tuple[tuple[int, ...], ...]:
    pieces = model.tensors[model.aliases.get(name, name)].pieces
    return tuple(piece.offset for piece in pieces)


@dataclass(frozen=True, slots=True, repr=False)
class ModelDiff(Shown):
    """Everything is sorted by name. An alias counts as a tensor.

    `retyped` tensors have another type or shape. `files` and `metrics` hold what differs, with
    None where it is missing: a file's SHA-256 in hex, a metric's value. `config` likewise, of the
    settings in ``config.json``.
    """

    added: tuple[TensorSpec, ...]
    removed: tuple[TensorSpec, ...]
    retyped: tuple[tuple[TensorSpec, TensorSpec], ...]
    changed: tuple[TensorChange, ...]
    unchanged: int
    files: Mapping[str, tuple[str | None, str | None]]
    metrics: Mapping[str, tuple[Any, Any]]
    config: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def layers(self) -> tuple[LayerMovement, ...]:
        """Layers with tensors that changed, those that moved most first."""
        return rank_layers(self.changed)

    @property
    def summary(self) -> str:
        """One line: ``1 tensor added, 2 changed, 5 unchanged``."""
        counts = {
            "added": len(self.added),
            "removed": len(self.removed),
            "reshaped": sum(old.shape != new.shape for old, new in self.retyped),
            "retyped": sum(old.shape == new.shape for old, new in self.retyped),
            "changed": len(self.changed),
            "unchanged": self.unchanged,
        }
        told = [f"{count:,} {what}" for what, count in counts.items() if count]
        if not told:
            return "no tensors"
        first, *rest = told
        count = next(filter(None, counts.values()))
        return ", ".join([f"{counted(count, 'tensor')} {first.partition(' ')[2]}", *rest])

    def to_table(self) -> RecordTable:
        """In full, line by line."""
        return RecordTable((self.summary, *self.lines()))

    def lines(self) -> Iterator[str]:
        """One line for each thing that differs."""
        return chain.from_iterable(self.lines_by_kind())

    def lines_by_kind(self) -> Iterator[list[str]]:
        """The lines of what is of one kind: tensors that were added, removed, ..., files, ..."""
        yield [f"+ {_text(spec)}" for spec in self.added]
        yield [f"- {_text(spec)}" for spec in self.removed]
        yield [f"~ {_text(old)} -> {new.type.name} {list(new.shape)}" for old, new in self.retyped]
        yield [f"~ {_text(change.spec)}{_measures(change)}" for change in self.changed]
        yield [
            f"{'+' if before is None else '-' if after is None else '~'} file {name}"
            for name, (before, after) in self.files.items()
        ]
        yield [f"~ metric {name}: {old} -> {new}" for name, (old, new) in self.metrics.items()]
        yield [
            f"~ config {name}: {old!s:.80} -> {new!s:.80}"
            for name, (old, new) in self.config.items()
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "added": [_spec_json(spec) for spec in self.added],
            "removed": [_spec_json(spec) for spec in self.removed],
            "retyped": [[_spec_json(old), _spec_json(new)] for old, new in self.retyped],
            "changed": [
                _spec_json(change.spec)
                | {
                    "changed_fraction": change.changed_fraction,
                    "incomparable": change.incomparable,
                    "max_abs": change.max_abs,
                    "l2": change.l2,
                    "norm": change.norm,
                    "cosine": change.cosine,
                }
                for change in self.changed
            ],
            "unchanged": self.unchanged,
            "files": {name: list(sides) for name, sides in self.files.items()},
            "metrics": {name: list(sides) for name, sides in self.metrics.items()},
            "config": {name: list(sides) for name, sides in self.config.items()},
            "layers": [asdict(layer) for layer in self.layers],
        }


def diff_models(
    objects: ObjectSource,
    old: Entry | None,
    new: Entry | None,
    *,
    measure: bool = True,
    whole: bool = False,
) -> ModelDiff:
    """Compare two models.

    Args:
        objects: where both lie.
        old: the entry before; None: there was none.
        new: the entry after; None: there is none.
        measure: read what changed, to say how much; False only says which.
        whole: read tensors that changed whole, for their norms and cosines.
    """
    before = open_model(objects, old) if old is not None else None
    after = open_model(objects, new) if new is not None else None
    left, right = _specs(before), _specs(after)
    common = [(left[name], right[name]) for name in left if name in right]
    alike = [pair for pair in common if pair[0].form == pair[1].form]
    sides = [side for side in (before, after) if side is not None]
    changed = [one for one, _ in alike if len(set(contents_of(sides, one.name))) > 1]
    return ModelDiff(
        added=tuple(spec for name, spec in right.items() if name not in left),
        removed=tuple(spec for name, spec in left.items() if name not in right),
        retyped=tuple(pair for pair in common if pair[0].form != pair[1].form),
        changed=tuple(
            measure_change(before, after, right[spec.name], whole=whole)
            if measure and before is not None and after is not None
            else TensorChange(right[spec.name])
            for spec in changed
        ),
        unchanged=len(alike) - len(changed),
        files=_different(_files(before), _files(after)),
        metrics=_different(*({} if side is None else side.metrics for side in (before, after))),
        config=_different(
            *({} if side is None else model_config(side) for side in (before, after))
        ),
    )


def _specs(model: StoredModel | None) -> dict[str, TensorSpec]:
    return {name: model.spec(name) for name in model.keys()} if model is not None else {}  # noqa: SIM118  # a Model is no dict


def _files(model: StoredModel | None) -> dict[str, str]:
    """SHA-256 of every file, also of those that are made of tensors."""
    if model is None:
        return {}
    own = {name: file.sha256.hex() for name, file in model.files.items()}
    return own | {name: original.sha256.hex() for name, original in model.originals.items()}


def _different(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    sides = {name: (old.get(name), new.get(name)) for name in sorted({*old, *new})}
    return {name: pair for name, pair in sides.items() if pair[0] != pair[1]}


def _text(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.type.name} {list(spec.shape)}"


def _measures(change: TensorChange) -> str:
    if change.changed_fraction is None:
        return ""
    text = f": {change.changed_fraction:.2%} changed"
    if change.max_abs is not None and change.l2 is not None:
        text += f", by at most {change.max_abs:.3g}, L2 {change.l2:.3g}"
    if change.cosine is not None:
        text += f", cosine {change.cosine:.6f}"
    return text


def _spec_json(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "type": spec.type.name,
        "shape": list(spec.shape),
        "bytes": spec.size_bytes,
        "fingerprint": spec.fingerprint,
        "alias_of": spec.alias_of,
    }
