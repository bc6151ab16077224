from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.hashing.digests import content_tag, record_digest
from tensorrepo.repo.log.records import (
    MAX_RECORD_BYTES,
    LogRecord,
    Update,
    canonical_json,
    decode_record,
    decode_ref_updates,
    encode_ref_updates,
    genesis_digest,
    parse_canonical,
)
from tests.support.builders.log import IDENTITY, digest, encode_record, entry
from tests.support.builders.log_strategies import json_values, records, updates

RECORD = LogRecord(
    7, digest(6), None, (entry("commit", ("heads/main", 1, 2)), entry("noop", txn="second"))
)


@given(records())
def test_a_record_comes_back_from_its_bytes(record: LogRecord) -> None:
    assert decode_record(encode_record(record)) == record


@given(records())
def test_bytes_that_decode_are_the_only_bytes_of_that_record(record: LogRecord) -> None:
    data = encode_record(record)
    assert encode_record(decode_record(data)) == data


@given(records(), st.data())
def test_what_decodes_after_a_byte_changed_is_a_record_of_these_bytes(
    record: LogRecord, data: st.DataObject
) -> None:
    text = bytearray(encode_record(record))
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] = data.draw(st.integers(0, 255))
    with suppress(CorruptError):
        assert encode_record(decode_record(text)) == text


@pytest.mark.parametrize(
    "change",
    [
        {"gen": 64},
        {"gen": 0},
        {"gen": 1 << 63},
        {"state": digest(1)},
        {"previous": f"{digest(1)}\n"},
        {"previous": digest(1)[1:]},
        {"entries": [{"txn": "t"}]},
        {"more": 1},
    ],
)
def test_a_record_with_a_member_that_does_not_fit_is_refused(change: dict[str, object]) -> None:
    raw = parse_canonical(encode_record(RECORD), "record") | change
    with pytest.raises(CorruptError):
        decode_record(msgspec.json.encode(raw | {"tag": _tag(raw)}, order="sorted"))


def _tag(raw: dict[str, object]) -> str:
    rest = {name: value for name, value in raw.items() if name != "tag"}
    return content_tag(msgspec.json.encode(rest, order="sorted")).hex()


@given(json_values())
def test_canonical_json_is_what_any_json_library_writes_sorted_and_tight(value: object) -> None:
    expected = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert canonical_json(value) == expected.encode()
    assert parse_canonical(expected.encode(), "text") == value


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1}',
        b' {"a":1}',
        b'{"a":1}\n',
        b'{"b":1,"a":1}',
        b'{"a":1,"a":1}',
        b'{"a":1.0}',
        b'{"a":1e3}',
        b'{"a":-0}',
        b'{"a":01}',
        b'{"a":9223372036854775808}',
        b'{"a":NaN}',
        b'"\\u0041"',
        b'"\\/"',
        b'"\\ud800"',
        b'"\xff"',
        b'\xef\xbb\xbf"a"',
        b"[" * 17 + b"]" * 17,
        b"[" * 60000,
        b"",
        b"{",
        b"'a'",
        b"[1,]",
        b"// a\n1",
    ],
    ids=lambda text: repr(text[:20]),
)
def test_json_in_another_form_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptError, match="where: "):
        parse_canonical(text, "where")


@pytest.mark.parametrize(
    "value", [1.5, {1: 2}, b"bytes", "\ud800", {"a": {"b": object()}}, 1 << 63, -(1 << 63) - 1]
)
def test_what_canonical_json_cannot_hold_is_invalid_input(value: object) -> None:
    with pytest.raises(InvalidInputError):
        canonical_json(value)


def _as_json(record: LogRecord = RECORD) -> dict[str, object]:
    return json.loads(encode_record(record))


def _changed(path: tuple[str | int, ...], value: object) -> bytes:
    raw = _as_json()
    place = raw
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return canonical_json(raw | {"tag": _tag(raw)})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("gen",), 0),
        (("gen",), True),
        (("gen",), "7"),
        (("gen",), ...),
        (("previous",), None),
        (("previous",), "A" * 64),
        (("previous",), "0" * 63),
        (("state",), digest(1)),
        (("more",), 1),
        (("entries",), None),
        (("entries",), {}),
        (("entries", 0), []),
        (("entries", 0, "txn"), ""),
        (("entries", 0, "txn"), "../x"),
        (("entries", 0, "txn"), ".hidden"),
        (("entries", 0, "txn"), "t" * 65),
        (("entries", 0, "txn"), ...),
        (("entries", 0, "kind"), "Commit"),
        (("entries", 0, "kind"), None),
        (("entries", 0, "actor"), 1),
        (("entries", 0, "note"), None),
        (("entries", 0, "time"), "now"),
        (("entries", 0, "time"), True),
        (("entries", 0, "more"), 1),
        (("entries", 0, "bulk"), None),
        (("entries", 0, "data"), {}),
        (("entries", 0, "data"), []),
        (("entries", 0, "signature"), 1),
        (("entries", 0, "updates"), None),
        (("entries", 0, "updates", 0), "x"),
        (("entries", 0, "updates", 0, "ref"), ""),
        (("entries", 0, "updates", 0, "ref"), "a\nb"),
        (("entries", 0, "updates", 0, "ref"), "a" * 1025),
        (("entries", 0, "updates", 0, "ref"), 1),
        (("entries", 0, "updates", 0, "old"), "x"),
        (("entries", 0, "updates", 0, "new"), 1),
        (("entries", 0, "updates", 0, "more"), 1),
    ],
)
def test_what_is_no_record_is_refused(path: tuple[str | int, ...], value: object) -> None:
    with pytest.raises(CorruptError, match="slot 7: "):
        decode_record(_changed(path, value), "slot 7")


@pytest.mark.parametrize("state", [None, "x"])
def test_every_64th_record_must_state_the_fold(state: str | None) -> None:
    raw = _as_json() | {"gen": 64, "state": state}
    with pytest.raises(CorruptError, match="state must be a digest"):
        decode_record(canonical_json(raw | {"tag": _tag(raw)}))


@pytest.mark.parametrize(
    "record",
    [
        replace(RECORD, gen=0),
        replace(RECORD, state=digest(1)),
        replace(RECORD, gen=64),
        replace(RECORD, entries=(msgspec.structs.replace(entry("noop"), txn="a/b"),)),
        replace(RECORD, entries=(msgspec.structs.replace(entry("noop"), actor="\ud800"),)),
        replace(
            RECORD,
            entries=(msgspec.structs.replace(entry("noop"), updates=(Update("", None, None),)),),
        ),
    ],
)
def test_what_no_reader_would_take_is_not_written(record: LogRecord) -> None:
    with pytest.raises(InvalidInputError):
        encode_record(record)


def test_a_record_has_at_most_64_kib() -> None:
    room = MAX_RECORD_BYTES - len(encode_record(replace(RECORD, entries=(entry("noop"),))))
    fits = replace(RECORD, entries=(msgspec.structs.replace(entry("noop"), note="n" * room),))
    assert decode_record(encode_record(fits)) == fits
    with pytest.raises(InvalidInputError, match=r"entry .noop. alone takes .* several steps"):
        encode_record(
            replace(
                RECORD, entries=(msgspec.structs.replace(entry("noop"), note="n" * (room + 1)),)
            )
        )
    with pytest.raises(CorruptError, match="at most 65536"):
        decode_record(b" " * (MAX_RECORD_BYTES + 1))


@given(st.lists(updates(), max_size=8))
def test_ref_updates_come_back_from_their_payload(found: list[Update]) -> None:
    assert decode_ref_updates(encode_ref_updates(found)) == tuple(found)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b'{"updates":[],"version":2}',
        b'{"updates":[]}',
        b'{"updates":{},"version":1}',
        b'{"updates":[{"new":null,"old":null,"ref":""}],"version":1}',
        b'{"version":1,"updates":[]}',
    ],
)
def test_a_payload_without_ref_updates_is_its_writers_fault(payload: bytes) -> None:
    with pytest.raises(InvalidInputError):
        decode_ref_updates(payload)


def test_ref_updates_that_no_reader_would_take_are_not_written() -> None:
    with pytest.raises(InvalidInputError):
        encode_ref_updates([Update("a\nb", None, digest(1))])


def test_the_first_record_chains_to_the_identity() -> None:
    assert genesis_digest(IDENTITY) == record_digest(IDENTITY)
