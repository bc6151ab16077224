"""Exact nearest neighbours beside the sum of the same column, and BM25 over a column of text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEED, Options, medians_ms, portions, ratio, reopen, store_dataset, take_turns

from tensorrepo.formats.dataset.read import StoredDataset, iterate
from tensorrepo.formats.dataset.schema.schema import Embedding, Schema, Text
from tensorrepo.formats.dataset.searching.nearest import METRICS, nearest_rows
from tensorrepo.formats.dataset.searching.text_search import fitting_texts

ROWS, DIM, K, QUERIES = 1_000_000, 128, 10, 32
TEXTS, WORDS_EACH, VOCABULARY = 200_000, 10, 20_000
STEP = 1 << 16


def nearest_exact(folder: Path, options: Options) -> dict[str, Any]:
    """Ten nearest of 1,000,000 x 128, one query and 32, against summing; all bytes proved."""
    rows = max(STEP, int(ROWS * options.scale))
    digest = store_dataset(
        str(folder / "store"), {}, Schema.of({"v": Embedding("float32", DIM)}), _vectors(rows)
    )
    dataset = reopen(str(folder / "store"), {}, digest)
    queries = np.random.default_rng(SEED + 1).standard_normal((QUERIES, DIM))
    _check(dataset, queries[0])  # and proves the pages
    sides: dict[str, Any] = {"sum": lambda: _sum(dataset)}
    for metric in METRICS:
        sides[metric] = lambda metric=metric: _near(dataset, queries[0], metric)
    sides["several"] = lambda: _near(dataset, queries, "l2")
    seconds = take_turns(options.rounds, sides)
    found = {f"{name}_of_sum": ratio(seconds["sum"], seconds[name]) for name in METRICS}
    return {
        "rows": rows,
        "dim": DIM,
        "k": K,
        **found,
        **medians_ms(seconds),
        "several": QUERIES,
        "goal": "l2_of_sum >= 0.5, cosine_of_sum >= 0.5, dot_of_sum >= 0.5",
    }


def _vectors(rows: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(SEED)
    for part in portions(rows, STEP):
        yield {"v": rng.standard_normal((part.stop - part.start, DIM), np.float32)}


def _sum(dataset: StoredDataset) -> None:
    total = sum(float(batch["v"].values.sum()) for batch in iterate(dataset, ["v"]))  # type: ignore[union-attr]
    assert np.isfinite(total)


def _near(dataset: StoredDataset, query: Any, metric: str) -> None:
    assert all(len(each.rows) == K for each in nearest_rows(dataset, "v", query, K, metric))


def _check(dataset: StoredDataset, query: Any) -> None:
    """The first answer is what a loop over all batches says."""
    every = [
        np.sqrt(((batch["v"].values - query) ** 2).sum(axis=1))  # type: ignore[union-attr]
        for batch in iterate(dataset, ["v"])
    ]
    distances = np.concatenate(every)
    (found,) = nearest_rows(dataset, "v", query, K)
    assert found.rows.tolist() == np.argsort(distances, kind="stable")[:K].tolist()


def search_text_exact(folder: Path, options: Options) -> dict[str, Any]:
    """BM25 of two words over 200,000 texts of ten words, without an index."""
    rows = max(1000, int(TEXTS * options.scale))
    digest = store_dataset(str(folder / "store"), {}, Schema.of({"t": Text()}), _texts(rows))
    dataset = reopen(str(folder / "store"), {}, digest)
    _search(dataset)  # proves the pages
    seconds = take_turns(options.rounds, {"search": lambda: _search(dataset)})
    return {"rows": rows, "words_each": WORDS_EACH, "k": K, **medians_ms(seconds)}


def _search(dataset: StoredDataset) -> None:
    assert len(fitting_texts(dataset, "t", "w1 w17", K).rows) == K


def _texts(rows: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(SEED)
    for part in portions(rows, STEP):
        ranks = np.minimum(rng.zipf(1.3, (part.stop - part.start, WORDS_EACH)), VOCABULARY)
        yield {"t": [" ".join(f"w{each}" for each in row) for row in ranks.tolist()]}


CASES = {"nearest_exact": nearest_exact, "search_text_exact": search_text_exact}
