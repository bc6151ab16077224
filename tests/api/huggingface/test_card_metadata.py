"""What is in front of a card is data of whoever wrote it: it is read, or told as a fault."""

from __future__ import annotations

import json

import pytest

from tensorrepo.api.huggingface.card_metadata import card_metadata, parse_metadata
from tensorrepo.repo.errors import InvalidInputError, TooLargeError


def card(front: str) -> str:
    return f"---\n{front}\n---\n# Words\n"


def test_names_and_moments_are_text_as_json_has_them() -> None:
    found = parse_metadata(card("date: 2020-01-02\n1: {a: [true, null, 1.5]}\nlong: 0x" + "f" * 20))
    assert found == {"date": "2020-01-02", "1": {"a": [True, None, 1.5]}, "long": str(16**20 - 1)}


@pytest.mark.parametrize("text", ["", "# x", "---\nlicense: mit\nno end", "---\n\n---\n"])
def test_a_card_with_nothing_in_front_says_nothing(text: str) -> None:
    assert parse_metadata(text) == {}


def test_halves_of_characters_can_be_sent_on() -> None:
    assert json.dumps(parse_metadata(card('x: "\\ud800"')), ensure_ascii=False).encode()


def bomb(line: str) -> str:
    """Each line names the one before ten times."""
    return "\n".join(["a0: &a0 {k0: 1}", *(line.format(n, n - 1) for n in range(1, 12))])


@pytest.mark.parametrize(
    "front",
    [
        "- a\n- b",
        "license: [unclosed",
        "x: &a [*a]",
        "x: !!timestamp zz",
        "x: !!bool zz",
        "x: !!int ''",
        "x: !!python/object/apply:os.getcwd []",
        "x: " + "[" * 100_000,
        "x: 0x" + "f" * 5000,
        bomb("a{0}: &a{0} [" + "*a{1}, " * 10 + "]"),
        bomb("a{0}: &a{0} {{<<: [" + "*a{1}, " * 10 + "]}}"),
    ],
    ids=range(11),
)
def test_what_cannot_be_read_is_a_fault_of_the_card(front: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_metadata(card(front))
    assert card_metadata(card(front)) == {}


def test_longer_metadata_than_are_looked_at_are_told_as_that() -> None:
    with pytest.raises(TooLargeError, match="10 at most"):
        parse_metadata(card("license: mit"), most_characters=10)
