"""Packs that are mostly dead are stored anew without the rest, and collected."""

from __future__ import annotations

import numpy as np

from tensorrepo.formats.model.maintenance.repack import RepackOptions
from tensorrepo.formats.model.maintenance.worn_packs import repack_worn, worn_packs
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.history.commits import read_commit
from tests.support.builders.repositories import ADA, again, new_repository, tip_of

WHOLE = DeltaOptions(codecs=frozenset())
AT_ONCE = CollectionRules(grace_seconds=0, retention_seconds=0)
HEAD = np.random.default_rng(1).normal(0, 1, (160, 200)).astype("f4")
BODY = np.random.default_rng(2).normal(0, 1, (400, 400)).astype("f4")


def save(repository: RepositoryCore, branch: str, tensors: dict[str, np.ndarray]) -> None:
    with begin(repository, branch) as transaction:
        entry = write_model(transaction.objects, tensors, against=WHOLE)
        transaction.stage("models/net", entry)
        transaction.commit("save", author=ADA)


def collect(repository: RepositoryCore) -> int:
    return collect_garbage(repository, actor=ADA, rules=AT_ONCE).live_bytes


def test_what_is_left_of_a_worn_pack_is_stored_without_the_rest() -> None:
    repository = new_repository()
    save(repository, "big", {"head": HEAD, "body": BODY})
    big = tip_of(repository, "big")
    assert big is not None
    refs.create_branch(repository, "main", big, actor=ADA)
    # Shares the pack of the big one, of which it uses a sixth.
    entry = repository.entry(read_commit(repository.objects, big).tree, "models/net")
    assert entry is not None
    with begin(repository, "small") as transaction:
        small = write_model(transaction.objects, {"head": HEAD}, known=[entry], against=WHOLE)
        transaction.stage("models/net", small)
        transaction.commit("small", author=ADA)
    assert worn_packs(repository) == ()
    refs.delete_ref(repository, "heads/big", actor=ADA)
    refs.delete_ref(repository, "heads/main", actor=ADA)
    before = collect(repository)
    (worn,) = worn_packs(repository)
    assert worn.dead_bytes > BODY.nbytes / 2
    ticks = iter(range(10**9))
    done = repack_worn(repository, RepackOptions(ADA, 0), lambda: next(ticks) * 1e-9)
    assert done is not None
    assert worn.digest in done.reclaimable
    assert collect(repository) < before / 4
    fresh = again(repository)
    tip = tip_of(fresh, "small")
    assert tip is not None
    entry = fresh.entry(read_commit(fresh.objects, tip).tree, "models/net")
    assert entry is not None
    assert open_model(fresh.objects, entry).load()["head"].tobytes() == HEAD.tobytes()
    assert worn_packs(fresh) == ()
