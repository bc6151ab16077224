"""F17: what is loaded is what torch takes, by one word for models and checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

import tensorrepo as tr

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    repo = tr.init(str(tmp_path_factory.mktemp("models")), author="Ada <ada@example.org>")
    torch.manual_seed(0)
    with repo.transaction("main") as tx:
        tx.save_model("clf", net().state_dict())
    with repo.checkpointer("clf") as saver:
        saver.save(1, {"model": net().state_dict()})
    return repo


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))


@pytest.mark.parametrize(
    "load",
    [
        lambda repo: repo.model("clf").load(),
        lambda repo: repo.model("clf").state_dict(),
        lambda repo: repo.checkpointer("clf").load()["model"],
    ],
)
def test_what_is_loaded_is_what_a_module_takes(repo: tr.Repository, load: object) -> None:
    net().load_state_dict(load(repo))  # type: ignore[operator]


@pytest.mark.parametrize(
    "load",
    [
        lambda repo: repo.model("clf").load(output="numpy"),
        lambda repo: repo.checkpointer("clf").load(output="numpy")["model"],
    ],
)
def test_numpy_is_asked_for_by_the_same_word(repo: tr.Repository, load: object) -> None:
    assert isinstance(load(repo)["0.weight"], np.ndarray)  # type: ignore[operator]


def test_a_part_of_a_tensor_is_indexed(repo: tr.Repository) -> None:
    model = repo.model("clf")
    weight = model.tensor("0.weight")
    assert weight.shape == (4, 6)
    assert np.array_equal(weight[1:3, 2:], model["0.weight"][1:3, 2:])
    assert torch.equal(model.tensor("0.weight", output="torch")[0], model.load()["0.weight"][0])
    with pytest.raises(tr.InvalidInputError, match="NoneType is no index here"):
        weight[None]
    with pytest.raises(tr.NotFoundError, match=r"no tensor '0.weigth'. Did you mean 0.weight"):
        model.tensor("0.weigth")


def test_a_module_that_differs_is_told_of_all_at_once(repo: tr.Repository) -> None:
    other = torch.nn.Sequential(torch.nn.Linear(5, 4, bias=False), torch.nn.BatchNorm1d(4).half())
    other.register_buffer("extra", torch.zeros(1))
    with pytest.raises(tr.InvalidInputError) as refused:
        repo.model("clf").load_into(other)
    said = str(refused.value)
    wanted = ("'extra'", "'0.bias'", "(4, 6)", "(4, 5)", "float32", "float16")
    assert [each for each in wanted if each not in said] == []


@pytest.mark.parametrize("strict", [True, False])
def test_a_module_without_memory_is_no_place_to_load_into(
    repo: tr.Repository, strict: bool
) -> None:
    module = net().to("meta")
    with pytest.raises(tr.InvalidInputError, match=r"'0.weight'.*assign=True"):
        repo.model("clf").load_into(module, strict=strict)
    repo.model("clf").load_into(module.to_empty(device="cpu"))
    assert torch.equal(module.state_dict()["0.weight"], repo.model("clf").load()["0.weight"])
