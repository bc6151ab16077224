"""Parts of a file, in any order, again and again: one file in the end, or none."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tensorrepo.api.huggingface.upload_parts import MAX_PARTS, UploadParts, part_size
from tensorrepo.repo.errors import ConflictError, InvalidInputError

CONTENT = bytes(range(1, 11))  # of four parts of 3, 3, 3 and 1
SHA256 = hashlib.sha256(CONTENT).hexdigest()
COUNT = 4


def etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(parts: UploadParts, number: int, data: bytes | None = None) -> str:
    start, stop = parts.span(number)
    sent = CONTENT[start:stop] if data is None else data
    with parts.writing(number) as descriptor:
        os.write(descriptor, sent)
        parts.arrived(number, etag(sent))
    return etag(sent)


@pytest.fixture
def parts(tmp_path: Path) -> UploadParts:
    return UploadParts(tmp_path / "x.parts", len(CONTENT), 3)


class PartsMachine(RuleBasedStateMachine):
    """Against a dict of what came last for each part."""

    def __init__(self) -> None:
        super().__init__()
        self.room = tempfile.TemporaryDirectory()
        self.target = Path(self.room.name) / "whole"
        self.parts = UploadParts(Path(self.room.name) / "x.parts", len(CONTENT), 3)
        self.came: dict[int, str] = {}
        self.is_right: dict[int, bool] = {}

    def teardown(self) -> None:
        self.room.cleanup()

    @rule(number=st.integers(1, COUNT), wrong=st.booleans())
    def part_comes(self, number: int, wrong: bool) -> None:
        start, stop = self.parts.span(number)
        data = bytes(stop - start) if wrong else None
        self.came[number] = put(self.parts, number, data)
        self.is_right[number] = not wrong

    @rule(number=st.integers(1, COUNT))
    def part_breaks_off(self, number: int) -> None:
        with self.parts.writing(number) as descriptor:
            os.write(descriptor, b"\0")
        self.came.pop(number, None)
        self.is_right.pop(number, None)

    @rule()
    def complete(self) -> None:
        told = dict(self.came)
        is_whole, is_right = len(told) == COUNT, all(self.is_right.values())
        if self.target.exists():
            self.parts.complete(SHA256, self.target, told)
            return
        if not is_whole:
            with pytest.raises(ConflictError):
                self.parts.complete(SHA256, self.target, told)
            return
        self.came.clear()
        self.is_right.clear()
        if is_right:
            self.parts.complete(SHA256, self.target, told)
            return
        with pytest.raises(InvalidInputError):
            self.parts.complete(SHA256, self.target, told)

    @invariant()
    def the_file_is_right_or_not_there(self) -> None:
        assert not self.target.exists() or self.target.read_bytes() == CONTENT


TestPartsMachine = PartsMachine.TestCase


def test_who_says_that_all_came_again_is_right_again(parts: UploadParts, tmp_path: Path) -> None:
    told = {number: put(parts, number) for number in range(1, COUNT + 1)}
    target = tmp_path / "whole"
    parts.complete(SHA256, target, told)
    parts.complete(SHA256, target, told)
    assert (target.read_bytes(), parts.folder.exists()) == (CONTENT, False)


@pytest.mark.parametrize(
    "told", [{}, {1: "0" * 64}, {5: "0" * 64}], ids=["none", "another", "too many"]
)
def test_parts_that_are_meant_must_be_those_that_came(
    parts: UploadParts, tmp_path: Path, told: dict[int, str]
) -> None:
    came = {number: put(parts, number) for number in range(1, COUNT + 1)}
    with pytest.raises(InvalidInputError, match="ETags of 4 parts"):
        parts.complete(SHA256, tmp_path / "whole", (came | told) if told else {})
    parts.complete(SHA256, tmp_path / "whole", came)  # they are there still


def test_while_a_part_is_written_no_file_is_made(
    parts: UploadParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorrepo.api.huggingface.upload_parts._WAIT_SECONDS", 0.1)
    told = {number: put(parts, number) for number in range(1, COUNT + 1)}
    with parts.writing(2), pytest.raises(ConflictError, match="being written"):
        parts.complete(SHA256, tmp_path / "whole", told)
    assert not (tmp_path / "whole").exists()


def test_a_note_that_was_cut_short_is_a_part_that_is_missing(
    parts: UploadParts, tmp_path: Path
) -> None:
    told = {number: put(parts, number) for number in range(1, COUNT + 1)}
    (parts.folder / "part-3").write_text(told[3][:20])
    with pytest.raises(ConflictError, match=r"parts \[3\] of 4"):
        parts.complete(SHA256, tmp_path / "whole", told)


@pytest.mark.parametrize("size", [1, 64 << 20, 640 << 30, (640 << 30) + 1, 5 << 40])
def test_no_file_has_more_parts_than_one_answer_may_list(size: int) -> None:
    least = part_size(size, 64 << 20)
    assert least >= 64 << 20
    assert -(-size // least) <= MAX_PARTS
