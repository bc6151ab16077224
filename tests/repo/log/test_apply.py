from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.records import (
    CanonicalValue,
    LogEntry,
    LogRecord,
    Update,
    encode_ref_updates,
)
from tensorrepo.repo.log.state import (
    Condemnation,
    Lease,
    State,
    Verdict,
    decode_state,
    encode_state,
)
from tests.support.builders.log import Bulks, digest, entry, fold
from tests.support.builders.log_strategies import records
from tests.support.effort import examples

HELD = State(
    generation=4,
    refs={
        "heads/main": digest(1),
        "heads/side": digest(2),
        "tags/v1": digest(1),
        "heads/kept-1": digest(3),
    },
    retained={digest(9): 2},
    leases={"open": Lease("Ann", 2, "", (digest(7),), None)},
    graves=(Condemnation(3, digest(30), digest(31)),),
    supersedes={digest(40): digest(41)},
    config={"protected_refs": ["heads/kept-*", "tags/v1"]},
    shallow=frozenset({digest(50)}),
)


def judge(*entries: LogEntry, state: State = HELD) -> tuple[State, tuple[Verdict, ...]]:
    gen = state.generation + 1
    return fold(state, LogRecord(gen, digest(0), None, entries), Bulks())


def applied(found: LogEntry) -> State:
    state, (verdict,) = judge(found)
    assert verdict == Verdict("t", found.kind, applied=True)
    return state


def reason(found: LogEntry) -> str:
    """Why `found` is void; a void entry leaves the state as an empty record would."""
    state, (verdict,) = judge(found)
    assert not verdict.applied
    assert encode_state(state) == encode_state(replace(HELD, generation=5, bulks=state.bulks))
    return verdict.reason


def test_a_record_without_entries_only_counts() -> None:
    state, verdicts = judge()
    assert verdicts == ()
    assert state.generation == 5
    assert state.refs == HELD.refs


@pytest.mark.parametrize(
    ("found", "ref", "value"),
    [
        (entry("commit", ("heads/main", 1, 5)), "heads/main", digest(5)),
        (entry("commit", ("heads/new", None, 5)), "heads/new", digest(5)),
        (entry("commit", ("heads/kept-1", 3, 5)), "heads/kept-1", digest(5)),
        (entry("ref-create", ("heads/new", None, 5)), "heads/new", digest(5)),
        (entry("ref-delete", ("heads/side", 2, None)), "heads/side", None),
        (entry("ref-reset", ("heads/side", 2, 1)), "heads/side", digest(1)),
        (entry("ref-reset", ("heads/new", None, 1)), "heads/new", digest(1)),
        (entry("tag", ("tags/v2", None, 2)), "tags/v2", digest(2)),
        (entry("commit", ("tags/v2", None, 2)), "tags/v2", digest(2)),
    ],
)
def test_a_ref_moves_as_its_kind_allows(found: LogEntry, ref: str, value: Digest | None) -> None:
    assert applied(found).refs.get(ref) == value


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (entry("commit", ("heads/main", 2, 5)), "expected 0+2"),
        (entry("commit", ("heads/main", None, 5)), "expected absent"),
        (entry("commit", ("heads/new", 1, 5)), "is absent"),
        (entry("commit", ("heads/main", 1, None)), "gives 'heads/main' a value"),
        (entry("commit"), "names no ref"),
        (entry("commit", ("heads/main", 1, 5), ("heads/main", 1, 6)), "twice"),
        (entry("commit", ("heads/main", 1, 5), ("heads/side", 1, 6)), "expected 0+1"),
        (entry("commit", ("tags/v1", 1, 2)), "tags never move"),
        (entry("ref-reset", ("tags/v1", 1, 2)), "tags never move"),
        (entry("commit", ("heads/main", 1, 5), data={"x": 1}), "must hold nothing"),
        (entry("ref-create", ("heads/main", 1, 5)), "from none to a value"),
        (entry("ref-delete", ("heads/side", 2, 1)), "from a value to none"),
        (entry("ref-delete", ("heads/new", None, None)), "from a value to none"),
        (entry("ref-delete", ("heads/kept-1", 3, None)), "protected"),
        (entry("ref-delete", ("tags/v1", 1, None)), "protected"),
        (entry("ref-reset", ("heads/kept-1", 3, 1)), "protected"),
        (entry("ref-reset", ("heads/side", 2, None)), "a value"),
        (entry("tag", ("tags/v1", 1, 2)), "from none"),
        (entry("tag", ("heads/new", None, 2)), "under tags/"),
        (entry("noop", ("heads/main", 1, 5)), "moves no refs"),
        (entry("noop", bulk=digest(1)), "moves no refs"),
    ],
)
def test_an_entry_that_does_not_fit_is_void_and_says_why(found: LogEntry, why: str) -> None:
    assert re.search(why, reason(found))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("lease-open", {}),
        ("lease-open", {"id": "new", "keep": "x", "expires": None}),
        ("lease-open", {"id": "new", "keep": ["x"], "expires": None}),
        ("lease-open", {"id": "new", "keep": [], "expires": "soon"}),
        ("lease-open", {"id": "a b", "keep": [], "expires": None}),
        ("lease-open", {"id": 1, "keep": [], "expires": None}),
        ("lease-open", {"id": "new", "keep": [], "expires": None, "more": 1}),
        ("lease-open", {"id": "open", "keep": [], "expires": None}),
        ("lease-close", {"id": "closed"}),
        ("lease-close", {"id": None}),
        ("lease-close", {}),
        ("gc-condemn", {"at": 5, "list": digest(1), "graves": digest(2)}),
        ("gc-condemn", {"at": 5, "list": digest(1), "graves": "x", "release": []}),
        ("gc-condemn", {"at": 4, "list": digest(1), "graves": digest(2), "release": []}),
        ("gc-condemn", {"at": True, "list": digest(1), "graves": digest(2), "release": []}),
        ("gc-condemn", {"at": 5, "list": digest(1), "graves": digest(2), "release": [1]}),
        ("gc-end", {"generation": 2}),
        ("gc-end", {"generation": "3"}),
        ("supersede", {"placements": []}),
        ("supersede", {"placements": {"x": digest(1)}}),
        ("supersede", {"placements": {digest(1): 2}}),
        ("supersede", {"placements": {digest(40): digest(42)}}),
        ("supersede", {"placements": {digest(1): digest(1)}}),
        ("supersede", {"placements": {digest(41): digest(40)}}),
        ("supersede", {"placements": {digest(1): digest(2), digest(2): digest(1)}}),
        ("shallow", {"add": [digest(1)]}),
        ("shallow", {"add": 1, "remove": []}),
        ("config", {"set": []}),
        ("config", {"set": {"url": "http://example.org"}}),
        ("config", {"set": {"url": None}}),
        ("config", {"set": {"retention_seconds": -1}}),
        ("config", {"set": {"retention_seconds": True}}),
        ("config", {"set": {"protected_refs": "heads/main"}}),
        ("config", {"set": {"protected_refs": [1]}}),
        ("config", {"set": {"signers": ["x"]}}),
        ("config", {"set": {"features": [[]]}}),
        ("config", {"set": {"features": 1, "url": "x"}}),
        ("noop", {"x": 1}),
    ],
)
def test_malformed_or_unfit_data_voids_its_entry_and_changes_nothing(
    kind: str, data: dict[str, CanonicalValue]
) -> None:
    assert reason(entry(kind, data=data))


def test_the_entries_of_a_record_see_what_the_ones_before_did() -> None:
    state, verdicts = judge(
        entry("commit", ("heads/main", 1, 5)),
        entry("commit", ("heads/main", 1, 6), txn="late"),
        entry("commit", ("heads/main", 5, 7)),
    )
    assert [verdict.applied for verdict in verdicts] == [True, False, True]
    assert verdicts[1].txn == "late"
    assert state.refs["heads/main"] == digest(7)


def test_the_updates_of_an_entry_apply_together_or_not_at_all() -> None:
    assert reason(entry("commit", ("heads/side", 2, 5), ("heads/main", 9, 6)))


def test_what_delete_and_reset_drop_is_retained_at_their_generation() -> None:
    assert applied(entry("ref-delete", ("heads/side", 2, None))).retained[digest(2)] == 5
    assert applied(entry("ref-reset", ("heads/main", 1, 2))).retained[digest(1)] == 5
    assert digest(1) not in applied(entry("commit", ("heads/main", 1, 2))).retained


def test_a_lease_is_open_until_it_is_closed_by_anyone() -> None:
    data = {"id": "stage", "keep": [digest(8)], "expires": 77}
    opened = applied(entry("lease-open", data=data, actor="Bob"))
    assert opened.leases["stage"] == Lease("Bob", 5, "", (digest(8),), 77)
    assert "open" not in applied(entry("lease-close", data={"id": "open"})).leases


def test_a_commit_closes_its_lease_in_the_same_record() -> None:
    state, verdicts = judge(
        entry("commit", ("heads/main", 1, 5)), entry("lease-close", data={"id": "open"})
    )
    assert all(verdict.applied for verdict in verdicts)
    assert not state.leases


def test_a_condemnation_adds_graves_and_lets_go_what_it_names() -> None:
    data = {"at": 5, "list": digest(32), "graves": digest(33), "release": [digest(9), digest(1)]}
    state = applied(entry("gc-condemn", data=data))
    assert state.graves == (*HELD.graves, Condemnation(5, digest(32), digest(33)))
    assert state.retained == {}


def test_a_condemnation_beside_another_entry_is_void() -> None:
    data = {"at": 5, "list": digest(32), "graves": digest(33), "release": []}
    state, (verdict, _) = judge(entry("gc-condemn", data=data), entry("noop"))
    assert "alone" in verdict.reason
    assert state.graves == HELD.graves


def test_a_condemnation_ends_once() -> None:
    end = entry("gc-end", data={"generation": 3})
    state = applied(end)
    assert state.graves == (Condemnation(3, digest(30), digest(31), ended=True),)
    _, (verdict,) = judge(end, state=state)
    assert not verdict.applied


PURGED = {"columns": {"datasets/a": {"0123456789abcdef": "phone"}}, "rows": [digest(70)]}


def test_a_purge_lets_twins_stand_for_what_it_erased() -> None:
    state = applied(entry("purge", ("purge:a", 60, 61), ("purge:", 62, None), data=PURGED))
    assert dict(state.purges) == {digest(60): 5, digest(62): 5}
    assert (state.resolve(digest(60)), state.resolve(digest(62))) == (digest(61), digest(62))
    assert digest(70) in set(state.roots())
    assert state.kinds == {"purge"}, "older versions must not write"
    assert state.read_only_reason is None
    assert decode_state(encode_state(state)) == state


def test_purges_chain_and_never_close_a_circle() -> None:
    first = applied(entry("purge", ("purge:a", 60, 61), data=PURGED))
    second, (verdict,) = judge(entry("purge", ("purge:a", 61, 63), data=PURGED), state=first)
    assert verdict.applied
    assert second.resolve(digest(60)) == digest(63)
    for updates in (("purge:a", 63, 60), ("purge:a", 60, 64), ("purge:a", 64, 64)):
        _, (verdict,) = judge(entry("purge", updates, data=PURGED), state=second)
        assert not verdict.applied


@pytest.mark.parametrize(
    ("updates", "data"),
    [
        ((), PURGED),
        ((("purge:a", None, 60),), PURGED),
        ((("purge:a", 60, 61), ("purge:b", 60, 62)), PURGED),
        ((("purge:a", 60, 61), ("purge:b", 61, 62)), PURGED),
        ((("purge:a", 40, 61),), PURGED),
        ((("purge:a", 60, 40),), PURGED),
        ((("purge:a", 60, 61),), {}),
        ((("purge:a", 60, 61),), {"columns": {"a": 1}, "rows": []}),
        ((("purge:a", 60, 61),), {"columns": {}, "rows": ["x"]}),
    ],
)
def test_a_malformed_purge_is_void(updates: Any, data: Any) -> None:
    state, (verdict,) = judge(entry("purge", *updates, data=data))
    assert not verdict.applied
    assert (state.purges, state.supersedes, state.purged_rows) == ({}, HELD.supersedes, {})


def test_supersedes_chain_and_never_close_a_circle() -> None:
    placements = {digest(41): digest(42), digest(43): digest(41)}
    assert reason(entry("supersede", data={"placements": placements}))
    state = applied(entry("supersede", data={"placements": {digest(41): digest(42)}}))
    assert state.resolve(digest(40)) == digest(42)
    assert state.resolve(digest(42)) == digest(42)


def test_shallow_commits_are_added_and_removed() -> None:
    data = {"add": [digest(51)], "remove": [digest(50)]}
    assert applied(entry("shallow", data=data)).shallow == {digest(51)}


def test_config_keeps_what_is_on_the_list_and_none_removes() -> None:
    changes = {"retention_seconds": 5, "protected_refs": None, "signers": {"Ann": "key"}}
    state = applied(entry("config", data={"set": changes}))
    assert state.config == {"retention_seconds": 5, "signers": {"Ann": "key"}}


def test_an_unknown_kind_is_void_and_makes_the_state_read_only() -> None:
    state, (verdict,) = judge(entry("from-the-future", ("heads/main", 1, 5), data={"x": 1}))
    assert not verdict.applied
    assert state.refs == HELD.refs
    assert "from-the-future" in (state.read_only_reason or "")


def test_a_required_feature_makes_the_state_read_only_with_keys_that_belong_to_it() -> None:
    state = applied(entry("config", data={"set": {"features": ["new"], "new_key": 1}}))
    assert "'new'" in (state.read_only_reason or "")
    assert "new_key" not in state.config


def test_bulk_updates_follow_those_of_the_entry_and_are_kept_for_ever() -> None:
    bulks = Bulks()
    name = bulks.put(encode_ref_updates([Update("heads/b", None, digest(6))]))
    record = LogRecord(5, digest(0), None, (entry("commit", ("heads/a", None, 5), bulk=name),))
    state, (verdict,) = fold(HELD, record, bulks)
    assert verdict.applied
    assert (state.refs["heads/a"], state.refs["heads/b"]) == (digest(5), digest(6))
    assert name in set(state.roots())


def test_a_bulk_that_is_no_ref_updates_object_voids_its_entry() -> None:
    bulks = Bulks()
    record = LogRecord(5, digest(0), None, (entry("commit", bulk=bulks.put(b"no JSON")),))
    _, (verdict,) = fold(HELD, record, bulks)
    assert not verdict.applied


def test_a_bulk_that_cannot_be_read_now_is_no_verdict() -> None:
    def unreadable(_: Digest) -> tuple[Update, ...]:
        raise CorruptError("the object is damaged")

    record = LogRecord(5, digest(0), None, (entry("commit", bulk=digest(1)),))
    with pytest.raises(CorruptError):
        fold(HELD, record, unreadable)


def test_the_state_before_is_left_as_it_was() -> None:
    before = encode_state(HELD)
    judge(
        entry("commit", ("heads/main", 1, 5)),
        entry("lease-close", data={"id": "open"}),
        entry("supersede", data={"placements": {digest(1): digest(2)}}),
        entry("config", data={"set": {"protected_refs": None}}),
    )
    assert encode_state(HELD) == before


def _some_bulk(name: Digest) -> tuple[Update, ...]:
    if name == digest(1):
        raise InvalidInputError("no ref updates")
    return (Update("heads/x", None, name),)


@settings(max_examples=examples(10))
@given(st.lists(records(st.integers(1, 6)), max_size=6))
def test_the_fold_of_any_well_formed_records_is_total_and_comes_back_from_its_bytes(
    found: list[LogRecord],
) -> None:
    state = State()
    for record in found:
        state, verdicts = fold(state, record, _some_bulk)
        assert [verdict.txn for verdict in verdicts] == [entry.txn for entry in record.entries]
        assert all(verdict.applied or verdict.reason for verdict in verdicts)
    again = decode_state(encode_state(state))
    assert again == state
    assert encode_state(again) == encode_state(state)
    assert all(state.resolve(placement) for placement in state.supersedes)
    assert set(state.refs.values()) <= set(state.roots())


@settings(max_examples=examples(10))
@given(st.lists(records(st.just(3)), max_size=4))
def test_void_entries_have_no_effect(found: list[LogRecord]) -> None:
    state = State()
    for record in found:
        for single in record.entries:
            alone = LogRecord(3, digest(0), None, (single,))
            after, (verdict,) = fold(state, alone, _some_bulk)
            unaffected = (after.refs, after.retained, after.leases, after.supersedes, after.config)
            before = (state.refs, state.retained, state.leases, state.supersedes, state.config)
            assert verdict.applied or unaffected == before
            state = after
