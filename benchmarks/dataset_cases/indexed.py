"""Neighbours, BM25 and conditions by an index, beside Lance's of the same kind and beside none."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from harness import SEED, Options, Skipped, medians_ms, portions, ratio, take_turns

import tensorrepo as tr
from tensorrepo.formats.dataset.metadata.row_ids import runs_of_ids
from tensorrepo.formats.dataset.read import StoredDataset, row_id_table
from tensorrepo.formats.dataset.searching.nearest import nearest_rows
from tensorrepo.formats.exchange.child_search import COLUMN
from tensorrepo.formats.search_index.indexed_nearest import nearest_by_index
from tensorrepo.formats.search_index.opened_index import IndexedVersion, OpenedIndexes
from tensorrepo.formats.search_index.segment_files import IndexFolders, files_below, store_files
from tensorrepo.formats.search_index.stored_index import IndexSegment, StoredIndex
from tensorrepo.formats.search_index.tuning import tuned
from tensorrepo.repo.objects.writer import ObjectWriter

ROWS, DIM, K, QUERIES = 1_000_000, 128, 10, 200
CENTRES, SPREAD = 5000, 0.5
SUB_VECTORS = 16
TEXTS, WORDS_EACH, VOCABULARY = 1_000_000, 10, 50_000
STEP = 1 << 16
VALUES, VALUE_STEP, RANGE = 20_000_000, 1 << 20, 100


def nearest_indexed(folder: Path, options: Options) -> dict[str, Any]:
    """Ten nearest of 1,000,000 x 128 by IVF_PQ at a recall of 0.95, beside Lance on its files."""
    rows = max(STEP, int(ROWS * options.scale))
    lance = _lance()
    repo = tr.init(folder / "store", author="Bench <bench@example.org>")
    with repo.transaction(message="vectors") as tx:
        draft = tx.create_dataset("d", columns={"v": tr.Embedding("float32", DIM)})
        for vectors in _vectors(rows, SEED):
            draft.append({"v": vectors})
    dataset = repo.dataset("d").stored
    theirs = lance.write_dataset(_reader(rows), str(folder / "lance"), max_rows_per_file=1 << 31)
    theirs = theirs.create_index(
        COLUMN, "IVF_PQ", num_partitions=int(rows**0.5), num_sub_vectors=SUB_VECTORS, metric="l2"
    )
    index, indexes = _same_index(folder, repo, dataset, rows)
    key = IndexedVersion(dataset.digest, dataset.digest, index.column_id)
    opened = indexes.of(key, index, dataset, dataset.schema.column("v"))
    queries = np.concatenate([*_vectors(QUERIES, SEED + 1)]).astype(np.float64)
    exact = [each.keys[-1] for each in nearest_rows(dataset, "v", queries, K)]
    asked = index.segments[0].options
    return {
        "rows": rows,
        "dim": DIM,
        "k": K,
        **_compared(options, opened, dataset, theirs, queries, exact, asked),
        "nprobes": asked["nprobes"],
        "refine": asked["refine"],
        "tuned_recall": index.segments[0].recall,
        "index_bytes": index.size_bytes,
        "lance": lance.__version__,
        "goal": "ours_of_lance >= 0.8 of queries/s at recall_ours >= 0.95",
    }


def _compared(
    options: Options,
    opened: Any,
    dataset: StoredDataset,
    theirs: Any,
    queries: Any,
    exact: list[float],
    asked: Any,
) -> dict[str, Any]:
    def ours() -> list[Any]:
        found = [nearest_by_index(opened, dataset, "v", query, K, "l2") for query in queries]
        return [each.ranked[0].keys for each in found if each is not None]

    def lances() -> list[Any]:
        scan = {"column": COLUMN, "k": K, "nprobes": asked["nprobes"]}
        scan["refine_factor"] = asked["refine"]
        tables = [
            theirs.scanner(
                columns=["_distance"],
                with_row_id=True,
                disable_scoring_autoprojection=True,
                nearest=scan | {"q": query.astype(np.float32)},
            ).to_table()
            for query in queries
        ]
        return [np.sqrt(each["_distance"].to_numpy()) for each in tables]

    def all_rows() -> None:
        nearest_rows(dataset, "v", queries[0], K)

    recalls = {"ours": _recall(ours(), exact), "lance": _recall(lances(), exact)}
    sides = {"ours": lambda: _done(ours), "lance": lambda: _done(lances), "exact_one": all_rows}
    seconds = take_turns(options.rounds, sides)
    found = medians_ms(seconds)
    return {
        "recall_ours": recalls["ours"],
        "recall_lance": recalls["lance"],
        "ours_of_lance": ratio(seconds["lance"], seconds["ours"]),
        "queries_s_ours": round(len(queries) / found["ours_ms"] * 1000),
        "queries_s_lance": round(len(queries) / found["lance_ms"] * 1000),
        "exact_one_ms": found["exact_one_ms"],
    }


def _done(search: Any) -> None:
    search()


def _recall(distances: list[Any], exact: list[float]) -> float:
    """Share of rows that are as near as the k-th nearest, up to rounding of float32."""
    hits = sum(
        int((each <= last * 1.0001).sum()) for each, last in zip(distances, exact, strict=True)
    )
    return round(hits / (K * len(exact)), 4)


def _same_index(
    folder: Path, repo: Any, dataset: StoredDataset, rows: int
) -> tuple[StoredIndex, OpenedIndexes]:
    """Lance's index as an entry holds it: its files without the rows."""
    bare, core = folder / "bare", repo.context.core
    shutil.copytree(folder / "lance", bare, ignore=shutil.ignore_patterns("data", "_transactions"))
    manifests = sorted((bare / "_versions").glob("*.manifest"))
    for each in [*manifests[1:], *(bare / "_versions").glob("*.json")]:
        each.unlink()
    writer = ObjectWriter(core.objects, core.log.refresh().state.graves)
    ids = runs_of_ids(row_id_table(dataset).of(np.arange(rows)))
    files = store_files(writer, bare, files_below(bare))
    writer.flush()
    segment = IndexSegment(ids, "ivf_pq", {"partitions": int(rows**0.5)}, files)
    indexes = OpenedIndexes(IndexFolders(folder / "cache", 1 << 40))
    (table,) = indexes.readers.tables(dataset.objects, indexes.folders, [segment], "vectors")
    segment = tuned(segment, table, dataset, np.arange(rows), "v", "l2")
    column = dataset.schema.column("v")
    index = StoredIndex(
        "datasets/d", dataset.digest, "v", column.id, "ivf_pq", "l2", {}, (segment,)
    )
    return index, indexes


def search_text_indexed(folder: Path, options: Options) -> dict[str, Any]:
    """BM25 of two words over 1,000,000 texts of ten words, by an index and without."""
    _lance()
    rows = max(1000, int(TEXTS * options.scale))
    repo = tr.init(folder / "store", author="Bench <bench@example.org>")
    with repo.transaction(message="texts") as tx:
        draft = tx.create_dataset("d", columns={"t": tr.Text()})
        for texts in _texts(rows):
            draft.append({"t": texts})
        tx.create_index("d", "t")
    dataset = repo.dataset("d")
    found: dict[str, Any] = {}
    for name, words in {"rare": "w2011 w4711", "mixed": "w5 w4711", "common": "w1 w2"}.items():
        by_index, exact = dataset.search("t", words), dataset.search("t", words, exact=True)
        assert by_index.rows.tolist() == exact.rows.tolist(), name
        sides = {
            "index": lambda words=words: _words(dataset, words, exact=False),
            "exact": lambda words=words: _words(dataset, words, exact=True),
        }
        seconds = take_turns(options.rounds, sides)
        found[f"{name}_times_as_fast"] = ratio(seconds["exact"], seconds["index"])
        found |= {f"{name}_{key}": value for key, value in medians_ms(seconds).items()}
    return {"rows": rows, "k": K, **found}


def _words(dataset: Any, words: str, *, exact: bool) -> None:
    assert len(dataset.search("t", words, exact=exact)) == K


def find_indexed(folder: Path, options: Options) -> dict[str, Any]:
    """Equality and a range of 100 on a permutation of int64, by an index, Lance's, and a scan."""
    lance = _lance()
    rows = max(STEP, int(VALUES * options.scale))
    values = np.random.default_rng(SEED).permutation(rows)
    repo = tr.init(folder / "store", author="Bench <bench@example.org>")
    with repo.transaction(message="values") as tx:
        draft = tx.create_dataset("d", columns={"u": "int64"})
        for part in portions(rows, VALUE_STEP):
            draft.append({"u": values[part]})
    made = {"index": _timed(lambda: _value_index(repo))}
    batches = (pa.record_batch({"u": values[part]}) for part in portions(rows, VALUE_STEP))
    reader = pa.RecordBatchReader.from_batches(pa.schema([("u", pa.int64())]), batches)
    theirs = lance.write_dataset(reader, str(folder / "lance"), max_rows_per_file=1 << 31)
    made["lance"] = _timed(lambda: theirs.create_scalar_index("u", "BTREE"))
    theirs = lance.dataset(str(folder / "lance"))
    found: dict[str, Any] = {"rows": rows, "range": RANGE, "lance": lance.__version__}
    found |= {f"made_{name}_s": round(seconds, 2) for name, seconds in made.items()}
    # A process that has just begun: the index and its blocks are read for the first time.
    opened = tr.open(repo.context.url).dataset("d")
    found["first_ms"] = round(1e3 * _timed(lambda: opened.find(_expression(7, 1))), 2)
    for name, width in (("equal", 1), ("range", RANGE)):
        found |= _found(options, opened, theirs, rows, width, name)
    return found


def _value_index(repo: Any) -> None:
    with repo.transaction(message="index") as tx:
        tx.create_index("d", "u")


def _found(
    options: Options, dataset: Any, theirs: Any, rows: int, width: int, name: str
) -> dict[str, Any]:
    """Each side is asked for other values in each round, all of them for the same."""
    wanted = np.random.default_rng(SEED + width).integers(0, rows - width, 20 * options.rounds)
    at = {side: iter(wanted.tolist()) for side in ("index", "text", "lance", "scan")}

    def lances() -> None:
        where = _between(next(at["lance"]), width)
        table = theirs.scanner(columns=[], with_row_id=True, filter=where).to_table()
        assert table.num_rows == width

    def ours(side: str, *, exact: bool = False) -> None:
        low = next(at[side])
        where = _between(low, width) if side != "index" else _expression(low, width)
        assert len(dataset.find(where, exact=exact)) == width

    sides = {
        "index": lambda: ours("index"),
        "text": lambda: ours("text"),
        "lance": lances,
    }
    warm = take_turns(10 * options.rounds, sides)
    scans = take_turns(options.rounds, {"scan": lambda: ours("scan", exact=True)})
    told = {f"{name}_{key}": value for key, value in medians_ms(warm | scans).items()}
    told[f"{name}_of_lance"] = ratio(warm["lance"], warm["index"])
    told[f"{name}_times_as_fast_as_a_scan"] = round(
        told[f"{name}_scan_ms"] / told[f"{name}_index_ms"], 1
    )
    return told


def _between(low: int, width: int) -> str:
    return f"u = {low}" if width == 1 else f"u >= {low} AND u < {low + width}"


def _expression(low: int, width: int) -> Any:
    column = tr.col("u")
    return column == low if width == 1 else (column >= low) & (column < low + width)


def _timed(act: Any) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def _lance() -> Any:
    try:
        import lance
    except ImportError as error:
        raise Skipped("pylance is not installed") from error
    return lance


def _vectors(rows: int, seed: int) -> Iterator[Any]:
    """Vectors around some centres, as embeddings of things of some kinds are."""
    centres = np.random.default_rng(SEED).standard_normal((CENTRES, DIM), np.float32)
    rng = np.random.default_rng(seed + 1)
    for part in portions(rows, STEP):
        count = part.stop - part.start
        noise = SPREAD * rng.standard_normal((count, DIM), np.float32)
        yield centres[rng.integers(0, CENTRES, count)] + noise


def _reader(rows: int) -> Any:
    kind = pa.list_(pa.float32(), DIM)
    schema = pa.schema([pa.field(COLUMN, kind)])
    batches = (
        pa.record_batch(
            [pa.FixedSizeListArray.from_arrays(pa.array(each.reshape(-1)), DIM)], schema=schema
        )
        for each in _vectors(rows, SEED)
    )
    return pa.RecordBatchReader.from_batches(schema, batches)


def _texts(rows: int) -> Iterator[list[str]]:
    rng = np.random.default_rng(SEED)
    for part in portions(rows, STEP):
        ranks = np.minimum(rng.zipf(1.2, (part.stop - part.start, WORDS_EACH)), VOCABULARY)
        yield [" ".join(f"w{each}" for each in row) for row in ranks.tolist()]


CASES = {
    "nearest_indexed": nearest_indexed,
    "search_text_indexed": search_text_indexed,
    "find_indexed": find_indexed,
}
