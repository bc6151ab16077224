"""The index of registered names, against reading all refs anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.state import State
from tensorrepo.repo.registry.index import RegistryIndex
from tensorrepo.repo.registry.versions import registered

REFS = st.sampled_from(
    [
        "heads/main",
        "tags/v1",
        *(f"registry/{name}/v/{number}" for name in ("a", "a/b", "c") for number in (1, 2)),
        *(f"registry/{name}/alias/best" for name in ("a", "a/b", "c")),
    ]
)
DIGESTS = st.sampled_from([Digest(letter * 64) for letter in "0abc"])


def view(generation: int, refs: dict[str, Digest]) -> LogView:
    return LogView(generation, Digest("0" * 64), State(generation=generation, refs=refs))


@given(st.lists(st.dictionaries(REFS, DIGESTS), max_size=8))
def test_the_index_says_what_the_refs_of_each_view_say(history: list[dict[str, Digest]]) -> None:
    index = RegistryIndex()
    views = [view(generation, refs) for generation, refs in enumerate(history)]
    told = [(dict(index.at(one)), index.known(one)) for one in views]
    assert told == [(registered(one), registered(one)) for one in views]


def test_what_was_not_looked_at_is_not_known() -> None:
    index = RegistryIndex()
    index.at(view(1, {}))
    assert index.known(view(2, {})) is None


def test_an_older_view_is_answered_by_the_newer_one() -> None:
    index = RegistryIndex()
    newer = view(2, {"registry/a/v/1": Digest("a" * 64)})
    index.at(newer)
    assert list(index.at(view(1, {}))) == ["a"]
