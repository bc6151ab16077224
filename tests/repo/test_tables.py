"""Tables have one description, and two forms: aligned text, and HTML that is safe and bounded."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.tables import (
    RecordList,
    RecordTable,
    Thumbnail,
    age_text,
    bounded_text,
)


class Cells(HTMLParser):
    """The texts of a piece of HTML, and the names of its elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_columns_stand_side_by_side_numbers_to_the_right() -> None:
    table = RecordTable(("title",), ("name", ">n"), (("a", 5), ("漢字", 1000)), more=3)
    assert table.text() == "title\nname     n\na        5\n漢字  1000\n... and 3 more"


def test_a_cell_of_several_lines_takes_as_many() -> None:
    table = RecordTable((), ("a", "b"), (("1\n2", "x"), ("3", "y")))
    assert table.text() == "a  b\n1  x\n2\n3  y"


@given(st.text(max_size=50), st.text(max_size=50))
def test_html_holds_no_element_that_a_text_names(name: str, cell: str) -> None:
    found = Cells(RecordTable((name,), (name,), ((cell,),)).html())
    assert found.names <= {"div", "table", "thead", "tbody", "tr", "th", "td", "br"}


@given(st.text())
def test_text_holds_nothing_that_a_terminal_obeys(cell: str) -> None:
    shown = RecordTable((cell,), (), ()).text()
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(shown)


def test_html_is_bounded_in_rows_columns_and_characters() -> None:
    wide = RecordTable(
        ("t",) * 1000, tuple(f"c{at}" for at in range(500)), (("x" * 10_000,) * 500,) * 500
    )
    html = wide.html()
    assert len(html) < 2_000_000
    assert "... and 450 more" in html
    assert "... 460 more" in html
    assert "800 more lines" in html


def test_a_thumbnail_that_cannot_be_made_is_its_words() -> None:
    none = RecordTable((), ("p",), ((Thumbnail("<png>", lambda: None),),))
    one = RecordTable((), ("p",), ((Thumbnail("<png>", lambda: "data:x"),),))
    assert "&lt;png&gt;" in none.html()
    assert '<img src="data:x" alt="&lt;png&gt;"' in one.html()
    assert none.text() == "p\n<png>"


def test_a_list_of_records_is_short_in_a_repr() -> None:
    assert repr(RecordList(range(20))) == "[0, 1, 2, 3, 4, 5, 6, 7, ... and 12 more]"
    assert RecordList([1]) == [1]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "less than a second"), (1, "1 second"), (59, "59 seconds"), (7200, "2 hours")],
)
def test_an_age_is_told_in_one_unit(seconds: float, words: str) -> None:
    assert age_text(seconds) == words


def test_a_text_is_cut_at_its_bound() -> None:
    assert bounded_text("abcdef", 4) == "abc…"
    assert bounded_text("abcd", 4) == "abcd"
