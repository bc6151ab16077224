"""Two-step writes of models: ranks anywhere store tensors and shards, one process joins them.

A part is a model of its own that nobody's commit names: its tensors are the boxes that a rank
holds, and its metadata says of which tensors. `join_parts` makes of all parts the manifest and the
placement of one model, whose tensors have the boxes as pieces; no tensor is read or copied. What a
part says of itself is not believed: its metadata is proved, the frames of every box are compared
with its fingerprint, packs are looked for, and a sample of frames is decoded and hashed.

A part has a key: a rank that is started again writes the same one, and counts once.

Source:
    docs/spec/parts.md, section "Tensors".
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np

from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.common.tensors import TensorType
from tensorrepo.formats.model.layout.manifest import Alias
from tensorrepo.formats.model.read.frames import StoredFrames
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.base_choice import SIMILAR, DeltaOptions
from tensorrepo.formats.model.write.model_source import FileContent, ModelSource
from tensorrepo.formats.model.write.model_writer import (
    DEFAULT_BUDGET_BYTES,
    Progress,
    store_model,
)
from tensorrepo.formats.model.write.shards import (
    StoredShard,
    TensorShard,
    join_stored,
    shard_name,
)
from tensorrepo.repo.changes.gc_fence import store_again
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CommitExpired,
    CorruptError,
    InvalidInputError,
    NotFoundError,
)
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind, ObjectSink
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.typed_decoding import from_plain

Verify = Literal["sample", "all"]
SAMPLED_FRAMES: Final = 128  # of all parts of one call
_KEY: Final = "part"  # of a part's metadata


@dataclass(frozen=True, slots=True)
class TensorsPart:
    """Tensors that were stored for a model: `key` names the part, the rest says where it is."""

    key: str
    root: Digest
    placement: Digest

    @property
    def entry(self) -> Entry:
        return Entry(Kind.MODEL, self.root, self.placement)


@dataclass(frozen=True, slots=True)
class JoinedParts:
    """What became of parts.

    Attributes:
        joined: keys of the parts that the model was made of.
        repeated: number of copies that were passed over, since their key had come before.
        tensors: tensors of the model, aliases not counted.
        tensor_bytes: their bytes.
    """

    joined: tuple[str, ...] = ()
    repeated: int = 0
    tensors: int = 0
    tensor_bytes: int = 0


class _Box(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which box of which tensor a tensor of a part is."""

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]


class _Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the metadata of a part says. Tensors without a box are whole."""

    key: str
    boxes: dict[str, _Box]


def write_part(
    objects: ObjectSink,
    shards: Sequence[TensorShard],
    key: str,
    *,
    aliases: Mapping[str, str] | None = None,
    known: Iterable[Entry] = (),
    against: DeltaOptions = SIMILAR,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    progress: Progress | None = None,
) -> Entry:
    """Store tensors, or boxes of them, that are to be joined later.

    Args:
        objects: store of the objects.
        shards: what this rank has.
        key: name of the part.
        aliases: further names of whole tensors.
        known: as for `store_model`, and the rest.
        against: what is encoded against what; a box finds the same box of a base.
        budget_bytes: memory for tensors and packs.
        progress: receives tensors and bytes done so far.

    Raises:
        InvalidInputError: a box that is not within its tensor, or is there twice.
    """
    named: dict[str, TensorShard] = {}
    for shard in shards:
        _check_box(shard)
        name = shard_name(shard)
        if name in named:
            raise InvalidInputError(
                f"tensor {shard.name!r}: two shards begin at {list(shard.offset)}, or one has the "
                f"name {name!r}. Give each box once"
            )
        named[name] = shard
    boxes = {
        name: _Box(shard.name, tuple(shard.shape), tuple(shard.offset))
        for name, shard in named.items()
        if name != shard.name
    }
    source = ModelSource({name: each.reader for name, each in named.items()}, dict(aliases or {}))
    told = msgspec.to_builtins(_Told(key, boxes))
    return store_model(
        objects,
        source,
        metadata={_KEY: told},
        known=known,
        against=against,
        budget_bytes=budget_bytes,
        progress=progress,
    ).entry


def join_parts(
    objects: ObjectWriter,
    parts: Sequence[TensorsPart],
    *,
    verify: Verify = "sample",
    files: Mapping[str, FileContent] | None = None,
    metadata: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    lineage: Iterable[ProvenanceEdge] = (),
    rng: random.Random | None = None,
) -> tuple[Entry, JoinedParts]:
    """The model that parts are together.

    Args:
        objects: the transaction's store.
        parts: all parts of the model; of copies with the same key the first one counts.
        verify: frames that are decoded and compared with their digests, beside all metadata: a
            sample of `SAMPLED_FRAMES` of all parts together, or all.
        files: files that belong to the model.
        metadata: JSON.
        metrics: JSON.
        lineage: what it came from.
        rng: chance for the sample; None: the system's.

    Returns:
        The entry to stage, and what became of the parts.

    Raises:
        CommitExpired: an object of a part was collected, and no copy is left.
        CorruptError: a part is not what it says.
        InvalidInputError: boxes that do not make up whole tensors, or one box with two contents.
    """
    # In one order, so that the same parts give the same placement however they come.
    wanted = sorted(_once(parts), key=lambda part: part.key)
    opened = [(part, _opened(objects, part)) for part in wanted]
    stored = [shard for part, model in opened for shard in _shards(part, model)]
    _check_copies(stored)
    for part, model in opened:
        _secure(objects, part, model)
    _verify(opened, verify, rng or random.SystemRandom())
    entry = join_stored(
        objects,
        [shard for _, shard in stored],
        [model.packs.placement for _, model in opened],
        aliases=_aliases(opened),
        files=files,
        metadata=metadata,
        metrics=metrics,
        lineage=lineage,
    )
    made = open_model(objects, entry)
    report = JoinedParts(
        tuple(part.key for part in wanted),
        len(parts) - len(wanted),
        len(made.tensors),
        made.size_bytes,
    )
    return entry, report


def _check_box(shard: TensorShard) -> None:
    box = tuple(shard.reader.shape)
    fits = len(shard.shape) == len(shard.offset) == len(box) and all(
        min(at, whole - at - size) >= 0
        for at, size, whole in zip(shard.offset, box, shard.shape, strict=True)
    )
    if not fits:
        raise InvalidInputError(
            f"tensor {shard.name!r} of shape {list(shard.shape)}: a shard of shape {list(box)} at "
            f"{list(shard.offset)} is not within it"
        )


def _once(parts: Sequence[TensorsPart]) -> list[TensorsPart]:
    """The first copy of every part."""
    found: dict[str, TensorsPart] = {}
    for part in parts:
        first = found.setdefault(part.key, part)
        if first.root != part.root:
            raise InvalidInputError(
                f"part {part.key!r} came twice, with different tensors ({first.root:.12} and "
                f"{part.root:.12}): a rank that is started again must write the same. Give the "
                "parts of one attempt only, such as with its number in the key."
            )
    return list(found.values())


def _opened(objects: ObjectWriter, part: TensorsPart) -> StoredModel:
    try:
        return open_model(objects, part.entry)
    except NotFoundError as error:
        raise _expired(part, error) from error


def _shards(part: TensorsPart, model: StoredModel) -> list[tuple[TensorsPart, StoredShard]]:
    """The boxes of a part."""
    where = f"part {part.key!r}"
    try:
        told = from_plain(model.metadata.get(_KEY), _Told)
    except (msgspec.ValidationError, ValueError) as error:
        raise CorruptError(
            f"{where} does not say what it is of: {error}. Write it again"
        ) from error
    if told.key != part.key or not told.boxes.keys() <= model.tensors.keys():
        raise CorruptError(f"{where} was stored as {told.key!r}, or has other tensors than it says")
    types = model.manifest.type_table()
    found = []
    for name, tensor in model.tensors.items():
        (piece,) = tensor.pieces
        box = told.boxes.get(name) or _Box(name, tensor.shape, (0,) * len(tensor.shape))
        element = types[tensor.type]
        block = element.name, element.block_elements, element.block_bytes
        placed = msgspec.structs.replace(piece, offset=box.offset)
        found.append((part, StoredShard(box.name, block, box.shape, placed)))
    return found


def _check_copies(stored: Iterable[tuple[TensorsPart, StoredShard]]) -> None:
    """A box that several ranks hold, as replicas do, is the same in all of them."""
    first: dict[tuple[str, tuple[int, ...]], tuple[TensorsPart, StoredShard]] = {}
    for part, shard in stored:
        other, known = first.setdefault((shard.name, shard.piece.offset), (part, shard))
        if (known.type, known.piece) != (shard.type, shard.piece):
            raise InvalidInputError(
                f"tensor {shard.name!r}: parts {other.key!r} and {part.key!r} hold different "
                f"values at {list(shard.piece.offset)}. Replicas must be equal, and parts of one "
                "step and one attempt: put both into their keys."
            )


def _aliases(opened: Iterable[tuple[TensorsPart, StoredModel]]) -> list[Alias]:
    found: dict[str, str] = {}
    for part, model in opened:
        for name, target in model.aliases.items():
            if found.setdefault(name, target) != target:
                raise InvalidInputError(
                    f"part {part.key!r}: {name!r} is another name of {target!r} in it, and of "
                    f"{found[name]!r} in another part"
                )
    return [Alias(name, found[name]) for name in sorted(found)]


# ------------------------------------------------------------------------------ what is looked at


def _secure(objects: ObjectWriter, part: TensorsPart, model: StoredModel) -> None:
    """Rely on the packs of a part, those of bases too."""
    for digest in model.packs.placement.links():
        try:
            if not objects.adopt(objects.describe(digest)):
                store_again(objects, [digest], objects.graves, f"part {part.key!r}")
        except (NotFoundError, CommitExpired) as error:
            raise _expired(part, error) from error


def _verify(
    opened: Iterable[tuple[TensorsPart, StoredModel]], verify: Verify, rng: random.Random
) -> None:
    """Compare the frames of every box with its fingerprint, and decode some of them."""
    frames = [
        (part, tensor, index)
        for part, model in opened
        for tensor in _tensors(part, model)
        for index in range(len(tensor.frames))
    ]
    some = frames if verify == "all" else rng.sample(frames, min(len(frames), SAMPLED_FRAMES))
    for part, tensor, index in some:
        try:
            tensor.frame_into(index, np.empty(_frame_bytes(tensor, index), np.uint8).data)
        except (CorruptError, NotFoundError) as error:
            raise _wrong(part, error) from error


def _tensors(part: TensorsPart, model: StoredModel) -> list[StoredFrames]:
    """The boxes of a part, whose frames hash to what its manifest says."""
    types: Mapping[str, TensorType] = model.manifest.type_table()
    found = []
    for name, tensor in model.tensors.items():
        try:
            found.append(model.packs.piece(name, types[tensor.type], tensor.pieces[0]))
        except CorruptError as error:
            raise _wrong(part, error) from error
        except NotFoundError as error:
            raise _expired(part, error) from error
    return found


def _frame_bytes(tensor: StoredFrames, index: int) -> int:
    return tensor.frames[index].frame.size_bytes


def _wrong(part: TensorsPart, error: Exception) -> CorruptError:
    return CorruptError(
        f"part {part.key!r} is not what it says: {error} Write it again. Nothing changed."
    )


def _expired(part: TensorsPart, error: Exception) -> CommitExpired:
    return CommitExpired(
        f"part {part.key!r}: {error} It was collected: its lease had ended, or was closed. Write "
        "the part again with the same key, and commit it before its lease runs out (keep= of "
        "parts.write_tensors)."
    )
