"""A served repository's view: never older than promised, and read ahead of need."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.api.repositories.opening import FRESH_SECONDS, ServedRepository, open_served


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
