from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import UnsupportedError


def test_stores_without_a_name_are_apart() -> None:
    first, second = MemoryBackend(), MemoryBackend()
    first.create("log/1", (b"x",))
    assert second.size("log/1") is None
    assert pickle.loads(pickle.dumps(first)).read("log/1") == b"x"


def test_a_name_with_and_without_its_scheme_is_one_store() -> None:
    MemoryBackend("memory://tests/one").create("log/1", (b"x",))
    assert MemoryBackend("tests/one").read("log/1") == b"x"


def test_another_process_is_told_that_it_cannot_see_this_memory() -> None:
    spawn = multiprocessing.get_context("spawn")
    pickled = pickle.dumps(MemoryBackend("memory://tests/here"))
    with (
        ProcessPoolExecutor(1, mp_context=spawn) as pool,
        pytest.raises(UnsupportedError, match="Use a folder"),
    ):
        pool.submit(pickle.loads, pickled).result()
