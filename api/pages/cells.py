"""Cells of the dataset viewer: a value as the API tells it, and how a page shows it.

Pictures, sounds and large tensors are fetched by the browser as files of their own, when they come
into view; small tensors are drawn as heat maps at once.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np

from tensorrepo.api.content.cells import CellFile
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import Bytes, Embedding, Image, Scalar, Tensor
from tensorrepo.query.drawing.heat_map import heat_map_png, heat_map_uri
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.tables import bounded_text, bytes_text

CellKind = Literal["text", "number", "null", "image", "sound", "tensor"]
CELL_CHARACTERS: Final = 240
WHOLE_CHARACTERS: Final = 100_000  # of a cell on the page of its row
TOLD_NUMBERS: Final = 6  # of a tensor of one axis that is told rather than drawn
PNG: Final = "image/png"
_NUMPY: Final = "application/x-npy"
# Beginnings of files that browsers play; RIFF has more behind it.
_SOUNDS: Final = (
    (b"fLaC", "audio/flac"), (b"OggS", "audio/ogg"), (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"), (b"\xff\xf3", "audio/mpeg"),
)  # fmt: skip
CellUrl = Callable[..., str]  # where a cell is as a file; a query may follow


@dataclass(frozen=True, slots=True)
class ShownCell:
    """One value on a page.

    Attributes:
        kind: how it is shown.
        text: words for it.
        source: URL of its picture or sound, or a ``data:`` URI.
        href: where it is whole, as a file; "" where there is nothing more.
        is_strip: whether the picture is a single line of colors.
    """

    kind: CellKind
    text: str
    source: str = ""
    href: str = ""
    is_strip: bool = False


def is_number(column: Column) -> bool:
    """Whether the values of a column are numbers, which stand right in a table."""
    return isinstance(column.type, Scalar) and column.type.dtype != "bool"


def shown_cell(
    column: Column,
    value: Any,
    link: CellUrl,
    *,
    is_sound: bool = False,
    most: int = CELL_CHARACTERS,
) -> ShownCell:
    """How a page shows a value of the API.

    Args:
        column: its column.
        value: as `content.rows` tells it.
        link: gives the URL of the value as a file.
        is_sound: whether bytes of this column are sounds.
        most: characters of text that are shown.
    """
    if value is None:
        return ShownCell("null", "null")
    facts = value if isinstance(value, dict) else {}
    if isinstance(column.type, Image):
        return ShownCell("image", _picture_words(facts), link(small=1), link())
    if isinstance(column.type, Tensor | Embedding):
        return _tensor(facts or {"dtype": column.type.dtype, "values": value}, link)
    if isinstance(column.type, Bytes) and facts:
        return ShownCell(
            "sound" if is_sound else "text", bytes_text(facts.get("bytes", 0)), link(), link()
        )
    if isinstance(value, bool):
        return ShownCell("text", str(value).lower())
    if isinstance(value, int | float):
        return ShownCell("number", f"{value:.6g}" if isinstance(value, float) else str(value))
    if "href" in facts:
        return ShownCell("text", _heavy_words(facts), href=link())
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return ShownCell("text", bounded_text(words, most))


def sound_type(head: bytes) -> str | None:
    """Media type of a sound that browsers play, by how its file begins."""
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "audio/wav"
    return next((media for start, media in _SOUNDS if head.startswith(start)), None)


def picture_of(file: CellFile) -> CellFile | None:
    """A heat map of a cell that is a tensor; None: it is none."""
    if file.media_type != _NUMPY:
        return None
    values = np.load(io.BytesIO(file.data), allow_pickle=False)
    return CellFile(heat_map_png(values), PNG, f"{file.name}.png")


def _picture_words(facts: dict[str, Any]) -> str:
    if facts.get("width") and facts.get("height"):
        return f"{facts['width']} × {facts['height']}"
    return "image"


def _heavy_words(facts: dict[str, Any]) -> str:
    size = facts.get("bytes")
    return f"{facts.get('is', 'value')}, {bytes_text(size)}" if size else str(facts.get("is"))


def _tensor(facts: dict[str, Any], link: CellUrl) -> ShownCell:
    numbers = np.array(_numbers(facts["values"]), np.float64) if "values" in facts else None
    shape = facts.get("shape", () if numbers is None else numbers.shape)
    words = f"{facts.get('dtype', '')} {' × '.join(str(side) for side in shape)}"
    is_strip = len(shape) < 2
    if numbers is None:
        return ShownCell("tensor", words, link(small=1), link(), is_strip)
    if is_strip and numbers.size <= TOLD_NUMBERS:
        told = ", ".join(f"{one:.5g}" for one in numbers.reshape(-1).tolist())
        return ShownCell("text", f"[{told}]" if len(shape) else told)
    finite = numbers[np.isfinite(numbers)]
    if finite.size:
        words += f", {finite.min():.4g} to {finite.max():.4g}"
    return ShownCell("tensor", words, heat_map_uri(numbers), link(), is_strip)


def _numbers(value: Any) -> Any:
    """Nested lists of numbers; what is none, such as "NaN", as NaN; complex ones by their size."""
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return float(value) if isinstance(value, int | float) else float("nan")
