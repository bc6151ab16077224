"""Ranks that hold shards of one training state, save it together, and load it as others.

The state is a function of a number, so every rank can say whether what it loaded is right.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import tensorrepo as tr
from tensorrepo.dcp import LoadPlanner, Reader, SavePlanner, Writer
from tests.support.processes.forked import FORKED


def run_ranks(folder: Path, url: str, world: int, work: str, number: int) -> None:
    """Let `world` ranks "save" state `number` as a step of that number, or "load" and check it."""
    meeting = folder / f"meeting-{len(list(folder.glob('meeting-*')))}"
    ranks = [
        FORKED.Process(target=_rank, args=(url, meeting, rank, world, work, number))
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(180)
    codes = [rank.exitcode for rank in ranks]
    assert codes == [0] * world, codes


def whole(number: int) -> dict[str, torch.Tensor]:
    """The tensors of a state, not cut."""
    rows = torch.arange(37 * 11, dtype=torch.float32).reshape(37, 11) + number
    return {
        "rows": rows,
        "columns": rows.T.contiguous().to(torch.bfloat16),
        "small": torch.arange(3, dtype=torch.int64) * number,
        "everywhere": torch.full((50,), float(number)),
        "empty": torch.empty(0, 4),
    }


def state_of(number: int, world: int) -> dict[str, Any]:
    """A state whose tensors are cut over the ranks, or on all of them."""
    mesh = init_device_mesh("cpu", (world,))
    cut = {"rows": Shard(0), "columns": Shard(1), "small": Shard(0), "everywhere": Replicate()}
    tensors = {
        name: distribute_tensor(tensor, mesh, [cut[name]]) if name in cut else tensor
        for name, tensor in whole(number).items()
    }
    scheduler = {"lr": 0.1 / number, "steps": [1, number], "name": f"of {number}", "last": None}
    return {"model": tensors, "scheduler": scheduler, "step": number}


def _rank(url: str, meeting: Path, rank: int, world: int, work: str, number: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world
    )
    repository = tr.open(url, author="Ada <ada@example.org>")
    if work == "save":
        writer = Writer(repository, "exp1", number, metrics={"loss": 1 / number})
        dcp.save(state_of(number, world), storage_writer=writer, planner=SavePlanner())
    else:
        _load(repository, world, number)
    torch.distributed.destroy_process_group()


def _load(repository: tr.Repository, world: int, number: int) -> None:
    state = state_of(99, world)
    reader = Reader(repository, "exp1", number)
    dcp.load(state, storage_reader=reader, planner=LoadPlanner())
    expected = whole(number)
    for name, tensor in state["model"].items():
        found = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(found, expected[name]), name
    assert state["scheduler"] == {
        "lr": 0.1 / number,
        "steps": [1, number],
        "name": f"of {number}",
        "last": None,
    }
    assert state["step"] == number
