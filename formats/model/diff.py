"""What differs between two models?

Equal fingerprints need no reading, and of a tensor that changed only the frames that changed are
read, two at a time: memory is bounded whatever the size of the models. (For cosines and norms all
frames of a tensor that changed are read, the equal ones once.)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.model.contents import contents_of
from tensorrepo.formats.model.graph.source import model_config
from tensorrepo.formats.model.movement import (
    TensorChange,
    measure_change,
    rank_layers,
    unmeasured,
)
from tensorrepo.formats.model.read import Model, TensorSpec, open_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorrepo.formats.model.movement import LayerMovement
    from tensorrepo.repo.objects import ObjectSource
    from tensorrepo.repo.trees import Entry


@dataclass(frozen=True, slots=True)
class ModelDiff:
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
    def same_tensors(self) -> bool:
        return not (self.added or self.removed or self.retyped or self.changed)

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
        plural = "" if first.startswith("1 ") else "s"
        return ", ".join([first.replace(" ", f" tensor{plural} ", 1), *rest])

    def lines(self) -> Iterator[str]:
        """One line for each thing that differs."""
        for spec in self.added:
            yield f"+ {_text(spec)}"
        for spec in self.removed:
            yield f"- {_text(spec)}"
        for old, new in self.retyped:
            yield f"~ {_text(old)} -> {new.type.name} {list(new.shape)}"
        for change in self.changed:
            yield f"~ {_text(change.spec)}{_measures(change)}"
        for name, (before, after) in self.files.items():
            yield f"{'+' if before is None else '-' if after is None else '~'} file {name}"
        for name, values in self.metrics.items():
            yield f"~ metric {name}: {values[0]} -> {values[1]}"
        for name, values in self.config.items():
            yield f"~ config {name}: {values[0]!s:.80} -> {values[1]!s:.80}"

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
    alike = [pair for pair in common if _alike(*pair)]
    changed = [one for one, other in alike if not _equal(before, after, one.name)]
    return ModelDiff(
        added=tuple(spec for name, spec in right.items() if name not in left),
        removed=tuple(spec for name, spec in left.items() if name not in right),
        retyped=tuple(pair for pair in common if not _alike(*pair)),
        changed=tuple(
            measure_change(before, after, right[spec.name], whole=whole)
            if measure and before is not None and after is not None
            else unmeasured(right[spec.name])
            for spec in changed
        ),
        unchanged=len(alike) - len(changed),
        files=_different(_files(before), _files(after)),
        metrics=_different(_metrics(before), _metrics(after)),
        config=_different(_config(before), _config(after)),
    )


def _specs(model: Model | None) -> dict[str, TensorSpec]:
    return {name: model.spec(name) for name in model.keys()} if model is not None else {}  # noqa: SIM118  # a Model is no dict


def _alike(old: TensorSpec, new: TensorSpec) -> bool:
    return old.type == new.type and old.shape == new.shape


def _equal(before: Model | None, after: Model | None, name: str) -> bool:
    if before is None or after is None:
        return False
    old, new = contents_of([before, after], name)
    return old == new


def _metrics(model: Model | None) -> Mapping[str, Any]:
    return model.metrics if model is not None else {}  # a model without tensors is falsy


def _config(model: Model | None) -> Mapping[str, Any]:
    return model_config(model) if model is not None else {}


def _files(model: Model | None) -> dict[str, str]:
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
