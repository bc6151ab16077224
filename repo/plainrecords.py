"""Which records does one look show to be well-formed?

History is read record by record, and nearly every one is a commit or a tag: texts, digests and
refs, no `data`. Their form is a type, which `msgspec` checks in one pass. What it refuses may be a
record all the same: `records.decode_record` then looks closer, and says what is wrong.

Source:
    docs/spec/log.md, sections "Canonical JSON" and "Record".
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tensorrepo.repo.ids import content_tag

Name = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Whole = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


# Members stand in the order of their names, as canonical JSON has them.
class PlainUpdate(Struct, forbid_unknown_fields=True):
    """One of `LogEntry.updates`."""

    new: Name | None
    old: Name | None
    # So few characters that they fit in a ref's bytes, whichever they are.
    ref: Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]{1,256}\Z")]


class PlainEntry(Struct, forbid_unknown_fields=True):
    """One of `Record.entries`, without `data`."""

    actor: str
    kind: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,31}\Z")]
    note: str
    time: Whole
    txn: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
    updates: list[PlainUpdate]
    bulk: Name | UnsetType = UNSET
    signature: str | UnsetType = UNSET


class PlainRecord(Struct, forbid_unknown_fields=True):
    """One slot of the log."""

    entries: list[PlainEntry]
    gen: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    previous: Name
    state: Name | None
    tag: str


_DECODER: Final = msgspec.json.Decoder(PlainRecord)
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_TAG_AT: Final = -len(',"tag":""}') - 32  # it is the last member


def decode_plain(data: bytes, interval: int) -> PlainRecord | None:
    """The record, if its bytes are canonical, its tag fits and all else but the chain is right.

    Args:
        data: the bytes of a slot.
        interval: records whose generation is a multiple of it carry `state`.

    Returns:
        None for what needs a closer look.
    """
    try:
        record = _DECODER.decode(data)
        again = _ENCODER.encode(record)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    stated = record.gen % interval == 0
    fine = again == data and stated == (record.state is not None)
    # The tag is made over the record without it; in canonical form that is a slice.
    if fine and content_tag(data[:_TAG_AT] + b"}").hex() == record.tag:
        return record
    return None
