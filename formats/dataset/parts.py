"""Two-step writes: rows are stored by workers anywhere, and put behind a dataset by one process.

A part is a dataset of its own that nobody's commit names: `write_part` gives its columns the ids
and groups that they have in the dataset it is for, so that `append_parts` links its chunks and
writes metadata alone. What a part says of itself is not believed: its metadata is read and proved,
rows are counted, statistics are summed up from its pages, its chunks are looked for, and a sample
of its pages is decoded and compared with what is said of them.

A part has a key, from which the uids of its fragments follow: a worker that is started again writes
rows with the same ids, and rows that the dataset has already are known by them.

Source:
    docs/spec/parts.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal

import numpy as np

from tensorrepo.formats.common.provenance import ProvenanceEdge, with_edges
from tensorrepo.formats.dataset.metadata.boundaries import UNIQUE_BITS
from tensorrepo.formats.dataset.metadata.span_write import (
    Fragment,
    read_fragments,
    regrouped,
)
from tensorrepo.formats.dataset.metadata.tree_write import Groups, TreeWriter, known_entries
from tensorrepo.formats.dataset.pages.page import PAGE_FOREIGN
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset, row_id_table
from tensorrepo.formats.dataset.schema.schema import Column, InputBatch, Schema
from tensorrepo.formats.dataset.schema.values import offsets_of
from tensorrepo.formats.dataset.verification import verify_dataset
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.dataset.writing.fragment_write import writer_threads
from tensorrepo.repo.changes.gc_fence import store_again
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CommitExpired,
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
)
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.threads import ordered_map

Verify = Literal["sample", "all"]
SAMPLED_PAGES: Final = 128  # of all parts of one call
WAITING_BYTES: Final = 16 << 20
_THREADS: Final = 8  # that look for chunks
_UNIQUE: Final = (1 << UNIQUE_BITS) - 1


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Rows that were stored for a dataset: `key` names the part, `root` is where they are."""

    key: str
    root: Digest
    rows: int


@dataclass(frozen=True, slots=True)
class AppendedParts:
    """What became of parts.

    Attributes:
        appended: keys of those whose rows were put behind the dataset, in their order.
        present: keys of those whose rows the dataset had already.
        repeated: number of copies that were passed over, since their key had come before.
        rows: rows that were put behind the dataset.
    """

    appended: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    repeated: int = 0
    rows: int = 0


def part_ids(key: str) -> random.Random:
    """The source of the uids of a part's fragments: the same for the same key."""
    return random.Random(int.from_bytes(content_tag(b"part\0" + key.encode()), "little"))


def write_part(
    objects: ObjectSink,
    batches: Iterable[InputBatch],
    key: str,
    *,
    schema: Schema,
    like: StoredDataset | None,
    **options: Any,
) -> ObjectLink:
    """Store rows that are to be put behind a dataset later.

    Args:
        objects: store of the objects.
        batches: as for `write_dataset`.
        key: name of the part, from which the ids of its rows follow.
        schema: the columns.
        like: the dataset that the rows are for; None: one that is made with `schema`.
        **options: further ones of `write_dataset`.

    Returns:
        Link of the root of the part.
    """
    return write_dataset(objects, schema, batches, like=like, rng=part_ids(key), **options)


def append_parts(
    objects: ObjectWriter,
    base: StoredDataset,
    parts: Sequence[RowsPart],
    *,
    verify: Verify = "sample",
    edges: Iterable[ProvenanceEdge] = (),
    rng: random.Random | None = None,
) -> tuple[Digest, AppendedParts]:
    """Put the rows of parts behind a dataset, in their order, each part once.

    Memory is bounded by the metadata of one part, and of the last leaf of the dataset.

    Args:
        objects: the transaction's store.
        base: the dataset.
        parts: what to append; of copies with the same key the first one counts.
        verify: pages that are decoded and compared with what is said of them: a sample of
            `SAMPLED_PAGES` of all parts together, or all.
        edges: origins of the rows.
        rng: chance for the sample; None: the system's.

    Returns:
        Digest of the new root, that of `base` where nothing was appended; and what became of them.

    Raises:
        CommitExpired: an object of a part was collected, and no copy is left.
        ConflictError: the dataset has rows of another part with that key.
        CorruptError: a part is not what it says.
        InvalidInputError: its columns are not those of the dataset, or two copies of a part have
            different numbers of rows.
    """
    wanted = _once(parts)
    threads = min(_THREADS, len(wanted))
    opening = partial(open_part, objects, base.schema)
    opened = list(ordered_map(wanted, opening, threads=threads, name="part"))
    present = _present(base, wanted, opened)
    new = [
        (part, each) for part, each in zip(wanted, opened, strict=True) if part.key not in present
    ]
    secure_chunks(objects, new)
    verify_parts(new, verify, rng or random.SystemRandom())
    report = AppendedParts(
        tuple(part.key for part, _ in new),
        tuple(present),
        len(parts) - len(wanted),
        sum(part.rows for part, _ in new),
    )
    if not report.rows:
        return base.digest, report
    return _joined(objects, base, [each for _, each in new], edges), report


def _once(parts: Sequence[RowsPart]) -> list[RowsPart]:
    """The first copy of every part."""
    found: dict[str, RowsPart] = {}
    for part in parts:
        first = found.setdefault(part.key, part)
        if first.rows != part.rows:
            raise InvalidInputError(
                f"part {part.key!r} came twice, with {first.rows:,} rows and with {part.rows:,}: a "
                "worker that is started again must write the same rows. Give parts that hold "
                "different rows keys of their own."
            )
    return list(found.values())


def _joined(
    objects: ObjectWriter,
    base: StoredDataset,
    parts: Sequence[StoredDataset],
    edges: Iterable[ProvenanceEdge],
) -> Digest:
    """`base` with the fragments of `parts` behind its own."""
    schema, live = base.schema, frozenset(column.id for column in base.schema.columns)
    groups = base.root.groups
    if not base.root.leaves:  # then no weight of a row is known, but that of the first part's
        groups = _groups_of(next(each for each in parts if each.root.leaves), schema)
    with writer_threads() as (_, storers):
        tree = TreeWriter(objects, schema, groups, base, storers, WAITING_BYTES)
        for part in parts:
            absent = [column for column in schema.columns if column.id not in _ids(part)]
            for fragment in read_fragments(part):
                tree.add_known(regrouped(fragment, groups, live), counted=False)
                for column in absent:
                    tree.count_absent(column, fragment.rows)
        link = tree.finish(base.root.properties, with_edges(base.root.lineage, edges))
    return link.digest


def _groups_of(part: StoredDataset, schema: Schema) -> Groups:
    """The groups of a part, with columns that it lacks in one more."""
    known = {each for group in part.root.groups for each in group}
    absent = tuple(column.id for column in schema.columns if column.id not in known)
    return (*part.root.groups, absent) if absent else part.root.groups


def _ids(dataset: StoredDataset) -> frozenset[str]:
    return frozenset(column.id for column in dataset.schema.columns)


# ------------------------------------------------------------------------------ what is looked at


def open_part(
    objects: ObjectWriter, schema: Schema, part: RowsPart, *, moved: bool = False
) -> StoredDataset:
    """A part whose metadata is what it says, and fits the columns of the dataset.

    `moved`: its rows may have ids of other fragments, as those that were written anew do.
    """
    where = f"part {part.key!r}"
    try:
        found = open_dataset(objects, part.root)
        _check_columns(where, found.schema, schema)
        if (found.root.rows, found.root.deleted) != (part.rows, 0):
            raise CorruptError(
                f"{where} says that it has {part.rows:,} rows, its root {part.root:.12} has "
                f"{found.root.rows:,}, {found.root.deleted:,} of them deleted. Write it again."
            )
        for fragment in read_fragments(found):
            _check_fragment(where, found.schema, fragment, moved=moved)
    except NotFoundError as error:
        raise _expired(part, error) from error
    return found


def _check_columns(where: str, part: Schema, dataset: Schema) -> None:
    known = {column.id: column for column in dataset.columns}
    for column in part.columns:
        expected = known.pop(column.id, None)
        if expected is None:
            named = column.name in dataset
            raise InvalidInputError(
                f"{where} has a column {column.name!r} ({column.type_text}), "
                f"{'which is another one' if named else 'which is not'} in the dataset. Write it "
                "with dataset=, which gives it the columns that the dataset has now."
            )
        fits = expected.type == column.type and (expected.nullable or not column.nullable)
        if not fits:
            raise InvalidInputError(
                f"{where}: column {column.name!r} is {_told(column)} in it, and {_told(expected)} "
                "in the dataset: it was changed since the part was written. Write it again."
            )
    for column in known.values():
        if not column.nullable and column.default is None:
            raise InvalidInputError(
                f"{where} has no column {column.name!r}, which has no default and takes no nulls. "
                "Write it again, with that column."
            )


def _told(column: Column) -> str:
    return f"{column.type_text}{', nullable' if column.nullable else ''}"


def _check_fragment(where: str, schema: Schema, fragment: Fragment, *, moved: bool) -> None:
    has_moved = fragment.runs is not None and not moved
    changed = fragment.deletions is not None or has_moved or fragment.patches
    columns = {column.id: column for column in fragment.columns}
    if changed or columns.keys() != {column.id for column in schema.columns}:
        raise CorruptError(
            f"{where}: fragment {fragment.uid:016x} is not as a writer of parts leaves it: its "
            "rows were changed, or a column has no pages. Write it again."
        )
    for each in schema.columns:
        column = columns[each.id]
        entries = known_entries(column)
        rows = int(entries["rows"].sum(dtype=np.int64))
        starts = offsets_of(entries["rows"])[:-1]
        if rows != fragment.rows or (entries["first_row"] != starts).any():
            raise CorruptError(
                f"{where}: column {each.name!r} has pages of {rows:,} rows in fragment "
                f"{fragment.uid:016x}, which has {fragment.rows:,}. Write it again."
            )
        if column.storage != each.storage or (entries["codec"] == PAGE_FOREIGN).any():
            raise CorruptError(
                f"{where}: column {each.name!r} is stored in another form in fragment "
                f"{fragment.uid:016x}, or in a file in place. Write it again."
            )


def _present(
    base: StoredDataset, parts: Sequence[RowsPart], opened: Sequence[StoredDataset]
) -> dict[str, None]:
    """Keys of the parts whose rows the dataset has, deleted or moved ones too."""
    if not base.root.leaves:
        return {}
    uids = np.unique(row_id_table(base).runs["uid"])
    unique = np.unique(uids & np.uint64(_UNIQUE))
    found: dict[str, None] = {}
    for part, stored in zip(parts, opened, strict=True):
        mine = np.array([fragment.uid for fragment in read_fragments(stored)], np.uint64)
        there = np.isin(mine, uids)
        if len(mine) and there.all():
            found[part.key] = None
        elif there.any() or np.isin(mine[:1] & np.uint64(_UNIQUE), unique).any():
            raise ConflictError(
                f"the dataset has rows of another part that was called {part.key!r}: a key names "
                "one part of a dataset for good. Write the new rows with a key of their own, such "
                "as one with the date or the run in it."
            )
    return found


def verify_parts(
    parts: Sequence[tuple[RowsPart, StoredDataset]], verify: Verify, rng: random.Random
) -> None:
    """Decode pages, and compare them with what is said of them."""
    counts = [sum(map(_pages, read_fragments(stored))) for _, stored in parts]
    total = sum(counts)
    some = range(total) if verify == "all" else rng.sample(range(total), min(total, SAMPLED_PAGES))
    chosen, first = set(some), 0
    for (part, stored), count in zip(parts, counts, strict=True):
        mine = {at - first for at in chosen if first <= at < first + count}
        first += count
        if mine:
            _verify_pages(part, stored, mine)


def _verify_pages(part: RowsPart, stored: StoredDataset, chosen: set[int]) -> None:
    number = iter(range(1 << 62))
    for fault in verify_dataset(stored, lambda _: next(number) in chosen):
        raise CorruptError(
            f"part {part.key!r} is not what it says: {fault}. Write it again. Nothing changed."
        )


def _pages(fragment: Fragment) -> int:
    return sum(column.count for column in fragment.columns)


def secure_chunks(objects: ObjectWriter, parts: Sequence[tuple[RowsPart, StoredDataset]]) -> None:
    """Rely on the chunks of parts: each is there, under the name that the pin prescribes."""
    chunks = ((part, link) for part, stored in parts for link in _chunks(objects, part, stored))

    def adopted(item: tuple[RowsPart, ObjectLink]) -> tuple[RowsPart, ObjectLink, bool]:
        return (*item, objects.adopt(item[1]))

    for part, link, is_there in ordered_map(chunks, adopted, threads=_THREADS, name="adopt"):
        if is_there:
            continue
        try:
            store_again(objects, [link.digest], objects.graves, f"part {part.key!r}")
        except CommitExpired as error:
            raise _expired(part, error) from error


def _chunks(objects: ObjectWriter, part: RowsPart, stored: StoredDataset) -> Iterator[ObjectLink]:
    """What the metadata of a part leads to and is no metadata, each once."""
    pending, seen = [stored.digest], {stored.digest}
    while pending:
        try:
            links = objects.get(pending.pop()).links
        except NotFoundError as error:
            raise _expired(part, error) from error
        for link in links:
            if link.digest in seen:
                continue
            seen.add(link.digest)
            if link.leaf:
                yield link
            else:
                pending.append(link.digest)


def _expired(part: RowsPart, error: Exception) -> CommitExpired:
    return CommitExpired(
        f"part {part.key!r}: {error} It was collected: its lease had ended, or was closed. Write "
        "the part again with the same key, and commit it before its lease runs out (keep= of "
        "parts.write)."
    )
