"""How much memory a stream takes by the number of its pages: some, and ten times as many.

Metadata is made by a generator; every page of every fragment is the same 64 rows, so all can be
read. A process that has just begun opens the repository, makes a stream and takes some batches, by
groups of runs as from 2^22 runs on (of every row, of every second one, by weights, of rows of which
some were given other values, sorted by length, mixed, packed), or with all runs in view; packed
rows are arrays of any length.
Its peak counts, beyond what it took when the repository was open.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorrepo
from tensorrepo.formats.dataset.metadata.boundaries import ColumnPart, FragmentPart
from tensorrepo.formats.dataset.metadata.index import ColumnPages
from tensorrepo.formats.dataset.metadata.span_write import Fragment
from tensorrepo.formats.dataset.metadata.tree_write import TreeWriter
from tensorrepo.formats.dataset.pages.page import PAGE_ENTRY, encode_page
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Schema, Tensor
from tensorrepo.formats.dataset.schema.values import FixedValues, RaggedValues
from tensorrepo.formats.dataset.update import update_rows
from tensorrepo.formats.dataset.write import column_id
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSink
from tensorrepo.repo.objects.writer import ObjectWriter

if TYPE_CHECKING:
    from harness import Options


NAME, PATCHED, RAGGED, ROWS, BYTES, FRAGMENT_PAGES = "large", "patched", "ragged", 64, 64, 32
PAGES = 500_000
PATCHES = 64  # rows that were given other values, evenly over all pages
SCRIPT = Path(__file__).with_name("million_runs_steps.py")


def million_runs_memory(folder: Path, options: Options) -> dict[str, Any]:
    """Peaks of streams by groups over some and over ten times as many pages, in MiB."""
    few = max(20_000, int(PAGES * options.scale))
    found: dict[str, Any] = {"pages": [few, 10 * few]}
    for times in (1, 10):
        place = folder / f"repository-{times}"
        repository = tensorrepo.init(place)
        with repository.transaction("main", message="generate") as change:
            root = generate(change.core.objects, times * few // FRAGMENT_PAGES)
            change.core.stage(f"datasets/{NAME}", Entry(Kind.DATASET, root.digest))
            changed = patched(change.core.objects, root)
            change.core.stage(f"datasets/{PATCHED}", Entry(Kind.DATASET, changed.digest))
            root = generate(change.core.objects, times * few // FRAGMENT_PAGES, ragged=True)
            change.core.stage(f"datasets/{RAGGED}", Entry(Kind.DATASET, root.digest))
        for how in ("grouped", "view", "weighted", "buckets", "mix", "whole"):
            found[f"{how}_{times}x"] = _steps(place, NAME, how)
        found[f"patched_{times}x"] = _steps(place, PATCHED, "grouped")
        for how in ("packed", "packed_whole"):
            found[f"{how}_{times}x"] = _steps(place, RAGGED, how)
    growth = {}
    for kind, how in (("growth", "grouped"), ("growth_patched", "patched")):
        peaks = [found[f"{how}_{times}x"]["peak_mib"] for times in (1, 10)]
        growth[kind] = round(peaks[1] / peaks[0], 2)
    return found | growth | {"goal": "growth <= 1.1"}


def _steps(place: Path, name: str, how: str) -> dict[str, float]:
    command = [sys.executable, str(SCRIPT), str(place), name, how]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(run.stdout)
    return answer


def generate(objects: ObjectSink, fragments: int, *, ragged: bool = False) -> ObjectLink:
    """A dataset of so many fragments, each of the same pages, whose rows may be `ragged` ones."""
    column = Column("x", Tensor("uint8", (None if ragged else BYTES,)))
    column = replace(column, id=column_id(None, column))
    values = np.arange(ROWS * BYTES, dtype=np.uint8)
    fixed = FixedValues(values.reshape(ROWS, BYTES))
    ends = BYTES * np.arange(ROWS + 1)
    page = encode_page(RaggedValues(ends, values, (None,)) if ragged else fixed, column.storage)
    chunk = objects.put(Kind.CHUNK, page.data.tobytes()).digest
    entries = np.repeat(page.entry.astype(PAGE_ENTRY).reshape(1), FRAGMENT_PAGES)
    entries["first_row"] = ROWS * np.arange(FRAGMENT_PAGES)
    tags = np.tile(np.frombuffer(page.tag, np.uint8), (FRAGMENT_PAGES, 1))
    places = np.zeros(FRAGMENT_PAGES, np.uint32)
    form, ids = column.storage, random.Random(7)
    pages = ColumnPages(column.id, form, entries, tags, places)
    part = FragmentPart((ColumnPart(column.id, form, pages, (chunk,)),))
    stored_bytes = FRAGMENT_PAGES * page.data.nbytes
    with ThreadPoolExecutor(1) as storers:
        groups = ((column.id,),)
        tree = TreeWriter(objects, Schema((column,)), groups, None, storers, 1 << 20)
        for _ in range(fragments):
            fragment = Fragment(
                ids.getrandbits(64),
                ROWS * FRAGMENT_PAGES,
                {column.id: part},
                stored_bytes=stored_bytes,
            )
            tree.add_known(fragment, counted=False)
        return tree.finish({})


def patched(objects: ObjectWriter, root: ObjectLink) -> ObjectLink:
    """That dataset, after rows all over it were given other values."""
    dataset = open_dataset(objects, root.digest)
    step = max(1, dataset.rows // PATCHES)
    rows = np.arange(step // 2, dataset.rows, step)
    return update_rows(objects, dataset, rows, {"x": np.full((len(rows), BYTES), 9, np.uint8)})


CASES = {"million_runs_memory": million_runs_memory}
