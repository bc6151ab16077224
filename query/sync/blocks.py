"""Blocks of rows that many models share: tensors, and members of packs, cut where content says.

A version of a model with one changed tensor has all of its blocks but one in common with the
version before, and a fine-tune has those of its frozen layers in common with its base: their rows
are in the catalog once. Tensors are cut behind names whose hash ends in five zeros, so that a new
one moves no cut behind it; members of a pack, whose numbers never change, by 32.

Source:
    docs/design/088-rows-that-versions-share.md
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from tensorrepo.query.catalog import tables
from tensorrepo.query.sync.loader import TableRow, TableRows

_MOST_TENSORS: Final = 256
_CUT: Final = 31  # bits of a name's hash that are zero where a block ends: one in 32
_MEMBERS: Final = 32
_HASH_BYTES: Final = 16
_ENCODER: Final = msgspec.msgpack.Encoder()


def tensor_blocks(
    model: str, tensors: Sequence[TableRow], pieces: Mapping[int, Sequence[TableRow]]
) -> TableRows:
    """The rows of a model's tensors.

    Args:
        model: its digest.
        tensors: rows of `block_tensor` without block and place, the name first, in order.
        pieces: rows of `block_piece` without block and place, by the place of the tensor.
    """
    told: set[str] = set()
    for start, stop in _cuts([str(row[0]) for row in tensors]):
        some = [(at - start, *tensors[at]) for at in range(start, stop)]
        parts = [(at - start, *row) for at in range(start, stop) for row in pieces.get(at, ())]
        block = _hash("tensors", some, parts)
        yield tables.model_block, (model, start, block)
        if block not in told:
            told.add(block)
            yield from ((tables.block_tensor, (block, *row)) for row in some)
            yield from ((tables.block_piece, (block, *row)) for row in parts)


def member_blocks(
    placement: str, members: Iterable[tuple[str, int, TableRow, Sequence[tuple[str, int]]]]
) -> TableRows:
    """The rows of what a placement names.

    Args:
        placement: its digest.
        members: pack, number, rest of the row of `block_member`, and bases as (pack, number).
    """
    told: set[str] = set()
    ordered = sorted(members, key=lambda one: one[:2])
    for (pack, _), group in groupby(ordered, lambda one: (one[0], one[1] // _MEMBERS)):
        some = list(group)
        rows = [(number, *rest) for _, number, rest, _ in some]
        bases = [
            (number, place, *base)
            for _, number, _, above in some
            for place, base in enumerate(above)
        ]
        block = _hash("members", rows, bases)
        yield tables.placement_block, (placement, pack, some[0][1], block)
        if block not in told:
            told.add(block)
            yield from ((tables.block_member, (block, *row)) for row in rows)
            yield from ((tables.block_base, (block, *row)) for row in bases)


def _cuts(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Ranges of a model's tensors that are blocks, by their names."""
    start = 0
    for stop, name in enumerate(names, 1):
        ends = not zlib.crc32(name.encode()) & _CUT or stop - start == _MOST_TENSORS
        if ends or stop == len(names):
            yield start, stop
            start = stop


def _hash(*rows: Any) -> str:
    return hashlib.blake2b(_ENCODER.encode(rows), digest_size=_HASH_BYTES).hexdigest()
