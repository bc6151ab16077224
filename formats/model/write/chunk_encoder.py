"""Encoding of a model's chunks on all cores: a way for each, once for groups of like tensors.

Tensors of one type and shape whose names differ by numbers alone, as those of a network's layers
do, mostly move alike. The first of a group is tried in every way; where a plain difference was
smallest, the others are only asked whether theirs is about as small, and tried in every way if not.
Which tensor is the first depends on the model alone, never on what thread is faster.

A task is a chunk of a few frames, or many small ones, or a frame of a large one. A base's frame is
read once, for the choice and for the encoding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import MemoryTensor
from tensorrepo.formats.model.delta.base_choice import Bases
from tensorrepo.formats.model.delta.registry import DELTA
from tensorrepo.formats.model.delta.similarity import LEAST_ELEMENTS, signature
from tensorrepo.formats.model.write.encoding import (
    LEAST_BYTES,
    LEAST_SAVED_BYTES,
    BaseFrames,
    EncodingChoice,
    HeldBase,
    TensorChunk,
    choose_way,
    each,
    encode_frame,
    member_of,
    shares,
    ways_with,
)
from tensorrepo.formats.model.write.frame_memory import FrameMemory
from tensorrepo.formats.model.write.packing import MemberDraft, SealedFrame
from tensorrepo.repo.errors import CorruptError, NotFoundError, UnsupportedError

_TOGETHER: Final = 4  # frames of a chunk that one task encodes, where there are many chunks
_MANY: Final = 8  # chunks
_BUNDLE_BYTES: Final = 1 << 20  # of small chunks that one task encodes
_BUNDLE: Final = 256  # chunks
_ABOUT: Final = 0.1  # of the first one's share, by which others of a group may differ
_NUMBERS: Final = re.compile(r"\d+")

Group = tuple[str, tuple[int, ...], str]


class _Encoded(NamedTuple):
    """What a task made of a chunk. `frames` is None where each is a task of its own."""

    way: EncodingChoice | None
    frames: list[SealedFrame | None] | None
    signature: NDArray[np.uint16] | None


@dataclass(frozen=True, slots=True)
class _Task:
    """Chunks that one task looks at, each with the choice for the first one of its group."""

    chunks: tuple[TensorChunk, ...]
    firsts: tuple[EncodingChoice | None, ...]
    together: int


class ChunkEncoder:
    """Encodes chunks of one model."""

    def __init__(
        self,
        bases: Bases,
        predicted: Callable[[TensorChunk], Iterable[EncodingChoice]],
        pool: Executor,
        memory: FrameMemory,
    ) -> None:
        """
        Args:
            bases: models that tensors may be encoded against.
            predicted: gives further ways for a chunk.
            pool: threads to work on.
            memory: for frames of bases.
        """
        self.notes: dict[str, None] = {}
        self._bases = bases
        self._predicted = predicted
        self._pool = pool
        self._memory = memory
        self._firsts: dict[Group, EncodingChoice | None] = {}

    def drafts(
        self, chunks: Sequence[TensorChunk]
    ) -> Iterator[tuple[TensorChunk, EncodingChoice | None, MemberDraft]]:
        """Each chunk, the way that was chosen for it, and the member that it becomes."""
        encoded: dict[int, _Encoded] = {}
        for numbers in self._turns(chunks):
            self._encode_all(chunks, numbers, encoded)
        frames = [self._frames(chunk, encoded[at]) for at, chunk in enumerate(chunks)]
        for at, chunk in enumerate(chunks):
            one = encoded.pop(at)
            yield (
                chunk,
                one.way,
                member_of(chunk, one.way, list(frames[at]), one.signature, self._pool),
            )

    def _turns(self, chunks: Sequence[TensorChunk]) -> Iterator[list[int]]:
        """Numbers of chunks: the first of each new group, and others, before those like them."""
        if self._bases.codecs is not None or not self._bases.models:
            yield list(range(len(chunks)))
            return
        seen = set(self._firsts)
        first: list[int] = []
        like: list[int] = []
        for at, chunk in enumerate(chunks):
            group = group_of(chunk)
            (like if group in seen else first).append(at)
            seen.add(group)
        yield first
        yield like

    def _encode_all(
        self, chunks: Sequence[TensorChunk], numbers: list[int], encoded: dict[int, _Encoded]
    ) -> None:
        size = sum(chunks[at].part.size_bytes for at in numbers)
        together = _TOGETHER if len(numbers) >= _MANY else 1
        bundles = list(_bundles(chunks, numbers))
        tasks = [
            _Task(
                tuple(chunks[at] for at in bundle),
                tuple(self._firsts.get(group_of(chunks[at])) for at in bundle),
                together,
            )
            for bundle in bundles
        ]
        for bundle, done in zip(bundles, each(self._work, tasks, size, self._pool), strict=True):
            for at, one in zip(bundle, done, strict=True):
                encoded[at] = one
                self._firsts.setdefault(group_of(chunks[at]), _as_first(one.way))

    def _work(self, task: _Task) -> list[_Encoded]:
        return [
            self._encode_chunk(chunk, first, task.together)
            for chunk, first in zip(task.chunks, task.firsts, strict=True)
        ]

    def _encode_chunk(
        self, chunk: TensorChunk, first: EncodingChoice | None, together: int
    ) -> _Encoded:
        way, frames = self._choose(chunk, first), None
        if len(chunk.part.frames) <= together:
            frames = [self._encode(chunk, way, index) for index in chunk.part.frames]
        return _Encoded(way, frames, signature_of(chunk))

    def _frames(self, chunk: TensorChunk, made: _Encoded) -> Iterable[SealedFrame | None]:
        if made.frames is not None:
            return made.frames
        encode = partial(self._encode, chunk, made.way)
        return each(encode, chunk.part.frames, chunk.part.size_bytes, self._pool)

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


def group_of(chunk: TensorChunk) -> Group:
    """What like tensors of a model have in common."""
    reader = chunk.part.reader
    return reader.type.name, tuple(reader.shape), _NUMBERS.sub("#", chunk.part.name)


def signature_of(chunk: TensorChunk) -> NDArray[np.uint16] | None:
    """The signature of a tensor, with the member that holds its first frame."""
    part = chunk.part
    size = part.reader.type.bytes_of(part.reader.shape)
    if part.start or size < LEAST_ELEMENTS:
        return None
    if part.size_bytes < size:
        return signature(part.reader)
    return signature(MemoryTensor(part.reader.type, tuple(part.reader.shape), chunk.data.data))


def _as_first(way: EncodingChoice | None) -> EncodingChoice | None:
    """What others of its group need to know of a choice: none where they must be tried anyway."""
    if way is None or way.codec.name != DELTA.name:
        return None
    return EncodingChoice(way.codec, source=way.source, share=way.share)


def _like_first(
    chunk: TensorChunk, held: Sequence[tuple[int, HeldBase]], first: EncodingChoice
) -> EncodingChoice | None:
    """The way of the first one of its group, where it stores about as little of this one."""
    same = [base for source, base in held if source == first.source and not base.type_name]
    if len(same) != 1:
        return None
    way = EncodingChoice(first.codec, (same[0],), source=first.source)
    for share, tried in shares(chunk, [way]):
        saved = chunk.part.size_bytes * (1 - share)
        if abs(share - first.share) <= _ABOUT * first.share and saved >= LEAST_SAVED_BYTES:
            return tried
    return None


def _bundles(chunks: Sequence[TensorChunk], numbers: Iterable[int]) -> Iterator[list[int]]:
    """Numbers of chunks for one task: a large one, or small ones that follow each other."""
    bundle: list[int] = []
    size = 0
    for at in numbers:
        size_bytes = chunks[at].part.size_bytes
        if bundle and (size + size_bytes > _BUNDLE_BYTES or len(bundle) == _BUNDLE):
            yield bundle
            bundle, size = [], 0
        bundle.append(at)
        size += size_bytes
    if bundle:
        yield bundle
