from __future__ import annotations

import json

import pytest

from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.hashing.digests import state_digest
from tensorrepo.repo.log.records import canonical_json
from tensorrepo.repo.log.state import Condemnation, Lease, State, decode_state, encode_state
from tests.support.builders.log import digest
from tests.support.faults.damage import survivors

STATE = State(
    generation=9,
    refs={"heads/main": digest(1), "tags/é": digest(2)},
    retained={digest(3): 7},
    leases={"a": Lease("Ann", 2, "note", (digest(4),), None), "b": Lease("Bob", 3, "", (), 5)},
    graves=(
        Condemnation(3, digest(5), digest(6)),
        Condemnation(5, digest(7), digest(8), ended=True),
    ),
    supersedes={digest(9): digest(10)},
    config={"retention_seconds": 3, "features": ["new"], "signers": {"Ann": "key"}},
    shallow=frozenset({digest(12), digest(11)}),
    bulks=frozenset({digest(13)}),
    kinds=frozenset({"other"}),
)
DATA = encode_state(STATE)


def test_a_state_comes_back_from_its_bytes() -> None:
    assert decode_state(DATA) == STATE


def test_equal_states_have_equal_bytes_whatever_the_order_they_were_made_in() -> None:
    turned = State(
        **{name: getattr(STATE, name) for name in State.__slots__}
        | {"refs": dict(reversed(STATE.refs.items()))}
    )
    assert encode_state(turned) == DATA


SMALL = encode_state(State(generation=9, refs={"heads/main": digest(1)}))


def test_a_flipped_byte_gives_other_bytes_than_the_record_names() -> None:
    assert survivors(SMALL, 0xFF, decode_state, (CorruptError,)) == {}
    digests = survivors(SMALL, 0xFF, state_digest, ())
    assert len({state_digest(SMALL), *digests.values()}) == 1 + len(digests)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 0),
        ("version", True),
        ("version", "1"),
        ("generation", -1),
        ("generation", None),
        ("refs", []),
        ("refs", {"heads/main": "x"}),
        ("refs", {"heads/main": None}),
        ("retained", {"x": 1}),
        ("retained", {digest(1): "1"}),
        ("leases", {"a": {}}),
        ("leases", {"a": []}),
        ("leases", []),
        ("graves", {}),
        ("graves", ""),
        ("graves", [[1, digest(1), digest(2)]]),
        ("graves", [[1, digest(1), digest(2), 0]]),
        ("graves", 5),
        ("supersedes", {digest(1): 1}),
        ("config", {"url": "x"}),
        ("config", {"retention_seconds": None}),
        ("shallow", [digest(2), digest(1)]),
        ("shallow", [digest(1), digest(1)]),
        ("shallow", {}),
        ("bulks", None),
        ("kinds", [1]),
        ("kinds", [[]]),
        ("more", 1),
    ],
)
def test_what_is_no_state_is_corrupt(name: str, value: object) -> None:
    raw = json.loads(DATA) | {name: value}
    with pytest.raises(CorruptError, match="there: "):
        decode_state(canonical_json(raw), "there")


def test_a_state_in_another_json_form_is_corrupt() -> None:
    with pytest.raises(CorruptError):
        decode_state(json.dumps(json.loads(DATA)).encode())


def test_a_state_of_a_newer_version_asks_for_an_update() -> None:
    with pytest.raises(UnsupportedError, match="Update"):
        decode_state(canonical_json({"version": 2, "other": 1}))


def test_the_roots_are_refs_retained_values_leases_and_what_the_log_itself_needs() -> None:
    assert set(STATE.roots()) == {digest(number) for number in (1, 2, 3, 4, 5, 6, 8, 13)}


def test_a_state_says_why_it_is_read_only() -> None:
    assert STATE.read_only_reason is not None
    assert "feature 'new', entries of kind 'other'" in STATE.read_only_reason
    assert State().read_only_reason is None
