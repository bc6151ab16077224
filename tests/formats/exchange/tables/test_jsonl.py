"""JSON lines: types inferred from the first lines, then enforced."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tensorrepo.formats.dataset.schema.schema import Json, Scalar, Tensor, Text
from tensorrepo.formats.dataset.schema.types import List, Struct
from tensorrepo.formats.exchange.tables import jsonl
from tensorrepo.formats.exchange.tables.jsonl import read_jsonl
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import rows_of, store


def written(tmp_path: Path, *rows: object, name: str = "t.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 64)


def test_types_follow_from_the_values(tmp_path: Path) -> None:
    row = {"n": 1, "f": 0.5, "b": True, "t": "é", "v": [1, 2], "o": {"a": 1}, "w": ["x"], "z": None}
    reading = read_jsonl(written(tmp_path, row, {**row, "v": []}))
    kinds = {column.name: column.type for column in reading.schema.columns}
    assert kinds == {
        "n": Scalar("int64"),
        "f": Scalar("float64"),
        "b": Scalar("bool"),
        "t": Text(),
        "v": Tensor("int64", (None,)),
        "o": Struct((("a", Scalar("int64")),)),
        "w": List(Text()),
        "z": Text(),
    }
    assert rows_of(store(reading)) == [row, {**row, "v": []}]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1, None], [2]], List(Scalar("int64"))),
        ([[[1], [2, 3]], []], List(List(Scalar("int64")))),
        (
            [[{"a": "x", "b": [0.5]}], None],
            List(Struct((("a", Text()), ("b", List(Scalar("float64")))))),
        ),
        ([{"a": {"b": True}}, {"a": None}], Struct((("a", Struct((("b", Scalar("bool")),))),))),
        ([{"a": 1}, {"b": 1}], Json()),
        ([{"a": {"b": 1}}, {"a": {}}], Json()),
        ([{"a": 1}, {"a": "x"}], Json()),
        ([{"a": None}, {"a": None}], Json()),
        ([{}], Json()),
        ([[], []], Json()),
        ([[1, "x"]], Json()),
        ([{f"user {at}": at for at in range(300)}], Json()),
    ],
)
def test_lists_and_objects_that_agree_are_lists_and_structs(
    values: list[object], expected: object, tmp_path: Path
) -> None:
    rows = [{"v": value} for value in values]
    reading = read_jsonl(written(tmp_path, *rows))
    assert reading.schema.column("v").type == expected
    assert rows_of(store(reading)) == rows


@pytest.mark.usefixtures("small_blocks")
def test_objects_that_get_a_key_later_name_the_line_and_the_way_out(tmp_path: Path) -> None:
    rows = [{"v": {"a": 1}}] * 20 + [{"v": {}}, {"v": {"a": 2, "b": 3}}]
    path = written(tmp_path, *rows)
    with pytest.raises(InvalidInputError, match=r"line 22, column 'v': .* Option json_columns=v"):
        store(read_jsonl(path))
    assert rows_of(store(read_jsonl(path, json_columns=("v",)))) == rows
    assert read_jsonl(path, json_columns=("*",)).schema.column("v").type == Json()
    passed = store(read_jsonl(path, damaged=True))
    assert rows_of(passed)[20] == {"v": {"a": None}}
    assert len(passed) == 21


def test_a_key_that_a_line_lacks_is_null(tmp_path: Path) -> None:
    path = written(tmp_path, {"a": 1, "b": 2}, {"a": 3})
    assert rows_of(store(read_jsonl(path))) == [{"a": 1, "b": 2}, {"a": 3, "b": None}]


def test_empty_lines_and_gzip_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a":1}\n\n  \n{"a":2}'))
    assert store(read_jsonl(path))["a"][:].tolist() == [1, 2]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("bad", ["x", 2.5, 1 << 70, [1]])
def test_a_later_value_that_does_not_fit_names_line_and_column(bad: object, tmp_path: Path) -> None:
    path = written(tmp_path, *[{"n": 1}] * 30, {"n": bad})
    with pytest.raises(InvalidInputError, match=r"t\.jsonl, line 31, column 'n': .* is no int64"):
        store(read_jsonl(path))


@pytest.mark.usefixtures("small_blocks")
def test_a_key_that_comes_later_names_line_and_key(tmp_path: Path) -> None:
    path = written(tmp_path, *[{"n": 1}] * 30, {"n": 1, "m": 2})
    with pytest.raises(InvalidInputError, match="line 31: has a new key 'm'"):
        store(read_jsonl(path))


@pytest.mark.parametrize("line", ["[1]", "3", '{"a": }', '{"a": "', "\udcff", "[" * 100_000])
def test_a_line_that_is_no_object_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(InvalidInputError, match=r"line 2: is not a JSON object"):
        read_jsonl(path)


@pytest.mark.parametrize(("text", "says"), [("", "no JSON objects"), ("{}\n", "no keys")])
def test_files_without_columns_are_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(InvalidInputError, match=says):
        read_jsonl(tmp_path / "t.jsonl")


def test_files_of_a_folder_follow_each_other(tmp_path: Path) -> None:
    written(tmp_path, {"a": 2}, name="b.jsonl")
    written(tmp_path, {"a": 1}, name="a.ndjson")
    reading = read_jsonl(tmp_path)
    assert reading.origin.files == 2
    assert store(reading)["a"][:].tolist() == [1, 2]
