"""Parts of drawings: escaped words, colors by number, legends."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from tensorrepo.repo.tables import bounded_text, printable

COLORS: Final = 8


def text(words: str, most: int = 120) -> str:
    """Words from data, escaped and bounded."""
    return escape(printable(bounded_text(words, most)))


def legend(names: Sequence[str]) -> str:
    """Names with the colors that stand for them."""
    return '<div class="legend">{}</div>'.format(
        "".join(
            f'<span><i class="c{at % COLORS}"></i>{text(name)}</span>'
            for at, name in enumerate(names)
        )
    )
