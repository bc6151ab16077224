"""A served repository's view: never older than promised, and read ahead of need."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.api.repositories.opening import FRESH_SECONDS, ServedRepository, open_served
from tensorrepo.repo.log.reader import LogView


class Clock:
    """What is the time, as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def writer(tmp_path: Path) -> tr.Repository:
    """Somebody who writes past the service."""
    return tr.init(tmp_path / "repo", author="Ann <ann@example.org>")


class _Kept:
    """Something that is made once for a repository."""

    def __init__(self, _served: ServedRepository) -> None:
        """Nothing is read."""


def _write(writer: tr.Repository, name: str) -> None:
    with writer.transaction(message=name) as tx:
        tx.create_dataset(name, columns={"x": tr.Tensor("float32", ())}).append(
            {"x": np.zeros(2, np.float32)}
        )


def _join() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("renew-"):
            thread.join(30)


def test_who_asks_early_waits_for_nothing_and_has_it_read_for_the_next(
    writer: tr.Repository, tmp_path: Path
) -> None:
    clock = Clock()
    served = ServedRepository(
        "team/x", open_served(str(tmp_path / "repo"), data=tmp_path, environment={}), timer=clock
    )
    before = served.view.generation
    _write(writer, "one")
    clock.now += FRESH_SECONDS / 10
    assert served.view.generation == before  # new enough: nothing is read
    _join()
    assert served.view.generation == before
    clock.now += FRESH_SECONDS / 2
    first = served.view.generation
    _join()
    assert first in {before, before + 1}
    assert served.view.generation == before + 1
    served.core.close()


def test_what_is_kept_does_not_wait_for_a_store(
    writer: tr.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = ServedRepository("x", open_served(writer.url, data=tmp_path, environment={}))
    is_read, may_answer = threading.Event(), threading.Event()

    def refresh() -> LogView:
        is_read.set()
        assert may_answer.wait(20)
        raise tr.StorageError("no answer")

    monkeypatch.setattr(served.core.log, "refresh", refresh)
    with ThreadPoolExecutor(2) as threads:
        reading = threads.submit(lambda: served.view)
        try:
            assert is_read.wait(20)
            kept = threads.submit(served.kept, _Kept).result(10)
        finally:
            may_answer.set()
        assert isinstance(reading.exception(20), tr.StorageError)
    assert served.kept(_Kept) is kept
    served.core.close()


def test_a_view_as_old_as_promised_is_waited_for(writer: tr.Repository, tmp_path: Path) -> None:
    clock = Clock()
    served = ServedRepository(
        "team/x", open_served(str(tmp_path / "repo"), data=tmp_path, environment={}), timer=clock
    )
    before = served.view.generation
    _write(writer, "one")
    clock.now += FRESH_SECONDS
    assert served.known_view is None
    assert served.view.generation == before + 1
    served.core.close()
