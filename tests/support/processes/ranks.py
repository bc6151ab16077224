"""A small training job of several ranks, which can be killed at any step and resumed.

Ranks meet in torch.distributed (gloo) after every step, as in training. Rank 0 notes what all of
them read and, as the only one, the state of its stream.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import tensorrepo as tr
from tests.support.processes.forked import FORKED


def run_job(folder: Path, url: str, world: int, *, steps: int, killed: int | None) -> None:
    """Go on from what is noted in `folder`, for some steps.

    Args:
        folder: where the job keeps its notes.
        url: of the repository.
        world: how many ranks.
        steps: after how many the job ends.
        killed: the rank that is killed then; None ends all of them well.
    """
    meeting = folder / f"meeting-{len(list(folder.glob('meeting-*')))}"
    ranks = [
        FORKED.Process(target=_rank, args=(folder, url, meeting, rank, world, steps, killed))
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    codes = [rank.exitcode for rank in ranks]
    if killed is None:
        assert codes == [0] * world, codes
    else:
        assert codes[killed] == -signal.SIGKILL, codes
        assert all(code is not None for code in codes), codes


def notes(folder: Path) -> list[dict[str, Any]]:
    """What rank 0 noted, step by step."""
    path = folder / "notes.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _rank(
    folder: Path, url: str, meeting: Path, rank: int, world: int, steps: int, killed: int | None
) -> None:
    import torch.distributed

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world
    )
    stream = (
        tr.open(url)
        .dataset("points")
        .stream(batch_size=24, sampling=tr.Sampling(window="4kB"), seed=5)
    )
    before = notes(folder)
    if before:
        stream.load_state_dict(before[-1]["state"])
    done = 0
    while True:
        for batch in stream:
            if done == steps and rank == killed:
                os.kill(os.getpid(), signal.SIGKILL)
            everyone: list[Any] = [None] * world
            torch.distributed.all_gather_object(everyone, batch["y"].tolist())
            if rank == 0:
                _note(folder, stream, everyone)
            done += 1
            if done == steps and killed is None:
                torch.distributed.barrier()
                stream.close()
                torch.distributed.destroy_process_group()
                return
        stream.set_epoch(stream.epoch + 1)


def _note(folder: Path, stream: tr.Stream, everyone: list[list[int]]) -> None:
    state = stream.state_dict()
    line = {"epoch": state["epoch"], "ranks": everyone, "state": state}
    with (folder / "notes.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
