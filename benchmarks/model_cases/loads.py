"""Loading models from a warm local disk, beside safetensors.

Ours verifies every byte by BLAKE3; safetensors verifies nothing. Sides:

- `safetensors`: `safetensors.numpy.load_file`, every tensor in memory of its own, as ours.
- `safetensors_hashed`: the same, then BLAKE3 of every tensor: equal work.
- `safetensors_lazy`: `safetensors.torch.load_file`, which maps the file and reads nothing yet.
- `safetensors_touched`: that, and one look at every byte, beside our views (mapped, verified).

A delta's base is read, too: `load_delta_*` decode both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from harness import Case, Options, medians_ms, ratio
from model_cases.models import (
    AS_THEY_ARE,
    DELTAS,
    Stored,
    grown,
    random_model,
    small_model,
    stacked,
    stored_bytes,
)
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as map_file

from tensorrepo.formats.model.write.base_choice import DeltaOptions

RAW_MIB, DELTA_MIB, SMALL_MIB = 512, 256, 32


def load_raw(folder: Path, options: Options) -> dict[str, Any]:
    tensors = random_model(RAW_MIB * options.scale)
    save_file(tensors, path := folder / "model.safetensors")
    stored = Stored(folder / "objects")
    entry = stored.put(tensors, AS_THEY_ARE)
    del tensors
    sides = {
        "ours": lambda: stored.open(entry).load(),
        "safetensors": lambda: load_file(path),
        "safetensors_hashed": lambda: [_hash(each) for each in load_file(path).values()],
        "ours_views": lambda: stored.open(entry).load(copy=False),
        "safetensors_lazy": lambda: map_file(path),
        "safetensors_touched": lambda: [_touch(each) for each in map_file(path).values()],
    }
    wall, cpu = measured(options.rounds, sides)
    return {
        "speed_to_safetensors": ratio(wall["safetensors"], wall["ours"]),
        "speed_to_safetensors_hashed": ratio(wall["safetensors_hashed"], wall["ours"]),
        "views_to_touched": ratio(wall["safetensors_touched"], wall["ours_views"]),
        **medians_ms(wall),
        **{f"{name}_cpu": seconds for name, seconds in cpu.items()},
        "goal": "speed_to_safetensors >= 1",
    }


def load_delta(steps: tuple[int, int], *, large: bool = False) -> Case:
    """A model of depth 1 whose base is stored as it is, or in byte planes as it would be.

    Tensors are those of a small transformer, of at most 1 MiB, or `large`, as a large one's.
    """

    def case(folder: Path, options: Options) -> dict[str, Any]:
        base, new = (grown(step, DELTA_MIB * options.scale) for step in steps)
        if large:
            base, new = stacked(base), stacked(new)
        save_file(new, path := folder / "model.safetensors")
        stored, sides = Stored(folder / "objects"), {}
        found: dict[str, Any] = {"safetensors": lambda: load_file(path)}
        for name, how in (("on_raw", AS_THEY_ARE), ("on_planes", DeltaOptions())):
            under = stored.put(base, how)
            entry = stored.put(new, DeltaOptions(under, codecs=DELTAS))
            sides[name] = stored.open(entry)
            assert {one.depth for one in sides[name].packs.members.entries.values()} <= {0, 1}
            found[name] = _loading(stored, entry)
        raw = sum(array.nbytes for array in new.values())
        del base, new
        wall, cpu = measured(options.rounds, found)
        return {
            "share_of_safetensors": ratio(wall["safetensors"], wall["on_raw"]),
            "share_on_planes": ratio(wall["safetensors"], wall["on_planes"]),
            "stored_share_of_raw": round(stored_bytes(sides["on_planes"]) / 2 / raw, 3),
            **medians_ms(wall),
            **{f"{name}_cpu": seconds for name, seconds in cpu.items()},
            "mib": raw >> 20,
            "goal": "share_of_safetensors >= 0.5 on 2 cores",
        }

    return case


def load_small(folder: Path, options: Options) -> dict[str, Any]:
    """1,000 tensors of 1 to 64 KiB: as they are, and as differences from these or from planes."""
    base = small_model(SMALL_MIB * options.scale)
    rng = np.random.default_rng(len(base))
    new = {
        name: array * (1 + 1e-4 * rng.standard_normal(array.shape, dtype="f4"))
        for name, array in base.items()
    }
    save_file(new, path := folder / "model.safetensors")
    stored = Stored(folder / "objects")
    raw = stored.put(base, AS_THEY_ARE)
    on_raw = stored.put(new, DeltaOptions(raw, codecs=DELTAS))
    on_planes = stored.put(new, DeltaOptions(stored.put(base, DeltaOptions()), codecs=DELTAS))
    entries = {"raw": raw, "on_raw": on_raw, "on_planes": on_planes}
    sides: dict[str, Any] = {"safetensors": lambda: load_file(path)}
    sides |= {name: _loading(stored, entry) for name, entry in entries.items()}
    wall, cpu = measured(options.rounds, sides)
    return {
        "tensors": len(base),
        **{f"{name}_to_safetensors": ratio(wall["safetensors"], wall[name]) for name in entries},
        **medians_ms(wall),
        **{f"{name}_cpu": seconds for name, seconds in cpu.items()},
    }


def _loading(stored: Stored, entry: Any) -> Callable[[], Any]:
    return lambda: stored.open(entry).load()


def measured(
    rounds: int, sides: dict[str, Callable[[], Any]]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each side in turns, the first round apart, and least seconds of processor time."""
    wall: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for at in range(rounds + 1):
        for name, side in sides.items():
            began, worked = time.perf_counter(), time.process_time()
            made = side()
            wall[name] += [time.perf_counter() - began] * (at > 0)
            cpu[name] += [time.process_time() - worked] * (at > 0)
            del made
    return wall, {name: round(min(each), 3) for name, each in cpu.items()}


def _hash(array: np.ndarray[Any, Any]) -> bytes:
    return blake3(array.reshape(-1).view(np.uint8).data, max_threads=blake3.AUTO).digest()


def _touch(tensor: Any) -> int:
    return int(np.bitwise_or.reduce(tensor.reshape(-1).numpy().view(np.uint32)))


CASES: dict[str, Case] = {
    "load_raw": load_raw,
    "load_delta_one_step": load_delta((200, 201)),
    "load_delta_200_steps": load_delta((0, 200)),
    "load_small": load_small,
    "load_delta_large": load_delta((200, 201), large=True),
}
