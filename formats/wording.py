"""How are counts and sizes told to people?"""

from __future__ import annotations


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
