from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.repo.errors import ConflictError
from tensorrepo.workspace.checkout import beneath


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").mkdir()
    return tmp_path / "outside"


@pytest.fixture
def root(outside: Path) -> Path:
    return outside.with_name("root")


def test_a_folder_swapped_for_a_link_leads_nothing_out_of_the_workspace(
    root: Path, outside: Path
) -> None:
    def write_while_somebody_swaps() -> None:
        with beneath(root, root / "a/b/new.txt") as place:
            (root / "a/b").rename(root / "a/before")
            (root / "a/b").symlink_to(outside)
            place.write_text("kept in")

    with pytest.raises(ConflictError, match="moved or replaced"):
        write_while_somebody_swaps()
    assert list(outside.iterdir()) == []
    assert (root / "a/before/new.txt").read_text() == "kept in"


def test_what_goes_wrong_beneath_names_the_folder_and_no_descriptor(root: Path) -> None:
    with (
        pytest.raises(ConflictError, match=f"^cannot write {root}/a/new.txt$"),
        beneath(root, root / "a/new.txt") as place,
    ):
        raise ConflictError(f"cannot write {place}")


def test_a_file_in_the_way_is_told(root: Path) -> None:
    (root / "a").write_text("a file")
    with pytest.raises(ConflictError, match="in the way"), beneath(root, root / "a/b/new.txt"):
        raise AssertionError("not reached")
    assert (root / "a").read_text() == "a file"
