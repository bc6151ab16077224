"""Bundles: chosen commits and all that they lead to in one file, verified.

For machines without a network between them, and for archives. Objects are written one after the
other as they are stored, so that memory stays bounded; the directory behind them is sorted by
digest, so that a reader looks objects up and needs not hold it. A bundle is a source of commits
like any repository: it is fetched from and cloned.

    header | objects | directory | contents (canonical JSON) | footer

Source:
    docs/spec/bundle.md.
"""

from __future__ import annotations

import os
import secrets
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Annotated, BinaryIO, Final, Literal

import msgspec
from blake3 import blake3
from msgspec import Meta

from tensorrepo.repo.backends.disk import explain
from tensorrepo.repo.changes.refs import TAGS
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError, UnsupportedError
from tensorrepo.repo.hashing.digests import streamed_digest
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.ids import Buffer, Digest, digest_bytes
from tensorrepo.repo.log.records import canonical_json, parse_canonical
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import (
    HEADER,
    Envelope,
    Kind,
    ObjectLink,
    decode_header,
    decode_object,
    encode_object,
    expand,
    stored_form,
)
from tensorrepo.repo.transfer.difference import objects_of
from tensorrepo.repo.transfer.pace import RateLimit, TransferTotals
from tensorrepo.repo.transfer.receive import HistorySource
from tensorrepo.repo.typed_decoding import from_plain

MAGIC: Final = b"TRBUNDLE"
VERSION: Final = 2
# Layout: header | objects, one behind the other | directory | contents | footer.
BUNDLE_HEADER: Final = Struct("<8sII")  # magic, version, reserved 0
ROW: Final = Struct("<32sQQ")  # digest, where its stored bytes begin, how many they are
FOOTER: Final = Struct("<QQQ32s8s")  # directory at, objects, contents bytes, digest, magic
assert (BUNDLE_HEADER.size, ROW.size, FOOTER.size) == (16, 48, 64), "docs/spec/bundle.md"
_CONTEXT: Final = "tensorrepo bundle v2"
_STEP_BYTES: Final = 4 << 20
_MAX_CONTENTS_BYTES: Final = 256 << 20
_REMEMBERED_BYTES: Final = 32 << 20

_Name = Annotated[Digest, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Natural = Annotated[int, Meta(ge=0)]


class BundlePurges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was purged where a bundle was made, as far as `placements` have twins of it.

    Attributes:
        columns: path of an entry to the columns, or tensors, that were erased of it, id to name.
        objects: digest of what was erased to the generation that did.
        rows: objects in the bundle that list ids of erased rows, to the generation that did.
    """

    columns: dict[str, dict[str, str]]
    objects: dict[_Name, _Natural]
    rows: dict[_Name, _Natural]


class BundleContents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a bundle is of.

    Attributes:
        repository: id of the repository that it was made of.
        refs: refs, and the commits that they named.
        needs: commits that the receiver must have already; their content is not in here.
        placements: what trees name, and what took its place: placements of models, twins of what
            was purged.
        purges: what was purged.
        shallow: commits in it at which history ends: their parents are nowhere.
        signatures: signatures of tags, as they travel, by ref.
        version: 2.
    """

    repository: str
    refs: dict[str, _Name]
    needs: list[_Name]
    placements: dict[_Name, _Name]
    purges: BundlePurges
    shallow: list[_Name]
    signatures: dict[str, str]
    version: Literal[2] = 2


@dataclass(frozen=True, slots=True)
class BundleReport:
    """A bundle that was written, or verified."""

    path: Path
    contents: BundleContents
    objects: int
    bytes: int


def write_bundle(
    source: HistorySource,
    path: Path,
    refs: Mapping[str, Digest],
    *,
    without: Iterable[Digest] = (),
    overwrite: bool = False,
    limit: RateLimit | None = None,
    progress: Callable[[TransferTotals], None] = lambda _: None,
) -> BundleReport:
    """Write the commits that `refs` name, and all that they lead to, to a file.

    Args:
        source: where they are.
        path: the file; a killed writer leaves it as it was.
        refs: refs that the bundle will have.
        without: commits that the receiver has, with all that they lead to.
        overwrite: whether a file that is there is replaced.
        limit: how fast; None: as fast as it goes.
        progress: receives what was written so far.

    Raises:
        InvalidInputError: the file is there, or there is nothing to write.
        NotFoundError: the folder that it is to lie in is not there.
        CorruptError: something is damaged in the source. No file was made.
    """
    if path.exists() and not overwrite:
        raise InvalidInputError(f"{path} is there already: --force replaces it")
    if not path.parent.is_dir():
        raise NotFoundError(f"there is no folder {path.parent} for {path.name}: make it first")
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with open(partial, "xb") as file:
            writer = _BundleWriter(source, file, limit or RateLimit(None), progress)
            report = writer.write(path, refs, list(without))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise explain(error, "write", path) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return report


class _BundleWriter:
    """Objects on their way into a file, hashed as they are written."""

    def __init__(
        self,
        source: HistorySource,
        file: BinaryIO,
        limit: RateLimit,
        progress: Callable[[TransferTotals], None],
    ) -> None:
        self._source = source
        self._file = file
        self._limit = limit
        self._progress = progress
        self._hasher = blake3(derive_key_context=_CONTEXT)
        self._at = 0
        self._rows: list[bytes] = []
        self._seen: set[bytes] = set()
        self._totals = TransferTotals()

    def write(self, path: Path, refs: Mapping[str, Digest], without: list[Digest]) -> BundleReport:
        self._put(BUNDLE_HEADER.pack(MAGIC, VERSION, 0))
        commits = list(walk(self._source.objects, refs.values(), hidden=without))[::-1]
        if not commits:
            raise InvalidInputError("the receiver has all of these commits: nothing to write")
        own = {digest for digest, _ in commits}
        ends = {digest for digest, commit in commits if commit.beyond}
        needs = {parent for _, commit in commits for parent in commit.parents} - own
        for digest, _ in commits:
            found = objects_of(
                self._source.objects,
                digest,
                supersedes=self._source.supersedes,
                shallow=self._source.shallow,
                threads=4,
            )
            self._totals.plan(len(found.objects), sum(item.link.bytes for item in found.objects))
            for item in found.objects:
                self._add(item.link, item.envelope)
            self._totals.commits += 1
        placements = self._placements()
        purges = self._purges(placements)
        for digest in purges.rows:
            self._add(self._source.objects.describe(digest), None)
        told = BundleContents(
            self._source.id,
            dict(refs),
            sorted(needs),
            placements,
            purges,
            sorted(ends),
            dict(self._source.signatures([ref for ref in refs if ref.startswith(TAGS)])),
        )
        self._finish(canonical_json(msgspec.to_builtins(told)))
        return BundleReport(path, told, len(self._rows), self._at)

    def _placements(self) -> dict[Digest, Digest]:
        """What objects in here took the place of."""
        pairs = {old: self._source.resolve(old) for old in self._source.supersedes}
        return {old: new for old, new in pairs.items() if digest_bytes(new) in self._seen}

    def _purges(self, placements: Mapping[Digest, Digest]) -> BundlePurges:
        """What the records erased that have twins in here, but what has its twin elsewhere."""
        told = self._source.purging
        records = self._source.purge_records({Digest(name.hex()) for name in self._seen})
        if not records:
            return BundlePurges({}, {}, {})
        return BundlePurges(
            {path: dict(columns) for path, columns in told.purged_columns.items()},
            {
                old: record
                for old, record in told.purges.items()
                if record in records and (old in placements or old not in self._source.supersedes)
            },
            {name: record for name, record in told.purged_rows.items() if record in records},
        )

    def _add(self, link: ObjectLink, envelope: Envelope | None) -> None:
        name = digest_bytes(link.digest)
        if name in self._seen:
            self._totals.was_there(link.bytes)
            return
        self._seen.add(name)
        start = self._at
        if link.leaf and not link.kind.compressible:
            self._copy(link)
        else:
            self._limit.take(link.bytes)
            held = envelope or self._source.objects.get(link.digest)
            encoded = encode_object(held.kind, held.payload, held.links)
            for part in stored_form(encoded):
                self._put(part)
        self._rows.append(ROW.pack(name, start, self._at - start))
        self._totals.moved(link.bytes, objects=1)
        self._progress(self._totals)

    def _copy(self, link: ObjectLink) -> None:
        """The bytes of an object, which may be larger than memory, in steps."""
        read = self._source.objects.read_envelope

        def steps() -> Iterator[Buffer]:
            for start in range(0, link.bytes, _STEP_BYTES):
                stop = min(start + _STEP_BYTES, link.bytes)
                self._limit.take(stop - start)
                data = read(link.digest, start, stop)
                self._put(data)
                yield data

        if (found := streamed_digest(steps())) != link.digest:
            raise CorruptError(
                f"{self._source.url}: {link.kind.label} {link.digest:.12} is damaged there: its "
                f"bytes have digest {found:.12}. No bundle was made; run `tensorrepo fsck --deep`."
            )

    def _finish(self, contents: bytes) -> None:
        directory = self._at
        for row in sorted(self._rows):
            self._put(row)
        self._put(contents)
        tail = FOOTER.pack(directory, len(self._rows), len(contents), bytes(32), MAGIC)
        self._hasher.update(tail)
        digest = self._hasher.digest()
        tail = FOOTER.pack(directory, len(self._rows), len(contents), digest, MAGIC)
        self._file.write(tail)
        self._at += len(tail)

    def _put(self, data: Buffer) -> None:
        self._hasher.update(data)
        self._file.write(data)
        self._at += memoryview(data).nbytes


def is_bundle(path: Path) -> bool:
    """Whether a file begins as a bundle does."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class Bundle:
    """A bundle, to read objects of. Every object is verified when it is read. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            NotFoundError: there is none.
            CorruptError: it is no bundle, or cut short.
            UnsupportedError: a version that this tensorrepo does not know.
        """
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFoundError(f"there is no file {path}") from None
        except OSError as error:
            raise explain(error, "read", path) from error
        self._bytes = os.fstat(self._fd).st_size
        self._recent = LimitedCache[Envelope](_REMEMBERED_BYTES)
        self._closing = Lock()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def source(self) -> HistorySource:
        """What it has to give."""
        told = self.contents
        return HistorySource(
            self,
            told.refs,
            told.placements,
            told.repository,
            str(self.path),
            near=True,
            has=self.has,
            shallow=self.shallow,
            purging=State(
                purges=told.purges.objects,
                purged_rows=told.purges.rows,
                purged_columns=told.purges.columns,
            ),
            signatures=lambda _: told.signatures,
        )

    @property
    def shallow(self) -> frozenset[Digest]:
        """Commits at which its history ends."""
        return frozenset(self.contents.shallow)

    def close(self) -> None:
        with self._closing:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def has(self, digest: Digest) -> bool:
        return self._place(digest) is not None

    def digests(self) -> Iterator[Digest]:
        """Names of its objects, sorted."""
        for index in range(self.objects):
            yield Digest(self._row(index)[0].hex())

    def get(self, digest: Digest) -> Envelope:
        """The whole object, verified."""
        known = self._recent.get(digest)
        if known is None:
            known = self.fetch(digest)
            self._recent.put(digest, known, known.payload.nbytes + 500)
        return known

    def fetch(self, digest: Digest) -> Envelope:
        start, size = self._found(digest)
        return decode_object(expand(self._read(start, start + size), digest), digest)

    def describe(self, digest: Digest) -> ObjectLink:
        """What a parent of the object would say of it; data is not read for it."""
        start, size = self._found(digest)
        head = memoryview(self._read(start, min(start + HEADER.size, start + size)))
        try:
            kind, links, begins, payload_bytes = decode_header(head, digest)
        except CorruptError:
            return self.get(digest).link(digest)  # it is compressed
        if kind.compressible:
            return self.get(digest).link(digest)
        return ObjectLink(digest, begins + payload_bytes, kind, links == 0)

    def read_envelope(self, digest: Digest, start: int, stop: int) -> Buffer:
        at, size = self._found(digest)
        if not 0 <= start <= stop <= size:
            raise CorruptError(f"{self.path}: object {digest:.12} has {size:,} bytes, not {stop:,}")
        return self._read(at + start, at + stop)

    def stream_envelope(self, _digest: Digest, _start: int, _stop: int) -> None:
        """A file is read range by range."""
        return

    def verify(self, progress: Callable[[int], None] = lambda _: None) -> BundleReport:
        """Read all of the file: its digest, every object, and what they link to.

        Raises:
            CorruptError: says what is wrong, and with which object.
        """
        self._verify_digest(progress)
        whole = not self.contents.needs
        for digest in self.digests():
            start, size = self._found(digest)
            if size > _STEP_BYTES and self.describe(digest).leaf:
                self._verify_steps(digest, start, size)
                continue
            for link in self.fetch(digest).links:
                if link.kind is Kind.COMMIT and digest in self.contents.shallow:
                    continue
                current = self.contents.placements.get(link.digest, link.digest)
                if whole and not self.has(current):
                    raise CorruptError(
                        f"{self.path}: object {digest:.12} leads to {current:.12}, which is not "
                        "in it. Make the bundle anew."
                    )
        for ref, commit in self.contents.refs.items():
            if not self.has(commit):
                raise CorruptError(f"{self.path}: {ref} names {commit:.12}, which is not in it")
        for digest in self.contents.purges.rows:
            if not self.has(digest):
                raise CorruptError(f"{self.path}: purged rows {digest:.12} are not listed in it")
        return BundleReport(self.path, self.contents, self.objects, self._bytes)

    def _open(self) -> None:
        if self._bytes < BUNDLE_HEADER.size + FOOTER.size:
            raise CorruptError(f"{self.path}: {self._bytes:,} bytes are no bundle")
        magic, version, zero = BUNDLE_HEADER.unpack(self._read(0, BUNDLE_HEADER.size))
        if magic != MAGIC:
            raise CorruptError(f"{self.path} is no bundle: it begins with {magic!r}")
        if version != VERSION or zero:
            older = 0 < version < VERSION and not zero
            what = "Make the bundle anew with this one" if older else "Update it"
            raise UnsupportedError(
                f"{self.path}: bundle version {version}, this tensorrepo reads {VERSION}. {what}."
            )
        footer = FOOTER.unpack(self._read(self._bytes - FOOTER.size, self._bytes))
        self._directory, self.objects, contents_bytes, self._digest, tail = footer
        contents_at = self._directory + self.objects * ROW.size
        if (
            tail != MAGIC
            or contents_bytes > _MAX_CONTENTS_BYTES
            or contents_at + contents_bytes + FOOTER.size != self._bytes
        ):
            raise CorruptError(f"{self.path} is cut short, or damaged at its end. Copy it again.")
        where = f"{self.path}: its contents"
        raw = parse_canonical(self._read(contents_at, contents_at + contents_bytes), where)
        try:
            self.contents = from_plain(raw, BundleContents)
        except msgspec.ValidationError as error:
            raise CorruptError(f"{where}: {error}") from error

    def _verify_digest(self, progress: Callable[[int], None]) -> None:
        hasher = blake3(derive_key_context=_CONTEXT)
        stop = self._bytes - FOOTER.size
        for start in range(0, stop, _STEP_BYTES):
            hasher.update(self._read(start, min(start + _STEP_BYTES, stop)))
            progress(min(start + _STEP_BYTES, stop))
        contents_bytes = stop - self._directory - self.objects * ROW.size
        hasher.update(FOOTER.pack(self._directory, self.objects, contents_bytes, bytes(32), MAGIC))
        if (found := hasher.digest()) != self._digest:
            raise CorruptError(
                f"{self.path}: its bytes have digest {found.hex():.12}, its end says "
                f"{self._digest.hex():.12}. Copy it again."
            )

    def _verify_steps(self, digest: Digest, start: int, size: int) -> None:
        steps = range(start, start + size, _STEP_BYTES)
        parts = (self._read(at, min(at + _STEP_BYTES, start + size)) for at in steps)
        if (found := streamed_digest(parts)) != digest:
            raise CorruptError(f"{self.path}: object {digest:.12} has digest {found:.12}")

    def _found(self, digest: Digest) -> tuple[int, int]:
        place = self._place(digest)
        if place is None:
            raise NotFoundError(f"no object {digest:.12} in {self.path}")
        return place

    def _place(self, digest: Digest) -> tuple[int, int] | None:
        """Where the stored bytes of an object are, and how many; by bisection."""
        name = digest_bytes(digest)
        index = bisect_left(range(self.objects), name, key=lambda at: self._row(at)[0])
        if index == self.objects:
            return None
        found, start, size = self._row(index)
        if found != name:
            return None
        if not BUNDLE_HEADER.size <= start <= start + size <= self._directory:
            raise CorruptError(f"{self.path}: its directory points outside of it. Copy it again.")
        return start, size

    def _row(self, index: int) -> tuple[bytes, int, int]:
        at = self._directory + index * ROW.size
        name, start, size = ROW.unpack(self._read(at, at + ROW.size))
        return name, start, size

    def _read(self, start: int, stop: int) -> bytes:
        try:
            data = os.pread(self._fd, stop - start, start)
        except OSError as error:
            raise explain(error, "read", self.path) from error
        if len(data) != stop - start:
            raise CorruptError(f"{self.path} ends before byte {stop:,}. Copy it again.")
        return data
