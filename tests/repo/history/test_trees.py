"""Trees against a dict, and against pages built from the specification alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError
from tensorrepo.repo.history import tree_pages
from tensorrepo.repo.history.tree_pages import Page, decode_root, encode_page
from tensorrepo.repo.history.trees import (
    EMPTY_TREE,
    Entry,
    PathChange,
    TreeChanges,
    clashes,
    diff,
    differences,
    iterate,
    lookup,
    nearby,
    root_links,
    update,
)
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import path_key
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import sampled
from tests.support.second_readers.tree import clashing, reference_root

SMALL = {"MIN_ITEMS": 3, "MAX_ITEMS": 9, "_END_MASK": 3, "MAX_ROOT_BYTES": 400}
OBJECTS = MemoryObjects()
BLOBS = [OBJECTS.put(Kind.BLOB, bytes([i])).digest for i in range(8)]
MANY = {f"files/part-{i:05d}.bin": Entry(Kind.BLOB, BLOBS[i % 8]) for i in range(20_000)}


class CountingObjects(MemoryObjects):
    puts = 0

    def put(self, *args: Any, **named: Any) -> ObjectLink:
        self.puts += 1
        return super().put(*args, **named)


@pytest.fixture
def small_pages() -> Iterator[None]:
    """Pages of 3 to 9 items and a root of 400 bytes: deep trees from few entries."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(tree_pages, name, value)
        yield


@pytest.fixture(scope="module")
def many() -> bytes:
    return update(OBJECTS, EMPTY_TREE, MANY)


def blob(number: int) -> Entry:
    return Entry(Kind.BLOB, BLOBS[number])


def stored(digest: Digest, storage: Digest | None) -> Entry:
    """An entry whose summary, of 0 to 32 bytes, follows from its digest."""
    content = bytes.fromhex(digest)
    return Entry(Kind.BLOB, digest, storage, content[: content[0] % 33])


def entries() -> st.SearchStrategy[Entry]:
    return st.builds(stored, st.sampled_from(BLOBS), st.none() | st.sampled_from(BLOBS))


# 240 paths that never clash, of lengths and cases that sort in interesting ways.
POOL = [
    f"{folder}{number:02d}{tail}"
    for folder in ("a/", "B/x/", "b-", "C.")
    for number in range(20)
    for tail in ("", "-long-name-" + "x" * 20, ".Z")
]


def some_of_the_pool(seed: int, share: float, removed: float) -> dict[str, Entry | None]:
    """Random paths, up to all of them: Hypothesis alone rarely draws a dict of that size."""
    rng = random.Random(seed)
    chosen = [path for path in POOL if rng.random() < share]
    return {
        path: None
        if rng.random() < removed
        else stored(rng.choice(BLOBS), rng.choice([None, None, *BLOBS]))
        for path in chosen
    }


SHARES = st.sampled_from([0.01, 0.05, 0.3, 0.7, 1.0])
SEEDS = st.integers(0, 2**32)
MAPS = st.dictionaries(st.sampled_from(POOL), entries(), max_size=20) | st.builds(
    some_of_the_pool, SEEDS, SHARES, st.just(0)
)
EDITS = st.dictionaries(st.sampled_from(POOL), st.none() | entries(), max_size=20) | st.builds(
    some_of_the_pool, SEEDS, SHARES, st.sampled_from([0.0, 0.3, 1.0])
)


def applied(old: Mapping[str, Entry], edits: Mapping[str, Entry | None]) -> dict[str, Entry]:
    merged = {**old, **edits}
    return {path: entry for path, entry in merged.items() if entry is not None}


def in_order(tree: Mapping[str, Entry]) -> list[tuple[str, Entry]]:
    return sorted(tree.items(), key=lambda item: path_key(item[0]))


def small_reference(tree: Mapping[str, Entry]) -> bytes:
    return reference_root(OBJECTS, tree, root_bytes=400, least=3, most=9, mask=3)


@pytest.mark.usefixtures("small_pages")
class TestAgainstADict:
    @given(MAPS, st.lists(EDITS, max_size=5))
    def test_links_that_a_writer_takes_over_are_those_of_pages_made_anew(
        self, start, batches
    ) -> None:
        objects = ObjectWriter(ObjectStore(MemoryBackend()), ())
        for number in range(8):
            objects.put(Kind.BLOB, bytes([number]))
        tree, root = start, update(objects, EMPTY_TREE, start)
        for edits in batches:
            tree, root = applied(tree, edits), update(objects, root, edits)
            assert root == small_reference(tree)

    @given(MAPS, st.lists(EDITS, max_size=5))
    def test_any_order_of_edits_gives_the_pages_of_the_specification(self, start, batches) -> None:
        tree, root = start, update(OBJECTS, EMPTY_TREE, start)
        for edits in batches:
            tree, root = applied(tree, edits), update(OBJECTS, root, edits)
        assert root == small_reference(tree)

    def test_the_whole_pool_makes_a_tree_of_several_levels(self) -> None:
        root = update(OBJECTS, EMPTY_TREE, dict.fromkeys(POOL, blob(0)))
        assert decode_root(root).level >= 2

    @given(MAPS)
    def test_a_tree_iterates_in_key_order(self, tree) -> None:
        root = update(OBJECTS, EMPTY_TREE, tree)
        assert list(iterate(OBJECTS, root)) == in_order(tree)

    @given(MAPS, st.sampled_from(["a/", "a", "B/x/1", "b/X/1", "C.0", "b", "zz", "A/", POOL[5]]))
    def test_a_prefix_gives_exactly_the_paths_that_start_with_it(self, tree, prefix) -> None:
        root = update(OBJECTS, EMPTY_TREE, tree)
        expected = [item for item in in_order(tree) if item[0].startswith(prefix)]
        assert list(iterate(OBJECTS, root, prefix)) == expected

    @given(MAPS, st.sampled_from([*POOL, "a", "A/00", "zzz", "B/x", "0"]))
    def test_lookup_finds_what_is_there_and_nothing_else(self, tree, path) -> None:
        assert lookup(OBJECTS, update(OBJECTS, EMPTY_TREE, tree), path) == tree.get(path)

    @given(MAPS, MAPS, st.sampled_from(["", "a/", "b", "B/x/1"]))
    def test_differences_are_those_of_the_dicts(self, old, new, prefix) -> None:
        roots = [update(OBJECTS, EMPTY_TREE, tree) for tree in (old, new)]
        expected = [
            PathChange(path, old.get(path), new.get(path))
            for path in sorted({*old, *new}, key=path_key)
            if old.get(path) != new.get(path) and path.startswith(prefix)
        ]
        assert list(differences(OBJECTS, *roots, prefix)) == expected

    @given(MAPS, EDITS)
    def test_changes_of_a_diff_lead_from_the_old_tree_to_the_new(self, old, edits) -> None:
        before = update(OBJECTS, EMPTY_TREE, old)
        after = update(OBJECTS, before, edits)
        changes = {change.path: change.new for change in differences(OBJECTS, before, after)}
        assert update(OBJECTS, before, changes) == after


CLASHING = st.lists(st.sampled_from(["a", "A", "b", "a-x", "B.y"]), min_size=1, max_size=3).map(
    "/".join
)


@pytest.mark.usefixtures("small_pages")
class TestClashes:
    @given(st.sets(CLASHING, max_size=8), st.sets(CLASHING, max_size=4), st.sets(CLASHING))
    def test_an_update_is_refused_exactly_when_two_paths_clash(self, old, added, removed) -> None:
        """The old tree also holds some of the pool, so that clashes cross pages."""
        kept: dict[str, Entry] = {path: blob(0) for path in POOL[60::5]}
        for path in sorted(old):
            if not clashing({*kept, path}):
                kept[path] = blob(1)
        root = update(OBJECTS, EMPTY_TREE, kept)
        edits = dict.fromkeys(removed) | dict.fromkeys(added, blob(2))
        wanted = applied(kept, edits)
        assert bool(clashes(OBJECTS, root, edits)) == clashing(wanted)


def ends_small_page(path: str) -> bool:
    return blake3(path.encode()).digest()[0] & SMALL["_END_MASK"] == 0


@pytest.mark.usefixtures("small_pages")
def test_a_clash_with_the_first_path_of_an_untouched_page_is_seen() -> None:
    """`p/a` ends a page and goes; `p` takes its place as the end, right before `p/b`."""
    names = [f"p{number}" for number in range(200)]
    name = next(n for n in names if ends_small_page(n) and ends_small_page(f"{n}/a"))
    paths = ["a1", "a2", f"{name}/a", *(f"{name}/b{number}" for number in range(30))]
    root = update(OBJECTS, EMPTY_TREE, dict.fromkeys(paths, blob(0)))
    assert decode_root(root).items[0][0] == f"{name}/a"
    with pytest.raises(InvalidInputError, match="cannot be an entry and a folder"):
        update(OBJECTS, root, {f"{name}/a": None, name: blob(0)})


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("a", "A", "differ only in case"),
        ("data/Train", "data/train", "differ only in case"),
        ("a", "a/b", "cannot be an entry and a folder"),
        ("a/b/c", "a/b", "cannot be an entry and a folder"),
        ("A", "a/b", "cannot be an entry and a folder"),
        ("Data/x", "data/y", "folders of 'Data/x' and 'data/y' differ only in case"),
    ],
)
def test_a_clash_is_refused_with_both_paths_and_what_to_do(old: str, new: str, reason: str) -> None:
    objects = MemoryObjects()
    entry = Entry(Kind.BLOB, objects.put(Kind.BLOB, b"").digest)
    root = update(objects, EMPTY_TREE, {old: entry})
    with pytest.raises(InvalidInputError, match=reason) as refused:
        update(objects, root, {new: entry})
    assert repr(old) in str(refused.value)
    assert repr(new) in str(refused.value)
    assert "rename or remove" in str(refused.value)


def test_an_entry_may_become_a_folder_in_one_update() -> None:
    root = update(OBJECTS, EMPTY_TREE, {"a": blob(0)})
    root = update(OBJECTS, root, {"a": None, "A/b": blob(0)})
    assert [path for path, _ in iterate(OBJECTS, root)] == ["A/b"]


def test_a_refused_update_stores_nothing(many: bytes) -> None:
    objects = MemoryObjects()
    objects.stored, objects.links = dict(OBJECTS.stored), dict(OBJECTS.links)
    before = len(objects.stored)
    with pytest.raises(InvalidInputError):
        update(objects, many, {"files/new": blob(0), "files/PART-00007.bin": blob(1)})
    assert len(objects.stored) == before


@pytest.mark.parametrize("path", ["", "../a", "nul", "a//b"])
def test_a_path_outside_the_grammar_is_refused(path: str) -> None:
    with pytest.raises(InvalidInputError):
        update(OBJECTS, EMPTY_TREE, {path: blob(0)})


def test_a_tree_page_cannot_pose_as_an_entry() -> None:
    with pytest.raises(InvalidInputError, match="tree page"):
        update(OBJECTS, EMPTY_TREE, {"a": Entry(Kind.TREE_PAGE, BLOBS[0])})


def test_removing_what_is_absent_changes_nothing(many: bytes) -> None:
    assert update(OBJECTS, many, {"files/nothing-here": None, "zzz": None}) == many


def test_diff_leaves_out_what_was_only_stored_anew() -> None:
    old = update(OBJECTS, EMPTY_TREE, {"m": Entry(Kind.BLOB, BLOBS[0], BLOBS[1])})
    new = update(OBJECTS, old, {"m": Entry(Kind.BLOB, BLOBS[0], BLOBS[2])})
    assert list(diff(OBJECTS, old, new)) == []
    assert [change.path for change in differences(OBJECTS, old, new)] == ["m"]


def test_another_summary_of_the_same_content_is_no_change() -> None:
    old = update(OBJECTS, EMPTY_TREE, {"m": blob(0), "n": blob(1)})
    for summary in (b"of another size", bytes(8)):
        named = {"m": Entry(Kind.BLOB, BLOBS[0], summary=summary), "n": blob(1)}
        new = update(OBJECTS, EMPTY_TREE, named)
        assert new != old
        assert list(differences(OBJECTS, old, new)) == []
        assert TreeChanges(OBJECTS).between(old, new) == ()


class TestCost:
    """Of trees with 20,000 entries and pages of full size; reads are counted."""

    def test_the_tree_is_that_of_the_specification(self, many: bytes) -> None:
        assert many == reference_root(OBJECTS, MANY)

    @pytest.mark.parametrize("number", [0, 7, 9_999, 19_999])
    def test_an_update_of_one_entry_reads_and_writes_one_page_a_level(
        self, many: bytes, number: int
    ) -> None:
        objects = MemoryObjects()
        objects.stored, objects.links = dict(OBJECTS.stored), dict(OBJECTS.links)
        before = len(objects.stored)
        update(objects, many, {f"files/part-{number:05d}.bin": Entry(Kind.DATASET, BLOBS[0])})
        levels = decode_root(many).level
        assert (levels, len(objects.reads), len(objects.stored) - before) == (1, 1, 1)

    @pytest.mark.parametrize("seed", sampled(range(10), 4))
    def test_an_edit_reads_a_few_pages_even_when_pages_split_or_join(
        self, many: bytes, seed: int
    ) -> None:
        rng = random.Random(seed)
        paths = rng.sample(sorted(MANY), 3)
        edits = {paths[0]: None, paths[1] + ".copy": blob(1), paths[2]: blob(2)}
        OBJECTS.reads.clear()
        root = update(OBJECTS, many, edits)
        assert len(OBJECTS.reads) <= 9
        assert root == reference_root(OBJECTS, applied(MANY, edits))

    def test_an_update_that_changes_nothing_stores_nothing(self, many: bytes) -> None:
        objects = CountingObjects()
        objects.stored, objects.links = dict(OBJECTS.stored), dict(OBJECTS.links)
        same = dict(sorted(MANY.items())[100:110])
        assert update(objects, many, same) == many
        assert objects.puts == 0

    def test_a_lookup_reads_one_page_a_level(self, many: bytes) -> None:
        OBJECTS.reads.clear()
        assert lookup(OBJECTS, many, "files/part-12345.bin") == MANY["files/part-12345.bin"]
        assert len(OBJECTS.reads) == decode_root(many).level

    def test_a_diff_passes_over_equal_pages(self, many: bytes) -> None:
        changed = {"files/part-05000.bin": Entry(Kind.DATASET, BLOBS[3])}
        root = update(OBJECTS, many, changed)
        OBJECTS.reads.clear()
        assert [change.path for change in diff(OBJECTS, many, root)] == list(changed)
        assert len(OBJECTS.reads) == 2

    def test_a_folder_is_listed_without_the_rest(self, many: bytes) -> None:
        root = update(OBJECTS, many, {f"aaa/{i}": blob(0) for i in range(10)})
        OBJECTS.reads.clear()
        assert len(list(iterate(OBJECTS, root, "aaa/"))) == 10
        assert len(OBJECTS.reads) <= 2

    def test_removing_nearly_everything_gives_an_embedded_tree_again(self, many: bytes) -> None:
        keep = sorted(MANY)[5000:5040]
        root = update(OBJECTS, many, {path: None for path in MANY if path not in keep})
        assert root == update(OBJECTS, EMPTY_TREE, {path: MANY[path] for path in keep})

    def test_removing_everything_gives_the_empty_tree(self, many: bytes) -> None:
        assert update(OBJECTS, many, dict.fromkeys(MANY)) == EMPTY_TREE


class TestLinks:
    def test_the_root_links_to_its_entries_and_their_storage(self) -> None:
        tree = {"a": Entry(Kind.BLOB, BLOBS[0], BLOBS[1]), "b": blob(0), "c": blob(2)}
        root = update(OBJECTS, EMPTY_TREE, tree)
        assert root_links(root) == tuple(sorted(BLOBS[:3]))

    def test_every_page_links_to_what_it_names(self, many: bytes) -> None:
        child = root_links(many)[0]
        envelope = OBJECTS.get(child)
        page = tree_pages.decode_page(envelope.payload, "page")
        assert {link.digest for link in envelope.links} == {e.digest for _, e in page.items}

    def test_an_entry_nobody_stored_is_not_found(self) -> None:
        nobody = Entry(Kind.BLOB, Digest("ab" * 32))
        tree = {f"f{i:04d}": nobody for i in range(1000)}
        with pytest.raises(NotFoundError):
            update(OBJECTS, EMPTY_TREE, tree)


class TestDamagedTrees:
    """Pages that are whole by themselves, but not what their parent says of them."""

    def parent(self, children: list[Page], lasts: list[str] | None = None, level: int = 1) -> bytes:
        named = lasts or [child.last for child in children]
        links = [OBJECTS.put(Kind.TREE_PAGE, encode_page(c), c.links()) for c in children]
        refs = [
            (last, Entry(Kind.TREE_PAGE, link.digest))
            for last, link in zip(named, links, strict=True)
        ]
        return encode_page(Page(level, tuple(refs)))

    def leaf(self, *paths: str) -> Page:
        return Page(0, tuple((path, blob(0)) for path in paths))

    @pytest.mark.parametrize(
        "read",
        [
            lambda root: lookup(OBJECTS, root, "b"),
            lambda root: list(iterate(OBJECTS, root)),
            lambda root: list(diff(OBJECTS, root, EMPTY_TREE)),
            lambda root: update(OBJECTS, root, {"b": blob(1)}),
        ],
    )
    def test_a_page_that_ends_elsewhere_is_corrupt(self, read) -> None:
        with pytest.raises(CorruptError, match="expected to end with 'c'"):
            read(self.parent([self.leaf("a", "b")], ["c"]))

    def test_a_page_that_overlaps_the_one_before_is_corrupt(self) -> None:
        root = self.parent([self.leaf("a", "f"), self.leaf("b", "g")])
        with pytest.raises(CorruptError, match="out of order after 'f'"):
            list(iterate(OBJECTS, root))

    def test_a_page_of_the_wrong_level_is_corrupt(self) -> None:
        root = self.parent([self.leaf("a")], level=2)
        with pytest.raises(CorruptError, match="expected level 1, found 0"):
            list(iterate(OBJECTS, root))

    def test_an_object_of_another_kind_is_no_page(self) -> None:
        root = encode_page(Page(1, (("a", Entry(Kind.TREE_PAGE, BLOBS[0])),)))
        with pytest.raises(CorruptError, match="expected a tree page, found a blob"):
            lookup(OBJECTS, root, "a")


@pytest.mark.parametrize("path", ["files/part-09999.bin", "files/part-09999x", "a", "z"])
def test_what_lies_about_a_path_is_found_nearest_first_in_few_pages(many: bytes, path: str) -> None:
    before = len(OBJECTS.reads)
    found = nearby(OBJECTS, many, path)
    assert len(OBJECTS.reads) - before <= decode_root(many).level + 2
    ordered = sorted([*MANY, path], key=path_key)
    place = ordered.index(path)
    next_to_it = {*ordered[max(0, place - 3) : place + 4]} - {path}
    names = [name for name, _ in found]
    assert next_to_it <= {*names[:9]}
    assert path not in MANY or names[0] == path
    assert all(MANY[name] == entry for name, entry in found)


def test_about_a_path_in_a_small_tree_is_all_of_it() -> None:
    assert nearby(OBJECTS, EMPTY_TREE, "a") == []
    one = update(OBJECTS, EMPTY_TREE, {"b": blob(1), "d": blob(2)})
    assert [name for name, _ in nearby(OBJECTS, one, "c")] == ["d", "b"]
