"""What only a machine with a GPU can prove: tensors go there, and come from there, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr

torch = pytest.importorskip("torch", reason="torch is not installed: pip install tensorrepo[torch]")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

ROWS = 20_000


@pytest.fixture
def repository(tmp_path: Path) -> tr.Repository:
    return tr.init(tmp_path / "repo", author="Ada <ada@example.org>")


def tensors_of_all_types() -> dict[str, Any]:
    """Tensors on the GPU: of every type that training uses, strided, tied, empty, of one number."""
    made = torch.Generator("cuda").manual_seed(1)
    numbers = torch.randn(512, 384, generator=made, device="cuda")
    found = {
        str(kind).removeprefix("torch."): numbers.to(kind)
        for kind in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.complex64,
            torch.int64,
            torch.int32,
            torch.int8,
            torch.uint8,
            torch.bool,
        )
    }
    found["transposed"] = numbers.t()
    found["every_second_row"] = numbers[::2]
    found["tied"] = found["float32"]
    found["view_of_it"] = found["float32"].view(384, 512)
    found["empty"] = numbers[:0]
    found["scalar"] = numbers[0, 0]
    found["on_the_cpu"] = numbers[:7].cpu()
    return found


def bits(tensor: Any) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def assert_same(found: dict[str, Any], expected: dict[str, Any], device: str) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].device.type == device, name
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(found[name]) == bits(tensor), name


def save(repository: tr.Repository, name: str, tensors: Any, **options: Any) -> Any:
    with repository.transaction("main", message=name) as tx:
        tx.save_model(name, tensors, **options)
    return repository.model(name)


def test_tensors_of_a_gpu_are_stored_and_loaded_there(repository: tr.Repository) -> None:
    expected = tensors_of_all_types()
    model = save(repository, "all", expected)
    assert_same(model.load(device="cuda"), expected, "cuda")
    assert_same(model.load(), expected, "cpu")


def test_a_fine_tune_is_stored_as_differences_and_loaded(repository: tr.Repository) -> None:
    made = torch.Generator("cuda").manual_seed(2)
    base = torch.randn(1024, 1024, generator=made, device="cuda") / 32
    step = torch.randn(1024, 1024, generator=made, device="cuda") * 1e-6
    save(repository, "base", {"w": base.bfloat16(), "m": base})
    tuned = {"w": (base + step).bfloat16(), "m": base + step}
    model = save(repository, "tuned", tuned, base="main:models/base")
    assert_same(model.load(device="cuda:0"), tuned, "cuda")
    halves = [model.load(device="cuda", shard=(0, rank, 2)) for rank in range(2)]
    joined = {name: torch.cat([half[name] for half in halves]) for name in tuned}
    assert_same(joined, tuned, "cuda")
    narrowed = model.load(["m"], device="cuda", dtype=torch.bfloat16)["m"]
    assert torch.equal(narrowed, tuned["m"].bfloat16())


def test_a_module_on_the_gpu_is_filled_where_it_lies(repository: tr.Repository) -> None:
    def module() -> Any:
        norm = torch.nn.BatchNorm1d(32)
        return torch.nn.Sequential(torch.nn.Linear(16, 32), norm, torch.nn.Linear(32, 4)).cuda()

    torch.manual_seed(3)
    trained, other = module(), module()
    trained(torch.randn(64, 16, device="cuda"))
    model = save(repository, "module", trained.state_dict())
    places = {name: tensor.data_ptr() for name, tensor in other.state_dict().items()}
    model.load_into(other)
    assert_same(dict(other.state_dict()), dict(trained.state_dict()), "cuda")
    assert {name: each.data_ptr() for name, each in other.state_dict().items()} == places
    half = module().half()
    model.load_into(half, strict=False)
    assert torch.equal(half[0].weight, trained[0].weight.half())


def test_rows_are_asked_for_by_ids_of_the_cpu(repository: tr.Repository) -> None:
    table = torch.randn(1000, 64, device="cuda")
    model = save(repository, "table", {"w": table})
    ids = torch.randint(0, 1000, (5, 7), device="cuda")
    rows = model.rows("w", ids.cpu(), output="torch")
    assert torch.equal(rows.cuda(), table[ids])
    with pytest.raises(tr.InvalidInputError, match="cpu"):
        model.rows("w", ids, output="torch")


def test_a_gpu_that_is_not_there_is_named(repository: tr.Repository) -> None:
    model = save(repository, "one", {"w": torch.zeros(3)})
    with pytest.raises(tr.InvalidInputError, match="cuda:77"):
        model.load(device="cuda:77")


def test_a_training_goes_on_while_its_checkpoint_is_stored(repository: tr.Repository) -> None:
    torch.manual_seed(4)
    module = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        module(torch.randn(64, 512, device="cuda")).square().mean().backward()
        optimizer.step()

    kept = {}
    with repository.checkpointer("exp1") as checkpointer:
        for number in range(6):
            step()
            state = {
                "model": module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "random": torch.cuda.get_rng_state(),
            }
            kept[number] = {name: bits(one) for name, one in module.state_dict().items()}
            checkpointer.save(number, state)  # what follows changes all of it in place
    for number in checkpointer.steps():
        expected = kept[number]
        found = repository.checkpointer("exp1").load(number)
        assert {name: bits(one) for name, one in found["model"].items()} == expected
    module.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    torch.cuda.set_rng_state(found["random"])
    step()


def test_a_distributed_checkpoint_is_loaded_where_tensors_lie(repository: tr.Repository) -> None:
    import torch.distributed.checkpoint as dcp

    from tensorrepo.dcp import LoadPlanner, Reader, SavePlanner, Writer

    expected = {"w": torch.randn(300, 40, device="cuda"), "b": torch.randn(9, device="cuda").half()}
    writer = Writer(repository, "exp2", 1)
    dcp.save(dict(expected), storage_writer=writer, planner=SavePlanner(), no_dist=True)
    state = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    reader = Reader(repository, "exp2")
    dcp.load(state, storage_reader=reader, planner=LoadPlanner(), no_dist=True)
    assert_same(state, expected, "cuda")


def dataset_of(repository: tr.Repository) -> Any:
    values = np.random.default_rng(5).integers(0, 256, (ROWS, 8, 8, 3), np.uint8)
    with repository.transaction("main", message="rows") as tx:
        tx.create_dataset("rows", {"x": values, "y": np.arange(ROWS)})
    return repository.dataset("rows"), values


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_batches_are_pinned_and_arrive_whole(repository: tr.Repository, workers: str) -> None:
    ds, values = dataset_of(repository)
    loading = tr.Loading(workers=workers)
    on_gpu = torch.from_numpy(values).cuda()
    seen = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
    for batch in ds.stream(
        batch_size=256, shuffle="pages", seed=0, output="torch", loading=loading
    ):
        assert batch["x"].is_pinned()
        assert batch["y"].is_pinned()
        x = batch["x"].to("cuda", non_blocking=True)
        y = batch["y"].to("cuda", non_blocking=True)
        del batch  # its memory may be lent again, but not before it was copied
        assert torch.equal(x, on_gpu[y])
        seen[y] += 1
    assert bool((seen == 1).all())


def test_nobody_pins_who_does_not_want_to(repository: tr.Repository) -> None:
    ds, _ = dataset_of(repository)
    loading = tr.Loading(pin=False)
    batch = next(iter(ds.stream(batch_size=256, output="torch", loading=loading)))
    assert not batch["x"].is_pinned()


def test_the_use_of_the_gpu_is_measured() -> None:
    pytest.importorskip("pynvml", reason="pynvml is not installed: pip install tensorrepo[gpu]")
    from tensorrepo.runs.system_metrics import MachineUse

    kept = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    found = dict(MachineUse().sample())
    assert found["gpu0_memory_gib"] >= kept.nbytes / (1 << 30)
    assert 0 <= found["gpu0_percent"] <= 100
    assert found["gpu0_watts"] > 0
