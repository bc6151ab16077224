"""Links are followed by C as they are in Python."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from tensorrepo.repo.backends.base import StoredKey
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.gc_marks import NATIVE, PYTHON, SEVERAL, ObjectTable
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import LINK
from tensorrepo.repo.objects.incarnations import object_key

# Many of one beginning, of which some have a second key; few of others; what was not listed.
CHANCE = random.Random(7)
LISTED = sorted({b"\0\0" + CHANCE.randbytes(30) for _ in range(600)} | {bytes(32), b"\xff" * 32})
OWNERS = (0, 1, 2, SEVERAL)
UNLISTED = [bytes(31) + b"\1", b"\0\0" + b"\xff" * 30, b"\1" * 32, b"\xff" * 31 + b"\xfe"]


def _listing() -> Iterator[StoredKey]:
    for at, raw in enumerate(LISTED):
        yield StoredKey(object_key(Digest(raw.hex())), 300, 1.7e9)
        if at % 7 == 0:
            yield StoredKey(object_key(Digest(raw.hex()), 3), 300, 1.7e9)


def _followed(follow: Any) -> tuple[list[Any], array[int]]:
    table = ObjectTable(MemoryBackend(), listing=_listing())
    owners = array("I", [OWNERS[at % 4] for at in range(len(table))])
    told = []
    for owner in (1, 2):
        for leaf in (0, 1):
            links = b"".join(
                LINK.pack(raw, 300, 0, 1, leaf)
                for raw in (UNLISTED + LISTED)[2 * owner + leaf :: 5]
            )
            told.append(follow(table._data, table._starts, owners, owner, links))
    return told, owners


@pytest.mark.skipif(NATIVE is None, reason="nothing was compiled here")
def test_links_are_followed_by_c_as_in_python() -> None:
    told, owners = _followed(PYTHON)
    assert _followed(NATIVE) == (told, owners)
    assert {*owners} == {0, 1, 2, SEVERAL}
    assert sum(len(unlisted) // LINK.size for _, _, unlisted in told) == 2


@pytest.mark.skipif(NATIVE is None, reason="nothing was compiled here")
@pytest.mark.parametrize(("place", "wrong"), [(0, bytes(49)), (1, array("Q", [0])), (4, b"short")])
def test_buffers_of_other_lengths_are_refused(place: int, wrong: Any) -> None:
    told: list[Any] = [bytes(48), array("Q", bytes(8 * 65_537)), array("I", [0]), 1, bytes(40)]
    told[place] = wrong
    assert NATIVE is not None
    with pytest.raises(ValueError, match="disagree in length"):
        NATIVE(*told)
