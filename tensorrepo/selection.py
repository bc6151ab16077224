"""How does one write a slice as a value?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorrepo.formats.model.selection import Index


class Selector:
    """What stands between brackets, as a value: ``model.slice("fc1.weight", tr.s[0:128])``."""

    def __getitem__(self, index: Index) -> Index:
        return index

    def __repr__(self) -> str:
        return "tensorrepo.s"


s = Selector()
