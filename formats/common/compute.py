"""Arrow's compute functions, loaded when one is first called: that takes 30 ms.

Used as `pyarrow.compute` is, ``pc.field(name)``: every name is looked up there.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute as pc

    return getattr(pc, name)
