"""A state that some ranks save together is loaded by any number of others, and by one process."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr

pytest.importorskip("torch", reason="torch is not installed: pip install tensorrepo[torch]")


@pytest.fixture
def repository(tmp_path: Path) -> tr.Repository:
    return tr.init(tmp_path / "r", author="Ada <ada@example.org>")


@pytest.mark.soak  # processes that meet in gloo: test_elastic.py has those of `make test`
def test_four_ranks_save_two_load_and_save_three_load(
    repository: tr.Repository, tmp_path: Path
) -> None:
    from tests.support.processes.sharded_ranks import run_ranks, whole

    run_ranks(tmp_path, repository.url, 4, "save", 1)
    run_ranks(tmp_path, repository.url, 2, "load", 1)
    run_ranks(tmp_path, repository.url, 2, "save", 2)
    run_ranks(tmp_path, repository.url, 3, "load", 2)
    checkpointer = repository.checkpointer("exp1")
    assert checkpointer.steps() == [1, 2]
    assert checkpointer.metrics() == {1: {"loss": 1.0}, 2: {"loss": 0.5}}
    alone = checkpointer.load(1)
    for name, tensor in whole(1).items():
        assert np.array_equal(alone["model"][name].float(), tensor.float()), name
    assert alone["scheduler"]["steps"] == [1, 1]
    for rank in range(3):  # of three that are parallel by tensors, from what four saved
        part = checkpointer.load(1, shard=(0, rank, 3))["model"]
        for name, tensor in whole(1).items():
            given = tensor.chunk(3)[rank] if len(tensor) >= 3 else tensor[:0]
            assert np.array_equal(part[name].float(), given.float()), name


def save_alone(repository: tr.Repository, state: dict[str, Any], step: int = 1) -> None:
    import torch.distributed.checkpoint as dcp

    from tensorrepo.dcp import SavePlanner, Writer

    dcp.save(
        state,
        storage_writer=Writer(repository, "exp1", step),
        planner=SavePlanner(),
        no_dist=True,
    )


def load_alone(repository: tr.Repository, state: dict[str, Any], planner: Any = None) -> None:
    import torch.distributed.checkpoint as dcp

    from tensorrepo.dcp import LoadPlanner, Reader

    dcp.load(
        state,
        storage_reader=Reader(repository, "exp1"),
        planner=planner or LoadPlanner(),
        no_dist=True,
    )


def test_one_process_needs_no_group(repository: tr.Repository) -> None:
    import torch

    save_alone(repository, {"w": torch.arange(100.0), "step": 7})
    state = {"w": torch.zeros(100), "step": 0}
    load_alone(repository, state)
    assert torch.equal(state["w"], torch.arange(100.0))
    assert state["step"] == 7


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_ranks_that_are_parallel_by_tensors_load_their_share_alone(
    repository: tr.Repository, dim: int, rank: int
) -> None:
    import torch

    weight, scale = torch.randn(10, 7), torch.tensor(3.0)
    save_alone(repository, {"model": {"w": weight, "scale": scale}, "step": 7})
    found = repository.checkpointer("exp1").load(shard=(dim, rank, 3))
    assert torch.equal(found["model"]["w"], weight.chunk(3, dim)[rank])
    assert torch.equal(found["model"]["scale"], scale)
    assert found["step"] == 7


def test_what_a_checkpointer_saved_is_loaded_too(repository: tr.Repository) -> None:
    import torch

    model = torch.nn.Linear(8, 4)
    with repository.checkpointer("exp1") as checkpointer:
        checkpointer.save(3, {"model": model.state_dict(), "step": 3, "betas": (0.9, 0.99)})
    state = {
        "model": {name: torch.zeros_like(value) for name, value in model.state_dict().items()},
        "step": 0,
        "betas": (0.0, 0.0),
    }
    load_alone(repository, state)
    assert torch.equal(state["model"]["weight"], model.weight)
    assert (state["step"], state["betas"]) == (3, (0.9, 0.99))


def test_the_second_checkpoint_stores_what_changed_alone(repository: tr.Repository) -> None:
    import torch

    large, small = torch.randn(500_000), torch.randn(20_000)
    save_alone(repository, {"large": large, "small": small}, 1)
    before = stored_bytes(repository)
    save_alone(repository, {"large": large, "small": small + 1}, 2)
    assert stored_bytes(repository) - before < large.nbytes / 4


def stored_bytes(repository: tr.Repository) -> int:
    from pathlib import Path

    objects = Path(repository.url.removeprefix("file://")) / "objects"
    return sum(path.stat().st_size for path in objects.rglob("*") if path.is_file())


def test_torchs_planners_are_refused_where_they_would_pickle(repository: tr.Repository) -> None:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    from tensorrepo.dcp import Writer

    with pytest.raises(CheckpointException) as refused:
        dcp.save({"w": torch.zeros(9)}, storage_writer=Writer(repository, "e", 1), no_dist=True)
    assert isinstance(refused.value.failures[0][0], tr.UnsupportedError)
    save_alone(repository, {"w": torch.zeros(100), "step": 7})
    with pytest.raises(CheckpointException) as refused:
        load_alone(repository, {"w": torch.zeros(100), "step": 0}, dcp.DefaultLoadPlanner())
    assert isinstance(refused.value.failures[0][0], tr.UnsupportedError)


def test_steps_of_adam_are_predicted_in_what_ranks_save(repository: tr.Repository) -> None:
    import torch

    from tensorrepo.dcp import save

    torch.manual_seed(1)
    model = torch.nn.Linear(300, 200)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 4):
        optimizer.zero_grad()
        model(torch.randn(8, 300)).square().mean().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        save(state, repository, "exp1", step)
    usage = repository.model_usage("runs/exp1/3")
    assert usage.codecs["adam"].logical_bytes >= 2 * 300 * 200 * 4
    found = repository.checkpointer("exp1").load(3)
    assert torch.equal(found["model"]["weight"], model.state_dict()["weight"])


def test_moments_take_fewer_bits_within_their_bound_and_are_said_to(
    repository: tr.Repository,
) -> None:
    import torch

    from tensorrepo import dcp

    torch.manual_seed(0)
    module = torch.nn.Linear(200, 100)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.randn(8, 200)).square().sum().backward()
    optimizer.step()
    state = {"model": module.state_dict(), "optim": optimizer.state_dict()}
    exact = {name: value.clone() for name, value in optimizer.state[module.weight].items()}
    dcp.save(state, repository, "exp1", 1, optimizer=tr.LossyState(relative=2**-6))
    with pytest.warns(UserWarning, match="4 tensors of optimizer state are approximate"):
        loaded = repository.checkpointer("exp1").load(1)
    near = loaded["optim"]["state"][0]
    for name in ("exp_avg", "exp_avg_sq"):
        off = (near[name] - exact[name]).abs()
        assert off.max() > 0, name
        assert bool((off <= 2**-6 * exact[name].abs()).all()), name
    assert torch.equal(loaded["model"]["weight"], module.weight)
    assert torch.equal(optimizer.state[module.weight]["exp_avg"], exact["exp_avg"])


def test_what_went_wrong_comes_in_our_words_and_names_ranks(repository: tr.Repository) -> None:
    import torch

    from tensorrepo.dcp import load, save

    state = {"w": torch.arange(100.0), "step": 7}
    with pytest.raises(tr.InvalidInputError, match="_Bomb") as refused:
        save({"hooks": {"first": _Bomb()}}, repository, "exp1", 1)
    assert refused.value.__notes__ == ["on rank 0 of the job"]
    with pytest.raises(tr.NotFoundError, match="no checkpoint"):
        load({"w": torch.zeros(100)}, repository, "exp1")
    save(state, repository, "exp1", 2, metrics={"loss": 0.5})
    found = {"w": torch.zeros(100), "step": 0}
    load(found, repository, "exp1")
    assert (found["w"].equal(state["w"]), found["step"]) == (True, 7)


def test_errors_that_are_not_ours_are_left_as_they_are() -> None:
    from torch.distributed.checkpoint.api import CheckpointException

    from tensorrepo.dcp import plain_errors

    failed = CheckpointException("x", {1: (ValueError("y"), None)})
    with pytest.raises(CheckpointException) as raised, plain_errors():
        raise failed
    assert raised.value is failed


class _Bomb:
    def __reduce__(self) -> Any:
        raise AssertionError("a bomb was built")


def test_a_pickle_where_json_is_expected_is_never_unpickled() -> None:
    from tensorrepo.dcp import LoadPlanner

    planner = LoadPlanner()
    hostile = pickle.dumps(print)
    with pytest.raises(ValueError, match=r"JSON|codec|utf"):
        planner.load_bytes(None, io.BytesIO(hostile))  # type: ignore[arg-type]  # it never gets there


def test_what_cannot_be_stored_is_refused_by_its_name(repository: tr.Repository) -> None:
    from torch.distributed.checkpoint.api import CheckpointException

    with pytest.raises(CheckpointException) as refused:
        save_alone(repository, {"hooks": {"first": _Bomb()}})
    assert "_Bomb" in str(refused.value.failures[0][0])


def test_tensors_in_tuples_and_numbers_of_numpy_are_loaded_too(repository: tr.Repository) -> None:
    import torch

    with repository.checkpointer("exp1") as checkpointer:
        pair = (torch.arange(3.0), {"x": torch.ones(2)}, 7)
        checkpointer.save(3, {"pair": pair, "loss": np.float32(0.5), "w": torch.ones(4)})
    state: dict[str, Any] = {"pair": None, "loss": 0.0, "w": torch.zeros(4)}
    load_alone(repository, state)
    assert torch.equal(state["pair"][0], torch.arange(3.0))
    assert torch.equal(state["pair"][1]["x"], torch.ones(2))
    assert state["pair"][2] == 7
    assert type(state["loss"]) is np.float32
    assert state["loss"] == 0.5
    assert torch.equal(state["w"], torch.ones(4))


@pytest.mark.parametrize("step", [True, -1, "7"])
def test_what_is_no_step_is_refused(repository: tr.Repository, step: Any) -> None:
    from tensorrepo.dcp import Writer

    with pytest.raises(tr.InvalidInputError, match="step is a whole number, at least 0"):
        Writer(repository, "exp1", step)


def test_one_process_loads_the_keys_and_empty_dicts_that_ranks_saved(
    repository: tr.Repository,
) -> None:
    import torch

    from tensorrepo.dcp import save

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    state = {
        "fresh": optimizer.state_dict(),  # its "state" is empty
        "counts": {0: 1.5, 1: {"last": 2}, None: [{}, {"x": 3}]},
        "$tensor": {"$tensor": 3},
        "": {"a": torch.ones(1)},
    }
    save(state, repository, "exp1", 1)
    found = repository.checkpointer("exp1").load()
    assert found["fresh"] == optimizer.state_dict()
    assert found["counts"] == state["counts"]
    assert found["$tensor"] == {"$tensor": 3}
    assert torch.equal(found[""]["a"], torch.ones(1))


def test_ranks_load_plain_values_below_keys_that_are_no_text(repository: tr.Repository) -> None:
    import torch

    from tensorrepo.dcp import load

    with repository.checkpointer("exp1") as checkpointer:
        checkpointer.save(1, {"state": {0: {"w": torch.ones(2), "last": None}, 1: 2.5}})
    state: dict[str, Any] = {"state": {0: {"w": torch.zeros(2), "last": 7}, 1: 0.0}}
    load(state, repository, "exp1")
    assert torch.equal(state["state"][0].pop("w"), torch.ones(2))
    assert state == {"state": {0: {"last": None}, 1: 2.5}}


@pytest.mark.parametrize(
    ("state", "kind", "told"),
    [
        ({"w": 3, "more": 0, "v": 0}, tr.NotFoundError, "lacks 2 of 3 .*'more', 'v'"),
        ({"w": (2,)}, tr.InvalidInputError, r"'w': .*shape \[3\], this state shape \[2\]"),
        ({"w": None}, tr.InvalidInputError, r"'w': .*shape \[3\], this state NoneType"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(
    repository: tr.Repository, state: dict[str, Any], kind: type[Exception], told: str
) -> None:
    import torch

    from tensorrepo.dcp import load, save

    save({"w": torch.ones(3)}, repository, "exp1", 1)
    asked = {
        name: torch.zeros(shape) if isinstance(shape, tuple) else shape
        for name, shape in state.items()
    }
    with pytest.raises(kind, match=told):
        load(asked, repository, "exp1")


def test_paths_that_torch_cannot_tell_apart_are_refused_in_our_words(
    repository: tr.Repository,
) -> None:
    import torch

    from tensorrepo.dcp import save

    with pytest.raises(tr.InvalidInputError, match=r"duplicated .*a\.b.*: rename one"):
        save({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, repository, "exp1", 1)
