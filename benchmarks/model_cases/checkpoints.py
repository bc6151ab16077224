"""What ten checkpoints of a training take, what goes when they expire, how long `save` blocks.

The training is real: the transformer of `pairs`, with AdamW, in F32; a checkpoint is its weights
and the optimizer's state after every step. Bytes are those of all files of the repository.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from harness import MIB, SEED, Options
from model_cases import pairs

import tensorrepo
from tensorrepo.models.checkpointer import RetentionPolicy
from tensorrepo.repo.changes.gc_fence import closure
from tensorrepo.repo.objects.incarnations import parse_object_key
from tensorrepo.repository import Repository

COUNT = 10
WARM_STEPS = 50
SAVE_MIB = 512


def checkpoints(folder: Path, options: Options) -> dict[str, Any]:  # noqa: ARG001
    repository = tensorrepo.init(folder / "repository", author="Bench <bench@example.org>")
    raw, sizes = 0, []
    with repository.checkpointer("run", keep=RetentionPolicy(last=None)) as saver:
        for step, state in _training():
            saver.save(step, state)
            saver.wait()
            sizes.append(_bytes(folder))
            raw += sum(each.nbytes for each in _tensors(state))
    each = [after - before for before, after in zip([0, *sizes], sizes, strict=False)]
    return {
        "checkpoints": COUNT,
        "raw_mb": round(raw / 1e6, 1),
        "share_of_raw": round(sizes[-1] / raw, 3),
        "first_share": round(each[0] * COUNT / raw, 3),
        "later_share": round(statistics.mean(each[1:]) * COUNT / raw, 3),
        "goal": "share_of_raw <= 0.45",
    }


def checkpoints_expire(folder: Path, options: Options) -> dict[str, Any]:  # noqa: ARG001
    """As above, twice as many, of which the last two are kept: what expiry lets go of.

    After each the bytes that refs reach are counted. They go up and down: a checkpoint keeps the
    packs of those that it is the difference from, until a chain ends. In the end all else is
    deleted, and the last state must be whole.
    """
    repository = tensorrepo.init(folder / "repository", author="Bench <bench@example.org>")
    raw, reached, last = 0, [], {}
    with repository.checkpointer("run", keep=RetentionPolicy(last=2)) as saver:
        for step, state in _training(2 * COUNT):
            saver.save(step, state)
            saver.wait()
            last = {"at": step, "state": {k: v.clone() for k, v in state["model"].items()}}
            raw = sum(each.nbytes for each in _tensors(state))
            live = _live(repository)
            reached.append(sum(size for digest, size in _objects(repository) if digest in live))
        before = _bytes(folder)
        _collect(repository)
        after = _bytes(folder)
        found = tensorrepo.open(folder / "repository").checkpointer("run").load(last["at"])
    whole = all(torch.equal(found["model"][name], one) for name, one in last["state"].items())
    return {
        "checkpoints": 2 * COUNT,
        "before_mb": round(before / 1e6, 1),
        "after_mb": round(after / 1e6, 1),
        "freed_share": round(1 - after / before, 3),
        "reached_to_raw_of_two": [round(each / raw / 2, 2) for each in reached],
        "last_is_whole": whole,
        "goal": "reached_to_raw_of_two bounded; all else is freed",
    }


def save_blocks(folder: Path, options: Options) -> dict[str, Any]:
    """`save` against a clone of every tensor, in turns, each made when nothing else goes on."""
    torch.set_num_threads(os.cpu_count() or 1)
    state = _state(SAVE_MIB * options.scale)
    repository = tensorrepo.init(folder / "repository", author="Bench <bench@example.org>")
    clones, saves = [], []
    with repository.checkpointer("run", keep=RetentionPolicy(last=1)) as saver:
        for step in range(options.rounds + 2):
            for each in state.values():
                each.mul_(1.0001)
            began = time.perf_counter()
            made = {name: each.clone() for name, each in state.items()}
            clones.append(time.perf_counter() - began)
            del made
            began = time.perf_counter()
            saver.save(step, state)
            saves.append(time.perf_counter() - began)
            saver.wait()
    ratios = [mine / theirs for mine, theirs in zip(saves, clones, strict=True)]
    return {
        "mib": sum(each.nbytes for each in state.values()) // MIB,
        "clone_ms": round(1e3 * statistics.median(clones)),
        "save_ms": [round(1e3 * each) for each in saves],
        "first_ratios": [round(each, 2) for each in ratios[:2]],
        "ratio": round(statistics.median(ratios[2:]), 2),
        "goal": "ratio <= 1.3",
    }


def _training(count: int = COUNT) -> Iterator[tuple[int, dict[str, Any]]]:
    """The state after each of so many steps, from a training that has gone on for a while."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small layers: more threads only wait for each other
    module, batches = pairs.Reader(), pairs.text_batches(0)
    optimizer = torch.optim.AdamW(module.parameters(), pairs.TRAIN_RATE)
    pairs.train(module, optimizer, batches, WARM_STEPS)
    for step in range(WARM_STEPS + 1, WARM_STEPS + 1 + count):
        pairs.train(module, optimizer, batches, 1)
        yield step, {"model": module.state_dict(), "optimizer": optimizer.state_dict()}


def _tensors(node: Any) -> Iterator[torch.Tensor]:
    if isinstance(node, torch.Tensor):
        yield node
    elif isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            yield from _tensors(each)


def _state(mib: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    side = 1024
    count = max(1, round(mib * MIB / (4 * side * side)))
    return {f"{at}.w": torch.randn(side, side, generator=generator) for at in range(count)}


def _live(repository: Repository) -> set[str]:
    """Digests of all that refs reach."""
    core = repository.context.core
    state = core.log.refresh().state
    return set(closure(core.objects, state.refs.values(), state.supersedes))


def _objects(repository: Repository) -> Iterator[tuple[str, int]]:
    """Digests of all objects, with their bytes on disk."""
    for stored in repository.context.core.backend.list("objects/"):
        parsed = parse_object_key(stored.key)
        if parsed is not None:
            yield parsed[0], stored.bytes


def _collect(repository: Repository) -> None:
    """Delete all that no ref reaches, as a collection does in the end that lets go of the past."""
    backend, live = repository.context.core.backend, _live(repository)
    for stored in list(backend.list("objects/")):
        parsed = parse_object_key(stored.key)
        if parsed is not None and parsed[0] not in live:
            backend.delete(stored.key)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


CASES = {
    "checkpoints": checkpoints,
    "checkpoints_expire": checkpoints_expire,
    "save_blocks": save_blocks,
}
