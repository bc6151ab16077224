"""F36: JSON documents, text corpora and audio folders are read; a refusal is short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tensorrepo as tr
from tests.support.builders.foreign import rows_of, store
from tests.support.processes.shell import Shell


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


RECORDS = [{"a": 1, "text": "x", "more": {"b": [1]}}, {"a": 2, "text": None, "more": None}]


@pytest.mark.parametrize("form", [RECORDS, {"version": 1, "data": RECORDS}])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_objects_is_a_table(tmp_path: Path, form: Any, indent: int | None) -> None:
    path = tmp_path / "arr.json"
    path.write_text(json.dumps(form, indent=indent))
    source = tr.read(path)
    assert (source.origin.format, rows_of(store(source))) == ("json", RECORDS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[1, {"a": 1}]', "before record 1: expected a list of objects"),
        ('[{"a": 1}, 5]', "expected a list of objects, found b', 5]'"),
        ("[[1], [2]]", "arr.json, record at byte 1"),
        ('{"x": [{"a": 1}], "y": [{"b": 1}]}', "records under 'x' and 'y'"),
        ('[{"a": 1}', "cut short"),
        ("[]", "holds no JSON objects"),
    ],
)
def test_a_document_that_is_no_such_list_says_so(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "arr.json").write_text(text)
    with pytest.raises(tr.InvalidInputError, match=message):
        store(tr.read(tmp_path / "arr.json"))


@pytest.mark.parametrize(
    ("suffix", "text"), [("jsonl", '{"v": 1}\n{"v": 2}\n'), ("json", '[{"v": 1}, {"v": 2}]')]
)
def test_partitions_of_folders_of_json_are_columns(tmp_path: Path, suffix: str, text: str) -> None:
    names = [f"year={year}/kind=a%20b/part.{suffix}" for year in (2023, 2024)]
    written(tmp_path, {name: text.encode() for name in names})
    assert rows_of(store(tr.read(tmp_path))) == [
        {"v": v, "year": year, "kind": "a b"} for year in (2023, 2024) for v in (1, 2)
    ]


def test_a_text_file_is_a_row_a_line(tmp_path: Path) -> None:
    path = written(tmp_path, {"c.txt": "one\n\nzwölf\r\nend".encode()}) / "c.txt"
    assert rows_of(store(tr.read(path))) == [{"text": text} for text in ("one", "", "zwölf", "end")]
    assert rows_of(store(tr.read(path, by="file"))) == [{"text": "one\n\nzwölf\r\nend"}]


def test_a_folder_of_texts_is_a_row_a_file_with_its_class(tmp_path: Path) -> None:
    files = {"README.md": b"# Reviews", "classes.txt": b"pos\nneg\n"}
    files |= {
        f"{split}/{name}/1.txt": name.encode()
        for split in ("train", "test")
        for name in ("neg", "pos")
    }
    source = tr.read(written(tmp_path, files))
    found = store(source)
    assert found.schema.column("label").type == tr.ClassLabel(("pos", "neg"))
    assert [tuple(row.values()) for row in rows_of(found)] == [
        ("neg", 1, 1, "test/neg/1.txt"),
        ("pos", 0, 1, "test/pos/1.txt"),
        ("neg", 1, 0, "train/neg/1.txt"),
        ("pos", 0, 0, "train/pos/1.txt"),
    ]
    assert rows_of(store(tr.read(tmp_path, split="test")))[0] == {
        "text": "neg", "label": 1, "file": "test/neg/1.txt",
    }  # fmt: skip


def test_text_in_another_encoding_is_said_or_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path, {"c.txt": "gut\nfünf\n".encode("latin-1")}) / "c.txt"
    with pytest.raises(tr.InvalidInputError, match=r"c\.txt.*encoding=latin-1"):
        store(tr.read(path))
    assert len(store(tr.read(path, damaged="skip"))) == 1
    assert rows_of(store(tr.read(path, encoding="latin-1")))[1] == {"text": "fünf"}


def test_a_folder_of_sounds_keeps_their_bytes_and_classes(shell: Shell) -> None:
    sounds = {f"sounds/{name}/1.wav": b"RIFF\0" + name.encode() for name in ("cat", "dog")}
    written(shell.folder, {**sounds, "sounds/metadata.csv": b"a,b\n1,2\n"})
    shell("add", "sounds", "--dataset", "sounds")
    shell("commit", "-m", "Sounds")
    found = shell.repository().dataset("sounds")
    assert found.schema.names == ("audio", "label", "file")
    assert (found[1]["audio"], found[1]["label"]) == (b"RIFF\0dog", 1)
    shell("add", "sounds", "--dataset", "sounds", "--sync")
    assert "Nothing is staged" in shell("status")


def test_the_refusal_of_an_unknown_format_is_short(shell: Shell) -> None:
    written(shell.folder, {"what.bin": b"\1\2\3"})
    told = shell.fails(2, "add", "what.bin", "--dataset", "what")
    assert "--format" in told
    assert "tensorrepo add --help" in told
    assert len(told) < 400
