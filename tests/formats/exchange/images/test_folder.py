"""A folder of images, one folder for each class."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import ClassLabel, Image
from tensorrepo.formats.exchange import registry
from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.formats.exchange.images.folder import class_folder, make_plan, read_images
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import gif, png, rows_of, store

PNG = png(np.zeros((2, 3), np.uint8))


def folder_of(root: Path, *names: str, content: bytes = PNG) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def table(path: Path, **options: str) -> list[tuple[object, ...]]:
    """(file, label, split) of every row, as far as there are such columns."""
    dataset = store(read_images(path, **options))
    names = [name for name in ("file", "label", "split") if name in dataset.schema.names]
    return [tuple(row[name] for name in names) for row in rows_of(dataset)]


def test_the_folder_names_the_class(tmp_path: Path) -> None:
    folder_of(tmp_path, "dog/2.png", "cat/1.png", "cat/x/0.png", "dog/1.png")
    reading = read_images(tmp_path)
    assert reading.schema.names == ("image", "label", "file")
    assert reading.schema.column("label").type == ClassLabel(("cat", "dog"))
    assert table(tmp_path) == [
        ("cat/1.png", 0),
        ("cat/x/0.png", 0),
        ("dog/1.png", 1),
        ("dog/2.png", 1),
    ]


def test_the_last_folder_can_name_the_class_or_none(tmp_path: Path) -> None:
    folder_of(tmp_path, "animal/cat/1.png", "animal/dog/1.png", "plant/oak/1.png")
    assert [row[1] for row in table(tmp_path)] == [0, 0, 1]
    assert [row[1] for row in table(tmp_path, labels="parent")] == [0, 1, 2]
    assert read_images(tmp_path, labels="none").schema.names == ("image", "file")


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    folder_of(tmp_path, "b.png", "a.png")
    assert table(tmp_path) == [("a.png",), ("b.png",)]


def test_images_outside_of_class_folders_have_a_null_label(tmp_path: Path) -> None:
    folder_of(tmp_path, "a.png", "cat/1.png")
    assert table(tmp_path) == [("a.png", None), ("cat/1.png", 0)]
    assert read_images(tmp_path).schema.column("label").nullable


def test_train_and_test_folders_are_splits(tmp_path: Path) -> None:
    folder_of(tmp_path, "train/cat/1.png", "train/dog/1.png", "test/cat/1.png")
    assert table(tmp_path) == [
        ("test/cat/1.png", 0, 1),
        ("train/cat/1.png", 0, 0),
        ("train/dog/1.png", 1, 0),
    ]
    assert "train (2 images), test (1 images)" in read_images(tmp_path).notes[0]


def test_one_split_keeps_the_class_numbers_of_the_whole(tmp_path: Path) -> None:
    folder_of(tmp_path, "train/cat/1.png", "train/dog/1.png", "test/dog/1.png")
    assert table(tmp_path, split="test") == [("test/dog/1.png", 1)]
    with pytest.raises(InvalidInputError, match="no split 'val'; there are 'train', 'test'"):
        read_images(tmp_path, split="val")


def test_classes_txt_fixes_numbers_and_new_classes_come_behind(tmp_path: Path) -> None:
    folder_of(tmp_path, "cat/1.png", "dog/1.png", "a%2Fb/1.png")
    (tmp_path / "classes.txt").write_text("zebra\ndog\na/b\n")
    reading = read_images(tmp_path)
    assert reading.schema.column("label").type == ClassLabel(("zebra", "dog", "a/b", "cat"))
    assert [row[1] for row in table(tmp_path)] == [2, 3, 1]


def test_a_classes_txt_about_something_else_is_left_alone() -> None:
    plan = make_plan({("cat",), ("dog",)}, ("001 Laysan Albatross", "002 Jay"), "folder")
    assert plan.names == ("cat", "dog")


def test_classes_called_train_and_test_are_classes_when_classes_txt_says_so() -> None:
    places = {("train",), ("test",)}
    assert make_plan(places, (), "folder").splits == ("train", "test")
    assert make_plan(places, ("train", "test"), "folder").names == ("train", "test")


@pytest.mark.parametrize("name", ["a/b", "..", ".", ".hidden", "", "50%", "é", "C:\\x", "a\tb"])
def test_every_class_has_a_folder_of_its_own(name: str) -> None:
    folder = class_folder(name)
    assert "/" not in folder
    assert not folder.startswith(".")
    assert folder


def test_one_codec_is_said_by_the_column_and_several_are_mixed(tmp_path: Path) -> None:
    folder_of(tmp_path, "a.png")
    assert read_images(tmp_path).schema.column("image").type == Image("png")
    folder_of(tmp_path, "b.gif", content=gif())
    assert read_images(tmp_path).schema.column("image").type == Image(None)


def test_the_content_tells_the_codec_whatever_the_name_says(tmp_path: Path) -> None:
    folder_of(tmp_path, "a.jpg", "b.dat")
    assert read_images(tmp_path).schema.column("image").type == Image("png")
    assert len(table(tmp_path)) == 2


def test_the_bytes_are_kept_as_they_came(tmp_path: Path) -> None:
    folder_of(tmp_path, "a.png", content=PNG + b"trailing bytes")
    assert rows_of(store(read_images(tmp_path)))[0]["image"] == PNG + b"trailing bytes"


def test_other_files_are_reported_and_hidden_ones_left_out(tmp_path: Path) -> None:
    folder_of(tmp_path, "cat/1.png")
    folder_of(tmp_path, "README.md", "cat/notes.txt", ".DS_Store", ".git/x.png", content=b"text")
    reading = read_images(tmp_path)
    assert reading.notes == (
        "passed over: README.md is no image",
        "passed over: cat/notes.txt is no image",
    )
    assert reading.rows == 1


def test_many_notes_end_in_a_count(tmp_path: Path) -> None:
    folder_of(tmp_path, "cat/1.png")
    folder_of(tmp_path, *(f"{number}.txt" for number in range(50)), content=b"text")
    notes = read_images(tmp_path).notes
    assert (len(notes), notes[-1]) == (20, "and 31 more")


def test_the_ignore_file_is_honoured(tmp_path: Path) -> None:
    folder_of(tmp_path, "cat/1.png", "cat/bad.png", "raw/2.png")
    (tmp_path / ".tensorrepoignore").write_text("raw/\nbad.*\n")
    assert table(tmp_path) == [("cat/1.png", 0)]


def test_links_to_files_are_followed_and_links_to_folders_are_not(tmp_path: Path) -> None:
    folder_of(tmp_path, "cat/1.png")
    (tmp_path / "cat" / "circle").symlink_to(tmp_path)
    (tmp_path / "cat" / "2.png").symlink_to(tmp_path / "cat" / "1.png")
    (tmp_path / "cat" / "gone.txt").symlink_to(tmp_path / "nothing")
    reading = read_images(tmp_path)
    assert reading.rows == 2
    assert "cat/circle is a link to a folder" in reading.notes[0]


def test_a_fifo_is_never_opened(tmp_path: Path) -> None:
    folder_of(tmp_path, "cat/1.png")
    os.mkfifo(tmp_path / "cat" / "pipe")
    assert "cat/pipe is no image" in read_images(tmp_path).notes[0]


@pytest.mark.parametrize("content", [PNG[:-3], PNG[:5], b""])
def test_an_image_cut_short_names_its_file(content: bytes, tmp_path: Path) -> None:
    folder_of(tmp_path, "cat/1.png")
    folder_of(tmp_path, "cat/2.png", content=content)
    with pytest.raises(InvalidInputError, match=r"cat/2\.png.*damaged=skip"):
        store(read_images(tmp_path))


def test_damaged_images_can_be_skipped_and_are_reported(tmp_path: Path) -> None:
    folder_of(tmp_path, "cat/1.png")
    folder_of(tmp_path, "cat/2.png", content=PNG[:-3])
    folder_of(tmp_path, "cat/3.png", content=b"")
    reading = read_images(tmp_path, damaged=True)
    assert reading.rows == 1
    assert "cat/2.png is a png image cut short at" in reading.damage.skipped[0].reason
    assert reading.damage.notes == (f"passed over: {reading.damage.skipped[0].reason}",)
    assert "cat/3.png is no image" in reading.notes[0]
    assert len(store(reading)) == 1


@pytest.mark.parametrize("options", [{"labels": "deepest"}, {"damaged": "mend"}])
def test_unknown_choices_are_named(options: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(options.values()))):
        registry.read(folder_of(tmp_path, "a.png"), **options)


def test_a_folder_without_images_says_so(tmp_path: Path) -> None:
    folder_of(tmp_path, "a.txt", content=b"text")
    with pytest.raises(InvalidInputError, match="holds no images"):
        read_images(tmp_path)


def test_a_name_that_is_not_unicode_is_refused(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9.png")  # bytes
    with open(path, "wb") as file:
        file.write(PNG)
    with pytest.raises(InvalidInputError, match="not UTF-8"):
        read_images(tmp_path)


def test_deep_folders_are_no_problem(tmp_path: Path) -> None:
    deep = "/".join("d" * 400)
    folder_of(tmp_path, f"{deep}/1.png")
    assert table(tmp_path) == [(f"{deep}/1.png", 0)]


def test_batches_are_cut_by_bytes(tmp_path: Path) -> None:
    big = png(np.random.default_rng(0).integers(0, 256, (1500, 2000), dtype=np.uint8))
    folder_of(tmp_path, *(f"{number}.png" for number in range(7)), content=big)
    sizes = [len(batch["image"]) for batch in read_images(tmp_path).batches]  # type: ignore[index]
    assert sizes == [2, 2, 2, 1]


def test_batches_before_a_damaged_image_are_given_before_it_is_refused(tmp_path: Path) -> None:
    large = png(np.random.default_rng(0).integers(0, 256, (1100, 1100), np.uint8))
    folder_of(tmp_path, *(f"{at}.png" for at in range(9)), content=large)
    folder_of(tmp_path, "cut.png", content=large[:-6])
    batches = read_images(tmp_path).batches
    assert next(batches)["file"] == [f"{at}.png" for at in range(BATCH_BYTES // len(large))]
    with pytest.raises(InvalidInputError, match=r"cut\.png.*cut short"):
        list(batches)
