from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.formats.exchange.registry import read
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import rows_of, store

GOOD = "".join(f"{row},{row}.5,text {row},2020-01-01 00:00:0{row}\n" for row in range(5))
HEADER = "number,real,text,at\n"


def test_text_without_damage_reads_the_same_either_way(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEADER + GOOD + ' 7 , 1e3,"a ""b""\n é",\n,,,\n')
    skipping = read(tmp_path / "t.csv", damaged="skip")
    assert rows_of(store(skipping)) == rows_of(store(read(tmp_path / "t.csv")))
    assert skipping.damage.count == 0


@pytest.mark.parametrize("header", [True, False])
def test_rows_that_do_not_fit_are_passed_over_and_told(header: bool, tmp_path: Path) -> None:
    # Beyond the first block, from which types are told.
    many = f"1,2.5,{'x' * 300},2020-01-01 00:00:00\n" * 20_000
    bad = "1,2.5\nmany,2.5,x,2020-01-01 00:00:00\n1,2,3,2020-01-01 00:00:00,5\n1,no,x,never\n"
    (tmp_path / "t.csv").write_text((HEADER if header else "") + many + bad + GOOD)
    reading = read(tmp_path / "t.csv", damaged="skip", header=header)
    assert len(store(reading)) == 20_005
    told = sorted((item.row, item.reason.rpartition(": ")[2]) for item in reading.damage.skipped)
    assert told == [
        (20_000, "has 2 cells, expected 4"),
        (20_001, "'many' is no int64"),
        (20_002, "has 5 cells, expected 4"),
        (20_003, "'no' is no double"),
    ]
    with pytest.raises(InvalidInputError, match="Expected 4 columns, got 2"):
        store(read(tmp_path / "t.csv", header=header))


def test_lines_of_json_that_do_not_fit_are_passed_over_and_told(tmp_path: Path) -> None:
    good = f'{{"a": 1, "b": "{"x" * 300}"}}\n' * 5_000
    bad = '{"a": 1\n{"a": "text"}\n{"c": 3}\n[]\n'
    (tmp_path / "t.jsonl").write_text(good + bad + good)
    reading = read(tmp_path / "t.jsonl", damaged="skip")
    assert len(store(reading)) == 10_000
    assert sorted(item.row or 0 for item in reading.damage.skipped) == [*range(5_000, 5_004)]
    with pytest.raises(InvalidInputError, match="line 5001"):
        store(read(tmp_path / "t.jsonl"))
