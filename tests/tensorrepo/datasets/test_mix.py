"""A mix in Python: several datasets of repositories as one stream."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.processes.forked import fork_streams


def filled(url: str, name: str, rows: range) -> tr.Dataset:
    repo = tr.init(url, author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        draft = tx.create_dataset(name, columns=tr.Schema.of({"x": "int64"}))
        draft.append({"x": np.arange(rows.start, rows.stop)})
    return repo.dataset(name)


@pytest.fixture
def both(tmp_path: Path) -> list[tr.Dataset]:
    """Two datasets, of two repositories."""
    return [
        filled(str(tmp_path / "a"), "numbers", range(300)),
        filled(str(tmp_path / "b"), "others", range(1000, 1100)),
    ]


def mixed(both: list[tr.Dataset], wish: dict[str, Any] | None = None, **options: Any) -> tr.Mix:
    options = {"batch_size": 16} | options
    return tr.Mix([ds.stream(**options) for ds in both], **(wish or {}))


def values(batches: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


def test_datasets_of_two_repositories_come_in_one_batch(both: list[tr.Dataset]) -> None:
    batches = list(mixed(both))
    assert sorted(value for batch in batches for value in batch["x"].tolist()) == [
        *range(300),
        *range(1000, 1100),
    ]
    batch = batches[5]
    assert (batch["x"] >= 1000).tolist() == (batch.source == 1).tolist()


def test_a_mix_resumes_and_names_the_commits(both: list[tr.Dataset]) -> None:
    wish = {"weights": [1, 1], "steps": 30, "seed": 4}
    first = mixed(both, wish)
    batches = iter(first)
    list(islice(batches, 11))
    state = json.loads(json.dumps(first.state_dict()))
    assert state["commits"] == [ds.commit for ds in both]
    rest = values(batches)
    resumed = mixed(both, wish | {"seed": 0})
    resumed.load_state_dict(state)
    assert values(resumed) == rest
    assert len(rest) == 19


def test_torchs_loader_reads_a_mix_with_workers(both: list[tr.Dataset]) -> None:
    data = pytest.importorskip("torch.utils.data")
    found = mixed(both, {"repeat": [1, 2]}, output="torch")
    loader = data.DataLoader(found.torch(), batch_size=None, num_workers=1)
    assert values(loader) == values(mixed(both, {"repeat": [1, 2]}))


def told(batches: Any) -> list[Any]:
    return [
        (
            batch.position,
            batch["x"].tolist(),
            batch.source.tolist(),
            batch.rows.tolist(),
            batch.row_ids.tolist(),
        )
        for batch in batches
    ]


@pytest.mark.soak
def test_a_process_of_its_own_makes_the_batches_of_a_whole_mix(
    both: list[tr.Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_streams(monkeypatch)
    wish = {"weights": [1, 2], "steps": 12, "seed": 4}
    whole = told(mixed(both, wish))
    threads = mixed(both, wish)
    list(islice(iter(threads), 5))
    process = mixed(both, wish | {"seed": 0}, loading=tr.Loading(workers="process"))
    process.load_state_dict(threads.state_dict())
    assert told(process) == whole[5:]
    assert process.state_dict() == threads.state_dict(position=12 * 16)
    assert process.stats().rows == 7 * 16


def test_a_mix_says_what_it_is(both: list[tr.Dataset]) -> None:
    found = mixed(both)
    assert repr(found).startswith("<mix of numbers, others: Mix(2 sources, 400 rows")
    assert "source 1: 100 rows an epoch" in str(found.explain())


def test_streams_that_do_not_fit_are_named(both: list[tr.Dataset]) -> None:
    with pytest.raises(tr.InvalidInputError, match="batch_size is 8"):
        tr.Mix([both[0].stream(batch_size=8), both[1].stream(batch_size=9)])
    with pytest.raises(tr.InvalidInputError, match="at least one stream"):
        tr.Mix([])


def test_what_are_no_streams_is_named(both: list[tr.Dataset]) -> None:
    with pytest.raises(tr.InvalidInputError, match="a mix is made of a list of streams"):
        tr.Mix(both[0].stream(batch_size=8))  # type: ignore[arg-type]
    with pytest.raises(
        tr.InvalidInputError, match=r"source 0 of the mix is a stream, as ds\.stream"
    ):
        tr.Mix(both)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [None, 3, {}, []])
def test_no_state_is_refused_in_our_own_words(both: list[tr.Dataset], state: Any) -> None:
    with pytest.raises(tr.InvalidInputError, match="not a 'tensorrepo"):
        mixed(both).load_state_dict(state)


def test_the_state_of_other_sources_names_them(both: list[tr.Dataset]) -> None:
    with pytest.raises(tr.InvalidInputError, match=r"state of dataset 'numbers' .* 'others' at"):
        mixed(both[::-1]).load_state_dict(mixed(both).state_dict())


def test_the_streams_of_a_mix_are_profiled_one_by_one(both: list[tr.Dataset]) -> None:
    mix = mixed(both)
    with pytest.raises(tr.UnsupportedError, match="each of its streams"):
        mix.profile()
    assert mix.streams[0].profile().cold.rows == 300
