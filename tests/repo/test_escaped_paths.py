from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.escaped_paths import escape_path, unescape_path
from tensorrepo.repo.names import check_file_name, is_path

CHARACTERS = st.sampled_from("aZ0._- /é()%é2EF") | st.characters(exclude_categories=["Cs", "Cc"])


def escaped(name: str) -> str | None:
    try:
        return escape_path(name)
    except InvalidInputError:
        return None


@given(st.text(CHARACTERS, max_size=30))
def test_every_name_comes_back_from_its_path(name: str) -> None:
    path = escaped(name)
    assume(path is not None)
    assert path is not None
    assert is_path(path)
    assert unescape_path(path) == name


@given(st.text(st.sampled_from("a_-2EeF."), min_size=1, max_size=8))
def test_names_that_look_escaped_come_back_too(name: str) -> None:
    path = escaped(name)
    assert path is None or unescape_path(path) == name


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (".gitattributes", "_-2Egitattributes"),
        ("data/train_00-of-01.parquet", "data/train_00-of-01.parquet"),
        ("Vocab (1).txt", "Vocab_-20_-281_-29.txt"),
        ("a_-2Eb", "a_-5F-2Eb"),
        ("nul.txt", "_-6Eul.txt"),
        ("-x", "_-2Dx"),
        ("end.", "end_-2E"),
        ("é", "_-C3_-A9"),
    ],
)
def test_what_the_grammar_knows_stays_and_the_rest_becomes_digits(name: str, path: str) -> None:
    assert escape_path(name) == path


@pytest.mark.parametrize(
    "name", ["", "..", "a/../b", "/a", "a//b", "a\\b", "a:b", "a\0", "x" * 300]
)
def test_names_that_no_file_has_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError):
        escape_path(name)


@pytest.mark.parametrize("path", ["a_-ZZ", "_-61b", "plain", "_-C3"])
def test_paths_that_nothing_was_escaped_to_stay(path: str) -> None:
    assert unescape_path(path) == path
    assert check_file_name(path) == path
