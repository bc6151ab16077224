from __future__ import annotations

import pytest

from tensorrepo.formats.common.arguments import bytes_text, counted
from tensorrepo.repo.tables import printable


@pytest.mark.parametrize(("count", "told"), [(0, "0 files"), (1, "1 file"), (2000, "2,000 files")])
def test_one_is_told_without_a_plural(count: int, told: str) -> None:
    assert counted(count, "file") == told


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes_are_told_in_units_of_1024(count: int, told: str) -> None:
    assert bytes_text(count) == told


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本\u3000語", "plain é 日本\u3000語"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("👩\u200d🔬", "👩\u200d🔬"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_shall_stay_stays() -> None:
    assert printable("a\n\x07", keep="\n") == "a\n\\x07"
