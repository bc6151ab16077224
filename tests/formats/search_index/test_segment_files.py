"""Folders of segments are made of verified blobs, and nothing in them is believed unproved."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.dataset.metadata.row_ids import plain_run
from tensorrepo.formats.search_index import segment_files
from tensorrepo.formats.search_index.segment_files import (
    IN_USE_SECONDS,
    IndexFolders,
    files_below,
    store_files,
)
from tensorrepo.formats.search_index.stored_index import IndexFile, IndexSegment
from tensorrepo.repo.errors import CorruptError, NotFoundError, StorageError
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.objects import MemoryObjects

CONTENTS = {"_versions/1.manifest": b"manifest", "_indices/a/index.idx": bytes(range(256)) * 3}


def segment_of(
    objects: MemoryObjects, folder: Path, contents: dict[str, bytes] | None = None
) -> IndexSegment:
    for name, content in (contents or CONTENTS).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    files = store_files(objects, folder, files_below(folder))
    return IndexSegment(plain_run(5, 3), "ivf_flat", {}, files)


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def segment(objects: MemoryObjects, tmp_path: Path) -> IndexSegment:
    return segment_of(objects, tmp_path / "made")


def folders_at(root: Path, limit_bytes: int = 1 << 30) -> IndexFolders:
    return IndexFolders(root, limit_bytes)


def read(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_below(folder)}


def test_a_folder_holds_the_files_that_were_stored(
    objects: MemoryObjects, segment: IndexSegment, tmp_path: Path
) -> None:
    folder = folders_at(tmp_path / "cache").folder(objects, segment)
    assert folder.name == segment.name
    assert read(folder) == CONTENTS


def test_large_files_are_cut_into_blobs(
    objects: MemoryObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_files, "PART_BYTES", 100)
    segment = segment_of(objects, tmp_path / "made")
    assert [len(file.parts) for file in segment.files] == [8, 1]
    assert read(folders_at(tmp_path / "cache").folder(objects, segment)) == CONTENTS


def test_a_folder_that_was_changed_is_made_anew(
    objects: MemoryObjects, segment: IndexSegment, tmp_path: Path
) -> None:
    folder = folders_at(tmp_path / "cache").folder(objects, segment)
    (folder / "_versions/1.manifest").write_bytes(b"damaged!")
    assert read(folders_at(tmp_path / "cache").folder(objects, segment)) == CONTENTS


def test_a_folder_with_another_file_is_made_anew(
    objects: MemoryObjects, segment: IndexSegment, tmp_path: Path
) -> None:
    folder = folders_at(tmp_path / "cache").folder(objects, segment)
    (folder / "data").mkdir()
    (folder / "data/rows.lance").write_bytes(b"x")
    assert read(folders_at(tmp_path / "cache").folder(objects, segment)) == CONTENTS


def test_what_is_there_is_not_read_from_the_store_again(
    objects: MemoryObjects, segment: IndexSegment, tmp_path: Path
) -> None:
    folders_at(tmp_path / "cache").folder(objects, segment)
    assert read(folders_at(tmp_path / "cache").folder(MemoryObjects(), segment)) == CONTENTS


def test_a_missing_blob_leaves_no_folder(segment: IndexSegment, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        folders_at(tmp_path / "cache").folder(MemoryObjects(), segment)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["CACHEDIR.TAG"]


def test_a_blob_of_another_size_is_refused(objects: MemoryObjects, tmp_path: Path) -> None:
    blob = objects.put(Kind.BLOB, b"four").digest
    segment = IndexSegment(plain_run(5, 3), "ivf_flat", {}, (IndexFile("x", 5, (blob,)),))
    with pytest.raises(CorruptError, match="expected 5 of x"):
        folders_at(tmp_path / "cache").folder(objects, segment)


def test_folders_that_were_not_used_for_longest_go(objects: MemoryObjects, tmp_path: Path) -> None:
    folders = folders_at(tmp_path / "cache", 1000)
    made = [
        segment_of(objects, tmp_path / f"made{at}", {"index": bytes([at]) * 600}) for at in range(3)
    ]
    for at, segment in enumerate(made):
        path = folders.folder(objects, segment)
        old = folders.clock() - (at < 2) * (IN_USE_SECONDS + 1000 - at)
        os.utime(path, (old, old))
    folders.trim()
    left = {path.name for path in (tmp_path / "cache").iterdir()} - {"CACHEDIR.TAG"}
    assert left == {made[2].name}


def test_folders_in_use_stay_however_many_they_are(objects: MemoryObjects, tmp_path: Path) -> None:
    folders = folders_at(tmp_path / "cache", 1)
    made = [segment_of(objects, tmp_path / f"made{at}", {"index": bytes([at])}) for at in range(3)]
    paths = [folders.folder(objects, segment) for segment in made]
    assert all(path.is_dir() for path in paths)


def test_a_folder_that_one_process_asks_again_and_again_is_in_use(
    objects: MemoryObjects, segment: IndexSegment, tmp_path: Path
) -> None:
    now = [1_800_000_000.0]
    folders = IndexFolders(tmp_path / "cache", 0, lambda: now[0])
    for _ in range(2):
        folder = folders.folder(objects, segment)
        now[0] += IN_USE_SECONDS - 1
    IndexFolders(tmp_path / "cache", 0, lambda: now[0]).trim()
    assert read(folder) == CONTENTS


def test_a_folder_of_other_files_is_no_cache(
    objects: MemoryObjects, segment: IndexSegment, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/thesis.txt").write_text("mine")
    with pytest.raises(StorageError, match="holds other files"):
        folders_at(tmp_path / "cache").folder(objects, segment)
    assert (tmp_path / "cache/thesis.txt").read_text() == "mine"


def test_names_of_segments_follow_from_their_files_alone(
    objects: MemoryObjects, segment: IndexSegment, tmp_path: Path
) -> None:
    again = segment_of(objects, tmp_path / "again")
    assert again.name == segment.name
    other = segment_of(objects, tmp_path / "other", CONTENTS | {"lengths": b"1234"})
    assert other.name != segment.name
    assert np.array_equal(again.runs, segment.runs)
