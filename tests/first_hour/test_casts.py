"""F33: a bf16 or fp16 cast of a stored fp32 model follows from it, and takes next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorrepo as tr

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = {
        f"{layer}.weight": torch.randn(600, 1000, generator=generator) * 0.02 for layer in "ab"
    }
    # What rounds up, overflows, underflows, and is no number.
    odd = [float("inf"), float("-inf"), float("nan"), -float("nan"), 65520.0, 1e-8, -1e-40, 3.4e38]
    found["a.weight"][0, : len(odd)] = torch.tensor(odd)
    return found


@pytest.fixture(scope="module")
def repo(
    tmp_path_factory: pytest.TempPathFactory, weights: dict[str, torch.Tensor]
) -> Iterator[tr.Repository]:
    repo = tr.init(str(tmp_path_factory.mktemp("casts")), author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        tx.save_model("net", weights)
    return repo


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("base", [None, "main:models/net"])
def test_a_cast_takes_next_to_nothing(
    repo: tr.Repository, weights: dict[str, torch.Tensor], dtype: torch.dtype, base: str | None
) -> None:
    cast = {name: tensor.to(dtype) for name, tensor in weights.items()}
    tx = repo.transaction("main")
    report = tx.save_model("small", cast, base=base)
    assert set(report.codecs) == {"cast"}
    assert report.stored_bytes < report.raw_bytes / 500


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_bit_of_a_cast_comes_back(
    tmp_path: Path, weights: dict[str, torch.Tensor], dtype: torch.dtype
) -> None:
    repo = tr.init(str(tmp_path), author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        tx.save_model("net", weights)
    cast = {name: tensor.to(dtype) for name, tensor in weights.items()}
    cast["b.weight"][3:5] += 1  # what was trained on follows nearly
    with repo.transaction("main") as tx:
        tx.save_model("small", cast)
    model = repo.model("small")
    for name, tensor in model.load().items():
        assert torch.equal(tensor.view(torch.int16), cast[name].view(torch.int16))
    part = model.tensor("b.weight", output="torch")[2:6, 990:]
    assert torch.equal(part, cast["b.weight"][2:6, 990:])
    assert not model.verify().faults
    with repo.transaction("main") as tx:  # stored against a cast, whose own chain is deep already
        tuned = {name: tensor * 1.01 for name, tensor in cast.items()}
        tx.save_model("tuned", tuned, base="main:models/small")
    assert torch.equal(repo.model("tuned").load()["b.weight"], tuned["b.weight"])
    with repo.transaction("main") as tx:  # as deep as chains go: back to the weights in fp32
        again = {name: tensor * 1.01 for name, tensor in tuned.items()}
        tx.save_model("again", again, base="main:models/tuned")
    repo.repack_models()
    for name, expected in (("small", cast), ("tuned", tuned), ("again", again)):
        found = repo.model(name).load()["b.weight"]
        assert torch.equal(found, expected["b.weight"]), name
