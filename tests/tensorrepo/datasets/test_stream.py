"""Streams in torch's own loaders: the same batches in the same order with any workers."""

from __future__ import annotations

import json
import os
import pickle
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import tensorrepo as tr
from tensorrepo.datasets.stream import TorchStream
from tests.support.builders.transforms import doubled
from tests.support.effort import sampled
from tests.support.processes.forked import FORKED
from tests.support.servers.object_stores import s3_on_ours

# One worker is no more than this machine suggests; torch warns of more than there are cores.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
ROWS, BATCH = 100, 8


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> tr.Dataset:
    return filled(str(tmp_path_factory.mktemp("store") / "r"))


def filled(url: str, **options: Any) -> tr.Dataset:
    repo = tr.init(url, author="Ada <ada@example.org>", **options)
    columns = (
        tr.Column("x", tr.Tensor("float32", (4,))),
        tr.Column("y", tr.ClassLabel(("low", "high")), nullable=True),
    )
    with repo.transaction("main") as tx:
        tx.create_dataset("points", columns=tr.Schema(columns)).append(
            [
                {"x": np.full(4, at, "f4"), "y": None if at % 5 == 0 else at % 2}
                for at in range(ROWS)
            ]
        )
    return repo.dataset("points")


def stream(ds: tr.Dataset, *, epoch: int = 0, **options: Any) -> tr.Stream:
    window = tr.Sampling(window="1kB")
    found = ds.stream(batch_size=BATCH, sampling=window, seed=7, output="torch", **options)
    found.set_epoch(epoch)
    return found


@contextmanager
def refused(error: type[Exception], match: str) -> Iterator[None]:
    """`pytest.raises`, and the loader's workers end at once.

    torch raises a worker's error from a frame that holds it. Such a cycle keeps the loader's
    iterator until a collection, which closes the queues before the iterator can tell its workers
    to end: it then waits five seconds for each, amid whatever test runs.
    """
    with pytest.raises(error, match=match) as raised:
        yield
    traceback.clear_frames(raised.tb)
    del raised  # another such cycle: this frame is part of the traceback


def loader(torched: TorchStream, workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(torched, batch_size=None, num_workers=workers, **options)  # type: ignore[arg-type]


def seen(batches: Any) -> list[Any]:
    return [
        (batch.position, batch["x"][:, 0].tolist(), batch.valid["y"].tolist()) for batch in batches
    ]


@pytest.mark.parametrize(
    ("workers", "start"), sampled([(0, None), (1, "fork"), (2, "fork"), (3, "fork")], 2)
)
def test_a_loader_gives_the_streams_batches_with_any_workers(
    ds: tr.Dataset, workers: int, start: Any
) -> None:
    torched = stream(ds).torch()
    assert isinstance(torched, IterableDataset)
    made = loader(torched, workers, multiprocessing_context=start)
    assert len(made) == 13
    assert seen(made) == seen(stream(ds))


def test_each_rank_has_its_loader(ds: tr.Dataset) -> None:
    ranks = [
        seen(loader(stream(ds, ranks=tr.Ranks(rank=rank, world_size=2)).torch(), workers))
        for rank, workers in ((0, 2), (1, 0))
    ]
    together = [sorted(one[1] + two[1]) for one, two in zip(*ranks, strict=True)]
    assert together == [sorted(batch[1]) for batch in seen(stream(ds))]


@pytest.mark.soak
@pytest.mark.parametrize(("before", "after"), sampled([(1, 2), (0, 2), (2, 0), (2, 3)], 1))
def test_reading_resumes_with_another_number_of_workers(
    ds: tr.Dataset, before: int, after: int
) -> None:
    whole = seen(stream(ds))
    first = stream(ds).torch()
    used = list(islice(loader(first, before), 5))
    state = json.loads(json.dumps(first.state_dict(position=used[-1].position)))
    again = stream(ds).torch()
    again.load_state_dict(state)
    resumed = loader(again, after)
    assert len(resumed) == 8
    assert seen(resumed) == whole[5:]
    assert len(resumed) == 13  # the place counts once
    assert seen(resumed) == seen(stream(ds, epoch=1))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("workers", "start"),
    sampled([(2, "fork"), (1, "fork"), (3, "fork"), pytest.param(1, FORKED, id="1-forkserver")], 1),
)
def test_a_loaded_place_counts_once_though_loops_have_equal_seeds(
    ds: tr.Dataset, workers: int, start: Any
) -> None:
    whole = seen(stream(ds))
    torched = stream(ds).torch()
    torched.load_state_dict(stream(ds).state_dict(position=5 * BATCH))
    made = loader(torched, workers, multiprocessing_context=start)
    assert [seeded(made) for _ in range(3)] == [
        whole[5:], *(seen(stream(ds, epoch=epoch)) for epoch in (1, 2))
    ]  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize(("before", "after"), sampled([(2, 0), (1, 3), (0, 2)], 1))
def test_a_loaded_place_counts_once_for_all_loaders(
    ds: tr.Dataset, before: int, after: int
) -> None:
    whole = seen(stream(ds))
    torched = stream(ds).torch()
    torched.load_state_dict(stream(ds).state_dict(position=5 * BATCH))
    assert seeded(loader(torched, before)) == whole[5:]
    assert seeded(loader(torched, after)) == seen(stream(ds, epoch=1))
    torched.load_state_dict(stream(ds).state_dict(position=9 * BATCH))
    assert seeded(loader(torched, after)) == whole[9:]


def seeded(batches: Any) -> list[Any]:
    """What a loop sees that sets the seed first, as many do."""
    torch.manual_seed(0)
    return seen(batches)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_each_loop_reads_the_next_epoch_whoever_reads_it(
    ds: tr.Dataset, workers: int, persistent: bool
) -> None:
    epochs = [seen(stream(ds, epoch=epoch)) for epoch in range(6)]
    told = stream(ds)
    made = loader(told.torch(), workers, persistent_workers=persistent)
    assert [seen(made), seen(made)] == epochs[:2]
    assert told.epoch == 1
    list(islice(made, 3))  # a loop that is left early is over, too
    assert seen(told) == epochs[3]
    assert seen(made) == epochs[4]
    state = told.state_dict(position=epochs[4][2][0])
    assert state["epoch"] == 4
    again = stream(ds)
    again.load_state_dict(state)
    assert [seen(again), seen(again)] == [epochs[4][3:], epochs[5]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_makes_batches_of_batches_is_refused(ds: tr.Dataset, workers: int) -> None:
    batched = DataLoader(stream(ds).torch(), batch_size=4, num_workers=workers)
    with refused(tr.InvalidInputError, match="batch_size=None to the loader"):
        list(batched)


@pytest.mark.soak
@pytest.mark.parametrize("persistent", [False, True])
def test_another_epoch_reaches_workers_that_persist(ds: tr.Dataset, persistent: bool) -> None:
    torched = stream(ds).torch()
    made = loader(torched, 2, persistent_workers=persistent)
    epochs = []
    for epoch in range(3):
        torched.set_epoch(epoch)
        epochs.append(seen(made))
    plain = stream(ds)
    for epoch, batches in enumerate(epochs):
        plain.set_epoch(epoch)
        assert batches == seen(plain)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("workers", "start", "persistent"),
    sampled(
        [
            (0, None, False),
            (2, "fork", True),
            (2, "fork", False),
            pytest.param(1, FORKED, True, id="1-forkserver-True"),
            pytest.param(1, FORKED, False, id="1-forkserver-False"),
        ],
        3,
    ),
)
def test_an_epoch_that_the_stream_is_told_reaches_its_loader(
    ds: tr.Dataset, workers: int, start: Any, persistent: bool
) -> None:
    told = stream(ds)
    kept = persistent and workers > 0
    made = loader(told.torch(), workers, multiprocessing_context=start, persistent_workers=kept)
    assert seen(made) == seen(stream(ds))
    told.set_epoch(1)
    assert seen(made) == seen(stream(ds, epoch=1))
    told.set_epoch(0)
    assert seen(made) == seen(stream(ds))


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 2])
def test_a_mix_that_is_told_of_an_epoch_and_a_state_tells_its_loader(
    ds: tr.Dataset, workers: int
) -> None:
    def mix() -> tr.Mix:
        return tr.Mix([stream(ds), stream(ds)], weights=[2, 1])

    told, plain = mix(), mix()
    made = loader(told.torch(), workers)
    told.set_epoch(1)
    plain.set_epoch(1)
    whole = seen(plain)
    assert seen(made) == whole
    told.load_state_dict(plain.state_dict(position=whole[5][0]))
    assert seen(made) == whole[6:]


@pytest.mark.parametrize(
    ("workers", "start"), [(0, None), (2, "fork"), pytest.param(1, FORKED, id="1-forkserver")]
)
def test_a_state_that_the_stream_loads_reaches_its_loader(
    ds: tr.Dataset, workers: int, start: Any
) -> None:
    told = stream(ds)
    made = loader(told.torch(), workers, multiprocessing_context=start)
    whole = seen(stream(ds, epoch=2))
    told.load_state_dict(stream(ds, epoch=2).state_dict(position=whole[4][0]))
    assert len(made) == len(whole) - 5
    assert seen(made) == whole[5:]
    assert (len(told), len(made)) == (len(whole), len(whole))  # the place counts once
    assert seen(told) == seen(stream(ds, epoch=3))


def test_a_state_does_not_reach_workers_that_persist_and_that_is_said(ds: tr.Dataset) -> None:
    told = stream(ds)
    made = loader(told.torch(), 1, persistent_workers=True)
    assert seen(made) == seen(stream(ds))
    told.load_state_dict(told.state_dict(position=40))
    with refused(tr.InvalidInputError, match="workers of this DataLoader persist"):
        list(made)


def test_a_stream_tells_its_place_only_where_it_knows_it(ds: tr.Dataset) -> None:
    told = stream(ds)
    list(islice(loader(told.torch(), 0), 3))
    assert told.state_dict()["position"] == 3 * BATCH
    used = list(islice(loader(told.torch(), 1), 5))
    with pytest.raises(tr.InvalidInputError, match=r"position=batch\.position"):
        told.state_dict()
    assert told.state_dict(position=used[-1].position)["position"] == 5 * BATCH
    list(islice(told, 2))
    assert (len(told), told.state_dict()["position"]) == (13, 2 * BATCH)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_is_given_the_stream_itself_is_told_of_torch(
    ds: tr.Dataset, workers: int
) -> None:
    with refused(TypeError, match=r"stream\.torch\(\)"):
        list(loader(stream(ds), workers))  # type: ignore[arg-type]  # what is tested


def test_a_stream_stops_reading_at_the_end_of_a_with_block(ds: tr.Dataset) -> None:
    with stream(ds) as batches:
        reading = iter(batches)
        assert next(reading).position == BATCH
    assert list(reading) == []


def test_a_place_is_asked_for_where_workers_read_ahead(ds: tr.Dataset) -> None:
    torched = stream(ds).torch()
    batches = iter(loader(torched, 1))
    next(batches)
    with pytest.raises(tr.InvalidInputError, match=r"position=batch\.position"):
        torched.state_dict()


@pytest.mark.parametrize(("workers", "after"), sampled([*product([0, 1, 2], [0, 1, 5, 12])], 3))
def test_a_stateful_loader_resumes_amid_an_epoch(ds: tr.Dataset, workers: int, after: int) -> None:
    whole = seen(stream(ds))
    first = StatefulDataLoader(stream(ds).torch(), batch_size=None, num_workers=workers)
    batches = iter(first)
    assert seen(islice(batches, after)) == whole[:after]
    state = first.state_dict()
    again = StatefulDataLoader(stream(ds).torch(), batch_size=None, num_workers=workers)
    again.load_state_dict(state)
    assert seen(again) == whole[after:]
    again.dataset.set_epoch(1)
    plain = stream(ds, epoch=1)
    assert seen(again) == seen(plain)


def test_a_workers_own_place_is_for_as_many_workers(ds: tr.Dataset) -> None:
    torched = stream(ds).torch()
    torched.load_state_dict(stream(ds).state_dict() | {"turns": 3, "batch_size": BATCH})
    with refused(tr.InvalidInputError, match="with 3 workers, this one has 2"):
        list(loader(torched, 2))
    with refused(tr.InvalidInputError, match="with 3 workers, this one has 0"):
        list(loader(torched, 0))


@pytest.mark.soak
@pytest.mark.parametrize("size", sampled([BATCH - 1, 2 * BATCH], 1))
def test_a_workers_own_place_is_for_steps_of_the_same_size(ds: tr.Dataset, size: int) -> None:
    first = StatefulDataLoader(stream(ds).torch(), batch_size=None, num_workers=2)
    list(islice(first, 3))
    again = StatefulDataLoader(
        ds.stream(
            batch_size=size, sampling=tr.Sampling(window="1kB"), seed=7, output="torch"
        ).torch(),
        batch_size=None,
        num_workers=2,
    )
    again.load_state_dict(first.state_dict())
    said = rf"steps of 8 rows, and this stream has batch_size={size}.*position=batch\.position"
    with refused(tr.InvalidInputError, match=said):
        list(again)


@pytest.mark.soak
def test_a_workers_own_place_is_for_any_number_of_ranks(ds: tr.Dataset) -> None:
    whole = seen(stream(ds))
    first = StatefulDataLoader(stream(ds).torch(), batch_size=None, num_workers=2)
    list(islice(first, 5))
    ranks = []
    for rank in range(2):
        torched = stream(ds, ranks=tr.Ranks(rank=rank, world_size=2)).torch()
        ranks.append(StatefulDataLoader(torched, batch_size=None, num_workers=2))
        ranks[-1].load_state_dict(first.state_dict())
    together = [sorted(one[1] + two[1]) for one, two in zip(*map(seen, ranks), strict=True)]
    assert together == [sorted(batch[1]) for batch in whole[5:]]


def test_a_process_inside_of_workers_is_refused(ds: tr.Dataset) -> None:
    with refused(tr.InvalidInputError, match="use one of them"):
        list(loader(stream(ds, loading=tr.Loading(workers="process")).torch(), 1))


def test_transforms_run_in_the_workers(ds: tr.Dataset) -> None:
    made = loader(stream(ds, transform=numbered).torch(), 2)
    by = [item["by"] for item in made]
    assert by[0] == by[2] != by[1] == by[3]
    assert os.getpid() not in by


def numbered(batch: Any) -> dict[str, Any]:
    return {"x": batch["x"], "by": os.getpid()}


def test_streams_survive_pickling_with_their_place(ds: tr.Dataset) -> None:
    first = stream(ds)
    first.load_state_dict(first.state_dict(position=40))
    again = pickle.loads(pickle.dumps(first))
    assert seen(again) == seen(stream(ds))[5:]
    torched = pickle.loads(pickle.dumps(stream(ds).torch()))
    assert seen(torched) == seen(stream(ds))


def test_streams_with_named_transforms_survive_pickling(ds: tr.Dataset) -> None:
    columns = ["x", "y"]
    again = pickle.loads(pickle.dumps(ds.stream(batch_size=10, columns=columns, transform=same)))
    assert next(iter(again)).position == 10
    assert doubled.__module__ == "tests.support.builders.transforms"


def same(batch: Any) -> Any:
    return batch


@pytest.mark.soak
@pytest.mark.parametrize("start", sampled([pytest.param(FORKED, id="forkserver"), "spawn"], 1))
def test_workers_that_inherit_no_thread_read_a_remote_store(tmp_path: Path, start: Any) -> None:
    with s3_on_ours(tmp_path / "s3") as bucket:
        options = {"endpoint": bucket.server.url, "access_key_id": "a", "secret_access_key": "b"}
        remote = filled(f"{bucket.url}/r", storage_options=options)
        made = loader(stream(remote).torch(), 1, multiprocessing_context=start)
        assert seen(made) == seen(stream(remote))
