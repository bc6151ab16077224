from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.exchange import json_records
from tensorrepo.formats.exchange.json_records import read_record, scan
from tensorrepo.repo.errors import InvalidInputError

texts = st.text(alphabet='ab"\\{}[],: \né', max_size=6)
values: Any = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
records = st.lists(st.dictionaries(texts, values, max_size=3), max_size=5)


def records_of(path: Path) -> list[tuple[str, Any]]:
    with path.open("rb") as file:
        return [(span.key, read_record(path, file, span, dict[str, Any])) for span in scan(path)]


@given(lists=st.dictionaries(texts, records, min_size=1, max_size=3), piece=st.integers(1, 40))
def test_every_record_is_found_wherever_pieces_end(
    lists: dict[str, Any], piece: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("scan") / "a.json"
    path.write_text(json.dumps(lists, ensure_ascii=False), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_records, "PIECE_BYTES", piece)
        found = records_of(path)
    assert found == [(key, record) for key, items in lists.items() for record in items]


def test_a_bare_list_has_records_without_a_key(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"a": [1, {"b": 2}]}, {}]')
    assert records_of(path) == [("", {"a": [1, {"b": 2}]}), ("", {})]


def test_an_object_that_stands_alone_is_a_record(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"version": "1", "info": {"year": [2017]}, "images": [{"id": 1}]}')
    assert records_of(path) == [("info", {"year": [2017]}), ("images", {"id": 1})]


@pytest.mark.parametrize(
    "text", ["", "   ", '{"a": [{"b": 1}', '{"a": "unfinished', "]", '{"a": []}}', "[] []", "3"]
)
def test_what_does_not_close_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=r"a\.json"):
        records_of(path)


def test_a_record_that_is_no_json_says_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"images": [{"id": 1}, {"id" 2}]}')
    with pytest.raises(InvalidInputError, match=r"a\.json, images at byte 23"):
        records_of(path)
