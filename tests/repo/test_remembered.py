from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tensorrepo.repo.remembered import Memory, Remembered
from tests.support.log import IDENTITY, digest

if TYPE_CHECKING:
    from pathlib import Path

SEEN = Remembered(7, digest(7))


def test_what_was_seen_is_remembered_for_each_repository(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "seen")
    assert memory.load(IDENTITY) is None
    memory.save(IDENTITY, SEEN)
    memory.save(b"another", Remembered(1, digest(1)))
    assert memory.load(IDENTITY) == SEEN


def test_an_older_sight_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.save(IDENTITY, SEEN)
    memory.save(IDENTITY, Remembered(6, digest(6)))
    assert memory.load(IDENTITY) == SEEN


def test_what_is_forgotten_can_be_anything(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.save(IDENTITY, SEEN)
    memory.forget(IDENTITY)
    memory.forget(IDENTITY)
    assert memory.load(IDENTITY) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"gen":7}', b'{"digest":"x","gen":7}', b"\xff\xfe"]
)
def test_a_damaged_file_remembers_nothing_and_is_written_anew(
    tmp_path: Path, content: bytes
) -> None:
    memory = Memory(tmp_path)
    memory.save(IDENTITY, SEEN)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert memory.load(IDENTITY) is None
    memory.save(IDENTITY, SEEN)
    assert memory.load(IDENTITY) == SEEN
