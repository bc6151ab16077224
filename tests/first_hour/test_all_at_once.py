"""F9: all that is wrong with a source is told in one message, by every format."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import tensorrepo as tr
from tests.formats.exchange.records import test_beton, test_mindrecord, test_tfrecord
from tests.support.builders.foreign import rows_of, store
from tests.support.builders.foreign_records import mds_folder
from tests.support.processes.shell import Shell


def test_columns_of_mds_that_are_not_read(shell: Shell) -> None:
    columns: dict[str, Any] = {"bad": ("pkl", None), "good": ("int", 8), "odd": ("pil", None)}
    mds_folder(shell.folder / "d", columns, [[b"\x80\x04.", struct.pack("<q", 5), b"x"]])
    told = shell.fails(8, "add", "d")
    assert "2 columns cannot be stored" in told
    assert "pickles" in told
    assert "column 'odd': holds raw pixels" in told
    assert "Leave them out: exclude=bad,odd" in told
    shell("add", "d", "-o", "exclude=bad,odd")
    assert shell.records("cat", "d", "--staged") == [{"good": 5}]


def test_shards_of_mds_that_are_not_there(tmp_path: Path) -> None:
    mds_folder(tmp_path / "d", {"n": ("int", 8)}, [[struct.pack("<q", 5)]])
    index = json.loads((tmp_path / "d/index.json").read_text())
    (shard,) = index["shards"]
    names = [shard["raw_data"]["basename"], "one.mds", "two.mds"]
    index["shards"] = [{**shard, "raw_data": {**shard["raw_data"], "basename": n}} for n in names]
    (tmp_path / "d/index.json").write_text(json.dumps(index))
    with pytest.raises(tr.InvalidInputError, match=r"2 shards cannot be read\..*one.mds.*two.mds"):
        tr.read(tmp_path / "d")


def test_features_of_tfrecord_that_are_not_read(tmp_path: Path) -> None:
    texts, integers = test_tfrecord.texts, test_tfrecord.integers
    record = {"a": integers(1), "b": texts(b"\xff", b"x"), "c": texts(b"\xfe", b"y")}
    path = test_tfrecord.write(tmp_path / "t.tfrecord", record)
    with pytest.raises(tr.InvalidInputError, match=r"^2 columns.*'b'.*'c'.*them out: exclude=b,c$"):
        tr.read(path)
    assert rows_of(store(tr.read(path, exclude="b,c"))) == [{"a": 1}]


def test_fields_of_beton_that_are_not_read(tmp_path: Path) -> None:
    at = test_beton.METADATA_AT - 8 * test_beton.FIELD_BYTES
    kinds = [(at + field * test_beton.FIELD_BYTES, b"\xff") for field in (0, 2)]
    path = test_beton.write(tmp_path, *kinds)
    with pytest.raises(tr.UnsupportedError, match=r"^2 fields.*'raw_image'.*'label'"):
        tr.read(path)


def test_fields_of_mindrecord_that_are_not_read(tmp_path: Path) -> None:
    golden = test_mindrecord.GOLDEN[8 : 8 + test_mindrecord.HEADER_BYTES]
    schema = json.loads(golden)["schema"]
    first, second = "label", "score"
    for name in (first, second):
        schema[0]["schema"][name]["type"] = "uint8"
    path = test_mindrecord.with_header(tmp_path, schema=schema)
    with pytest.raises(tr.UnsupportedError, match=f"^2 columns.*{first}.*{second}.*exclude="):
        tr.read(path)
    assert first not in tr.read(path, exclude=f"{first},{second}").schema.names


def test_lines_of_json_that_do_not_fit(shell: Shell) -> None:
    good = "".join(f'{{"n": {at}, "text": "{"x" * 100}"}}\n' for at in range(12_000))
    late = '{"n": "many"}\nnothing\n' + good[:500] + '{"m": 1}\n'
    (shell.folder / "rows.jsonl").write_text(good + late)
    told = shell.fails(2, "add", "rows.jsonl")
    assert "3 records cannot be read or do not fit" in told
    lines = [f"rows.jsonl, line {at}" for at in (12_001, 12_002, 12_007)]
    assert [line in told for line in lines] == [True, True, True]
    assert "'many' is no int64" in told
    assert "damaged=skip passes over them" in told


def test_of_many_bad_lines_the_first_are_told(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"n": 1}\n' + "nothing\n" * 1000)
    with pytest.raises(tr.InvalidInputError, match=r"^10 or more records.*line 11:"):
        tr.read(tmp_path / "rows.jsonl")
