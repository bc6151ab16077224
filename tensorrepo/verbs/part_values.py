"""Values that name what was stored and is not committed: what leaves a worker.

They are JSON, so that any queue, database or job system carries them; nothing is unpickled.

Source:
    docs/spec/parts.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import msgspec

from tensorrepo.formats.common.arguments import wrong
from tensorrepo.repo.backends.base import TellsState
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import InvalidInputError, PermissionDenied
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.typed_decoding import from_json

MOST_BYTES = 64 << 10
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_Digest = Annotated[Digest, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all parts say."""

    repository: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    key: _Name
    root: _Digest
    stored_bytes: _Count = msgspec.field(name="bytes")
    lease: _Name

    def to_json(self) -> str:
        """As one line of JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """What `to_json` wrote.

        Raises:
            InvalidInputError: it is none.
        """
        data = text.encode() if isinstance(text, str) else bytes(text)
        if len(data) > MOST_BYTES:
            raise InvalidInputError(f"a part of {len(data):,} bytes: at most {MOST_BYTES:,}")
        try:
            return from_json(data, cls)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"{data[:60]!r} is no part of {cls.of}: {error}. Expected what {cls.by} gave."
            ) from error

    of: ClassVar[str]
    by: ClassVar[str]


class Part(_Value, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rows that a worker stored, to be committed by `DatasetDraft.append_parts`.

    Attributes:
        repository: id of the repository that has them.
        key: name of the part, for good.
        root: digest of the object that leads to all others.
        rows: number of rows.
        stored_bytes: bytes of their pages; ``bytes`` in JSON.
        lease: name of the lease that keeps them until the commit.
        kind: what they are.
        version: version of this form.
    """

    of: ClassVar[str] = "rows"
    by: ClassVar[str] = "tensorrepo.parts.write"
    rows: _Count
    kind: Literal["rows"] = "rows"
    version: Literal[1] = 1


class ModelPart(_Value, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tensors that a rank stored, to be committed by `Transaction.save_model_parts`.

    Attributes:
        repository: id of the repository that has them.
        key: name of the part within its model.
        root: digest of the manifest that names them.
        placement: digest of the object that says where they lie.
        tensors: number of tensors, and of boxes of tensors.
        stored_bytes: bytes that they take; ``bytes`` in JSON.
        lease: name of the lease that keeps them until the commit.
        kind: what they are.
        version: version of this form.
    """

    of: ClassVar[str] = "tensors"
    by: ClassVar[str] = "tensorrepo.parts.write_tensors"
    placement: _Digest
    tensors: _Count
    kind: Literal["tensors"] = "tensors"
    version: Literal[1] = 1


AnyPart = Part | ModelPart
PartLike = AnyPart | str | bytes | Mapping[str, Any]
P = TypeVar("P", Part, ModelPart)


def parsed(part: PartLike, kind: type[P]) -> P:
    """A part of this kind, however it came. Raises InvalidInputError for what is none."""
    if isinstance(part, kind):
        return part
    if isinstance(part, Part | ModelPart):
        raise InvalidInputError(f"part {part.key!r} is of {part.of}, expected what {kind.by} gave")
    if isinstance(part, str | bytes):
        return kind.from_json(part)
    if isinstance(part, Mapping):
        return kind.from_json(msgspec.json.encode(dict(part)))
    raise wrong("parts", f"what {kind.by} gave, or its JSON", part)


def parsed_any(part: PartLike) -> AnyPart:
    """A part of any kind. Raises InvalidInputError for what is none."""
    if isinstance(part, Part | ModelPart):
        return part
    try:
        return parsed(part, ModelPart)
    except InvalidInputError:
        return parsed(part, Part)


def refuse_unreachable(parts: Iterable[AnyPart], repository: RepositoryCore) -> None:
    """Raise where the objects of parts cannot be read.

    Raises:
        InvalidInputError: a part whose objects are in another repository.
        PermissionDenied: a service shows this caller only what refs lead to that he may read.
    """
    for part in parts:
        if part.repository != repository.id:
            raise InvalidInputError(
                f"part {part.key!r} was written to repository {part.repository:.8}, and this is "
                f"{repository.id:.8} ({repository.url}): its objects are not here. Open the "
                "repository that the workers wrote to."
            )
    if isinstance(repository.backend, TellsState):
        raise PermissionDenied(
            f"{repository.url}: parts are committed by somebody who may read the whole repository, "
            "for no ref leads to them yet. Let such an account commit them; workers need not read "
            "all of it."
        )


def lease_name(key_tag: str, root: Digest) -> str:
    """The lease of a part: copies of different content have one each."""
    return f"part-{key_tag}-{root[:16]}"
