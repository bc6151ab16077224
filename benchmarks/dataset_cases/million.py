"""A dataset of a million fragments: how long opening takes, how much a small change writes.

Its metadata is made by a generator; the chunks that it names hold nothing, as no page is read.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import HERE, SEED, Options, written

import tensorrepo
from tensorrepo.formats.dataset.metadata.boundaries import ColumnPart, FragmentPart
from tensorrepo.formats.dataset.metadata.index import ColumnPages
from tensorrepo.formats.dataset.metadata.span_write import Fragment
from tensorrepo.formats.dataset.metadata.tree_write import TreeWriter
from tensorrepo.formats.dataset.pages.page import PAGE_ENTRY
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor
from tensorrepo.formats.dataset.write import column_id
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSink

FRAGMENTS, ROWS = 1_000_000, 1000
SIDE = 28
CHUNK_FRAGMENTS = 80  # share a chunk of images; labels of a hundred times as many share one
NAME = "large"


def million(folder: Path, options: Options) -> dict[str, Any]:
    """Open it in fresh processes; delete a row by its id; append ten rows."""
    place = folder / "repository"
    fragments = max(2, int(FRAGMENTS * options.scale))
    repository = tensorrepo.init(place)
    begun = time.perf_counter()
    with repository.transaction("main", message="generate") as change:
        root = generate(change.core.objects, fragments)
        change.core.stage(f"datasets/{NAME}", Entry(Kind.DATASET, root.digest))
    built = time.perf_counter() - begun
    opened = [_opened(place, fragments * ROWS) for _ in range(options.rounds)]

    dataset = repository.dataset(NAME)
    (row_id,) = dataset.row_ids([fragments * ROWS // 3])
    begun = time.perf_counter()
    with written(place) as deleted, repository.transaction("main", message="delete") as change:
        change.dataset(NAME).delete([row_id])
    seconds = time.perf_counter() - begun
    images = np.zeros((10, SIDE, SIDE), np.uint8)
    with written(place) as appended, repository.transaction("main", message="append") as change:
        change.dataset(NAME).append({"image": images, "label": np.arange(10)})
    assert len(repository.dataset(NAME)) == fragments * ROWS + 9
    return {
        "fragments": fragments,
        **{name: round(statistics.median(each[name] for each in opened), 1) for name in opened[0]},
        "delete_kib": deleted.bytes >> 10,
        "delete_ms": round(seconds * 1e3, 1),
        "append_kib": appended.bytes >> 10,
        "build_s": round(built, 1),
        "goal": "ready_ms < 1000, delete_kib < 512, append_kib < 1536",
    }


def _opened(place: Path, rows: int) -> dict[str, float]:
    """What a process finds that has just begun."""
    command = [
        sys.executable,
        str(HERE / "dataset_cases/million_open.py"),
        str(place),
        NAME,
        str(rows // 2),
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(found.stdout)
    return answer


# ------------------------------------------------------------------------------ the generator


def generate(objects: ObjectSink, fragments: int) -> ObjectLink:
    """A dataset of images and labels: a page of each in every fragment, chunks hold nothing."""
    schema = _schema()
    image, label = schema.columns
    rng, ids = np.random.default_rng(SEED), random.Random(SEED)
    chunk = objects.put(Kind.CHUNK, bytes(4096)).digest
    pages = [
        _Pages(image, SIDE * SIDE * ROWS + 4 * ROWS + 64, CHUNK_FRAGMENTS, chunk, rng),
        _Pages(label, 8 * ROWS + 64, 100 * CHUNK_FRAGMENTS, chunk, rng),
    ]
    stored_bytes = sum(each.stored_bytes for each in pages)
    with ThreadPoolExecutor(1) as storers:
        tree = TreeWriter(objects, schema, ((label.id,), (image.id,)), None, storers, 1 << 20)
        for number in range(fragments):
            parts = {each.column.id: each.part(number) for each in pages}
            fragment = Fragment(ids.getrandbits(64), ROWS, parts, stored_bytes=stored_bytes)
            tree.add_known(fragment, counted=True)
        return tree.finish({})


def _schema() -> Schema:
    columns = (Column("image", Tensor("uint8", (SIDE, SIDE))), Column("label", Scalar("int64")))
    return Schema(tuple(replace(each, id=column_id(None, each)) for each in columns))


class _Pages:
    """Pages of one column with sums of their own: metadata of real ones does not compress."""

    def __init__(
        self,
        column: Column,
        size: int,
        in_chunk: int,
        chunk: Digest,
        rng: np.random.Generator,
    ) -> None:
        self.column = column
        self.stored_bytes = -(-size // 64) * 64
        self._in_chunk = in_chunk
        self._chunk = chunk
        self._rng = rng

    def part(self, number: int) -> FragmentPart:
        entry = np.zeros(1, PAGE_ENTRY)
        entry["rows"] = ROWS
        entry["offset"] = number % self._in_chunk * self.stored_bytes
        entry["stored_bytes"] = entry["raw_bytes"] = self.stored_bytes
        entry["checksum"] = self._rng.integers(0, 1 << 63)
        tags = np.frombuffer(self._rng.bytes(16), np.uint8).reshape(1, 16)
        place = np.zeros(1, np.uint32)
        form = self.column.storage
        pages = ColumnPages(self.column.id, form, entry, tags, place)
        return FragmentPart((ColumnPart(self.column.id, form, pages, (self._chunk,)),))


CASES = {"million": million}
