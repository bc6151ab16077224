"""`tensorrepo add --progressive`: what is stored, what is told, what comes back."""

from __future__ import annotations

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import Image
from tests.support.processes.shell import Shell

pytest.importorskip("PIL.Image")
from tests.support.builders.pictures import encoded, smooth


def photo(seed: int) -> bytes:
    noise = np.random.default_rng(seed).normal(0, 5, (120, 160, 3))
    pixels = np.clip(smooth(120, 160, seed=seed) + noise, 0, 255).astype(np.uint8)
    return encoded(pixels, "JPEG", quality=90)


@pytest.fixture
def photos(shell: Shell) -> Shell:
    for seed in range(6):
        folder = shell.folder / "photos" / ("ab"[seed % 2])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{seed}.jpg").write_bytes(photo(seed))
    (shell.folder / "photos/a/cut.jpg").write_bytes(photo(9)[:-300] + b"\xff\xd9")
    return shell


def test_photos_are_stored_in_bands_and_come_back_as_files(photos: Shell) -> None:
    done = photos.run("add", "photos", "--dataset", "photos", "--progressive")
    assert "image: 6 pictures progressive, 1 as they came" in done.stderr
    photos("commit", "-m", "Photos")
    dataset = photos.repository().dataset("photos")
    assert dataset.schema.column("image").type == Image("jpeg", progressive=True)
    photos("export", "photos", "--format", "images", "--to", "out")
    written = {path.name: path.read_bytes() for path in (photos.folder / "out").rglob("*.jpg")}
    files = {path.name: path.read_bytes() for path in (photos.folder / "photos").rglob("*.jpg")}
    assert written == files
    assert "ok" in photos("fsck", "--deep")


def test_small_pictures_are_stored_beside_files(photos: Shell) -> None:
    photos("add", "photos", "--dataset", "photos", "--progressive-beside")
    photos("commit", "-m", "Photos")
    dataset = photos.repository().dataset("photos")
    assert dataset.schema.column("image").type == Image("jpeg", progressive="beside")
    assert "ok" in photos("fsck", "--deep")


def test_a_stream_says_what_it_would_read(photos: Shell) -> None:
    photos("add", "photos", "--dataset", "photos", "--progressive")
    photos("commit", "-m", "Photos")
    words = ("dataset", "stream", "photos", "--columns", "image", "--decode", "15", "--explain")
    read = [photos.json(*words, "--scans", each)["read_bytes"] for each in ("auto", "2", "all")]
    assert read == sorted(set(read))
    assert "scans" in photos.fails(2, *words, "--scans", "most")
    assert "--decode" in photos.fails(2, "dataset", "stream", "photos", "--scans", "auto")
    assert "image (jpeg, progressive)" in photos("show", "HEAD:datasets/photos")


def test_a_sync_keeps_the_column_progressive(photos: Shell) -> None:
    photos("add", "photos", "--dataset", "photos", "--progressive")
    photos("commit", "-m", "Photos")
    (photos.folder / "photos/b/new.jpg").write_bytes(photo(20))
    told = photos("add", "photos", "--dataset", "photos", "--sync")
    assert "1 row" in told
    photos("commit", "-m", "One more")
    dataset = photos.repository().dataset("photos")
    assert dataset.schema.column("image").type == Image("jpeg", progressive=True)
    assert photo(20) in [row["image"] for row in dataset]


def test_pictures_are_stored_in_one_way(photos: Shell) -> None:
    both = ("--progressive", "--progressive-beside")
    assert "one of" in photos.fails(2, "add", "photos", "--dataset", "photos", *both)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("table.csv", "--dataset", "t"), "columns of images"),
        (("photos/a/0.jpg", "--file", "f"), "for datasets of images"),
        (("photos", "--dataset", "there", "--append"), "new datasets"),
    ],
)
def test_it_is_about_new_datasets_of_images(
    photos: Shell, words: tuple[str, ...], told: str
) -> None:
    (photos.folder / "table.csv").write_text("a,b\n1,2\n")
    photos("add", "photos", "--dataset", "there")
    assert told in photos.fails(2, "add", *words, "--progressive")
