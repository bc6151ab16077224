"""Log records: canonical JSON of one slot of the log.

A record has at most 64 KiB and chains to the bytes of the slot before it. It holds entries, each of
one transaction; `apply` decides which of them apply.

Canonical JSON: UTF-8, no white space, members sorted by the code points of their names, integers
of 64 bits and no other numbers, no escape that is not needed. Bytes that do not re-encode to
themselves are no record, so equal records have equal bytes in every implementation.

The form of a record is a type, which `msgspec` checks in one pass, for history is read record by
record.

Source:
    docs/spec/log.md, sections "Canonical JSON", "Record" and "Kinds".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.hashing.digests import content_tag, record_digest
from tensorrepo.repo.ids import Buffer, Digest

_Name = Annotated[Digest, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Integer = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

MAX_REF_BYTES: Final = 1024


_MALFORMED = (msgspec.MsgspecError, InvalidInputError, ValueError, RecursionError)

CanonicalValue: TypeAlias = (
    "bool | int | str | list[CanonicalValue] | tuple[CanonicalValue, ...]"
    " | Mapping[str, CanonicalValue] | None"
)

MAX_RECORD_BYTES: Final = 65536
MAX_BULK_BYTES: Final = 64 << 20
MOST_SUPERSEDED: Final = 200  # pairs that an entry of ours says, of some 480 that fit a record
STATE_INTERVAL: Final = 64  # records whose generation is a multiple carry `state`
MAX_NESTING: Final = 16
_DATA_NESTING: Final = MAX_NESTING - 3  # inside of record, entries and entry

REF_KINDS: Final = frozenset({"commit", "ref-create", "ref-delete", "ref-reset", "tag"})
FIRST_KINDS: Final = (  # those of version 1, which all know
    REF_KINDS
    | {"lease-open", "lease-close", "gc-condemn", "gc-end"}
    | {"supersede", "shallow", "config", "noop", "purge"}
)
KINDS: Final = FIRST_KINDS | {"gc-merge"}

_TXN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_INT64 = range(-(1 << 63), 1 << 63)

_DECODER = msgspec.json.Decoder()


class Update(Struct, frozen=True, forbid_unknown_fields=True):
    """Set `ref` from `old` to `new`; None stands for a ref that does not exist."""

    # The rules of `names.check_ref` are for writers. The log asks only for what every version
    # will ask for, or two versions could fold one record into different refs.
    ref: Annotated[str, Meta(pattern=rf"^[^\x00-\x1f\x7f]{{1,{MAX_REF_BYTES}}}\Z")]
    old: _Name | None
    new: _Name | None


class LogEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one transaction does in a record.

    `updates` (and those of the ref-updates object `bulk`, after them) apply together or not at
    all. `data` holds the fields of the kinds that have some, see docs/spec/log.md, "Kinds":

        lease-open   {"id": str, "keep": [digest], "expires": int time in ns | None}
        lease-close  {"id": str}
        gc-condemn   {"at": its own generation, "list": digest, "graves": digest,
                      "release": [digest]}
        gc-end       {"generation": int of the gc-condemn}
        supersede    {"placements": {old digest: new digest}}
        shallow      {"add": [digest], "remove": [digest]}
        config       {"set": {key: value | None}}
        purge        {"columns": {path: {id: name}}, "rows": [digest]}

    The other kinds have none. The updates of a ``purge`` move no refs: `old` is the digest of what
    was erased, `new` that of its twin, or None; `ref` says for people where it was.

    `time_ns` is UTC and informs people; nothing is ordered by it.
    """

    txn: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
    kind: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,31}\Z")]
    actor: str
    time_ns: _Integer = msgspec.field(name="time")
    # Defaults of a function's making are written, too: these two stand in every entry.
    note: str = msgspec.field(default_factory=lambda: "")
    updates: tuple[Update, ...] = msgspec.field(default_factory=lambda: ())
    bulk: _Name | None = None
    data: dict[str, Any] = {}
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One slot of the log.

    Attributes:
        gen: number of the slot, from 1.
        previous: `record_digest` of the bytes of the slot before; for 1, of `repo.json`.
        state: where `gen` is a multiple of 64, `state_digest` of the fold of the records before.
        entries: judged one after the other.
    """

    gen: int
    previous: Digest
    state: Digest | None
    entries: tuple[LogEntry, ...]

    def has_txn(self, txn: str) -> bool:
        return any(entry.txn == txn for entry in self.entries)


class _StoredRecord(Struct, forbid_unknown_fields=True):
    entries: tuple[LogEntry, ...]
    gen: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    previous: _Name
    state: Digest | None
    tag: str


class _StoredUpdates(Struct, forbid_unknown_fields=True):
    updates: tuple[Update, ...]
    version: Literal[1]


_RECORD_DECODER: Final = msgspec.json.Decoder(_StoredRecord)
_UPDATES_DECODER: Final = msgspec.json.Decoder(_StoredUpdates)
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_NO_TAG: Final = b',"tag":""}'  # it is the last member
_TAG_DIGITS: Final = 32


def record_as_read(record: LogRecord) -> tuple[LogRecord, bytes]:
    """A record as whoever reads it will have it, and its bytes, which are those of a slot.

    Raises:
        InvalidInputError: a field cannot be recorded, or the record exceeds 64 KiB.
    """
    where = f"log record {record.gen} cannot be written"
    try:
        for entry in record.entries:
            _check_json(entry.data, _DATA_NESTING)  # before JSON makes null of what is NaN
        stored = _StoredRecord(record.entries, record.gen, record.previous, record.state, "")
        blank = _ENCODER.encode(stored)
        data = blank[:-2] + _tag(blank.removesuffix(_NO_TAG)).encode() + b'"}'
        if len(data) <= MAX_RECORD_BYTES:
            return _record_of(_parse_record(data)), data
    except (*_MALFORMED, TypeError, OverflowError) as error:
        raise InvalidInputError(f"{where}: {error}") from error
    sizes = [len(_ENCODER.encode(entry)) for entry in record.entries]
    largest, size = max(zip(record.entries, sizes, strict=True), key=lambda one: one[1])
    raise InvalidInputError(
        f"log record {record.gen} would have {len(data):,} bytes, at most {MAX_RECORD_BYTES:,} are "
        f"allowed. Its entry {largest.kind!r} alone takes {size:,}. Give a shorter message, or "
        "do it in several steps. Nothing was changed."
    )


def decode_record(data: Buffer, where: str = "log record") -> LogRecord:
    """Parse the bytes of a slot. Its place in the chain is the caller's to check.

    Raises:
        CorruptError: not a record; the message starts with `where`.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise CorruptError(f"{where}: {len(data)} bytes, a record has at most {MAX_RECORD_BYTES}")
    try:
        stored = _parse_record(bytes(data))
    except _MALFORMED as error:
        raise CorruptError(f"{where}: {error}") from error
    return _record_of(stored)


def _record_of(stored: _StoredRecord) -> LogRecord:
    return LogRecord(stored.gen, stored.previous, stored.state, stored.entries)


def _parse_record(data: bytes) -> _StoredRecord:
    """What is stored in a slot; one of `_MALFORMED` for bytes that no record has."""
    record = _RECORD_DECODER.decode(data)
    has_state = record.state is not None and is_digest(record.state)
    if (record.gen % STATE_INTERVAL == 0) != has_state:
        raise ValueError(
            f"state must be a digest where gen is a multiple of {STATE_INTERVAL}, else null: "
            f"record {record.gen} has {record.state!r:.80}"
        )
    for entry in record.entries:
        _check_refs(entry.updates)
        if entry.data:
            _check_json(entry.data, _DATA_NESTING)
    if _ENCODER.encode(record) != data:
        raise ValueError("JSON, but not in canonical form")
    # The tag is made over the record without it; in canonical form that is a slice.
    tag = _tag(data[: -len(_NO_TAG) - _TAG_DIGITS])
    if record.tag != tag:
        raise ValueError(f"its tag is {record.tag!r:.40}, the rest of it makes {tag!r}")
    return record


def _tag(untagged: bytes) -> str:
    """The tag of a record: 32 hex digits of `content_tag` of its JSON without the tag itself.

    Until the next record chains to it, nothing else would tell a damaged record from another one.
    """
    return content_tag(untagged + b"}").hex()


def _check_refs(updates: Iterable[Update]) -> None:
    for update in updates:
        # A character has at most 4 bytes, and refs are short.
        if len(update.ref) * 4 > MAX_REF_BYTES and len(update.ref.encode()) > MAX_REF_BYTES:
            raise ValueError(f"a ref has at most {MAX_REF_BYTES} bytes, found {update.ref!r:.80}")


def encode_ref_updates(updates: Iterable[Update]) -> bytes:
    """Payload of a ref-updates object (`Kind.REF_UPDATES`), for updates too many for a record.

    Store it WITHOUT links: it is kept for ever, so that the log can always be folded from its
    start, and must not keep alive what the refs pointed to.
    """
    stored = _StoredUpdates(tuple(updates), 1)
    data = _ENCODER.encode(stored)
    if len(data) > MAX_BULK_BYTES:
        raise InvalidInputError(
            f"{len(stored.updates)} ref updates take {len(data)} bytes, at most {MAX_BULK_BYTES} "
            "fit one entry: split them over several"
        )
    decode_ref_updates(data)
    return data


def decode_ref_updates(payload: Buffer) -> tuple[Update, ...]:
    """The updates of a ref-updates object.

    Raises:
        InvalidInputError: the payload is none. Its digest was right, so whoever wrote it is to
            blame and not the store: the fold voids the entry, the log stays readable.
    """
    if len(payload) > MAX_BULK_BYTES:
        raise InvalidInputError(f"ref updates: {len(payload)} bytes, at most {MAX_BULK_BYTES}")
    try:
        stored = _UPDATES_DECODER.decode(payload)
        _check_refs(stored.updates)
        if _ENCODER.encode(stored) != payload:
            raise ValueError("JSON, but not in canonical form")
    except _MALFORMED as error:
        raise InvalidInputError(f"ref updates: {error}") from error
    return stored.updates


def canonical_json(value: object) -> bytes:
    """`value` in the one encoding that the log uses.

    Raises:
        InvalidInputError: it holds something else than null, booleans, 64-bit integers, text,
            lists and objects, or nests deeper than 16.
    """
    _check_json(value, MAX_NESTING)
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError) as error:  # another mapping than dict; lone surrogates
        raise InvalidInputError(f"cannot be written as canonical JSON: {error}") from error


def parse_canonical(data: Buffer, where: str) -> Any:
    """What `canonical_json` encoded as exactly `data`; CorruptError for anything else."""
    value = parse_json(data, where)
    try:
        again = canonical_json(value)
    except InvalidInputError as error:
        raise CorruptError(f"{where}: {error}") from error
    if again != data:
        raise CorruptError(f"{where}: JSON, but not in canonical form")
    return value


def parse_json(data: Buffer, where: str) -> Any:
    """What any JSON text says, in canonical form or not; CorruptError for what is none."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"{where}: no JSON: {error}") from error


def is_digest(value: object) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def is_txn(value: str) -> bool:
    """Whether `value` can name a transaction; such a name is a safe file name, too."""
    return _TXN.fullmatch(value) is not None


def genesis_digest(identity: bytes) -> Digest:
    """What record 1 names as `previous`: the name of `repo.json`, of which `identity` is all."""
    return record_digest(identity)


def _check_json(value: object, depth: int) -> None:
    # Most values are texts and small numbers, and asking whether one is a Mapping is slow: each
    # record is checked twice when history is read, so the common types come first.
    known = type(value)
    if known is str or known is bool or value is None:
        return
    if depth == 0 and isinstance(value, (dict, list, tuple, Mapping)):
        raise InvalidInputError(f"nests deeper than {MAX_NESTING}")
    if isinstance(value, dict) or (known is not int and isinstance(value, Mapping)):
        for name, member in value.items():
            if not isinstance(name, str):
                raise InvalidInputError(f"member names are text, got {name!r:.80}")
            _check_json(member, depth - 1)
    elif isinstance(value, (list, tuple)):
        for member in value:
            _check_json(member, depth - 1)
    elif isinstance(value, int):
        if value not in _INT64:
            raise InvalidInputError("integers have 64 bits, got a larger one")
    elif not isinstance(value, str):
        raise InvalidInputError(f"no JSON of the log: {type(value).__name__} {value!r:.80}")
