"""What the verbs that change a dataset in place have in common: threads, budget and an editor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.formats.dataset.tree.treeedit import TreeEditor
from tensorrepo.formats.dataset.write import ENCODE_THREADS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.formats.dataset.columns.schema import Schema
    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.repo.objects import ObjectSink

STEP_BYTES = 4 << 20  # of values that are looked at, at a time
MIN_QUARTER_BYTES = 4 << 10  # below this, chunks would be all footer


@dataclass(frozen=True, slots=True)
class Editing:
    """What a change is made with."""

    tree: TreeEditor
    encoders: ThreadPoolExecutor
    quarter_bytes: int


@contextmanager
def editing(
    objects: ObjectSink,
    dataset: Dataset,
    schema: Schema,
    groups: tuple[tuple[str, ...], ...],
    budget_bytes: int,
) -> Iterator[Editing]:
    """Threads, and an editor of `dataset`; what was begun is given up on an error."""
    quarter_bytes = max(MIN_QUARTER_BYTES, budget_bytes // 4)
    with (
        ThreadPoolExecutor(ENCODE_THREADS, "encode") as encoders,
        ThreadPoolExecutor(1, "store") as storers,
    ):
        tree = TreeEditor(objects, dataset, schema, groups, storers, quarter_bytes)
        try:
            yield Editing(tree, encoders, quarter_bytes)
        except BaseException:
            encoders.shutdown(wait=True, cancel_futures=True)
            storers.shutdown(wait=True, cancel_futures=True)
            raise


def keep_leaves(tree: TreeEditor, leaves: int) -> None:
    """Leave so many leaves as they are."""
    for _ in range(leaves):
        tree.keep()
