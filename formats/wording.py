"""How are counts and sizes told to people?"""

from __future__ import annotations

import unicodedata

_OBEYED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # categories that a terminal acts upon
_JOINERS = "\u200c\u200d"  # of letters and pictures: they stay


def counted(count: int, noun: str) -> str:
    """``1 file``, ``2,000 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def bytes_text(count: int) -> str:
    """``1.5 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def printable(text: str, keep: str = "") -> str:
    """`text` without what a terminal would obey instead of showing it, escaped as Python does.

    `keep` are characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        repr(each)[1:-1]
        if each not in keep and each not in _JOINERS and unicodedata.category(each) in _OBEYED
        else each
        for each in text
    )
