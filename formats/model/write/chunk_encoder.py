"""Encoding of a model's tensors on all cores: a way for each, once for groups of like tensors.

Tensors of one type and shape whose names differ by numbers alone, as those of a network's layers
do, mostly move alike. The first of a group that must be stored is tried in every way; where a plain
difference was smallest, the others are only asked whether theirs is about as small, and tried in
every way if not. Which tensor is the first depends on the model alone, never on what thread is
faster.

A task is a bundle of tensors of few frames, which are read, hashed, and encoded while they lie in
the processor's cache. A larger tensor is a task that reads its samples and chooses, and one for
each frame. Tasks are worked on in the order in which they are given, so one may wait for what an
earlier one finds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.model.delta.registry import DELTA
from tensorrepo.formats.model.layout.fingerprints import INLINE_BYTES, Fingerprint
from tensorrepo.formats.model.write.base_choice import Bases, StoredBase, bases_together
from tensorrepo.formats.model.write.encoding import (
    FEW_FRAMES,
    LEAST_BYTES,
    LEAST_SAVED_BYTES,
    BaseFrames,
    EncodingChoice,
    HeldBase,
    choose_way,
    encode_frame,
    member_of,
    sampled_frames,
    tried,
    ways_with,
)
from tensorrepo.formats.model.write.packing import (
    Locations,
    MemberDraft,
    SealedFrame,
    seal_together,
)
from tensorrepo.formats.model.write.tensor_bundles import (
    EncodedRow,
    encode_rows_against,
    encode_rows_alone,
    is_bundled,
    read_together,
)
from tensorrepo.formats.model.write.tensor_chunks import TensorChunk, TensorPart, each
from tensorrepo.formats.native.frame_memory import FrameMemory
from tensorrepo.repo.errors import CorruptError, NotFoundError, UnsupportedError

_BUNDLE_BYTES: Final = 1 << 20  # of small tensors that one task encodes
_BUNDLE: Final = 256  # tensors
_ABOUT: Final = 0.1  # of the first one's share, by which others of a group may differ
_NUMBERS: Final = re.compile(r"\d+")

Group = tuple[str, tuple[int, ...], str]


class GroupChoice(NamedTuple):
    """What was chosen for the first tensor of a group; None: others are tried in every way."""

    way: EncodingChoice | None


class _NearRow(NamedTuple):
    """A row of a bundle, its base, and what was chosen for the first one of its group."""

    at: int
    base: StoredBase
    first: EncodingChoice


class EncodingJob(msgspec.Struct, eq=False, gc=False):
    """A part of a tensor, and what tasks make of it.

    Attributes:
        chunk: its frames.
        is_new: whether it is stored whatever is known.
        is_large: whether each frame is a task of its own.
        first: what was chosen for the first one of its group; None: it is the first one itself.
        before: the job before it in its group, which will know that; None: `first` says it.
        decided: done when `first` is known to the one behind it in its group; None: there is no
            group.
        chosen: done when frames may be encoded; of large tensors.
        is_known: whether it is stored already, so nothing was encoded.
        is_read: whether it was only read, since it seems to be known.
        way: the way that was chosen.
        frames: frames by number, encoded.
    """

    chunk: TensorChunk
    is_new: bool
    is_large: bool
    first: GroupChoice | None = None
    before: Future[GroupChoice | None] | None = None
    decided: Future[GroupChoice | None] | None = None
    chosen: Future[None] | None = None
    is_known: bool = False
    is_read: bool = False
    way: EncodingChoice | None = None
    frames: dict[int, SealedFrame | None] = msgspec.field(default_factory=dict)


class EncodingTask(NamedTuple):
    """Jobs that one thread works on: what there is to do first, or one frame of a large one."""

    jobs: tuple[EncodingJob, ...]
    frame: int | None
    size_bytes: int


class ChunkEncoder:
    """Encodes the tensors of one model."""

    def __init__(
        self,
        bases: Bases,
        predicted: Callable[[TensorChunk], Iterable[EncodingChoice]],
        known: Mapping[Fingerprint, Locations],
        pool: Executor,
        memory: FrameMemory,
    ) -> None:
        """
        Args:
            bases: models that tensors may be encoded against.
            predicted: gives further ways for a chunk.
            known: tensors that are stored already.
            pool: threads for what is found out late.
            memory: for frames, and for those of bases.
        """
        self.notes: dict[str, None] = {}
        self._bases = bases
        self._predicted = predicted
        self._known = known
        self._pool = pool
        self._memory = memory
        self._groups: dict[Group, GroupChoice | Future[GroupChoice | None]] = {}
        self._has_groups = bases.codecs is None and bool(bases.models)

    def tasks(self, parts: Iterable[TensorPart], *, are_new: bool) -> Iterator[EncodingTask]:
        """What there is to do, in the order in which `work` must begin it.

        Frames of a large tensor come behind the task that follows its own first one, so that
        threads need not wait for its choice. `are_new`: nothing is looked up among what is known.
        """
        frames: list[EncodingTask] = []
        for bundle in _bundles(parts):
            jobs = tuple([self._job(part, are_new) for part in bundle])
            part = bundle[0]
            size = sum(one.size_bytes for one in bundle)
            if not jobs[0].is_large:
                yield EncodingTask(jobs, None, size)
                yield from frames
                frames = []
                continue
            yield EncodingTask(jobs, None, FEW_FRAMES * size // len(part.frames))
            yield from frames
            each_size = size // len(part.frames)
            frames = [EncodingTask(jobs, index, each_size) for index in part.frames]
        yield from frames

    def _job(self, part: TensorPart, is_new: bool) -> EncodingJob:
        chunk = TensorChunk(part, self._memory)
        job = EncodingJob(chunk, is_new, _is_large(part))
        if job.is_large:
            job.chosen = Future()
        if self._has_groups and part.size_bytes >= LEAST_BYTES:
            group = group_of(part)
            known = self._groups.get(group)
            if isinstance(known, GroupChoice):
                job.first = known
            else:
                job.before = known
                job.decided = self._groups[group] = Future()
        return job

    def work(self, task: EncodingTask) -> list[EncodingJob]:
        """Do a task; the jobs that are done when this one, and all before it, are."""
        if task.frame is not None:
            (job,) = task.jobs
            self._work_on_frame(job, task.frame)
            return [job] if task.frame == job.chunk.part.frames[-1] else []
        for alike in _alike(task.jobs):
            if len(alike) > 1:
                self._work_together(alike)
            else:
                self._begin(alike[0])
        return [job for job in task.jobs if not job.is_large]

    def draft(self, job: EncodingJob) -> MemberDraft:
        """The member that a job's chunk becomes, which must be stored after all."""
        chunk = job.chunk
        if job.is_read:
            job.way = self._choose(chunk, None)
            encode = partial(self._encode, chunk, job.way)
            found = each(encode, chunk.part.frames, chunk.part.size_bytes, self._pool)
            job.frames = dict(zip(chunk.part.frames, found, strict=True))
        frames = [job.frames[index] for index in chunk.part.frames]
        return member_of(chunk, job.way, frames, chunk.signature(), self._pool)

    def _begin(self, job: EncodingJob) -> None:
        choice = None
        try:
            choice = self._read_and_choose(job)
        finally:
            self._decide(job, choice)
            if job.chosen is not None:
                job.chosen.set_result(None)

    def _decide(self, job: EncodingJob, choice: GroupChoice | None) -> None:
        """Let those behind it know what was chosen for the first one of the group."""
        if job.decided is not None:
            if choice is not None:
                self._groups[group_of(job.chunk.part)] = choice
            job.decided.set_result(choice)

    def _work_together(self, jobs: Sequence[EncodingJob]) -> None:
        """All that is to be done with small tensors of one type and shape."""
        try:
            rows = read_together([job.chunk for job in jobs])
            alone: list[int] = []
            near: defaultdict[int, list[_NearRow]] = defaultdict(list)
            for at, job in enumerate(jobs):
                first = job.first if job.before is None else job.before.result()
                job.is_known = not job.is_new and job.chunk.fingerprint() in self._known
                if not job.is_known:
                    held = tuple(self._bases.of(job.chunk.part))
                    base = _one_base(held, None if first is None else first.way)
                    if base is not None:
                        near[base[0]].append(_NearRow(at, *base[1:]))
                    elif held or not self._is_alone(job, first):
                        self._begin(job)
                        continue
                    else:
                        alone.append(at)
                self._decide(job, first)
            encoded = self._alone_rows(jobs, rows, alone)
            for some in near.values():
                encoded |= self._near_rows(jobs, rows, some)
            chunks = [jobs[at].chunk for at in encoded]
            planes = [row.planes for row in encoded.values()]
            digests = [chunk.digest(0) for chunk in chunks]
            sealed = seal_together(rows.shape[1], digests, planes)
            for (at, row), frame in zip(encoded.items(), sealed, strict=True):
                jobs[at].way = row.way
                jobs[at].frames[0] = frame
        finally:
            for job in jobs:
                if job.decided is not None and not job.decided.done():
                    job.decided.set_result(None)

    def _is_alone(self, job: EncodingJob, first: GroupChoice | None) -> bool:
        """Whether a tensor without bases has nothing to be tried but what needs none."""
        name, decides = job.chunk.part.name, job.decided is not None and first is None
        return not decides and self._bases.codecs is None and name not in self._bases.predictions

    def _alone_rows(
        self, jobs: Sequence[EncodingJob], rows: NDArray[np.uint8], which: list[int]
    ) -> dict[int, EncodedRow]:
        """Some of a bundle's tensors by number, encoded without a base."""
        if not which:
            return {}
        made = encode_rows_alone(jobs[0].chunk.part, _taken(rows, which))
        for at, row in zip(which, made, strict=True):
            if row is None:
                self._choose_and_encode(jobs[at], None)
        return {at: row for at, row in zip(which, made, strict=True) if row is not None}

    def _near_rows(
        self, jobs: Sequence[EncodingJob], rows: NDArray[np.uint8], near: Sequence[_NearRow]
    ) -> dict[int, EncodedRow]:
        """Tensors that may be as near their bases, of one model, as the first of their group."""
        part, which = jobs[0].chunk.part, [one.at for one in near]
        encoded: dict[int, EncodedRow] = {}
        bases = bases_together([one.base for one in near], jobs[0].chunk.about(0))
        if bases is not None:
            planes = encode_rows_against(part, _taken(rows, which), bases)
            for (at, base, first), plane in zip(near, planes, strict=True):
                share = plane.size_bytes / part.size_bytes
                if _is_like(first, share, part.size_bytes):
                    way = EncodingChoice(first.codec, (base,), source=first.source, share=share)
                    encoded[at] = EncodedRow(way, (plane,))
        for at, _, first in near:
            if at not in encoded:
                self._choose_and_encode(jobs[at], first)
        return encoded

    def _read_and_choose(self, job: EncodingJob) -> GroupChoice | None:
        """All that is to be done at once; what is known of the first one of the group."""
        chunk = job.chunk
        first = job.first if job.before is None else job.before.result()
        if job.is_large:
            job.is_read = self._seems_known(job)
        elif chunk.part.size_bytes <= INLINE_BYTES:
            job.is_known = True
        elif chunk.part.is_whole and not job.is_new:
            job.is_known = chunk.fingerprint() in self._known
        if job.is_read or job.is_known:
            return first
        self._choose_and_encode(job, None if first is None else first.way)
        return first or GroupChoice(_as_first(job))

    def _choose_and_encode(self, job: EncodingJob, first: EncodingChoice | None) -> None:
        chunk = job.chunk
        job.way = self._choose(chunk, first)
        if not job.is_large:
            for index in chunk.part.frames:
                job.frames[index] = self._encode(chunk, job.way, index)

    def _work_on_frame(self, job: EncodingJob, index: int) -> None:
        assert job.chosen is not None, "a large tensor's frames wait for its choice"
        job.chosen.result()
        if job.is_read:
            job.chunk.digest(index)
            job.chunk.forget(index)
        else:
            job.frames[index] = self._encode(job.chunk, job.way, index)

    def _seems_known(self, job: EncodingJob) -> bool:
        """Whether a large tensor may be stored already, so that it is read before it is encoded.

        That of the same name in a model that it may be encoded against tells, by some frames.
        """
        chunk = job.chunk
        if job.is_new or not chunk.part.is_whole or not self._known:
            return False
        bases = [base for _, base in self._bases.of(chunk.part) if not base.type_name]
        frames = sampled_frames(chunk) if bases else []
        return not bases or any(
            all(base.digest(index) == chunk.digest(index) for index in frames) for base in bases
        )

    def _choose(self, chunk: TensorChunk, first: EncodingChoice | None) -> EncodingChoice | None:
        if chunk.part.size_bytes < LEAST_BYTES:
            return None
        held = [
            (source, HeldBase(base, self._memory)) for source, base in self._bases.of(chunk.part)
        ]
        held = [(source, base) for source, base in held if self._is_whole(base, chunk)]
        chosen = None if first is None else _like_first(chunk, held, first)
        if chosen is None:
            ways = [way for source, base in held for way in ways_with(chunk, (base,), source)]
            chosen = self._choose_of(chunk, ways)
        used = () if chosen is None else chosen.bases
        for _, base in held:
            if base not in used:
                base.forget_all()
        return chosen

    def _choose_of(self, chunk: TensorChunk, ways: list[EncodingChoice]) -> EncodingChoice | None:
        predicted = [way for way in self._predicted(chunk) if self._are_whole(way, chunk)]
        ways = [*ways_with(chunk), *ways, *predicted]
        if self._bases.codecs is not None:
            wanted = [way for way in ways if way.codec.name in self._bases.codecs]
            return choose_way(chunk, wanted, least_saved=None)
        return choose_way(chunk, ways, worth=self._bases.worth)

    def _are_whole(self, way: EncodingChoice, chunk: TensorChunk) -> bool:
        return all(self._is_whole(base, chunk) for base in way.bases)

    def _is_whole(self, base: BaseFrames, chunk: TensorChunk) -> bool:
        first = chunk.part.frames.start
        try:
            base.frame(first, chunk.about(first))
        except (CorruptError, NotFoundError, UnsupportedError) as error:
            self.notes[f"a base could not be used: {error}"] = None
            return False
        return True

    def _encode(
        self, chunk: TensorChunk, way: EncodingChoice | None, index: int
    ) -> SealedFrame | None:
        try:
            return encode_frame(chunk, way, index)
        except (CorruptError, NotFoundError, UnsupportedError) as error:
            # A base is damaged: the tensor is stored without it.
            self.notes[f"a base could not be used: {error}"] = None
            return None


def group_of(part: TensorPart) -> Group:
    """What like tensors of a model have in common."""
    reader = part.reader
    return reader.type.name, tuple(reader.shape), _NUMBERS.sub("#", part.name)


def _as_first(job: EncodingJob) -> EncodingChoice | None:
    """What others of its group need to know of a choice: none where they must be tried anyway.

    Its share is found as that of the others will be, see `tried`.
    """
    way, part = job.way, job.chunk.part
    if way is None or way.codec.name != DELTA.name:
        return None
    share = way.share
    if not job.is_large and (frame := job.frames[part.frames.start]) is not None:
        share = sum(plane.size_bytes for plane in frame.planes) / frame.size_bytes
    return EncodingChoice(way.codec, source=way.source, share=share)


def _like_first(
    chunk: TensorChunk, held: Sequence[tuple[int, HeldBase]], first: EncodingChoice
) -> EncodingChoice | None:
    """The way of the first one of its group, where it stores about as little of this one."""
    same = [base for source, base in held if source == first.source and not base.type_name]
    if len(same) != 1:
        return None
    way = tried(chunk, EncodingChoice(first.codec, (same[0],), source=first.source))
    if way is None:
        return None
    return way if _is_like(first, way.share, chunk.part.size_bytes) else None


def _is_like(first: EncodingChoice, share: float, size_bytes: int) -> bool:
    """Whether a tensor takes about the share that the first one of its group does."""
    saved = size_bytes * (1 - share)
    return abs(share - first.share) <= _ABOUT * first.share and saved >= LEAST_SAVED_BYTES


def _one_base(
    held: Sequence[tuple[int, StoredBase]], first: EncodingChoice | None
) -> tuple[int, StoredBase, EncodingChoice] | None:
    """The one base of `held` that is of the model which the first one of the group was near to."""
    if first is None:
        return None
    same = [base for source, base in held if source == first.source and not base.type_name]
    return (first.source or 0, same[0], first) if len(same) == 1 else None


def _taken(rows: NDArray[np.uint8], which: Sequence[int]) -> NDArray[np.uint8]:
    """Some rows; no copy where that is all of them."""
    return rows if len(which) == len(rows) else rows[which]


def _alike(jobs: Iterable[EncodingJob]) -> Iterable[list[EncodingJob]]:
    """Jobs whose tensors may be encoded together, each list in its order; others one by one."""
    together: dict[tuple[object, ...], list[EncodingJob]] = {}
    for job in jobs:
        part = job.chunk.part
        like = part.reader.type, tuple(part.reader.shape)
        together.setdefault(like if is_bundled(part) else (part.name,), []).append(job)
    return together.values()


def _is_large(part: TensorPart) -> bool:
    """Whether each frame is a task of its own."""
    return len(part.frames) > FEW_FRAMES


def _bundles(parts: Iterable[TensorPart]) -> Iterator[list[TensorPart]]:
    """Parts for one task: one that is large, or small ones that follow each other."""
    bundle: list[TensorPart] = []
    size = 0
    for part in parts:
        full = size + part.size_bytes > _BUNDLE_BYTES or len(bundle) == _BUNDLE
        if bundle and (full or _is_large(part) or _is_large(bundle[-1])):
            yield bundle
            bundle, size = [], 0
        bundle.append(part)
        size += part.size_bytes
    if bundle:
        yield bundle
