from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.log.rewind_guard import LINE_BYTES, Memory, Remembered
from tests.support.builders.log import IDENTITY, digest
from tests.support.faults.damage import survivors


def seen(gen: int) -> Remembered:
    return Remembered(gen, digest(gen))


def file_of(memory: Memory) -> Path:
    (file,) = memory.directory.iterdir()
    return file


def test_what_was_seen_is_remembered_for_each_repository(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "some" / "folder")
    assert memory.load(IDENTITY) is None
    memory.save(IDENTITY, seen(7))
    memory.save(b"another", seen(1))
    assert memory.load(IDENTITY) == seen(7)
    assert memory.load(b"another") == seen(1)


@pytest.mark.parametrize("gens", [(1, 2, 3, 10, 11), (5, 3, 4), (9, 9), (10**18, 7)])
def test_the_newest_sight_is_remembered_in_two_lines(tmp_path: Path, gens: tuple[int, ...]) -> None:
    memory = Memory(tmp_path)
    for gen in gens:
        memory.save(IDENTITY, seen(gen))
    assert memory.load(IDENTITY) == seen(max(gens))
    assert file_of(memory).stat().st_size <= 2 * LINE_BYTES


def test_a_different_digest_of_the_same_generation_does_not_replace_the_first(
    tmp_path: Path,
) -> None:
    memory = Memory(tmp_path)
    memory.save(IDENTITY, seen(7))
    memory.save(IDENTITY, Remembered(7, digest(8)))
    assert memory.load(IDENTITY) == seen(7)


def test_what_is_forgotten_can_be_anything(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.save(IDENTITY, seen(7))
    memory.forget(IDENTITY)
    memory.forget(IDENTITY)
    assert memory.load(IDENTITY) is None


def test_a_damaged_line_leaves_the_other_one(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.save(IDENTITY, seen(1))
    memory.save(IDENTITY, seen(2))

    def load_and_save(damaged: bytes) -> tuple[object, object]:
        file_of(memory).write_bytes(damaged)
        left = memory.load(IDENTITY)
        memory.save(IDENTITY, seen(3))
        return left, memory.load(IDENTITY)

    found = survivors(file_of(memory).read_bytes(), 0x01, load_and_save, ())
    assert found == {at: (seen(2 if at < LINE_BYTES else 1), seen(3)) for at in found}


@pytest.mark.parametrize("content", [b"", b"x", b"\n" * 300, b"\xff" * 256])
def test_any_other_content_remembers_nothing_and_is_written_over(
    tmp_path: Path, content: bytes
) -> None:
    memory = Memory(tmp_path)
    memory.save(IDENTITY, seen(1))
    file_of(memory).write_bytes(content)
    assert memory.load(IDENTITY) is None
    memory.save(IDENTITY, seen(1))
    assert memory.load(IDENTITY) == seen(1)


def test_a_folder_that_cannot_be_used_is_a_storage_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(StorageError, match="cannot write"):
        Memory(blocked).save(IDENTITY, seen(1))
    assert Memory(blocked).load(IDENTITY) is None
