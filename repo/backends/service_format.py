"""Messages of a service and its clients: a head in JSON, then the bytes of objects.

One request can so bring small objects and the entries that need them.

Source:
    docs/spec/service.md, section "Messages".
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Annotated, Final

import msgspec

from tensorrepo.repo.errors import InvalidInputError, TooLargeError
from tensorrepo.repo.ids import Buffer, Digest, digest_from_bytes

API_HEADER: Final = "Tensorrepo-Api"  # of an answer: where the API of the repository is
ACCESS_HEADER: Final = "Tensorrepo-Access"  # of that answer: "all" of the repository, or "part"
CALLER_HEADER: Final = "Tensorrepo-Caller"  # of that answer: who asks, as the log will have it
DIRECT_HEADER: Final = "Tensorrepo-Direct"  # of that answer: bytes from which objects may go past
COMPOSES_HEADER: Final = "Tensorrepo-Composes"  # of that answer: paths of a commit it composes
CLIENT_HEADER: Final = "Tensorrepo-Client"  # of a request: revision of the protocol it speaks
REVISION: Final = 1  # of what this page of the specification says
MAX_HOPS: Final = 11  # of a way to an object, so that its key has at most 512 bytes
MEDIA_TYPE: Final = "application/vnd.tensorrepo.message"
MAX_MESSAGE_BYTES: Final = 32 << 20
MAX_OBJECTS: Final = 4096  # of one message
SMALL_BYTES: Final = 1 << 20  # larger objects travel by themselves, in pieces
PIECE_BYTES: Final = 32 << 20  # of a large object that one request brings
MOST_ADDRESSES: Final = 32  # of one call: an event of the audit log names as many

# Layout: bytes of the head | head | the objects that it lists, one after the other.
HEAD_BYTES = Struct("<I")
assert HEAD_BYTES.size == 4, "docs/spec/service.md promises four bytes"

_WAY_CHARACTERS: Final = 43


def way_text(raw: bytes) -> str:
    """A digest as a way has it: base64url without padding."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def parse_way(text: str) -> list[Digest]:
    """Digests of a way, from a commit to the object. Raises InvalidInputError."""
    parts = text.split("/")
    if len(parts) > MAX_HOPS or any(len(part) != _WAY_CHARACTERS for part in parts):
        raise InvalidInputError(f"a way has 1 to {MAX_HOPS} digests of {_WAY_CHARACTERS} letters")
    try:
        found = [base64.b64decode(part + "=", b"-_", validate=True) for part in parts]
    except ValueError as error:
        raise InvalidInputError(f"no way to an object: {error}") from None
    return [digest_from_bytes(raw) for raw in found]


DigestText = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class MessageHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Head of a message.

    Attributes:
        objects: digest and stored bytes of each object that follows.
        entries: entries of one transaction that are to be appended, as records have them.
        generation: number of the record that they were decided on.
        merges: whether a commit among them may be merged onto a branch that moved.
        receipts: receipts of objects that were sent before, by their digests.
        commit: what the service is to compose, see `repo.history.composing`; `entries` go with it.
    """

    objects: tuple[tuple[DigestText, Annotated[int, msgspec.Meta(ge=1)]], ...] = ()
    entries: msgspec.Raw = msgspec.Raw(b"[]")
    generation: Annotated[int, msgspec.Meta(ge=0)] = 0
    merges: bool = False
    receipts: dict[DigestText, str] = {}
    commit: msgspec.Raw = msgspec.Raw(b"null")


class Landed(msgspec.Struct, frozen=True):
    """Answer to an append, see `base.Landing`."""

    generation: int
    entries: msgspec.Raw
    records: tuple[str, ...] = ()
    objects: dict[str, bytes] = {}


_HEAD_DECODER: Final = msgspec.json.Decoder(MessageHead)


def encode_message(head: MessageHead, objects: Sequence[Buffer] = ()) -> bytes:
    """The bytes of a message; `objects` in the order in which its head lists them."""
    data = msgspec.json.encode(head)
    return b"".join((HEAD_BYTES.pack(len(data)), data, *objects))


def decode_message(data: Buffer) -> tuple[MessageHead, list[tuple[Digest, memoryview]]]:
    """Head and objects of a message; views, nothing is copied.

    Raises:
        InvalidInputError: the bytes are no message.
        TooLargeError: more objects than one may bring.
    """
    view = memoryview(data).cast("B")
    if view.nbytes < HEAD_BYTES.size:
        raise InvalidInputError("no message: it has fewer than 4 bytes")
    start = HEAD_BYTES.size + HEAD_BYTES.unpack_from(view)[0]
    if start > view.nbytes:
        raise InvalidInputError(f"no message: its head is to end at byte {start}, behind its end")
    try:
        head = _HEAD_DECODER.decode(view[HEAD_BYTES.size : start])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"no message: its head is not as it should be: {error}") from None
    if len(head.objects) > MAX_OBJECTS:
        raise TooLargeError(f"a message brings at most {MAX_OBJECTS} objects: send several")
    return head, list(_objects(head, view[start:]))


def _objects(head: MessageHead, body: memoryview) -> Iterable[tuple[Digest, memoryview]]:
    if sum(size for _, size in head.objects) != body.nbytes:
        raise InvalidInputError(
            f"no message: its head lists {sum(size for _, size in head.objects)} bytes of objects, "
            f"{body.nbytes} follow"
        )
    at = 0
    for digest, size in head.objects:
        yield Digest(digest), body[at : at + size]
        at += size
