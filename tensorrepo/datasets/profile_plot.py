"""Bar chart of a stream's profile.

Three bars of milliseconds a step: the step alone, with preparing batches, and with storage. What a
bar is longer than the one before it is what the loop waits for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tensorrepo.repo.errors import UnsupportedError

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

    from tensorrepo.formats.dataset.streaming.profile import Profile

_WIDTH, _LEFT, _RIGHT, _TOP, _BAR, _GAP = 900, 150, 40, 70, 44, 26
_COLOURS = {"step": "#4c78a8", "prepare": "#f58518", "storage": "#e45756"}
_ROWS = (
    ("synthetic input", ("step",)),
    ("cached input", ("step", "prepare")),
    ("cold input", ("step", "prepare", "storage")),
)
_INK, _PAPER = "#222222", "#ffffff"


def draw(profile: Profile, title: str, path: Path) -> None:
    """Write the picture of `profile` to `path`, in the format that its suffix names.

    Raises:
        UnsupportedError: Pillow is not installed.
        OSError: `path` cannot be written.
        ValueError: nobody knows its suffix.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise UnsupportedError(
            "drawing a profile needs Pillow: pip install 'tensorrepo[images]'. The table and the "
            "bars in the terminal need nothing."
        ) from error
    height = _TOP + len(_ROWS) * (_BAR + _GAP) + 60
    image = Image.new("RGB", (_WIDTH, height), _PAPER)
    pen = ImageDraw.Draw(image)
    pen.font = ImageFont.load_default(16)
    pen.text((20, 20), title, _INK)
    _bars(pen, profile.stalls)
    _legend(pen, profile, height - 40)
    image.save(path)


def _bars(pen: ImageDraw, stalls: dict[str, float]) -> None:
    scale = (_WIDTH - _LEFT - _RIGHT - 90) / (sum(stalls.values()) or 1.0)
    for row, (name, parts) in enumerate(_ROWS):
        top = _TOP + row * (_BAR + _GAP)
        pen.text((20, top + 12), name, _INK)
        x = float(_LEFT)
        for part in parts:
            end = x + stalls[part] * scale
            pen.rectangle((x, top, max(end, x + 1), top + _BAR), _COLOURS[part])
            x = end
        milliseconds = sum(stalls[part] for part in parts) * 1e3
        pen.text((x + 8, top + 12), f"{milliseconds:.2f} ms", _INK)


def _legend(pen: ImageDraw, profile: Profile, top: int) -> None:
    x = 20
    for part, times in profile.faster.items():
        pen.rectangle((x, top, x + 16, top + 16), _COLOURS[part])
        pen.text((x + 24, top - 2), f"{part}: without it {times:.2f}x as fast", _INK)
        x += 285
