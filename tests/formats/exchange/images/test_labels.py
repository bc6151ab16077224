from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import Column, Image, Json, Scalar, Tensor, Text
from tensorrepo.formats.exchange.registry import read, recognise
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders.foreign import png, rows_of, store

A, B = (png(np.full((2, 3), value, np.uint8)) for value in (1, 2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "x").mkdir()
    (tmp_path / "a.png").write_bytes(A)
    (tmp_path / "x" / "b.png").write_bytes(B)
    return tmp_path


TABLES = {
    "metadata.csv": 'file_name,label,text\nx/b.png,3,"one, é"\na.png,,two\n',
    "labels.tsv": "file\tlabel\ttext\nx/b.png\t3\tone, é\na.png\t\ttwo\n",
    "metadata.jsonl": '{"file_name": "x/b.png", "label": 3, "text": "one, é"}\n'
    '{"file_name": "a.png", "text": "two"}\n',
    "labels.json": '[{"path": "x/b.png", "label": 3, "text": "one, é"},'
    ' {"path": "a.png", "label": null, "text": "two"}]',
    "of.json": '{"x/b.png": {"label": 3, "text": "one, é"}, "a.png": {"text": "two"}}',
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_beside_images_is_found_and_gives_the_columns(name: str, folder: Path) -> None:
    (folder / name).write_text(TABLES[name], "utf-8")
    assert recognise(folder).name == "images"
    rows = [tuple(row.values()) for row in rows_of(store(read(folder)))]
    assert [sorted(map(str, row)) for row in rows] == [
        sorted(map(str, row)) for row in [(B, "x/b.png", 3, "one, é"), (A, "a.png", None, "two")]
    ]


def test_columns_keep_their_types(folder: Path) -> None:
    lines = [
        {"file_name": "a.png", "boxes": [1.5, 2], "facts": {"a": 1}, "label": 1},
        {"file_name": "x/b.png", "boxes": [], "facts": None, "label": 2},
    ]
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    reading = read(folder)
    assert reading.schema.columns == (
        Column("image", Image("png")),
        Column("file_name", Text()),
        Column("boxes", Tensor("float64", (None,)), nullable=True),
        Column("facts", Json(), nullable=True),
        Column("label", Scalar("int64"), nullable=True),
    )
    row = store(reading)[0]
    assert row["boxes"].tolist() == [1.5, 2]
    assert row["facts"] == {"a": 1}


def test_moments_keep_their_nanoseconds(folder: Path) -> None:
    text = "file,at\na.png,2020-01-02 03:04:05.123456789\nx/b.png,\n"
    (folder / "t.csv").write_text(text)
    rows = store(read(folder))
    assert str(rows[0]["at"]).endswith("05.123456789")
    assert rows[1]["at"] is None


def test_a_file_may_have_several_rows(folder: Path) -> None:
    (folder / "t.csv").write_text("file,n\na.png,1\nx/b.png,2\na.png,3\n")
    assert [row["n"] for row in store(read(folder))] == [1, 2, 3]


def test_a_column_of_names_called_image_makes_room_for_the_pictures(folder: Path) -> None:
    (folder / "t.csv").write_text("image,n\na.png,1\nx/b.png,2\n")
    rows = list(store(read(folder)))
    assert [row["file"] for row in rows] == ["a.png", "x/b.png"]
    assert rows[0]["image"] == A


def test_another_column_of_names_is_said(folder: Path) -> None:
    (folder / "t.csv").write_text("what,n\na.png,1\nx/b.png,2\n")
    with pytest.raises(InvalidInputError, match="file_column"):
        read(folder, labels="t.csv")
    assert len(store(read(folder, labels="t.csv", file_column="what"))) == 2
    with pytest.raises(InvalidInputError, match="no column 'which'"):
        read(folder, labels="t.csv", file_column="which")


def test_names_may_be_relative_to_the_folder_of_the_table(folder: Path) -> None:
    (folder / "x" / "t.csv").write_text("file,n\nb.png,1\n")
    assert [row["image"] for row in store(read(folder, labels="x/t.csv"))] == [B]


def test_names_may_be_relative_to_the_folder_that_is_read(folder: Path) -> None:
    (folder / "x" / "t.csv").write_text("file,n\nx/b.png,1\na.png,2\n")
    assert [row["image"] for row in store(read(folder, labels="x/t.csv"))] == [B, A]


def test_a_row_without_its_file_is_named(folder: Path) -> None:
    (folder / "t.csv").write_text("file,n\na.png,1\nx/b.png,2\ngone.png,3\n")
    with pytest.raises(InvalidInputError, match=r"t\.csv: names 'gone\.png'.*missing=skip"):
        read(folder)
    assert len(store(read(folder, missing="skip"))) == 2


def test_a_file_without_a_row_is_named(folder: Path) -> None:
    (folder / "t.csv").write_text("file,n\na.png,1\n")
    with pytest.raises(InvalidInputError, match=r"no row for 'x/b\.png'.*missing=skip"):
        read(folder)
    reading = read(folder, missing="skip")
    assert [row["n"] for row in store(reading)] == [1]
    assert "x/b.png" in reading.notes[1]


def test_a_table_about_something_else_is_left_alone(folder: Path) -> None:
    (folder / "prices.csv").write_text("file,price\nnothing-here,3\n")
    assert read(folder).schema.names == ("image", "label", "file")


def test_folders_can_be_asked_for_beside_a_table(folder: Path) -> None:
    (folder / "t.csv").write_text("file,n\na.png,1\nx/b.png,2\n")
    assert read(folder, labels="folder").schema.names == ("image", "label", "file")


def test_two_tables_ask_for_one(folder: Path) -> None:
    (folder / "t.csv").write_text("file,n\na.png,1\nx/b.png,2\n")
    (folder / "u.csv").write_text("file,n\na.png,7\nx/b.png,2\n")
    with pytest.raises(InvalidInputError, match=r"'t\.csv', 'u\.csv'"):
        read(folder)
    assert store(read(folder, labels="u.csv"))[0]["n"] == 7


@pytest.mark.parametrize("name", ["../a.png", "/etc/passwd", "x/../../a.png"])
def test_no_name_leads_out_of_the_folder(name: str, folder: Path) -> None:
    (folder / "t.csv").write_text(f"file,n\na.png,1\nx/b.png,2\n{name},3\n")
    with pytest.raises(InvalidInputError, match="inside this folder"):
        store(read(folder, labels="t.csv"))


def test_a_table_that_is_not_there_is_not_found(folder: Path) -> None:
    with pytest.raises(NotFoundError, match=r"t\.csv"):
        read(folder, labels="t.csv")


def test_damaged_images_can_be_passed_over(folder: Path) -> None:
    (folder / "t.csv").write_text("file,n\na.png,1\nx/b.png,2\n")
    (folder / "a.png").write_bytes(A[:-5])
    with pytest.raises(InvalidInputError, match="cut short"):
        store(read(folder))
    reading = read(folder, damaged="skip")
    assert [row["n"] for row in store(reading)] == [2]
    assert [(item.row, reading.damage.count) for item in reading.damage.skipped] == [(0, 1)]
