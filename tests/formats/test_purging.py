"""Purges of rows in history: nothing of them is left, and no crash leaves a half."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats import purging
from tensorrepo.formats.dataset.merge import DatasetMergeDriver
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset, row_id_table
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Schema, Text
from tensorrepo.formats.dataset.update import update_rows
from tensorrepo.formats.dataset.versions import fragment_content
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.purging import (
    PurgeRequest,
    PurgeSurvey,
    RepeatedTexts,
    purge_history,
    survey_of,
)
from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import refs, rules
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.gc_collect import collect_garbage
from tensorrepo.repo.changes.purge import purge_records
from tensorrepo.repo.changes.repository import (
    LocalState,
    RepositoryCore,
    create_repository,
    open_repository,
)
from tensorrepo.repo.changes.transaction import begin, tree_of
from tensorrepo.repo.errors import (
    CommitOutcomeUnknown,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    PurgedError,
)
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.branch_rules import BranchRule
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.incarnations import parse_object_key
from tensorrepo.repo.objects.store import ObjectStore
from tests.support.builders.changed import without
from tests.support.builders.repositories import ADA, BOB
from tests.support.effort import examples, sampled
from tests.support.faults.backends import Crash, CrashBackend

SECRET = "zebra-quixote-77"
SCHEMA = Schema.of({"name": Text(), "age": "int64"})
DRIVERS = {Kind.DATASET: DatasetMergeDriver()}
PATH = "datasets/people"
REQUEST = PurgeRequest((PATH,), where=f"name = '{SECRET}'")


def people(first: int, count: int, **others: Any) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"name": SECRET if at == 3 else f"person {at}", "age": at} | others for at in numbers]


def commit_rows(
    core: RepositoryCore, batches: Sequence[Any], path: str = PATH, seed: int = 0
) -> Digest:
    """A commit that puts rows behind those of a dataset."""
    transaction = begin(core, "main")
    held = None
    if transaction.base is not None:
        held = core.entry(tree_of(core.objects, transaction.base), path)
    base = None if held is None else open_dataset(transaction.objects, held.digest)
    rng = random.Random(seed)
    link = write_dataset(transaction.objects, SCHEMA, batches, base=base, rng=rng)
    transaction.stage(path, open_dataset(transaction.objects, link.digest).entry)
    made = transaction.commit("rows", author=ADA)
    assert made is not None
    return made.digest


def dataset_at(core: RepositoryCore, commit: Digest, path: str = PATH) -> StoredDataset:
    entry = core.entry(tree_of(core.objects, commit), path)
    assert entry is not None
    return open_dataset(core.objects, entry.digest)


def says(backend: Backend, text: str = SECRET) -> list[str]:
    """Keys of a store whose bytes hold a text, those that are compressed too."""
    found = []
    for stored in backend.list(""):
        data = bytes(backend.read(stored.key))
        if (parsed := parse_object_key(stored.key)) is not None:
            data += bytes(ObjectStore(backend).get(parsed[0]).payload)
        if text.encode() in data:
            found.append(stored.key)
    return found


def again(backend: Backend) -> RepositoryCore:
    return open_repository(backend, drivers=DRIVERS)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def core(backend: MemoryBackend) -> RepositoryCore:
    """Two versions on a branch, the first also under a tag, and another dataset."""
    core = create_repository(backend, drivers=DRIVERS, local=LocalState())
    one = commit_rows(core, [people(0, 10)])
    commit_rows(core, [people(10, 5)])
    commit_rows(core, [people(100, 5)], "datasets/others")
    refs.create_tag(core, "v1", one, actor=ADA)
    return core


def purge(core: RepositoryCore, request: PurgeRequest = REQUEST) -> Any:
    record = purge_history(core, request, actor=ADA, reason="request 17")
    collect_garbage(core, actor=ADA)
    return record


def names(dataset: StoredDataset) -> list[str]:
    return [row["name"] for row in dataset]


def test_rows_go_from_all_commits_and_from_every_byte(
    core: RepositoryCore, backend: MemoryBackend
) -> None:
    state = core.log.refresh().state
    before = {ref: names(dataset_at(core, commit)) for ref, commit in state.refs.items()}
    assert says(backend)
    purge(core)
    fresh = again(backend)
    found = fresh.log.refresh().state
    assert says(backend) == []
    assert found.refs == state.refs, "commits keep their names"
    assert {ref: names(dataset_at(fresh, commit)) for ref, commit in found.refs.items()} == {
        ref: [name for name in each if name != SECRET] for ref, each in before.items()
    }
    assert list(check_objects(fresh.objects, found, ObjectTotals(), deep=True)) == []


def test_the_log_keeps_who_when_and_why(core: RepositoryCore) -> None:
    made = purge(core)
    (record,) = purge_records(core)
    assert (record.actor, record.reason, record.erased) == (ADA, "request 17", made.erased)
    assert set(record.where.values()) == {PATH}


def test_what_was_purged_is_refused_to_readers_and_writers(core: RepositoryCore) -> None:
    old = dataset_at(core, core.log.refresh().state.refs["tags/v1"])
    purge(core)
    transaction = begin(core, "main")
    rng = random.Random(0)
    with pytest.raises(PurgedError, match="was purged"):
        write_dataset(transaction.objects, SCHEMA, [people(0, 10)], rng=rng)
    assert len(old) == 10, "who opened it before has what it read"


def test_a_writer_that_began_before_is_refused(core: RepositoryCore) -> None:
    transaction = begin(core, "main")
    base = dataset_at(core, transaction.base or Digest(""))
    link = write_dataset(transaction.objects, SCHEMA, [people(50, 2)], base=base)
    transaction.stage(PATH, open_dataset(transaction.objects, link.digest).entry)
    purge(core)
    with pytest.raises(PurgedError, match="holds 1 row, which the log purged"):
        transaction.commit("late", author=ADA)


def test_a_writer_of_something_else_goes_on(core: RepositoryCore) -> None:
    transaction = begin(core, "main")
    link = write_dataset(transaction.objects, SCHEMA, [people(50, 2)])
    transaction.stage("datasets/new", open_dataset(transaction.objects, link.digest).entry)
    purge(core)
    made = transaction.commit("late", author=ADA)
    assert made is not None
    assert SECRET not in names(dataset_at(core, made.digest))


def test_history_goes_on_from_a_twin(core: RepositoryCore, backend: MemoryBackend) -> None:
    purge(core)
    made = commit_rows(core, [people(20, 3)])
    assert len(dataset_at(again(backend), made)) == 17
    assert purge(core) is None, "nothing is left to purge"


def test_rows_are_purged_by_their_ids_and_twice(core: RepositoryCore) -> None:
    tip = core.log.refresh().state.refs["heads/main"]
    dataset = dataset_at(core, tip)
    ids = row_id_table(dataset).of(np.array([3, 4]))
    texts = [f"{int(uid):016x}:{int(offset)}" for uid, offset in ids.tolist()]
    purge(core, PurgeRequest((PATH,), ids=(texts[0],)))
    purge(core, PurgeRequest((PATH,), ids=(texts[1],)))
    assert names(dataset_at(core, tip))[:4] == ["person 0", "person 1", "person 2", "person 5"]


def test_a_column_is_purged_and_told(core: RepositoryCore, backend: MemoryBackend) -> None:
    purge(core, PurgeRequest((PATH,), columns=("name",)))
    state = core.log.refresh().state
    assert says(backend) == []
    assert list(dataset_at(core, state.refs["tags/v1"]).schema.names) == ["age"]
    (columns,) = state.purged_columns.values()
    assert list(columns.values()) == ["name"]
    assert "name" in dataset_at(core, state.refs["heads/main"], "datasets/others").schema
    assert purge(core, PurgeRequest((PATH,), columns=("name",))) is None, "it is ended, not refused"


def test_a_stale_copy_of_the_rows_is_named_and_not_hidden(core: RepositoryCore) -> None:
    large = [{"name": f"{SECRET} {at} {'x' * 40_000}", "age": at} for at in range(3)]
    commit_rows(core, [large], "datasets/large", seed=1)
    commit_rows(core, [large], "datasets/copy", seed=2)
    request = PurgeRequest(("datasets/large",), where="age = 1")
    with pytest.raises(InvalidInputError, match="datasets/copy"):
        purge(core, request)
    both = PurgeRequest(("datasets/large", "datasets/copy"), where="age = 1")
    assert purge(core, both) is not None


def copies(core: RepositoryCore) -> dict[str, int]:
    survey = survey_of(core, REQUEST, core.log.refresh().state)
    assert isinstance(survey, PurgeSurvey)
    return dict(survey.copies)


def test_small_copies_under_other_ids_are_found(core: RepositoryCore) -> None:
    assert copies(core) == {}
    commit_rows(core, [people(2, 3)], "datasets/copy", seed=1)
    commit_rows(core, [[{"name": SECRET, "age": 4}]], "datasets/like", seed=2)
    assert copies(core) == {"datasets/copy": 1}
    commit_rows(core, [people(3, 1), people(3, 1)], seed=3)
    purge(core, PurgeRequest((PATH, "datasets/copy", "datasets/like"), where=REQUEST.where))
    assert copies(core) == {}


KINDS = Schema.of({"name": Text(), "age": "int64", "kind": ClassLabel(("a", "b", SECRET))})


def grown(seed: int) -> RepositoryCore:
    """Versions of two datasets that have rows in common, by appends, updates and deletions."""
    core = create_repository(MemoryBackend(), drivers=DRIVERS, local=LocalState())
    chance = random.Random(seed)
    for step in range(12):
        path = chance.choice([PATH, "datasets/others"])
        transaction = begin(core, "main")
        held = None
        if transaction.base is not None:
            held = core.entry(tree_of(core.objects, transaction.base), path)
        base = None if held is None else open_dataset(transaction.objects, held.digest)
        act = chance.choice(["append", "append", "update", "delete"])
        if base is None or act == "append":
            numbers = [chance.randrange(8) for _ in range(6)]
            batch = [
                {
                    "name": SECRET if at == 3 else f"{at}",
                    "age": at,
                    "kind": chance.choice([0, 0, 1, 2]),
                }
                for at in numbers
            ]
            rng = random.Random(f"{seed} {step}")
            made = write_dataset(transaction.objects, KINDS, [batch], base=base, rng=rng).digest
        elif act == "update":
            values = {"name": [SECRET], "kind": [chance.randrange(3)]}
            made = update_rows(
                transaction.objects, base, [chance.randrange(len(base))], values
            ).digest
        else:
            made = without(transaction.objects, base, [chance.randrange(len(base))]).digest
        transaction.stage(path, open_dataset(transaction.objects, made).entry)
        transaction.commit("change", author=ADA)
    return core


def found_by(core: RepositoryCore, request: PurgeRequest) -> tuple[Any, ...]:
    """What a survey tells of rows."""
    survey = survey_of(core, request, core.log.refresh().state)
    assert isinstance(survey, PurgeSurvey)
    texts = survey.erasure.repeats
    assert isinstance(texts, RepeatedTexts)
    ids = survey.erasure.ids.tolist()
    return ids, survey.erasure.classes, texts.texts, survey.copies, survey.versions


@pytest.mark.parametrize("seed", range(examples(4)))
def test_rows_that_versions_share_are_looked_at_once_and_found_as_if_in_each(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = grown(seed)
    request = PurgeRequest((PATH,), where=f"name = '{SECRET}' and age < 6")
    try:
        found = found_by(core, request)
    except NotFoundError:
        request = replace(request, paths=("datasets/others",))
        found = found_by(core, request)
    monkeypatch.setattr(fragment_content, "SEEN_BYTES", 0)  # nothing is remembered
    monkeypatch.setattr(purging, "SEEN_BYTES", 0)
    assert found_by(core, request) == found


def test_only_who_may_move_every_protected_branch_purges(core: RepositoryCore) -> None:
    rules.set_rule(core, BranchRule("release/*", pushers=(BOB,)), actor=ADA)
    with pytest.raises(PermissionDenied, match=r"'release/\*': only .* may move it"):
        purge(core)
    assert purge_history(core, REQUEST, actor=BOB, reason="request 17") is not None


@pytest.mark.parametrize(
    ("request_", "error", "told"),
    [
        (PurgeRequest(("datasets/peple",), where="age = 1"), NotFoundError, "datasets/people"),
        (PurgeRequest((PATH,), columns=("nam",)), NotFoundError, "Did you mean name"),
        (PurgeRequest((PATH,), where="size = 1"), InvalidInputError, "size"),
    ],
)
def test_what_is_not_there_is_said(
    core: RepositoryCore, request_: PurgeRequest, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        purge(core, request_)


@pytest.mark.parametrize("die_after", sampled(range(64), 6))
def test_a_crash_leaves_the_old_history_or_the_new_and_a_repetition_ends_it(
    core: RepositoryCore, backend: MemoryBackend, die_after: int
) -> None:
    tip = core.log.refresh().state.refs["heads/main"]
    with suppress(Crash, CommitOutcomeUnknown):
        purge(open_repository(CrashBackend(backend, die_after), drivers=DRIVERS))
    fresh = again(backend)
    is_new = bool(fresh.log.refresh().state.purges)
    assert len(dataset_at(fresh, tip)) == (14 if is_new else 15)
    state = fresh.log.refresh().state
    assert list(check_objects(fresh.objects, state, ObjectTotals(), deep=True)) == []
    purge(again(backend))
    assert says(backend) == []
    assert len(dataset_at(again(backend), tip)) == 14


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("SELECT * FROM p WHERE name = 'Ann'", True),
        ("SELECT * FROM p WHERE name = 'Anna'", False),
        ("Ann", True),
        ("about zebra-quixote, at length", True),
        ("it''s 'O''Neil'", True),
    ],
)
def test_texts_are_looked_for_as_literals_and_long_ones_anywhere(text: str, repeats: bool) -> None:
    known = RepeatedTexts(frozenset({"Ann", "zebra-quixote", "O'Neil"}))
    assert known(text) == repeats
