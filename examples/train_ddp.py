"""Data-parallel training on several processes, and going on with another number of them.

With torchrun it would be ``torchrun --nproc-per-node 2 script.py``: it sets RANK and WORLD_SIZE,
which is all that a stream asks for. Here processes are started by hand, so that the example runs
anywhere.
"""

from __future__ import annotations

import json
import os
from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from digits import digits, folder, held_out
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 5


def main() -> None:
    set_forkserver_preload(["digits", "torch"])  # imported once, not in every rank again
    where = folder()
    digits(where)  # made once, before the ranks open it
    run(where, ranks=2, stop=30)  # both are stopped after 30 steps, amid an epoch
    run(where, ranks=1, stop=None)


def run(where: Path, *, ranks: int, stop: int | None) -> None:
    torch.multiprocessing.start_processes(
        train, args=(ranks, where, stop), nprocs=ranks, start_method="forkserver"
    )


def train(rank: int, ranks: int, where: Path, stop: int | None) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    meeting = where / f"meeting-of-{ranks}"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    place = where / "checkpoint.pt"

    # batch_size counts the rows of all ranks: the steps are the same whatever their number is.
    stream = digits(where).stream(batch_size=64, output="torch", transform=prepared)
    if place.exists():
        saved = torch.load(place)
        plain.load_state_dict(saved["model"])
        stream.load_state_dict(json.loads(saved["stream"]))
        at = stream.state_dict()["position"]
        report(rank, f"{ranks} rank goes on at row {at:,} of epoch {stream.epoch}")
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    done = 0
    for epoch in range(stream.epoch, EPOCHS):
        stream.set_epoch(epoch)
        for batch in stream:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done == stop:
                break
        if done == stop:
            break
    if rank == 0:  # one state, for any number of ranks
        state = json.dumps(stream.state_dict())
        torch.save({"model": plain.state_dict(), "stream": state}, place)
    if ranks == 1:
        images, labels = (torch.from_numpy(each) for each in held_out())
        accuracy = (plain(images).argmax(1) == labels).float().mean().item()
        report(rank, f"accuracy on pictures it never saw: {accuracy:.1%}")
    dist.destroy_process_group()


def prepared(batch: Any) -> Any:
    batch["image"] = batch["image"].flatten(1).float() / 16
    return batch


def report(rank: int, text: str) -> None:
    if rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
