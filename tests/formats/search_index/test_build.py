"""Which segments are made anew when an index is brought up to date."""

from __future__ import annotations

import pytest

from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import Embedding, Image, Scalar, Text
from tensorrepo.formats.search_index.build import _joined, _sub_vectors
from tensorrepo.formats.search_index.kinds import index_request
from tensorrepo.repo.errors import InvalidInputError

VECTORS, WORDS = Column("v", Embedding("float32", 12)), Column("t", Text())


@pytest.mark.parametrize(
    ("rows", "live", "new", "expected"),
    [
        ([], [], 5, set()),
        ([1000], [1000], 10, set()),
        ([1000], [1000], 0, set()),
        ([1000], [1000], 501, {0}),
        ([1000, 30, 20], [1000, 30, 20], 15, {1, 2}),
        ([1000, 30, 20], [1000, 30, 20], 0, set()),
        ([1000, 400], [499, 400], 0, {0, 1}),
        ([1000, 4], [1000, 1], 0, {1}),
        ([1000], [0], 0, {0}),
    ],
)
def test_small_and_worn_segments_are_joined_with_what_is_new(
    rows: list[int], live: list[int], new: int, expected: set[int]
) -> None:
    assert _joined(rows, live, new) == expected


def test_segments_stay_few_however_many_rows_come_one_by_one() -> None:
    segments: list[int] = []
    read = 0
    for _ in range(2000):
        joined = _joined(segments, segments, 1)
        read += sum(segments[at] for at in joined)
        made = 1 + sum(segments[at] for at in joined)
        segments = [each for at, each in enumerate(segments) if at not in joined] + [made]
        assert len(segments) <= 12
    assert sum(segments) == 2000
    assert read <= 2000 * 12  # each row again as often as segments double


@pytest.mark.parametrize(("dim", "expected"), [(128, 16), (12, 2), (7, 1), (13, 13), (2, 1)])
def test_sub_vectors_divide_a_vector(dim: int, expected: int) -> None:
    assert _sub_vectors(dim) == expected
    assert dim % expected == 0


def test_the_usual_kind_follows_from_the_column() -> None:
    assert index_request(VECTORS, None, None, {}).kind == "ivf_pq"
    assert index_request(VECTORS, None, None, {}).metric == "l2"
    assert index_request(VECTORS, "hnsw", "dot", {"m": 8}).kind == "ivf_hnsw_sq"
    assert index_request(WORDS, None, None, {}).kind == "text"
    assert index_request(Column("n", Scalar("int32")), None, None, {}).kind == "btree"


@pytest.mark.parametrize(
    ("column", "kind", "metric", "options", "message"),
    [
        (VECTORS, "text", None, {}, "search looks for words in columns of Text"),
        (WORDS, "ivf_pq", None, {}, "nearest compares vectors"),
        (Column("n", Scalar("int32")), "ivf_pq", None, {}, "nearest compares vectors"),
        (Column("n", Image()), None, None, {}, "nearest compares vectors"),
        (Column("n", Scalar("int32")), "btree", "l2", {}, "metric is of vectors"),
        (VECTORS, "btree", None, {}, "an index of kind 'btree' is of a number"),
        (WORDS, "text", "l2", {}, "metric is of vectors"),
        (VECTORS, "rtree", None, {}, "kind"),
        (VECTORS, "ivf_pq", "hamming", {}, "metric"),
        (VECTORS, "ivf_pq", None, {"m": 3}, "takes partitions, sub_vectors; got 'm'"),
        (VECTORS, "ivf_pq", None, {"sub_vectors": 5}, "does not divide the 12 numbers"),
        (VECTORS, "ivf_pq", None, {"partitions": 0}, "partitions"),
        (WORDS, None, None, {"partitions": 2}, "takes no options"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(
    column: Column, kind: str, metric: str, options: dict[str, int], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        index_request(column, kind, metric, options)
