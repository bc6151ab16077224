"""What does a commit say, and how is it stored?

Source:
    docs/spec/trees.md, section "Commit".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorrepo.repo.ids import Buffer, Digest
    from tensorrepo.repo.objects import Link, ObjectSink, ObjectSource

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True)
class Commit:
    """One state of everything, and where it came from.

    `time_ns` (UTC) is information, never an order; `generation` (1 + the largest parent's, so 1
    for the first) is. `changed` names the paths that differ from the first parent, up to 256 of
    them, None when there are more.
    """

    tree: bytes
    parents: tuple[Digest, ...]
    generation: int
    author: str
    message: str
    time_ns: int
    metadata: Mapping[str, Json] = field(default_factory=dict)
    changed: tuple[str, ...] | None = None
    signature: bytes | None = None


def encode_commit(commit: Commit) -> bytes:
    raise NotImplementedError


def decode_commit(payload: Buffer) -> Commit:
    raise NotImplementedError


def read_commit(objects: ObjectSource, digest: Digest) -> Commit:
    raise NotImplementedError


def write_commit(objects: ObjectSink, commit: Commit) -> Link:
    raise NotImplementedError
