"""Log records: canonical JSON of one slot of the log.

A record has at most 64 KiB and chains to the bytes of the slot before it. It holds entries, each of
one transaction; `apply` decides which of them apply.

Canonical JSON: UTF-8, no white space, members sorted by the code points of their names, integers
of 64 bits and no other numbers, no escape that is not needed. Bytes that do not re-encode to
themselves are no record, so equal records have equal bytes in every implementation.

History is read record by record, and nearly every one is a commit or a tag: texts, digests and
refs, no `data`. Their form is a type, which `msgspec` checks in one pass. What it refuses may be a
record all the same: `decode_record` then looks closer, and says what is wrong.

Source:
    docs/spec/log.md, sections "Canonical JSON", "Record" and "Kinds".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.ids import Buffer, Digest, content_tag, record_digest

Name = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
PlainInteger = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


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
    time: PlainInteger
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


_PLAIN_DECODER: Final = msgspec.json.Decoder(PlainRecord)
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
        record = _PLAIN_DECODER.decode(data)
        again = _ENCODER.encode(record)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    stated = record.gen % interval == 0
    fine = again == data and stated == (record.state is not None)
    # The tag is made over the record without it; in canonical form that is a slice.
    if fine and content_tag(data[:_TAG_AT] + b"}").hex() == record.tag:
        return record
    return None


CanonicalValue: TypeAlias = (
    "bool | int | str | list[CanonicalValue] | tuple[CanonicalValue, ...]"
    " | Mapping[str, CanonicalValue] | None"
)

MAX_RECORD_BYTES: Final = 65536
MAX_BULK_BYTES: Final = 64 << 20
STATE_INTERVAL: Final = 64  # records whose generation is a multiple carry `state`
MAX_REF_BYTES: Final = 1024
MAX_NESTING: Final = 16

REF_KINDS: Final = frozenset({"commit", "ref-create", "ref-delete", "ref-reset", "tag"})
KINDS: Final = (
    REF_KINDS
    | {"lease-open", "lease-close", "gc-condemn", "gc-end"}
    | {"supersede", "shallow", "config", "noop"}
)

_TXN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_INT64 = range(-(1 << 63), 1 << 63)

_DECODER = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class Update:
    """Set `ref` from `old` to `new`; None stands for a ref that does not exist."""

    ref: str
    old: Digest | None
    new: Digest | None


@dataclass(frozen=True, slots=True)
class LogEntry:
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

    The other kinds have none. `time_ns` is UTC and informs people; nothing is ordered by it.
    """

    txn: str
    kind: str
    actor: str
    time_ns: int
    note: str = ""
    updates: tuple[Update, ...] = ()
    bulk: Digest | None = None
    data: Mapping[str, CanonicalValue] = field(default_factory=dict)
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


def encode_record(record: LogRecord) -> bytes:
    """The bytes of a slot.

    Raises:
        InvalidInputError: a field cannot be recorded, or the record exceeds 64 KiB.
    """
    raw: dict[str, CanonicalValue] = {
        "gen": record.gen,
        "previous": record.previous,
        "state": record.state,
        "entries": [_entry_to_json(entry) for entry in record.entries],
    }
    data = canonical_json(raw | {"tag": record_tag(raw)})
    if len(data) > MAX_RECORD_BYTES:
        raise InvalidInputError(
            f"log record {record.gen} would have {len(data)} bytes, at most {MAX_RECORD_BYTES} "
            "are allowed: put its updates into a ref-updates object and name it in `bulk`"
        )
    if (problem := _record_problem(msgspec.json.decode(data))) is not None:
        raise InvalidInputError(f"log record {record.gen} cannot be written: {problem}")
    return data


def decode_record(data: Buffer, where: str = "log record") -> LogRecord:
    """Parse the bytes of a slot. Its place in the chain is the caller's to check.

    Raises:
        CorruptError: not a record; the message starts with `where`.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise CorruptError(f"{where}: {len(data)} bytes, a record has at most {MAX_RECORD_BYTES}")
    if (plain := decode_plain(bytes(data), STATE_INTERVAL)) is not None:
        entries = tuple(_entry_from_plain(entry) for entry in plain.entries)
        return LogRecord(plain.gen, Digest(plain.previous), _digest(plain.state), entries)
    raw = parse_canonical(data, where)
    if (problem := _record_problem(raw)) is not None:
        raise CorruptError(f"{where}: {problem}")
    return LogRecord(
        raw["gen"],
        Digest(raw["previous"]),
        raw["state"],
        tuple(_entry_from_json(entry) for entry in raw["entries"]),
    )


def encode_ref_updates(updates: Iterable[Update]) -> bytes:
    """Payload of a ref-updates object (`Kind.REF_UPDATES`), for updates too many for a record.

    Store it WITHOUT links: it is kept for ever, so that the log can always be folded from its
    start, and must not keep alive what the refs pointed to.
    """
    rows = [_update_to_json(update) for update in updates]
    data = canonical_json({"version": 1, "updates": rows})
    if len(data) > MAX_BULK_BYTES:
        raise InvalidInputError(
            f"{len(rows)} ref updates take {len(data)} bytes, at most {MAX_BULK_BYTES} fit one "
            "entry: split them over several"
        )
    if (problem := _updates_problem(msgspec.json.decode(data)["updates"])) is not None:
        raise InvalidInputError(f"ref updates cannot be written: {problem}")
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
        raw = parse_canonical(payload, "ref updates")
    except CorruptError as error:
        raise InvalidInputError(str(error)) from error
    if not _has_members(raw, {"version", "updates"}) or raw["version"] != 1:
        raise InvalidInputError("ref updates: expected {version: 1, updates}")
    if (problem := _updates_problem(raw["updates"])) is not None:
        raise InvalidInputError(f"ref updates: {problem}")
    return tuple(_update_from_json(row) for row in raw["updates"])


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


def _has_members(raw: object, required: set[str], optional: frozenset[str] = frozenset()) -> bool:
    return isinstance(raw, dict) and required <= raw.keys() <= required | optional


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_optional_digest(value: object) -> bool:
    return value is None or is_digest(value)


def record_tag(raw: Mapping[str, CanonicalValue]) -> str:
    """The tag of a record: 32 hex digits of `content_tag` of its JSON without `tag` itself.

    Until the next record chains to it, nothing else would tell a damaged record from another one.
    """
    rest = {name: value for name, value in raw.items() if name != "tag"}
    return content_tag(canonical_json(rest)).hex()


def _record_problem(raw: Any) -> str | None:
    if not _has_members(raw, {"gen", "previous", "state", "entries", "tag"}):
        return "expected an object with exactly gen, previous, state, entries, tag"
    if raw["tag"] != record_tag(raw):
        return f"its tag is {raw['tag']!r:.40}, the rest of it makes {record_tag(raw)!r}"
    if not _is_int(raw["gen"]) or raw["gen"] < 1:
        return f"gen must be a number from 1, found {raw['gen']!r:.80}"
    if not is_digest(raw["previous"]):
        return f"previous must be a digest, found {raw['previous']!r:.80}"
    if raw["gen"] % STATE_INTERVAL and raw["state"] is not None:
        return f"state must be null where gen is no multiple of {STATE_INTERVAL}"
    if raw["gen"] % STATE_INTERVAL == 0 and not is_digest(raw["state"]):
        return f"state must be a digest where gen is a multiple of {STATE_INTERVAL}"
    if not isinstance(raw["entries"], list):
        return "entries must be a list"
    problems = (_entry_problem(entry) for entry in raw["entries"])
    return next((problem for problem in problems if problem is not None), None)


_REQUIRED = {"txn", "kind", "actor", "time", "note", "updates"}
_OPTIONAL = frozenset({"bulk", "data", "signature"})


def _entry_problem(raw: Any) -> str | None:
    if not _has_members(raw, _REQUIRED, _OPTIONAL):
        return f"an entry has {sorted(_REQUIRED)} and optionally {sorted(_OPTIONAL)}"
    if not isinstance(raw["txn"], str) or not is_txn(raw["txn"]):
        return f"txn must match {_TXN.pattern}, found {raw['txn']!r:.80}"
    if not isinstance(raw["kind"], str) or not _KIND.fullmatch(raw["kind"]):
        return f"kind must match {_KIND.pattern}, found {raw['kind']!r:.80}"
    texts = (raw["actor"], raw["note"], raw.get("signature", ""))
    if not all(isinstance(text, str) for text in texts):
        return "actor, note and signature must be text"
    if not _is_int(raw["time"]):
        return f"time must be a number of nanoseconds, found {raw['time']!r:.80}"
    if "bulk" in raw and not is_digest(raw["bulk"]):
        return f"bulk must be a digest, found {raw['bulk']!r:.80}"
    if "data" in raw and not (isinstance(raw["data"], dict) and raw["data"]):
        return "data must be an object with members, or be left out"
    return _updates_problem(raw["updates"])


def _updates_problem(raw: Any) -> str | None:
    if not isinstance(raw, list):
        return "updates must be a list"
    for row in raw:
        if not _has_members(row, {"ref", "old", "new"}):
            return "an update has exactly ref, old, new"
        if not _is_ref(row["ref"]):
            return (
                f"a ref has 1 to {MAX_REF_BYTES} bytes and no control characters, "
                f"found {row['ref']!r:.80}"
            )
        if not _is_optional_digest(row["old"]) or not _is_optional_digest(row["new"]):
            return f"update of {row['ref']!r:.80}: old and new must be digests or null"
    return None


def _is_ref(value: object) -> bool:
    # The rules of `names.check_ref` are for writers. The log asks only for what every version
    # will ask for, or two versions could fold one record into different refs.
    return (
        isinstance(value, str)
        and 0 < len(value.encode()) <= MAX_REF_BYTES
        and not _CONTROL.search(value)
    )


def _entry_to_json(entry: LogEntry) -> dict[str, CanonicalValue]:
    raw: dict[str, CanonicalValue] = {
        "txn": entry.txn,
        "kind": entry.kind,
        "actor": entry.actor,
        "time": entry.time_ns,
        "note": entry.note,
        "updates": [_update_to_json(update) for update in entry.updates],
    }
    if entry.bulk is not None:
        raw["bulk"] = entry.bulk
    if entry.data:
        raw["data"] = entry.data
    if entry.signature is not None:
        raw["signature"] = entry.signature
    return raw


def _entry_from_json(raw: dict[str, Any]) -> LogEntry:
    return LogEntry(
        raw["txn"],
        raw["kind"],
        raw["actor"],
        raw["time"],
        raw["note"],
        tuple(_update_from_json(row) for row in raw["updates"]),
        raw.get("bulk"),
        raw.get("data", {}),
        raw.get("signature"),
    )


def _entry_from_plain(entry: PlainEntry) -> LogEntry:
    return LogEntry(
        entry.txn,
        entry.kind,
        entry.actor,
        entry.time,
        entry.note,
        tuple([Update(row.ref, _digest(row.old), _digest(row.new)) for row in entry.updates]),
        None if entry.bulk is UNSET else Digest(entry.bulk),
        signature=None if entry.signature is UNSET else entry.signature,
    )


def _digest(text: str | None) -> Digest | None:
    return None if text is None else Digest(text)


def _update_to_json(update: Update) -> dict[str, CanonicalValue]:
    return {"ref": update.ref, "old": update.old, "new": update.new}


def _update_from_json(raw: dict[str, Any]) -> Update:
    return Update(raw["ref"], raw["old"], raw["new"])
