"""Every value is blamed on the commit that brought it, whatever lies between."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tensorrepo.formats.dataset.blame import DatasetVersion, RowBlame, blame_row
from tensorrepo.formats.dataset.merge import DatasetMergeDriver
from tensorrepo.formats.dataset.metadata.row_ids import row_ids
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.history.merge_trees import MergeContext
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import sampled
from tests.support.reference.merge import Version, version_of
from tests.support.reference.merge_steps import STEPS, base_dataset, step

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class Repo:
    """Commits by name; each is a version of one dataset."""

    objects: MemoryObjects = field(default_factory=MemoryObjects)
    steps: dict[Digest, DatasetVersion] = field(default_factory=dict)
    names: dict[Digest, str] = field(default_factory=dict)

    def step(self, commit: Digest) -> DatasetVersion:
        return self.steps[commit]

    def commit(self, name: str, dataset: StoredDataset | None, *parents: Digest) -> Digest:
        digest = Digest(content_tag(f"{name}{len(self.steps)}".encode()).hex() * 2)
        generation = 1 + max((self.steps[each].generation for each in parents), default=0)
        self.steps[digest] = DatasetVersion(digest, generation, dataset, parents)
        self.names[digest] = name
        return digest

    def change(self, name: str, parent: Digest, seed: int = 0) -> Digest:
        """A commit that takes one of `STEPS`, and is called like it."""
        dataset = self.steps[parent].dataset
        assert dataset is not None
        return self.commit(name, step(self.objects, dataset, name, seed), parent)

    def merge(self, base: Digest, ours: Digest, theirs: Digest) -> Digest:
        entries = [Entry(Kind.DATASET, _of(self, each).digest) for each in (base, ours, theirs)]
        context = MergeContext(automatic=True, strategy="fail", generations=(2, 3))
        merged = DatasetMergeDriver().merge(self.objects, "datasets/x", *entries, context)
        assert isinstance(merged, Entry), merged
        return self.commit("merge", open_dataset(self.objects, merged.digest), ours, theirs)

    def blamed(self, tip: Digest, number: int) -> dict[str, str]:
        """Names of commits by column, of the row whose key is `number`; "" is the row."""
        dataset = _of(self, tip)
        found = blame_row(self.step, tip, _id(dataset, number))
        return {"": self.names[found.added]} | {
            column.name: self.names[found.columns[column.id]] for column in dataset.schema.columns
        }


def _of(repo: Repo, commit: Digest) -> StoredDataset:
    dataset = repo.steps[commit].dataset
    assert dataset is not None
    return dataset


def _id(dataset: StoredDataset, number: int) -> NDArray[Any]:
    rows = dataset["n"][:].tolist()
    found = next(row_id for row_id, n in zip(_live_ids(dataset), rows, strict=True) if n == number)
    return row_ids([found])


def _live_ids(dataset: StoredDataset) -> list[str]:
    return list(version_of(dataset).rows)


@pytest.fixture
def repo() -> Repo:
    return Repo()


@pytest.fixture
def first(repo: Repo) -> Digest:
    return repo.commit("first", base_dataset(repo.objects))


SAME = {"": "first", "n": "first", "label": "first", "text": "first", "blob": "first"}


def test_values_are_blamed_on_the_commits_that_set_them(repo: Repo, first: Digest) -> None:
    tip = first
    for name in ("append", "label of row 1", "text of row 1", "label of row 9", "property"):
        tip = repo.change(name, tip)
    assert repo.blamed(tip, 1) == SAME | {"label": "label of row 1", "text": "text of row 1"}
    assert repo.blamed(tip, 9) == SAME | {"label": "label of row 9"}
    assert repo.blamed(tip, 1000) == dict.fromkeys(SAME, "append")


def test_a_value_that_came_back_is_blamed_on_who_brought_it_back(repo: Repo, first: Digest) -> None:
    tip = repo.change("other label of row 1", repo.change("label of row 1", first))
    tip = repo.change("label of row 1", tip)
    last = repo.commit("again", _of(repo, tip), tip)
    assert repo.blamed(last, 1)["label"] == "label of row 1"
    assert blame_row(repo.step, last, _id(_of(repo, last), 1)).columns[_column(repo, last)] == tip


def _column(repo: Repo, commit: Digest) -> str:
    return _of(repo, commit).schema.column("label").id


@pytest.mark.parametrize(
    "between",
    [
        "compact",
        "delete a fragment",
        "rename label",
        "widen label",
        "drop text",
        "append",
        "all blobs",
        "add with nulls",
    ],
)
def test_what_comes_between_hides_nothing(repo: Repo, first: Digest, between: str) -> None:
    tip = repo.change(between, repo.change("label of row 1", first))
    tip = repo.change("property", tip)
    label = repo.blamed(tip, 1).get("label_a") or repo.blamed(tip, 1)["label"]
    assert label == "label of row 1"
    assert repo.blamed(tip, 1)["n"] == "first"


@pytest.mark.parametrize(
    ("name", "column"),
    [("add with default", "extra"), ("add with nulls", "maybe"), ("add with values", "given")],
)
def test_values_of_a_new_column_are_blamed_on_the_commit_that_added_it(
    repo: Repo, first: Digest, name: str, column: str
) -> None:
    tip = repo.change("property", repo.change(name, first))
    assert repo.blamed(tip, 3) == SAME | {column: name}


def test_a_merge_is_blamed_for_nothing_that_a_parent_has(repo: Repo, first: Digest) -> None:
    ours = repo.change("append", repo.change("label of row 1", first))
    theirs = repo.change("append", repo.change("text of row 1", first), seed=7)
    tip = repo.merge(first, ours, theirs)
    assert repo.blamed(tip, 1) == SAME | {"label": "label of row 1", "text": "text of row 1"}
    assert repo.blamed(tip, 8000) == dict.fromkeys(SAME, "append")


def test_a_deleted_row_names_who_deleted_it_and_what_it_was(repo: Repo, first: Digest) -> None:
    row_id = _id(_of(repo, first), 1)
    before = repo.change("label of row 1", first)
    gone = repo.change("delete row 1", before)
    tip = repo.change("compact", repo.change("append", gone))
    found = blame_row(repo.step, tip, row_id)
    assert isinstance(found, RowBlame)
    assert (found.deleted, found.last, found.added) == (gone, before, first)
    assert found.columns[_column(repo, first)] == before


def test_a_deletion_is_found_behind_a_merge(repo: Repo, first: Digest) -> None:
    row_id = _id(_of(repo, first), 1)
    gone = repo.change("delete row 1", first)
    tip = repo.merge(first, repo.change("append", first), gone)
    assert blame_row(repo.step, tip, row_id).deleted == gone


def test_a_row_that_never_was_is_not_found(repo: Repo, first: Digest) -> None:
    with pytest.raises(NotFoundError, match="no version up to commit"):
        blame_row(repo.step, first, row_ids(["0123456789abcdef:1"]))


@pytest.mark.parametrize("seed", sampled(range(12), 4))
def test_blame_agrees_with_comparing_all_versions(repo: Repo, first: Digest, seed: int) -> None:
    rng = random.Random(seed)
    names = sorted(STEPS)
    chain = [first]
    for at in range(6):
        try:
            chain.append(repo.change(rng.choice(names), chain[-1], at))
        except Exception:  # noqa: BLE001 - a step that cannot be taken here
            continue
    versions = [version_of(_of(repo, each)) for each in chain]
    for row_id in rng.sample(list(versions[-1].rows), 3):
        found = blame_row(repo.step, chain[-1], row_ids([row_id]))
        expected = {
            column: chain[_origin(versions, row_id, column)] for column in versions[-1].columns
        }
        assert found.columns == expected
        assert found.added == chain[_origin(versions, row_id, None)]


def _origin(versions: list[Version], row_id: str, column: str | None) -> int:
    """The first version since which a value has been as it is in the last one."""
    at = len(versions) - 1
    while at and _cell(versions[at - 1], row_id, column) == _cell(versions[at], row_id, column):
        at -= 1
    return at


def _cell(version: Version, row_id: str, column: str | None) -> Any:
    row = version.rows.get(row_id)
    if row is None or column is None:
        return row is not None
    return row.get(column, "no such column")
