"""Edges: words of earlier versions, what is public of a place, how many a dataset holds."""

from __future__ import annotations

import pytest

from tensorrepo.formats.common.provenance import (
    MAX_EDGES,
    RELATIONS,
    ProvenanceEdge,
    check_edge,
    edges_of,
    imported_from,
    relation_of,
    with_edges,
)
from tensorrepo.repo.errors import InvalidInputError


@pytest.mark.parametrize(
    ("word", "today"),
    [("parent", "fine-tuned-from"), ("trained_on", "trained-on"), ("made-by", "made-by")],
)
def test_earlier_words_are_those_of_today(word: str, today: str) -> None:
    assert relation_of(word) == today
    assert today in RELATIONS


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("s3://key:secret@bucket/raw/a.parquet?X-Amz-Signature=1#x", "s3://bucket/raw/a.parquet"),
        ("https://example.org:8080/a.csv", "https://example.org:8080/a.csv"),
        ("/home/ada/secret project/photos", "photos"),
        ("file:///home/ada/photos", "photos"),
        ("photos/", "photos"),
        (".", "."),
    ],
)
def test_of_a_place_no_secret_and_no_folder_of_somebody_is_told(path: str, told: str) -> None:
    assert imported_from(path, format="csv", etag=None) == ProvenanceEdge(
        "imported-from", told, "", None, {"format": "csv"}
    )


@pytest.mark.parametrize(
    "edge",
    [
        ProvenanceEdge("", "a", ""),
        ProvenanceEdge("x" * 65, "a", ""),
        ProvenanceEdge("used", "a", "12"),
        ProvenanceEdge("used", "a", "", "12"),
        ProvenanceEdge("used", "a", "", None, {"a": object()}),
    ],
)
def test_what_is_no_edge_is_refused(edge: ProvenanceEdge) -> None:
    with pytest.raises(InvalidInputError):
        check_edge(edge)


def test_a_dataset_holds_each_edge_once_and_the_newest_of_very_many() -> None:
    first, second = ProvenanceEdge("used", "a", ""), ProvenanceEdge("used", "b", "")
    held = with_edges(with_edges((), [first, second]), [first])
    assert edges_of(held) == (second, first)
    many = with_edges(held, [ProvenanceEdge("used", str(at), "") for at in range(MAX_EDGES)])
    assert (len(many), edges_of(many)[0].path) == (MAX_EDGES, "0")


def test_maps_of_other_writers_are_passed_over() -> None:
    assert edges_of([{"relation": 7}, {"from": "x"}, {"relation": "used", "path": "a"}]) == ()
