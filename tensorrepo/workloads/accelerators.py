"""Emulated accelerators: processes that stream a dataset and sleep for as long as a step computes.

    each rank:  load a batch -> sleep -> wait for the others -> load the next one

The wait stands for the exchange of gradients. Loading goes on while a rank sleeps, as it does while
a real accelerator computes. What is measured is what DLIO measures (`StatsCounter`): for each step
the time until its batch was there, and the time that it computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec

from tensorrepo.datasets.stream import Stream
from tensorrepo.formats.dataset.streaming.options import Loading, Ranks, Sampling
from tensorrepo.sdk import open_repository
from tensorrepo.workloads.ranks import RankLink


class TrainingJob(msgspec.Struct, frozen=True):
    """What all ranks of a training are told.

    Attributes:
        url: repository that has the data.
        dataset: name of the dataset.
        batch_rows: rows that one rank takes in a step.
        steps: steps of an epoch.
        step_seconds: seconds that a step computes.
        read_threads: threads that fetch for one rank.
        seed: seed of the order.
    """

    url: str
    dataset: str
    batch_rows: int
    steps: int
    step_seconds: float
    read_threads: int
    seed: int


class EpochTimes(msgspec.Struct, frozen=True):
    """One epoch of one rank.

    Attributes:
        began: UTC in seconds.
        seconds: from its begin to the end of its last step, waits for other ranks included.
        loads: seconds until the batch of each step was there.
        computes: seconds that each step computed.
        cpu_seconds: processor time of this process.
    """

    began: float
    seconds: float
    loads: list[float]
    computes: list[float]
    cpu_seconds: float


class _Order(msgspec.Struct, frozen=True):
    epoch: int


def epoch_order(epoch: int) -> bytes:
    """The order to go through one epoch."""
    return msgspec.json.encode(_Order(epoch))


def epoch_times(answer: bytes) -> EpochTimes:
    """What a rank answered to it."""
    return msgspec.json.decode(answer, type=EpochTimes)


def train(link: RankLink, job: TrainingJob) -> None:
    """What a rank does: an epoch for each order."""
    dataset = open_repository(job.url).dataset(job.dataset)
    stream = dataset.stream(
        batch_size=job.batch_rows * link.count,
        seed=job.seed,
        sampling=Sampling(),
        ranks=Ranks(rank=link.rank, world_size=link.count),
        # Encoded samples as lists of Python's bytes hold the interpreter while they are made: a
        # step of 400 images then took 50 ms more to wake from its sleep, as arrays of Arrow 4.
        output="arrow",
        last="drop",
        loading=Loading(fetch_threads=job.read_threads, cache_limit=0),
    )
    with closing(stream):
        for order in link.orders():
            stream.set_epoch(msgspec.json.decode(order, type=_Order).epoch)
            link.answer(msgspec.json.encode(_epoch(link, job, stream)))


def _epoch(link: RankLink, job: TrainingJob, stream: Stream) -> EpochTimes:
    loads: list[float] = []
    computes: list[float] = []
    link.together()
    began, cpu = time.time(), time.process_time()
    start = loading = time.perf_counter()
    with closing(_Steps(iter(stream))) as steps:
        for _ in range(job.steps):
            steps.take()
            loaded = time.perf_counter()
            time.sleep(job.step_seconds)
            computed = time.perf_counter()
            loads.append(loaded - loading)
            computes.append(computed - loaded)
            link.together()
            link.progress(len(loads))
            loading = time.perf_counter()
    seconds = loading - start
    return EpochTimes(began, seconds, loads, computes, time.process_time() - cpu)


class _Steps:
    """Batches of an epoch, each of which is held until the next one is taken."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self._batch: Any = None

    def take(self) -> None:
        self._batch = None  # the memory of the last one may be used again
        self._batch = next(self._batches)

    def close(self) -> None:
        self._batch = None
        close: Callable[[], None] = getattr(self._batches, "close", lambda: None)
        close()
