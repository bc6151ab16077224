"""Models that are stored anew: the same bits by the same commits, in fewer bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.model.layout.placement import Placement, decode_placement
from tensorrepo.formats.model.maintenance import repack
from tensorrepo.formats.model.maintenance.repack import RepackOptions, RepackReport, repack_models
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.transfer import receive
from tensorrepo.repo.transfer.exchange import clone
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.histories import copied
from tests.support.builders.repositories import ADA, again, new_repository
from tests.support.reference.collector import condemn, delete, supersede

WHOLE = DeltaOptions(depth=0, codecs=frozenset())


def weights(step: int) -> dict[str, Any]:
    value = np.random.default_rng(1).normal(0, 0.02, (300, 400))
    moved = np.random.default_rng(100 + step).normal(0, 1e-6 * step, value.shape)
    tensors = {"w": (value + moved).astype("f4"), "b": np.full(900, step, "f4")}
    return tensors | {"head": np.random.default_rng(step).normal(0, 1, (40, 500)).astype("f4")}


def committed(
    repository: RepositoryCore,
    step: int,
    against: DeltaOptions = WHOLE,
    tensors: dict[str, Any] | None = None,
) -> Digest:
    transaction = begin(repository, "main")
    entry = write_model(transaction.objects, tensors or weights(step), against=against)
    transaction.stage("models/net", entry)
    made = transaction.commit(f"step {step}", author=ADA)
    assert made is not None
    return made.digest


def model_at(repository: RepositoryCore, commit: Digest) -> StoredModel:
    entry = repository.entry(read_commit(repository.objects, commit).tree, "models/net")
    assert entry is not None
    return open_model(repository.objects, entry)


def placement_at(repository: RepositoryCore, commit: Digest) -> Placement:
    storage = model_at(repository, commit).entry.storage
    assert storage is not None
    return decode_placement(repository.objects.get(storage).payload, storage)


def repacked(repository: RepositoryCore, **wishes: Any) -> RepackReport:
    ticks = iter(range(10**9))
    return repack_models(repository, RepackOptions(ADA, 0, **wishes), lambda: next(ticks) * 1e-9)


History = tuple[RepositoryCore, list[Digest]]


@pytest.fixture(scope="module")
def made() -> History:
    """A repository of five steps, each stored whole."""
    repository = new_repository()
    return repository, [committed(repository, step) for step in range(5)]


@pytest.fixture
def history(made: History) -> History:
    """A copy of it."""
    repository, commits = made
    return open_repository(copied(repository.backend), drivers={}), commits


def assert_equal_bits(repository: RepositoryCore, commits: list[Digest]) -> None:
    found = [model_at(repository, commit).load() for commit in commits]
    expected = [weights(step) for step in range(len(commits))]
    assert [{k: v.tobytes() for k, v in one.items()} for one in found] == [
        {k: one[k].tobytes() for k in sorted(one)} for one in expected
    ]


def test_old_commits_give_the_same_bits_from_fewer_bytes(history: History) -> None:
    repository, commits = history
    done = repacked(repository, alpha=9)
    assert done.changed
    assert done.stored_bytes < 0.7 * done.present_bytes
    assert done.models == 5
    assert_equal_bits(again(repository), commits)
    codecs = {m.codec for t in placement_at(repository, commits[4]).tensors for m in t.members}
    assert "delta" in codecs
    assert repository.log.refresh().state.supersedes == done.superseded


def test_small_tensors_find_those_that_they_were_tuned_from() -> None:
    repository = new_repository()
    for step in range(20):
        family = np.random.default_rng(step % 10).normal(0, 0.02, (64, 64))
        moved = np.random.default_rng(100 + step).normal(0, 1e-6, family.shape)
        committed(repository, step, tensors={"w": (family + moved).astype("f4")})
    done = repacked(repository, alpha=9)
    assert done.stored_bytes < 0.6 * done.present_bytes


def test_what_becomes_reclaimable_can_really_be_deleted(history: History) -> None:
    repository, commits = history
    done = repacked(repository, alpha=9)
    state = repository.log.refresh().state
    live = set(gc_fence.closure(repository.objects, state.roots(), state.supersedes))
    assert live.isdisjoint(done.reclaimable)
    assert done.reclaimable_bytes == done.present_bytes
    delete(repository, condemn(repository))
    fresh = again(repository)
    assert_equal_bits(fresh, commits)
    with pytest.raises(NotFoundError):
        fresh.objects.get(done.reclaimable[0])


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_reads_pass_through_no_more_bases_than_wished(history: History, depth: int) -> None:
    repository, commits = history
    repacked(repository, alpha=100, depth=depth)
    members = [m for c in commits for t in placement_at(repository, c).tensors for m in t.members]
    assert max(member.depth for member in members) == min(depth, 1 + (depth > 1))


def test_the_base_of_a_repack_is_recorded(history: History) -> None:
    repository, commits = history
    repacked(repository, alpha=9)
    chosen = [base.why for commit in commits for base in placement_at(repository, commit).chosen]
    assert set(chosen) == {"repack"}


def test_a_dry_run_changes_nothing(history: History) -> None:
    repository, _ = history
    before = repository.log.refresh().generation, len(list(repository.backend.list("")))
    done = repacked(repository, dry_run=True)
    assert not done.changed
    assert done.planned_bytes < done.present_bytes
    assert (repository.log.refresh().generation, len(list(repository.backend.list("")))) == before


def test_a_second_repack_finds_nothing_to_do(history: History) -> None:
    repository, _ = history
    repacked(repository, alpha=9)
    generation = repository.log.refresh().generation
    again = repacked(repository, alpha=9)
    assert (again.changed, again.reclaimable, again.reclaimable_bytes) == (False, (), 0)
    assert repository.log.refresh().generation == generation


def test_what_one_record_cannot_hold_is_said_in_several(
    history: History, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repository, commits = history
    monkeypatch.setattr(repack, "MOST_SUPERSEDED", 2)
    monkeypatch.setattr(receive, "MOST_SUPERSEDED", 2)
    before = repository.log.refresh().generation
    done = repacked(repository, alpha=9)
    assert len(done.superseded) == 5
    after = repository.log.refresh()
    assert (after.generation - before, after.state.supersedes) == (3, done.superseded)
    copy = new_repository()
    clone(HistorySource.of(repository), copy, "origin", TransferOptions(ADA, tmp_path))
    assert copy.log.refresh().state.supersedes == done.superseded
    assert_equal_bits(again(copy), commits)


def test_it_loses_to_another_supersede_since_its_pin(history: History) -> None:
    repository, commits = history
    old, other = (model_at(repository, one).entry.storage for one in commits[:2])
    assert old is not None
    assert other is not None

    def meddle(what: str, *_: int) -> None:
        state = repository.log.refresh().state
        if what == "verifying" and not state.supersedes:
            supersede(repository, old, other)

    with pytest.raises(ConflictError, match="repacked by somebody else"):
        repack_models(repository, RepackOptions(ADA, 0, alpha=9), lambda: 0.0, meddle)
    assert repository.log.refresh().state.supersedes == {old: other}


def test_what_a_collection_condemned_meanwhile_is_stored_again(history: History) -> None:
    repository, commits = history

    def collect(what: str, done: int, size: int) -> None:
        if what == "verifying" and done == size:
            condemned.extend(condemn(repository))

    condemned: list[str] = []
    repack_models(repository, RepackOptions(ADA, 0, alpha=9), lambda: 0.0, collect)
    assert condemned
    delete(repository, condemned)
    assert_equal_bits(again(repository), commits)


def test_models_that_were_not_asked_for_stay(history: History) -> None:
    repository, commits = history
    assert repacked(repository, paths=["models/other"], alpha=9).models == 0
    assert_equal_bits(repository, commits)


@pytest.mark.parametrize("wish", [{"alpha": 0.5}, {"alpha": float("nan")}, {"depth": 99}])
def test_impossible_wishes_are_refused(wish: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="expected"):
        RepackOptions(ADA, 0, **wish)
