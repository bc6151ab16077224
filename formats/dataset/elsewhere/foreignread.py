"""Reading rows that lie in files outside the repository, which were adopted in place.

Such rows have no checksums: they are as good as the proof that the file is still the one that was
adopted. That proof is its size and its etag, or its hash. It is made once per file and reader;
every later read must be of the same version.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from tensorrepo.formats.dataset.elsewhere.foreign import (
    ArrayPlace,
    ForeignFile,
    InlinePlace,
    MembersPlace,
    Place,
    decode_foreign,
)
from tensorrepo.formats.dataset.elsewhere.foreignrows import (
    array_range,
    array_values,
    member_values,
)
from tensorrepo.formats.dataset.elsewhere.foreigntable import read_group, read_metadata
from tensorrepo.formats.dataset.elsewhere.outside import Stat, hide_secrets
from tensorrepo.formats.dataset.elsewhere.outsideread import OutsideFile
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.ranges import join_ranges
from tensorrepo.repo.threads import ordered_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorrepo.formats.dataset.columns.types import Storage
    from tensorrepo.formats.dataset.columns.values import ColumnValues
    from tensorrepo.formats.dataset.elsewhere.outside import Outside
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import Link, ObjectSource

HASH_STEP_BYTES = 8 << 20
READ_THREADS = 8
_REMEMBERED = 64  # objects, and footers of Parquet files


class ForeignReader:
    """Reads pages that are rows of foreign files. Thread-safe.

    Args:
        objects: where the objects are that describe the files.
        outside: who may read the files.
    """

    def __init__(self, objects: ObjectSource, outside: Outside) -> None:
        self._objects = objects
        self._outside = outside
        self._files: OrderedDict[Digest, tuple[ForeignFile, Any]] = OrderedDict()
        self._versions: dict[tuple[str, int, str | None, bytes], Stat] = {}
        self._lock = Lock()
        self._hashing = Lock()

    def read(self, link: Link, column_id: str, entry: Any, storage: Storage) -> ColumnValues:
        """All rows of one page.

        Args:
            link: of the FOREIGN object.
            column_id: which column.
            entry: its PAGE_ENTRY record, of codec PAGE_FOREIGN.
            storage: the stored form that the values must have.

        Raises:
            PermissionDenied: the file is under no allowed prefix.
            NotFoundError: it is gone.
            CorruptError: it has changed, or does not hold what the entry says.
        """
        file = self.file(link)
        place = file.columns.get(column_id)
        if place is None:
            raise CorruptError(f"object {link.digest:.12} knows nothing of column {column_id}")
        column = place.column()
        if column.storage != storage:
            raise CorruptError(f"object {link.digest:.12} has {column.storage}, not {storage}")
        first, rows = int(entry["offset"]), int(entry["rows"])
        try:
            values = self._values(link, file, place, first, rows)
        except CorruptError as error:
            where = hide_secrets(file.url)
            text = str(error)
            raise CorruptError(text if where in text else f"{where}: {text}") from error
        nulls = 0 if values.valid is None else values.rows - int(np.count_nonzero(values.valid))
        if values.rows != rows or nulls != int(entry["nulls"]):
            raise CorruptError(
                f"{hide_secrets(file.url)}: expected {rows} rows with {int(entry['nulls'])} nulls, "
                f"found {values.rows} with {nulls}"
            )
        return values

    def file(self, link: Link) -> ForeignFile:
        """What the dataset knows of a file."""
        return self._described(link)[0]

    def check(self, file: ForeignFile) -> Stat:
        """The version of the file that is there, which is the one that was adopted.

        Raises:
            CorruptError: it has changed; says expected and found.
        """
        key = (file.url, file.size, file.etag, file.hash)
        found = self._versions.get(key)
        if found is None:
            found = self._versions[key] = self._proved(file)
        return found

    # -------------------------------------------------------------------------- one page

    def _values(
        self,
        link: Link,
        file: ForeignFile,
        place: Place,
        first: int,
        rows: int,
    ) -> ColumnValues:
        if isinstance(place, ArrayPlace):
            start, stop = array_range(place, first, rows, file.size)
            data = self._outside.read(file.url, start, stop, self.check(file))
            return array_values(place, data, rows)
        if isinstance(place, MembersPlace):
            return member_values(place, self._members(file, place, first, rows), first)
        if isinstance(place, InlinePlace):
            members = place.rows()[first : first + rows]
            if len(members) != rows:
                raise CorruptError(f"no values for rows [{first}, {first + rows})")
            return member_values(place, members, first)
        version = self.check(file)
        metadata = self._footer(link, file)
        source = OutsideFile(self._outside, file.url, version)
        return read_group(source, metadata, first, rows, place, hide_secrets(file.url))

    def _members(
        self, file: ForeignFile, place: MembersPlace, first: int, rows: int
    ) -> list[bytes | None]:
        starts, ends = place.bounds()
        starts, ends = starts[first : first + rows], ends[first : first + rows]
        if len(starts) != rows or int((ends - starts).sum()) > file.size:
            raise CorruptError(f"no members for rows [{first}, {first + rows})")
        there = np.flatnonzero(starts)
        bounds = list(zip(starts[there].tolist(), ends[there].tolist(), strict=True))
        joined = join_ranges(bounds)
        version = self.check(file)
        pieces = self._ranges(file, version, [(one.start, one.stop) for one in joined])
        members: list[bytes | None] = [None] * rows
        for one, piece in zip(joined, pieces, strict=True):
            for member in one.members:
                start, stop = bounds[member]
                members[int(there[member])] = bytes(piece[start - one.start : stop - one.start])
        return members

    def _ranges(
        self, file: ForeignFile, version: Stat, ranges: list[tuple[int, int]]
    ) -> list[memoryview]:
        def read(part: tuple[int, int]) -> memoryview:
            return self._outside.read(file.url, *part, version)

        threads = READ_THREADS if len(ranges) > 1 else 0
        return list(ordered_map(ranges, read, threads=threads, name="foreign"))

    # -------------------------------------------------------------------------- one file

    def _described(self, link: Link) -> tuple[ForeignFile, Any]:
        """The object, parsed, and the footer of its file where one was read already."""
        with self._lock:
            found = self._files.get(link.digest)
            if found is not None:
                self._files.move_to_end(link.digest)
                return found
        envelope = self._objects.get(link.digest)
        if envelope.kind is not Kind.FOREIGN:
            raise CorruptError(f"object {link.digest:.12} is a {envelope.kind.label}, no file")
        file = decode_foreign(envelope.payload, f"object {link.digest:.12}")
        return self._remember(link, file, None)

    def _footer(self, link: Link, file: ForeignFile) -> Any:
        _, known = self._described(link)
        if known is None:
            source = OutsideFile(self._outside, file.url, self.check(file))
            known = read_metadata(source, hide_secrets(file.url))
            self._remember(link, file, known)
        return known

    def _remember(self, link: Link, file: ForeignFile, footer: Any) -> tuple[ForeignFile, Any]:
        with self._lock:
            self._files[link.digest] = file, footer
            while len(self._files) > _REMEMBERED:
                self._files.popitem(last=False)
        return file, footer

    def _proved(self, file: ForeignFile) -> Stat:
        found = self._outside.stat(file.url)
        if found.size != file.size:
            raise _changed(file, f"expected {file.size} bytes, found {found.size}")
        if file.etag is not None and found.etag == file.etag:
            return found
        if not file.hash:
            raise _changed(file, f"expected version {file.etag}, found {found.etag}")
        with self._hashing:
            digest = hash_outside(self._outside, file.url, found)
        if digest != file.hash:
            raise _changed(file, f"expected BLAKE3 {file.hash.hex():.16}, found {digest.hex():.16}")
        return found


def hash_outside(
    outside: Outside,
    url: str,
    version: Stat,
    progress: Callable[[int], None] = lambda _: None,
) -> bytes:
    """The plain BLAKE3 of all that lies at `url`; `progress` is told the bytes done so far."""
    hasher = blake3(max_threads=blake3.AUTO)
    for start in range(0, version.size, HASH_STEP_BYTES):
        stop = min(version.size, start + HASH_STEP_BYTES)
        hasher.update(outside.read(url, start, stop, version))
        progress(stop)
    return hasher.digest()


def _changed(file: ForeignFile, what: str) -> CorruptError:
    return CorruptError(
        f"{hide_secrets(file.url)} has changed since it was adopted: {what}. Put the old file back "
        "(a copy with other times will do if its hash was kept), or adopt the new one."
    )


@dataclass(frozen=True, slots=True)
class ForeignVersion:
    """A file that a dataset needs and does not carry. `hashed`: a copy of it will do."""

    url: str
    format: str
    size: int
    etag: str | None
    hashed: bool


def foreign_files(objects: ObjectSource, dataset: Digest) -> Iterator[ForeignVersion]:
    """The files outside the repository that a dataset needs, each once, in no order.

    Args:
        objects: where the dataset is.
        dataset: digest of its root. Only metadata is read.
    """
    waiting, seen = [dataset], {dataset}
    told: set[ForeignVersion] = set()
    while waiting:
        digest = waiting.pop()
        envelope = objects.get(digest)
        if envelope.kind is Kind.FOREIGN:
            file = decode_foreign(envelope.payload, f"object {digest:.12}")
            found = ForeignVersion(file.url, file.format, file.size, file.etag, bool(file.hash))
            if found not in told:
                told.add(found)
                yield found
        for link in envelope.links:
            # What links to nothing is no structure; of that only foreign files are of interest.
            if link.digest not in seen and (not link.leaf or link.kind is Kind.FOREIGN):
                seen.add(link.digest)
                waiting.append(link.digest)
