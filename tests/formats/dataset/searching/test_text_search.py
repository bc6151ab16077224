"""BM25 without an index against its definition, row by row."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.types import ColumnType, Json, Text
from tensorrepo.formats.dataset.searching import text_search
from tensorrepo.formats.dataset.searching.text_search import fitting_texts, words_of
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples

SEED = 11


def stored(texts: Any, kind: ColumnType | None = None) -> StoredDataset:
    """A dataset of one column `t`, in pages of few rows."""
    objects = MemoryObjects()
    schema = Schema((Column("t", kind or Text(), nullable=True),))
    link = write_dataset(objects, schema, [{"t": texts}], page_bytes=256, rng=random.Random(SEED))
    return open_dataset(objects, link.digest)


def plainly(texts: list[str | None], query: str) -> list[float]:
    """Scores of all rows; 0 where no word is there."""
    words = list(dict.fromkeys(re.findall(r"\w+", query.lower())))
    documents = [re.findall(r"\w+", text.lower()) for text in texts if text is not None]
    rows = len(documents)
    mean = sum(map(len, documents)) / max(1, rows)
    having = {word: sum(word in document for document in documents) for word in words}
    scores = []
    for text in texts:
        found = re.findall(r"\w+", (text or "").lower())
        score = 0.0
        for word in words:
            times = found.count(word)
            weight = math.log(1 + (rows - having[word] + 0.5) / (having[word] + 0.5))
            norm = 1.2 * (1 - 0.75 + 0.75 * len(found) / mean) if mean else 1.0
            score += weight * times * 2.2 / (times + norm)
        scores.append(score)
    return scores


WORDS = ["red", "Red", "car", "CAR!", "tree", "", "x_1", "naïve", "ДОМ", "東京", "...", "9"]
TEXTS = st.lists(
    st.one_of(st.none(), st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)),
    min_size=1,
    max_size=60,
)


@settings(max_examples=examples(20), deadline=None)
@given(TEXTS, st.sampled_from(["red car", "Naïve", "дом, 東京!", "x_1 9 tree", "absent"]))
def test_the_answer_is_that_of_the_definition(texts: list[str | None], query: str) -> None:
    expected = plainly(texts, query)
    order = [at for at in range(len(texts)) if expected[at] > 0]
    found = fitting_texts(stored(texts), "t", query, 1000)
    assert sorted(found.rows.tolist()) == order
    scores = (-found.keys).tolist()
    assert scores == pytest.approx([expected[at] for at in found.rows.tolist()])
    assert list(zip(found.keys.tolist(), found.rows.tolist(), strict=True)) == sorted(
        zip(found.keys.tolist(), found.rows.tolist(), strict=True)
    )


def test_equal_rows_come_in_the_order_of_the_dataset() -> None:
    found = fitting_texts(stored(["a red car", "tree"] * 100), "t", "red", 3)
    assert found.rows.tolist() == [0, 2, 4]
    assert len(set(found.keys.tolist())) == 1


def test_a_short_row_fits_better_than_a_long_one_and_a_rare_word_weighs_more() -> None:
    texts = ["red car on a long road by the sea", "red car", "red tree", "red house"]
    found = fitting_texts(stored(texts), "t", "red car")
    assert found.rows.tolist()[:2] == [1, 0]


@pytest.mark.soak
@pytest.mark.parametrize(("name", "value"), [("KEPT_BYTES", 40), ("SCAN_BYTES", 64)])
def test_an_answer_does_not_depend_on_how_much_is_kept(
    name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(SEED)
    dataset = stored([" ".join(rng.choices(WORDS, k=5)) for _ in range(300)])
    expected = fitting_texts(dataset, "t", "red car 東京", 20)
    monkeypatch.setattr(text_search, name, value)
    found = fitting_texts(dataset, "t", "red car 東京", 20)
    assert found.rows.tolist() == expected.rows.tolist()
    assert found.keys.tolist() == expected.keys.tolist()


def test_words_are_in_lower_case_each_once_with_their_marks() -> None:
    assert words_of("Red, red CAR-park! हिन्दी x_1") == ["red", "car", "park", "हिन्दी", "x_1"]


@pytest.mark.parametrize("query", ["", " ... !", " ".join(map(str, range(1025)))])
def test_a_query_without_words_or_with_too_many_is_refused(query: str) -> None:
    with pytest.raises(InvalidInputError, match="a query has 1 to 1,024 words"):
        words_of(query)


def test_a_column_of_no_text_is_refused() -> None:
    dataset = stored([{"a": 1}], Json())
    with pytest.raises(InvalidInputError, match=r"'t' is Json.*columns of Text"):
        fitting_texts(dataset, "t", "a")


@pytest.mark.parametrize("texts", [[], [None, None], [""]])
def test_nothing_is_found_in_nothing(texts: list[str | None]) -> None:
    assert fitting_texts(stored(texts), "t", "red").rows.tolist() == []


def test_numbers_of_rows_are_physical() -> None:
    found = fitting_texts(stored(["tree"] * 50 + ["red"]), "t", "red")
    assert found.rows.tolist() == [50]
    assert found.rows.dtype == np.int64
