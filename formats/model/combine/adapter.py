"""What does an adapter change of its base, tensor by tensor?

An adapter is a model of few tensors that mean something beside another model only: low-rank
updates (LoRA), scales of activations (IA3), and tensors trained in place of the base's. Who stores
one says of which model it is; what each of its tensors does is found then (see `adapternames`), and
kept with the edge to the base: making the adapted model needs nothing else.

Source:
    LoRA: Hu et al. 2021; IA3: Liu et al. 2022. docs/spec/model.md, section "Adapters".
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tensorrepo.formats.lineage import ADAPTER_OF
from tensorrepo.formats.wording import counted
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensorrepo.formats.lineage import Edge

LORA, IA3, REPLACE, ADD = "lora", "ia3", "replace", "add"
_SHOWN: Final = 4


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an adapter does to one tensor of its base.

    Attributes:
        kind: "lora": adds ``scale * B @ A``; "ia3": multiplies; "replace", "add": has it anew.
        parts: names of its tensors: B and A, the factors, or the tensor.
        rank: of the product.
        scale: of the product.
        transposed: the base has the product's transpose.
    """

    kind: str
    parts: tuple[str, ...]
    rank: int | None = None
    scale: float | None = None
    transposed: bool = False

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = msgspec.to_builtins(self)
        return {**told, "parts": list(self.parts)}


class Adapter(msgspec.Struct, frozen=True):
    """What an adapter changes, by name of the base's tensor; `other` are of unknown kinds."""

    method: str
    changes: dict[str, Change]
    other: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The details of its edge."""
        changes = {name: change.to_json() for name, change in self.changes.items()}
        return {"method": self.method, "changes": changes, "other": list(self.other)}

    @property
    def text(self) -> str:
        """For people."""
        kinds = Counter(change.kind for change in self.changes.values())
        adapted = [name for name, one in self.changes.items() if one.kind in (LORA, IA3)]
        modules = {_module(name) for name in adapted}
        told = [self.method]
        told += _span("rank", (one.rank for one in self.changes.values()))
        told += _span("scale", (one.scale for one in self.changes.values()))
        if adapted:
            named = ", ".join(sorted(modules)[:_SHOWN]) + (", ..." if len(modules) > _SHOWN else "")
            told.append(f"{counted(len(adapted), 'tensor')} of {named}")
        told += [f"{kinds[REPLACE]:,} replaced"] if kinds[REPLACE] else []
        told += [f"{kinds[ADD]:,} added"] if kinds[ADD] else []
        told += [f"{len(self.other):,} of unknown meaning"] if self.other else []
        return ", ".join(told)


def adapter_of(lineage: Iterable[Edge]) -> tuple[Edge, Adapter] | None:
    """The edge to an adapter's base, and what it changes of it; None for other models.

    Raises:
        CorruptError: what the edge says is not to be understood.
    """
    for edge in lineage:
        if edge.relation == ADAPTER_OF and edge.details:
            try:
                return edge, msgspec.convert(edge.details, Adapter)
            except msgspec.ValidationError as error:
                raise CorruptError(f"lineage {ADAPTER_OF} {edge.path}: {error}") from error
    return None


def _module(tensor: str) -> str:
    """What the module of a tensor is called, without its number."""
    return next((one for one in tensor.split(".")[-2::-1] if not one.isdecimal()), tensor)


def _span(word: str, values: Iterable[float | None]) -> Sequence[str]:
    told = sorted({value for value in values if value is not None})
    if not told:
        return ()
    return (f"{word} {told[0]:g}" + (f" to {told[-1]:g}" if len(told) > 1 else ""),)
