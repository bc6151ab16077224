"""Rows that versions share are there once, and each version has all of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, func, select
from sqlalchemy.pool import StaticPool

from tensorrepo.query.catalog import tables
from tensorrepo.query.sync.blocks import member_blocks, tensor_blocks
from tensorrepo.query.sync.loader import Loader, TableRows

NUMBERS = st.lists(st.integers(0, 400), unique=True, min_size=1, max_size=200).map(sorted)
VERSIONS = st.lists(st.tuples(NUMBERS, st.integers(0, 3)), min_size=1, max_size=4)


def tensors(numbers: list[int], seed: int) -> list[tuple[Any, ...]]:
    """Rows of tensors, of which few differ from seed to seed."""
    return [
        (f"layer.{at}", "F32", "[2]", 2, 8, f"{at}-{seed if at % 50 == 0 else 0}") for at in numbers
    ]


def pieces(numbers: list[int]) -> dict[int, list[tuple[Any, ...]]]:
    return {at: [(0, 4, "a"), (1, 4, "b")] for at in range(0, len(numbers), 7)}


def members(numbers: list[int], seed: int) -> list[Any]:
    return [
        (f"pack{seed % 2}", at, (f"{at}", 0, "delta", 8, 1), [("base", at)] * (at % 3))
        for at in numbers
    ]


@contextmanager
def filled(rows: Callable[[str, list[int], int], TableRows], versions: Any) -> Iterator[Connection]:
    """A catalog that has taken in versions called 0, 1, ..., one after the other."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    tables.METADATA.create_all(engine)
    with engine.begin() as connection:
        loader = Loader(connection)
        for at, (numbers, seed) in enumerate(versions):
            loader.next_owner()
            loader.add(rows(str(at), numbers, seed))
        loader.flush()
        yield connection
    engine.dispose()


@given(VERSIONS)
def test_each_model_has_the_tensors_and_pieces_that_it_was_given(versions: Any) -> None:
    def rows(name: str, numbers: list[int], seed: int) -> TableRows:
        return tensor_blocks(name, tensors(numbers, seed), pieces(numbers))

    with filled(rows, versions) as connection:
        found = {tuple(row) for row in connection.execute(select(tables.model_tensor))}
        parts = {tuple(row) for row in connection.execute(select(tables.tensor_piece))}
    assert found == {
        (str(at), place, *row)
        for at, (numbers, seed) in enumerate(versions)
        for place, row in enumerate(tensors(numbers, seed))
    }
    assert parts == {
        (str(at), place, *row)
        for at, (numbers, _) in enumerate(versions)
        for place, told in pieces(numbers).items()
        for row in told
    }


@given(VERSIONS)
def test_each_placement_has_the_members_and_bases_that_it_was_given(versions: Any) -> None:
    def rows(name: str, numbers: list[int], seed: int) -> TableRows:
        return member_blocks(name, members(numbers, seed))

    with filled(rows, versions) as connection:
        found = {tuple(row) for row in connection.execute(select(tables.tensor_storage))}
        bases = {tuple(row) for row in connection.execute(select(tables.member_base))}
    assert found == {
        (str(at), pack, number, *rest)
        for at, version in enumerate(versions)
        for pack, number, rest, _ in members(*version)
    }
    assert bases == {
        (str(at), pack, number, place, *base)
        for at, version in enumerate(versions)
        for pack, number, _, above in members(*version)
        for place, base in enumerate(above)
    }


def test_a_version_with_one_changed_tensor_adds_one_block() -> None:
    numbers = list(range(1, 2000))

    def rows(name: str, _: list[int], seed: int) -> TableRows:
        told = tensors(numbers, 0)
        told[1000] = (*told[1000][:5], f"changed-{seed}")
        return tensor_blocks(name, told, {})

    with filled(rows, [(numbers, 0), (numbers, 1)]) as connection:
        count = select(func.count()).select_from(tables.block_tensor)
        stored = connection.execute(count).scalar_one()
    assert len(numbers) < stored <= len(numbers) + 256
