"""What did storing a model cost, and against what was it encoded?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tensorrepo.formats.wording import bytes_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.trees import Entry

SAME = "same"
INLINE = "inline"


@dataclass(frozen=True, slots=True)
class CodecShare:
    """Tensors stored by one codec; a tensor larger than a pack counts by its first member."""

    tensors: int
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class BaseUse:
    """A model that tensors were encoded against; `why` and `bits` as in `ChosenBase`."""

    digest: Digest
    why: str
    tensors: int
    bits: float | None


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What was stored of a model.

    `codecs` is by name of the codec: "same" for tensors that were stored already, "inline" for
    those that stand in the manifest.
    """

    codecs: Mapping[str, CodecShare]
    bases: tuple[BaseUse, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def raw_bytes(self) -> int:
        return sum(share.raw_bytes for share in self.codecs.values())

    @property
    def stored_bytes(self) -> int:
        return sum(share.stored_bytes for share in self.codecs.values())

    @property
    def summary(self) -> str:
        """One line: ``90.9 MiB stored in 30.1 MiB (delta 22.0 MiB in 5.1 MiB, same 60.0 MiB)``."""
        told = ", ".join(
            f"{name} {bytes_text(share.raw_bytes)}"
            + (
                f" in {bytes_text(share.stored_bytes)}"
                if share.stored_bytes not in {0, share.raw_bytes}
                else ""
            )
            for name, share in sorted(self.codecs.items(), key=lambda one: -one[1].raw_bytes)
            if share.raw_bytes
        )
        return f"{bytes_text(self.raw_bytes)} stored in {bytes_text(self.stored_bytes)}" + (
            f" ({told})" if told else ""
        )


@dataclass(frozen=True, slots=True)
class Written:
    """A stored model: the entry to stage, and what it cost."""

    entry: Entry
    report: WriteReport


@dataclass(slots=True)
class Tally:
    """Collects a report."""

    tensors: Counter[str] = field(default_factory=Counter)
    raw_bytes: Counter[str] = field(default_factory=Counter)
    stored_bytes: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)

    def add(self, codec: str, raw_bytes: int, stored_bytes: int, *, tensors: int = 1) -> None:
        self.tensors[codec] += tensors
        self.raw_bytes[codec] += raw_bytes
        self.stored_bytes[codec] += stored_bytes

    def report(self, bases: tuple[BaseUse, ...]) -> WriteReport:
        shares = {
            codec: CodecShare(count, self.raw_bytes[codec], self.stored_bytes[codec])
            for codec, count in self.tensors.items()
        }
        return WriteReport(shares, bases, tuple(self.notes))
