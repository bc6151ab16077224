"""Versions of entries are found by what is new in each commit, whatever stands beside it."""

from __future__ import annotations

import numpy as np

import tensorrepo as tr
from tensorrepo.repo.changes.disk_usage import versions

MODELS = 40


def test_a_registered_version_is_one_entry_however_many_the_repository_has() -> None:
    repo = tr.init("memory://versions-of-entries", author="Ada <ada@example.org>")
    with repo.transaction() as tx:
        for at in range(MODELS):
            tx.save_model(f"net{at}", {"w": np.full(4, at, np.float32)})
    for at in range(5):
        repo.registry.register(f"net{at}", repo.model(f"net{at}"))
    core = repo.context.core
    refs = core.log.refresh().state.refs
    found = [change for _, change in versions(core.objects, refs.values()) if change is not None]
    assert len(found) == MODELS + 5
    assert all(change.new is not None for change in found)
