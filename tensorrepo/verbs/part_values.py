"""Values that name rows which were stored and are not committed: what leaves a worker.

They are JSON, so that any queue, database or job system carries them; nothing is unpickled.

Source:
    docs/spec/parts.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

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


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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

    repository: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    key: _Name
    root: _Digest
    rows: _Count
    stored_bytes: _Count = msgspec.field(name="bytes")
    lease: _Name
    kind: Literal["rows"] = "rows"
    version: Literal[1] = 1

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
                f"{data[:60]!r} is no part: {error}. Expected what tensorrepo.parts.write gave."
            ) from error


PartLike = Part | str | bytes | Mapping[str, Any]


def parsed(part: PartLike) -> Part:
    """A part, however it came. Raises InvalidInputError for what is none."""
    if isinstance(part, Part):
        return part
    if isinstance(part, str | bytes):
        return Part.from_json(part)
    if isinstance(part, Mapping):
        return Part.from_json(msgspec.json.encode(dict(part)))
    raise wrong("parts", "what tensorrepo.parts.write gave, or its JSON", part)


def refuse_unreachable(parts: Iterable[Part], repository: RepositoryCore) -> None:
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
