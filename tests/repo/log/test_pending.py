from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.log.rewind_guard import Pending, Unresolved


def test_notes_are_listed_until_they_are_removed(tmp_path: Path) -> None:
    pending = Pending(tmp_path / "work" / "pending")
    assert pending.unresolved() == ()
    pending.write("b.7", 10)
    pending.write("a", 3)
    assert pending.unresolved() == (Unresolved("a", 3), Unresolved("b.7", 10))
    pending.remove("a")
    pending.remove("a")
    assert pending.unresolved() == (Unresolved("b.7", 10),)


def test_a_later_attempt_takes_the_place_of_the_earlier_note(tmp_path: Path) -> None:
    pending = Pending(tmp_path)
    pending.write("a", 3)
    pending.write("a", 3)
    pending.write("a", 4)
    assert pending.unresolved() == (Unresolved("a", 4),)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.4", "blank"]


@pytest.mark.parametrize("name", ["a", "a.", ".3", "a.x", "a.0", "a.03", "a.-1", "..3", "a b.3"])
def test_files_that_are_no_notes_are_passed_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    Pending(tmp_path).write("b", 1)
    assert Pending(tmp_path).unresolved() == (Unresolved("b", 1),)


def test_a_folder_that_cannot_be_used_is_a_storage_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(StorageError, match="cannot write"):
        Pending(blocked).write("a", 1)
    assert Pending(blocked).unresolved() == ()


def test_a_note_that_cannot_be_removed_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "a.1").mkdir()
    with pytest.raises(StorageError, match="cannot remove"):
        Pending(tmp_path).remove("a")
