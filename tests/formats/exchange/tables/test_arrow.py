"""Arrow IPC files and streams."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tensorrepo.formats.exchange.registry import recognise
from tensorrepo.formats.exchange.tables.arrow import read_arrow
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import store

TABLE = pa.table({"n": range(1000), "t": [f"row {row}" for row in range(1000)]})


def stream(path: Path) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=100)
    return path


def test_a_stream_is_read_as_a_file_is(tmp_path: Path) -> None:
    path = stream(tmp_path / "t.arrow")
    assert recognise(path).name == "arrow"
    reading = read_arrow(path)
    assert reading.rows is None
    assert store(reading)["n"][:].tolist() == list(range(1000))


@pytest.mark.parametrize("cut", [1, 4, 8, 9, 500, 5000])
def test_a_stream_cut_anywhere_is_refused(cut: int, tmp_path: Path) -> None:
    path = stream(tmp_path / "t.arrow")
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InvalidInputError, match="end mark"):
        read_arrow(path)


def test_feather_with_compression_is_read(tmp_path: Path) -> None:
    feather = pytest.importorskip("pyarrow.feather")
    feather.write_feather(TABLE, str(tmp_path / "t.feather"), compression="lz4")
    assert len(store(read_arrow(tmp_path / "t.feather"))) == 1000


def test_offsets_that_point_outside_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    table = pa.table({"t": ["x" * 77_777]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    real, lie = (size.to_bytes(4, "little") for size in (77_777, 1 << 30))
    path.write_bytes(path.read_bytes().replace(real, lie))
    with pytest.raises(InvalidInputError, match=r"t\.arrow"):
        store(read_arrow(path))


def test_a_column_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    table = pa.table({"some name": [1]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    path.write_bytes(path.read_bytes().replace(b"some name", b"s\xebme name"))
    with pytest.raises(InvalidInputError, match=r"t\.arrow: has a damaged schema"):
        read_arrow(path)
