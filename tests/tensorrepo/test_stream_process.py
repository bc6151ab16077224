"""Streams whose batches a process of its own makes: the same, and nothing is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import tensorrepo as tr
from tests.support.architecture.sources import ROOT
from tests.support.builders.streams import stream as open_stream
from tests.support.builders.transforms import (
    doubled,
    ending,
    failing,
    killed,
    sleepy,
    unhurried,
    unsendable,
)
from tests.support.effort import sampled
from tests.support.processes.forked import fork_streams

WAITED = 30.0


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tr.Dataset:
    repo = tr.init(tmp_path_factory.mktemp("store") / "r", author="Ada <ada@example.org>")
    columns = (
        tr.Column("point", tr.Tensor("float32", (2,))),
        tr.Column("label", tr.ClassLabel(("low", "high")), nullable=True),
        tr.Column("text", tr.Text()),
        tr.Column("ragged", tr.Tensor("int16", (None,))),
    )
    with repo.transaction("main") as tx:
        tx.create_dataset("points", columns=tr.Schema(columns)).append(
            [
                {
                    "point": np.array([at, -at], "f4"),
                    "label": None if at % 5 == 0 else at % 2,
                    "text": f"row {at}",
                    "ragged": np.arange(at % 4, dtype=np.int16),
                }
                for at in range(100)
            ]
        )
    return repo.dataset("points")


@pytest.fixture
def ds(stored: tr.Dataset, monkeypatch: pytest.MonkeyPatch) -> tr.Dataset:
    """The dataset, read by processes that need not import first; `stored`: by spawned ones."""
    fork_streams(monkeypatch)
    return stored


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = open_files()
    yield
    assert multiprocessing.active_children() == []
    if open_files() > before:  # a collection takes half a second
        gc.collect()
    assert open_files() <= before


def open_files() -> int:
    """How many blocks of shared memory this process has open."""
    links = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    return sum("memfd:tensorrepo" in link for link in links)


def seen(batches: Any) -> list[Any]:
    return [
        (
            batch.position,
            batch.rows.tolist(),
            batch.row_ids.tolist(),
            batch["point"].tolist(),
            np.ma.getdata(batch["label"]).tolist(),
            batch.valid["label"].tolist(),
            batch["text"],
            [row.tolist() for row in batch["ragged"]],
        )
        for batch in batches
    ]


def test_batches_and_states_are_those_of_threads(stored: tr.Dataset) -> None:
    threads, process = (
        stored.stream(batch_size=8),
        stored.stream(batch_size=8, loading=tr.Loading(workers="process")),
    )
    whole = seen(threads)
    assert seen(list(process)) == whole  # kept ones are never overwritten
    assert process.state_dict() == threads.state_dict()
    assert (process.stats().rows, process.stats().runs) == (100, threads.stats().runs)


def test_reading_resumes_in_a_process_and_out_of_one(ds: tr.Dataset) -> None:
    whole = seen(ds.stream(batch_size=10, seed=3))
    process = ds.stream(batch_size=10, seed=3, loading=tr.Loading(workers="process"))
    assert seen(islice(process, 4)) == whole[:4]
    rest = ds.stream(batch_size=10)
    rest.load_state_dict(process.state_dict())
    assert seen(rest) == whole[4:]
    process.load_state_dict(process.state_dict(position=70))
    assert seen(process) == whole[7:]


def test_the_process_of_a_whole_epoch_makes_the_next_one(ds: tr.Dataset) -> None:
    stream = ds.stream(batch_size=10, seed=3, loading=tr.Loading(workers="process"))
    first = list(stream)
    (child,) = multiprocessing.active_children()
    epochs = [seen(first), seen(stream)]
    assert multiprocessing.active_children() == [child]
    threads = ds.stream(batch_size=10, seed=3)
    assert epochs == [seen(threads), seen(threads)]
    assert seen(first) == epochs[0]  # what is kept is not written over by the next epoch
    stream.close()
    assert multiprocessing.active_children() == []


@pytest.mark.soak
def test_a_kept_process_that_was_killed_is_replaced(ds: tr.Dataset) -> None:
    stream = ds.stream(batch_size=10, loading=tr.Loading(workers="process"))
    assert len(list(stream)) == 10
    (child,) = multiprocessing.active_children()
    child.kill()
    child.join()
    assert len(list(stream)) == 10


def test_batches_outlive_their_stream(ds: tr.Dataset) -> None:
    stream = ds.stream(batch_size=10, loading=tr.Loading(workers="process"))
    batches = list(islice(stream, 2))
    stream.close()
    del stream
    assert seen(batches) == seen(islice(ds.stream(batch_size=10), 2))


def test_memory_goes_round_without_being_copied(ds: tr.Dataset) -> None:
    places = {
        batch["point"].__array_interface__["data"][0]
        for batch in ds.stream(
            batch_size=2, loading=tr.Loading(workers="process"), columns=["point"]
        )
    }
    assert len(places) <= 6


@pytest.mark.soak
@pytest.mark.parametrize("output", ["torch", "jax", "arrow"])
def test_every_output_comes_from_a_process(ds: tr.Dataset, output: Any) -> None:
    columns = ["point", "text"]
    for plain, batch in zip(
        ds.stream(batch_size=40, output=output, columns=columns),
        ds.stream(
            batch_size=40, output=output, columns=columns, loading=tr.Loading(workers="process")
        ),
        strict=True,
    ):
        assert type(batch["point"]) is type(plain["point"])
        assert batch["point"].tolist() == plain["point"].tolist()
        assert list(batch["text"]) == list(plain["text"])


def test_a_transform_runs_in_the_other_process(ds: tr.Dataset) -> None:
    plain = list(ds.stream(batch_size=30, transform=doubled))
    there = list(ds.stream(batch_size=30, transform=doubled, loading=tr.Loading(workers="process")))
    assert {item["made"].pop("by") for item in plain} == {os.getpid()}
    assert os.getpid() not in {item["made"].pop("by") for item in there}
    assert [item["made"] for item in there] == [item["made"] for item in plain]
    assert all(map(np.array_equal, [i["twice"] for i in there], [i["twice"] for i in plain]))


def test_what_a_transform_raises_is_raised_here_with_its_traceback(ds: tr.Dataset) -> None:
    batches = iter(
        ds.stream(batch_size=10, transform=failing, loading=tr.Loading(workers="process"))
    )
    assert [next(batches).position, next(batches).position] == [10, 20]
    with pytest.raises(LookupError, match="no sense in 30") as raised:
        next(batches)
    assert "transforms.py" in "".join(raised.value.__notes__)
    assert "failed on the batch that ends at position 30" in "".join(raised.value.__notes__)
    assert list(batches) == []


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_a_transform_raises_says_on_which_batch(ds: tr.Dataset, prefetch: int) -> None:
    with pytest.raises(LookupError, match="no sense in 30") as raised:
        list(open_stream(ds.stored, batch_size=10, transform=failing, prefetch=prefetch))
    assert raised.value.__notes__ == ["the transform failed on the batch that ends at position 30"]


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_transform_cannot_end_the_loop_by_accident(ds: tr.Dataset, workers: Any) -> None:
    said = "the transform raised StopIteration on the batch that ends at position 10"
    with pytest.raises(RuntimeError, match=said):
        list(ds.stream(batch_size=10, transform=ending, loading=tr.Loading(workers=workers)))


def test_what_cannot_be_handed_over_is_named(ds: tr.Dataset) -> None:
    said = r"^what the transform returned\['batch'\]\[1\]\['what'\] is a set"
    with pytest.raises(tr.InvalidInputError, match=said):
        list(ds.stream(batch_size=10, transform=unsendable, loading=tr.Loading(workers="process")))


def test_a_transform_without_a_name_is_refused(ds: tr.Dataset) -> None:
    with pytest.raises(tr.InvalidInputError, match="no lambda"):
        list(
            ds.stream(
                batch_size=10, transform=lambda batch: batch, loading=tr.Loading(workers="process")
            )
        )


def test_a_transform_of_a_notebook_is_refused_with_words(
    ds: tr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def typed(batch: Any) -> Any:
        return batch

    typed.__module__, typed.__qualname__ = "__main__", "typed"
    monkeypatch.setattr(sys.modules["__main__"], "typed", typed, raising=False)
    with pytest.raises(tr.InvalidInputError, match="what a notebook or a prompt"):
        list(ds.stream(batch_size=10, transform=typed, loading=tr.Loading(workers="process")))


def test_a_repository_in_this_processs_memory_is_refused_when_a_stream_is_opened() -> None:
    repo = tr.init("memory://alone", author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        tx.create_dataset("d", columns={"x": "int64"}).append({"x": np.arange(10)})
    with pytest.raises(tr.InvalidInputError, match="memory://alone lies in the memory of this"):
        repo.dataset("d").stream(batch_size=5, loading=tr.Loading(workers="process"))


@pytest.mark.soak
def test_a_killed_process_is_an_error_and_no_wait(ds: tr.Dataset) -> None:
    with pytest.raises(tr.Error, match="killed by signal 9"):
        list(ds.stream(batch_size=10, transform=killed, loading=tr.Loading(workers="process")))


@pytest.mark.parametrize("transform", [None, sleepy], ids=["between batches", "amid a transform"])
def test_an_iterator_that_is_dropped_leaves_nothing(
    ds: tr.Dataset, transform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorrepo.formats.dataset.streaming.collate.process._END_SECONDS", 0.5)
    batches = iter(
        ds.stream(batch_size=10, transform=transform, loading=tr.Loading(workers="process"))
    )
    assert next(batches).position == 10
    (child,) = multiprocessing.active_children()
    assert child.is_alive()
    del batches


PARENT = """
import sys, time
import tensorrepo as tr
from multiprocessing import active_children
from tensorrepo.formats.dataset.streaming.collate import process
from tests.support.builders.transforms import sleepy

if __name__ == "__main__":
    process._END_SECONDS = 0.5  # the transform does not hear that it should end
    ds = tr.open(sys.argv[1]).dataset("points")
    stream = ds.stream(batch_size=10, transform=sleepy, loading=tr.Loading(workers="process"))
    for batch in stream:
        print(active_children()[0].pid, flush=True)
"""


@pytest.fixture
def parent(stored: tr.Dataset, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program whose stream waits for a transform, and the process that transforms."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, str(script), stored.context.url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        child = int(program.stdout.readline())
        program.stdout.readline()
        yield program, child
        program.kill()


def gone(pid: int) -> bool:
    until = time.monotonic() + WAITED
    while psutil.pid_exists(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not psutil.pid_exists(pid)


@pytest.mark.soak
def test_the_process_ends_when_its_parent_is_killed(
    parent: tuple[subprocess.Popen[str], int],
) -> None:
    program, child = parent
    program.kill()
    assert gone(child)


def test_ctrl_c_ends_both_with_one_traceback(parent: tuple[subprocess.Popen[str], int]) -> None:
    program, child = parent
    os.killpg(program.pid, signal.SIGINT)
    _, said = program.communicate(timeout=WAITED)
    assert program.returncode != 0
    assert said.count("KeyboardInterrupt") == 1
    assert gone(child)


@pytest.mark.parametrize("processes", sampled([3, 2, 16], 1))
def test_several_processes_make_the_steps_of_one_in_order(ds: tr.Dataset, processes: int) -> None:
    loading = tr.Loading(workers="process", processes=processes)
    several = ds.stream(batch_size=8, seed=3, loading=loading)
    one = ds.stream(batch_size=8, seed=3)
    epochs = [seen(one), seen(one)]
    assert seen(several) == epochs[0]
    children = multiprocessing.active_children()
    assert len(children) == processes
    assert (several.stats().rows, several.stats().batches) == (100, 13)
    assert seen(several) == epochs[1]
    assert multiprocessing.active_children() == children
    several.close()


def test_reading_resumes_with_another_number_of_processes(ds: tr.Dataset) -> None:
    whole = seen(ds.stream(batch_size=10, seed=3))
    first, second = (
        ds.stream(batch_size=10, seed=3, loading=tr.Loading(workers="process", processes=processes))
        for processes in (2, 3)
    )
    batches = iter(first)
    assert seen(islice(batches, 5)) == whole[:5]
    second.load_state_dict(first.state_dict())
    assert seen(second) == whole[5:]
    batches.close()
    second.close()


@pytest.mark.soak
def test_ranks_share_steps_whatever_makes_them(ds: tr.Dataset) -> None:
    for rank in range(2):
        ranks = tr.Ranks(rank=rank, world_size=2)
        several = ds.stream(
            batch_size=8, ranks=ranks, loading=tr.Loading(workers="process", processes=2)
        )
        assert seen(several) == seen(ds.stream(batch_size=8, ranks=ranks))
        several.close()


@pytest.mark.parametrize("transform", [failing, killed])
def test_one_process_that_fails_ends_them_all(ds: tr.Dataset, transform: Any) -> None:
    loading = tr.Loading(workers="process", processes=3)
    stream = ds.stream(batch_size=10, transform=transform, loading=loading)
    with pytest.raises((LookupError, tr.Error, RuntimeError)):
        list(stream)
    assert multiprocessing.active_children() == []


def test_several_threads_are_no_processes(ds: tr.Dataset) -> None:
    with pytest.raises(tr.InvalidInputError, match="workers='process'"):
        ds.stream(batch_size=8, loading=tr.Loading(processes=2))


@pytest.mark.soak
@pytest.mark.parametrize("seed", sampled([0, 1], 1))
def test_processes_that_are_killed_at_random_twenty_times_give_the_rows_of_one(
    ds: tr.Dataset, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    loading = tr.Loading(workers="process", processes=4)
    several = ds.stream(batch_size=3, seed=3, transform=unhurried, loading=loading)
    one = ds.stream(batch_size=3, seed=3)
    kills = differing = 0
    while kills < 20:
        for batch, expected in zip(several, one, strict=True):
            differing += seen([batch]) != seen([expected])
            if kills < 20 and chance.random() < 0.25:
                chance.choice(multiprocessing.active_children()).kill()
                kills += 1
        assert several.state_dict() == one.state_dict()
    assert (kills, differing) == (20, 0)
    several.close()


def test_a_stream_on_a_cluster_without_ray_says_what_to_install(
    ds: tr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(tr.UnsupportedError, match=r"pip install 'tensorrepo\[ray\]'"):
        list(ds.stream(batch_size=8, loading=tr.Loading(workers="ray")))
