"""F27, F28: keywords of a stream in groups, each loop an epoch, no batches of batches."""

from __future__ import annotations

import inspect
from itertools import islice
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.processes.shell import Shell


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> tr.Dataset:
    repo = tr.init(str(tmp_path_factory.mktemp("points")), author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        draft = tx.create_dataset("points", columns={"x": "int64", "label": "int64"})
        draft.append({"x": np.arange(600), "label": np.arange(600) % 3})
    return repo.dataset("points")


def order(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["x"].tolist()]


def test_a_stream_has_about_twelve_keywords() -> None:
    assert len(inspect.signature(tr.Dataset.stream).parameters) - 1 <= 14


def test_groups_say_which_rows_whose_share_and_how_they_are_loaded(points: tr.Dataset) -> None:
    some = tr.Sampling(where="label == 1", window="1MB")
    shares = [
        order(
            points.stream(
                batch_size=32,
                sampling=some,
                ranks=tr.Ranks(rank=rank, world_size=2),
                loading=tr.Loading(prefetch=0, ahead="1MiB"),
            )
        )
        for rank in (0, 1)
    ]
    assert sorted(shares[0] + shares[1]) == list(range(1, 600, 3))


def test_two_loops_read_two_epochs_and_a_resumed_one_goes_on(points: tr.Dataset) -> None:
    stream = points.stream(batch_size=32, seed=1)
    first, second = order(stream), order(stream)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(600))
    used = list(islice(stream, 4))
    resumed = points.stream(batch_size=32)
    resumed.load_state_dict(stream.state_dict())
    third = order(used) + order(resumed)
    assert (sorted(third), resumed.epoch) == (list(range(600)), 2)
    stream.set_epoch(0)
    assert order(stream) == first


def test_batches_of_batches_are_refused(points: tr.Dataset) -> None:
    data = pytest.importorskip("torch.utils.data")
    stream = points.stream(batch_size=32, output="torch")
    with pytest.raises(tr.InvalidInputError, match=r"batch_size=None"):
        next(iter(data.DataLoader(stream.torch(), batch_size=32)))


def test_the_shell_streams_with_the_same_words(shell: Shell) -> None:
    (shell.folder / "a.csv").write_text("x,label\n" + "".join(f"{x},{x % 2}\n" for x in range(99)))
    shell("add", "a.csv", "--dataset", "a")
    shell("commit", "-m", "Rows")
    words = ("--where", "label = 1", "--window", "1MiB", "--epochs", "2")
    told = shell.json("dataset", "stream", "a", *words)
    assert told["rows"] == 98
    assert "bytes, or a text" in shell.fails(2, "dataset", "stream", "a", "--window", "lots")
