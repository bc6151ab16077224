"""Emulated checkpoints: every rank saves its shard, one process commits all of them, ranks load.

    ranks: store the shard -> the parent joins what they stored into one model, and commits it

A save takes from the moment that all ranks begin until the commit is durable; the time of a load is
that of the slowest rank. Tensors are drawn anew for each checkpoint, outside of these times: of a
state that does not change nothing would be stored.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import tensor_of
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.write.shards import TensorShard, join_shards, store_shards
from tensorrepo.models.checkpointer import (
    STATE_PATH,
    MetricHistory,
    RetentionPolicy,
    against_newest,
    commit_checkpoint,
    find_step,
    ref_of,
    state_entry,
)
from tensorrepo.repo.changes.transaction import begin_beside
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repository import Repository
from tensorrepo.sdk import open_repository
from tensorrepo.workloads.ranks import RankLink

RUN: Final = "bench"
KEEP: Final = RetentionPolicy(last=None)  # all are loaded after the last one was saved


class CheckpointJob(msgspec.Struct, frozen=True):
    """What all ranks are told.

    Attributes:
        url: repository that the checkpoints go to.
        shard: tensors of a rank: name to numpy dtype and elements.
        seed: seed of their numbers.
    """

    url: str
    shard: dict[str, tuple[str, int]]
    seed: int


class CheckpointOrder(msgspec.Struct, frozen=True):
    """Save a checkpoint, or load it."""

    what: Literal["save", "load"]
    step: int


class RankSaved(msgspec.Struct, frozen=True):
    """What a rank did.

    Attributes:
        began: moment, by the clock that all processes of a machine share, that it began.
        seconds: seconds that its own part took.
        loaded_bytes: bytes of tensors that it loaded.
        told: what `join_shards` has to know of a shard that was saved.
        generation: record of the log that it was saved after.
    """

    began: float
    seconds: float
    loaded_bytes: int = 0
    told: bytes = b""
    generation: int = 0


def checkpoint_rank(link: RankLink, job: CheckpointJob) -> None:
    """What a rank does: a save or a load for each order."""
    repository = open_repository(job.url)
    for order in link.orders():
        asked = msgspec.json.decode(order, type=CheckpointOrder)
        work = _save if asked.what == "save" else _load
        link.answer(msgspec.msgpack.encode(work(link, job, repository, asked.step)))


def rank_saved(answer: bytes) -> RankSaved:
    """What a rank answered."""
    return msgspec.msgpack.decode(answer, type=RankSaved)


def commit_shards(
    repository: Repository, step: int, saved: Iterable[RankSaved], author: str
) -> None:
    """Join what all ranks stored into the model of a checkpoint, and commit it."""
    ranks = list(saved)
    with begin_beside(repository.context.core, ref_of(RUN, step)) as transaction:
        entry = join_shards(
            transaction.objects,
            (rank.told for rank in ranks),
            metadata={"run": RUN, "step": step},
        )
        transaction.stage(STATE_PATH, entry, since=min(rank.generation for rank in ranks))
        commit_checkpoint(
            transaction,
            RUN,
            step,
            metrics={},
            history=MetricHistory(),
            keep=KEEP,
            parent=None,
            author=author,
        )


def _save(link: RankLink, job: CheckpointJob, repository: Repository, step: int) -> RankSaved:
    tensors = _drawn(job, link.rank, step)
    context = repository.context
    link.together()
    began = time.monotonic()
    view = context.core.log.refresh()
    with ObjectWriter(context.core.objects, view.state.graves) as writer:
        against = against_newest(context, view, RUN, step, KEEP)
        known = [] if against.base is None else [against.base]
        told = store_shards(writer, _shards(tensors), known=known, against=against)
        writer.flush()
    return RankSaved(began, time.monotonic() - began, told=told, generation=view.generation)


def _load(link: RankLink, job: CheckpointJob, repository: Repository, step: int) -> RankSaved:
    context = repository.context
    link.together()
    began = time.monotonic()
    commit = find_step(context.core.log.refresh(), RUN, step)
    model = open_model(context.core.objects, state_entry(context, commit))
    loaded = model.load([_name(link.rank, name) for name in job.shard])
    size = sum(each.nbytes for each in loaded.values())
    return RankSaved(began, time.monotonic() - began, loaded_bytes=size)


def _name(rank: int, tensor: str) -> str:
    return f"rank{rank}.{tensor}"


def _shards(tensors: Mapping[str, NDArray[Any]]) -> Iterable[TensorShard]:
    """Each is a whole tensor: of DLIO's shards none is a part of another rank's."""
    for name, array in tensors.items():
        yield TensorShard(name, array.shape, (0,), tensor_of(name, array))


def _drawn(job: CheckpointJob, rank: int, step: int) -> dict[str, NDArray[Any]]:
    """Tensors of uniform numbers in [0, 1), as DLIO draws them."""
    rng = np.random.Generator(np.random.SFC64([job.seed, rank, step]))
    return {
        _name(rank, name): rng.random(count, np.float32).astype(dtype, copy=False)
        for name, (dtype, count) in job.shard.items()
    }
