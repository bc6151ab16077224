from __future__ import annotations

import msgspec

from tensorrepo.formats.model.layout.fingerprints import Fingerprint
from tensorrepo.formats.model.layout.placement import (
    MemberEntry,
    PackEntry,
    Placement,
    StoredTensor,
    decode_placement,
    encode_placement,
)
from tensorrepo.formats.model.write.packing import (
    Location,
    build_placement,
    known_tensors,
    worth_reusing,
)
from tensorrepo.repo.ids import Digest

A, B, C = (Fingerprint(bytes([number]) * 32) for number in range(3))
PACK = PackEntry(b"p" * 32, 100_000, 200, bytes(16))
OTHER = PackEntry(b"o" * 32, 1000, 200, bytes(16))


def test_a_small_part_of_a_foreign_pack_is_not_worth_keeping_it() -> None:
    assert worth_reusing({A: (Location(PACK, 0, 49_999),)}, ()) == frozenset()


def test_half_of_a_pack_is() -> None:
    wanted = {A: (Location(PACK, 0, 30_000),), B: (Location(PACK, 1, 20_000),)}
    assert worth_reusing(wanted, ()) == {A, B}


def test_a_pack_that_is_needed_anyway_costs_nothing() -> None:
    wanted = {A: (Location(PACK, 0, 1),), B: (Location(OTHER, 1, 1),)}
    assert worth_reusing(wanted, [PACK]) == {A}


def test_the_first_placement_says_where_a_tensor_lies() -> None:
    first = build_placement({A: (Location(PACK, 0, 1),)})
    second = build_placement({A: (Location(OTHER, 5, 1),), B: (Location(OTHER, 6, 1),)})
    known = known_tensors([first, second])
    assert known == {A: (Location(PACK, 0, 1),), B: (Location(OTHER, 6, 1),)}


def test_the_bases_of_a_tensor_come_along() -> None:
    base = MemberEntry(1, 7, "planes", 0, 50)
    delta = MemberEntry(0, 2, "delta", 1, 10, ((1, 7),))
    known = known_tensors([Placement((OTHER, PACK), (StoredTensor(A, (delta,)),), (base,))])
    rebuilt = build_placement(known)
    assert known[A][0].bases == (Location(PACK, 7, 50, "planes"),)
    assert rebuilt == Placement((OTHER, PACK), (StoredTensor(A, (delta,)),), (base,))


def test_a_small_tensor_whose_base_lies_elsewhere_is_not_worth_keeping_that() -> None:
    delta = Location(PACK, 0, 100, "delta", 1, (Location(OTHER, 0, 1),))
    assert worth_reusing({A: (delta,)}, [PACK]) == frozenset()
    assert worth_reusing({A: (delta,)}, [PACK, OTHER]) == {A}


def test_packs_are_numbered_in_the_order_of_their_digests() -> None:
    made = build_placement(
        {C: (Location(PACK, 3, 9),), A: (Location(OTHER, 1, 5), Location(PACK, 2, 7))}
    )
    assert made.packs == (OTHER, PACK)
    assert [tensor.fingerprint for tensor in made.tensors] == [A, C]
    assert made.tensors[0].members == (
        MemberEntry(0, 1, "raw", 0, 5),
        MemberEntry(1, 2, "raw", 0, 7),
    )
    assert decode_placement(encode_placement(made), Digest("0" * 64)) == made
    assert msgspec.structs.asdict(made)["bases"] == ()
