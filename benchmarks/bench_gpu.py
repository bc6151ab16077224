"""To a GPU and from it: weights, batches, checkpoints; needs a GPU that torch can use.

    python benchmarks/bench_gpu.py [case ...] [--folder DIR] [--rounds N] [--scale X]

One JSON line for each case. Sides take turns and end when the GPU has everything; ratios are
medians of the rounds' ratios. `copy` is what no way to the GPU can beat here: the same bytes,
pinned already, by one copy. Files are in the page cache. Ours verifies every stored byte, peers
verify nothing. What arrives is compared with what was stored before anything is measured.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import MIB, ROOT, SEED, Options, Skipped, medians_ms, ratio, run, take_turns

sys.path.insert(0, str(ROOT))

import tensorrepo

MODEL_MIB, LAYERS = 2048, 32
ROWS, SHAPE, BATCH = 200_000, (32, 32, 3), 256
AUTHOR = "Bench <bench@example.org>"
Tensors = dict[str, Any]


def load(folder: Path, options: Options) -> dict[str, Any]:
    """BF16 weights as they are, and a fine-tune of them stored as differences."""
    torch = torch_with_gpu()
    from safetensors.torch import load_file, save_file

    base = weights(torch, MODEL_MIB * options.scale)
    tuned = {name: (one.float() * (1 + 2e-4)).bfloat16() for name, one in base.items()}
    save_file(tuned, path := folder / "model.safetensors")
    repo = tensorrepo.init(folder / "repo", author=AUTHOR)
    for name, tensors, under in (("base", base, None), ("tuned", tuned, "main:models/base")):
        with repo.transaction("main", message=name) as tx:
            tx.save_model(name, tensors, base=under)
    del base
    flat = torch.cat([one.reshape(-1) for one in tuned.values()]).cpu().pin_memory()
    sides: dict[str, Callable[[], Any]] = {
        "safetensors": lambda: load_file(path, device="cuda"),
        "ours": lambda: repo.model("base").load(device="cuda"),
        "ours_of_differences": lambda: repo.model("tuned").load(device="cuda"),
        "ours_to_the_cpu": lambda: repo.model("base").load(),
        "copy": lambda: flat.to("cuda"),
    }
    found = sides["ours_of_differences"]()
    assert all(torch.equal(found[name], one) for name, one in tuned.items()), "not what was stored"
    del found, tuned
    seconds = take_turns(options.rounds, {name: ended(torch, side) for name, side in sides.items()})
    return {
        "mib": flat.nbytes // MIB,
        "speed_to_safetensors": ratio(seconds["safetensors"], seconds["ours"]),
        "differences_to_safetensors": ratio(seconds["safetensors"], seconds["ours_of_differences"]),
        "share_of_copy": ratio(seconds["copy"], seconds["ours"]),
        **medians_ms(seconds),
    }


def stream(folder: Path, options: Options) -> dict[str, Any]:
    """Shuffled batches of rows of 3 KiB that arrive on the GPU, beside torch's loader in memory."""
    torch = torch_with_gpu()
    rows = round(ROWS * options.scale)
    values = np.random.default_rng(SEED).integers(0, 256, (rows, *SHAPE), np.uint8)
    repo = tensorrepo.init(folder / "repo", author=AUTHOR)
    with repo.transaction("main", message="rows") as tx:
        tx.create_dataset("rows", {"x": values, "y": np.arange(rows)})
    ds = repo.dataset("rows")
    streams = {
        name: ds.stream(
            batch_size=BATCH,
            shuffle="pages",
            seed=0,
            output="torch",
            loading=tensorrepo.Loading(pin=pin),
        )
        for name, pin in (("ours", None), ("ours_not_pinned", False))
    }
    data = torch.utils.data.TensorDataset(torch.from_numpy(values), torch.arange(rows))
    flat = torch.from_numpy(values).pin_memory()
    whole = flat.to("cuda")
    sides: dict[str, Callable[[], Any]] = {
        name: arriving(torch, pairs_of(each), rows) for name, each in streams.items()
    }
    for workers in (0, os.cpu_count() or 1):
        loader = torch.utils.data.DataLoader(
            _Taken(data.tensors),
            sampler=torch.utils.data.BatchSampler(
                torch.utils.data.RandomSampler(data), BATCH, drop_last=False
            ),
            batch_size=None,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=True,
        )
        sides[f"torch_{workers}"] = arriving(torch, loader.__iter__, rows)
    sides["copy"] = lambda: flat.to("cuda")
    for x, y in pairs_of(streams["ours"])():
        assert torch.equal(x.to("cuda"), whole[y.to("cuda")]), "not what was stored"
    seconds = take_turns(options.rounds, {name: ended(torch, side) for name, side in sides.items()})
    best = min(
        (name for name in seconds if name.startswith("torch_")), key=lambda n: sum(seconds[n])
    )
    told = {name: round(rows * len(each) / sum(each)) for name, each in seconds.items()}
    return {
        "rows_per_s": told,
        "best_peer": best,
        "speed_to_torch": ratio(seconds[best], seconds["ours"]),
        "share_of_copy": ratio(seconds["copy"], seconds["ours"]),
    }


def checkpoint(folder: Path, options: Options) -> dict[str, Any]:
    """How long training stands still for a checkpoint of a state that lies on the GPU."""
    torch = torch_with_gpu()
    state = {"model": weights(torch, MODEL_MIB / 4 * options.scale, torch.float32)}
    repo = tensorrepo.init(folder / "repo", author=AUTHOR)
    flat = torch.cat([one.reshape(-1) for one in state["model"].values()])
    room = torch.empty_like(flat, device="cpu", pin_memory=True)
    step, stood, stored = 0, [], []
    with repo.checkpointer("exp1") as checkpointer:
        for _ in range(options.rounds + 1):
            for one in state["model"].values():
                one.mul_(1 + 1e-5)
            torch.cuda.synchronize()
            began = time.perf_counter()
            checkpointer.save(step, state)
            stood.append(time.perf_counter() - began)
            checkpointer.wait()
            stored.append(time.perf_counter() - began)
            step += 1
    path = folder / "state.pt"
    seconds = take_turns(
        options.rounds,
        {
            "torch_save": ended(torch, lambda: torch.save(state, path)),
            "to_cpu": ended(torch, lambda: {n: t.cpu() for n, t in state["model"].items()}),
            "copy": ended(torch, lambda: room.copy_(flat)),
        },
    )
    seconds |= {"stands_still": stood[1:], "stored": stored[1:]}
    return {
        "mib": flat.nbytes // MIB,
        "stands_still_to_torch_save": ratio(seconds["stands_still"], seconds["torch_save"]),
        "stands_still_to_copy": ratio(seconds["stands_still"], seconds["copy"]),
        **medians_ms(seconds),
    }


class _Taken:
    """A map-style dataset whose items are whole batches: torch's fastest way in memory."""

    def __init__(self, tensors: tuple[Any, ...]) -> None:
        self.tensors = tensors

    def __getitem__(self, rows: list[int]) -> tuple[Any, ...]:
        return tuple(one[rows] for one in self.tensors)


def pairs_of(stream: Any) -> Callable[[], Iterator[tuple[Any, Any]]]:
    return lambda: ((batch["x"], batch["y"]) for batch in stream)


def arriving(torch: Any, batches: Callable[[], Iterator[Any]], rows: int) -> Callable[[], None]:
    """An epoch whose rows are all copied to the GPU and summed there."""

    def epoch() -> None:
        labels = torch.zeros((), dtype=torch.int64, device="cuda")
        pixels = torch.zeros((), dtype=torch.int64, device="cuda")
        for x, y in batches():
            pixels += x.to("cuda", non_blocking=True).sum()
            labels += y.to("cuda", non_blocking=True).sum()
        assert int(labels) == rows * (rows - 1) // 2, "not every row came once"

    return epoch


def ended(torch: Any, side: Callable[[], Any]) -> Callable[[], None]:
    """The side, until the GPU has done all that it asked for."""

    def whole() -> None:
        made = side()
        torch.cuda.synchronize()
        del made

    return whole


def weights(torch: Any, mib: float, dtype: Any = None) -> Tensors:
    """As large as asked for, on the GPU, in tensors as transformers have them."""
    kind = dtype or torch.bfloat16
    made = torch.Generator("cuda").manual_seed(SEED)
    width = int((mib * MIB / LAYERS / kind.itemsize) ** 0.5) // 64 * 64
    return {
        f"layers.{at}.w": (torch.randn(width, width, generator=made, device="cuda") / 50).to(kind)
        for at in range(LAYERS)
    }


def torch_with_gpu() -> Any:
    try:
        import torch
    except ImportError as error:
        raise Skipped("needs torch") from error
    if not torch.cuda.is_available():
        raise Skipped("torch sees no GPU here")
    return torch


CASES = {"gpu_load": load, "gpu_stream": stream, "gpu_checkpoint": checkpoint}

if __name__ == "__main__":
    run(CASES, "Measure ways to a GPU and from it.", rounds=5)
