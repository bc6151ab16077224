"""Saving and loading fine-tunes of a published encoder, beside the codecs alone and torch.

Saves go through all that a save does, onto a disk; their peers do parts of it, in memory:

- `kernels`: every frame in the codec that was chosen for it, against its base's decoded frame.
- `kernels_and_base`: the same, and the base's frames decoded, which a save must do as well.
- `floor`: the same, and all that a save must do beside: each frame copied and hashed, its base's
  frame verified, what is stored hashed; in memory that is used again, and without a choice.
- `zipnn`: ZipNN's compression of all bytes, in one piece (needs `--peers`).

Loads stand beside torch's `load_file` and a clone of each tensor, which verify nothing, and beside
a `floor`: the base's frames decoded, the frames decoded and hashed, in memory that is used again,
by as many threads as there are cores. Torch's seconds over the floor's are the most that a load
could reach; `*_cpu_ns_a_byte` of `base`, `kernels` and `blake3` say what the floor consists of, on
one thread.

Whether memory of a result is new, or was used before, is most of what torch takes, and as chance
has it: malloc keeps what lies on top of its heap. So both are measured once more in either way:
`share_of_torch_new_pages` and `share_of_torch_used_pages`.

Other processes may be about: `cpu` figures are processor time of all threads, the least of the
rounds, in turns, and ratios of them; speeds are the best round's.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import SEED, Case, Options, Peer
from model_cases import encoder
from model_cases.codecs import DTYPES, tuned
from model_cases.models import Stored
from safetensors.torch import load_file, save_file

from tensorrepo.formats.model.delta.frame_codec import FrameShape
from tensorrepo.formats.model.delta.plane_codec import StoredPlane
from tensorrepo.formats.model.delta.registry import CODECS
from tensorrepo.formats.model.layout.fingerprints import frame_bytes, frame_digest
from tensorrepo.formats.model.layout.pack import StoredFrame
from tensorrepo.formats.model.read.members import about_frame
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.packing import seal
from tensorrepo.formats.native.result_memory import new_result
from tensorrepo.formats.native.thread_buffers import buffer_for

Model = dict[str, torch.Tensor]
PIECES = 4  # tensors that the encoder's are joined to
TINY = {"4_kib": (1024, 2000), "64_kib": (16_384, 500)}  # elements, tensors


def weights(step: int, dtype: str, *, joined: bool) -> Model:
    """The encoder after some steps: 101 tensors, or all of them joined in four."""
    arrays = encoder.load(tuned(), step)
    found = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if dtype == "BF16":
        found = {name: tensor.bfloat16() for name, tensor in found.items()}
    if not joined:
        return found
    whole = torch.cat([tensor.reshape(-1) for tensor in found.values()])
    rows = whole.numel() // PIECES // 1024
    parts = whole[: PIECES * rows * 1024].reshape(PIECES, rows, 1024)
    return {f"part.{at}": part.clone() for at, part in enumerate(parts)}


def bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return tensor.reshape(-1).view(torch.uint8).numpy()


@dataclass(frozen=True, slots=True)
class KernelTask:
    """A frame, the codec that was chosen for it, and its bases."""

    codec: Any
    frame: Any
    bases: list[Any]
    about: Any
    under: list[tuple[Any, Any, Any]]  # codec, planes and shape of bases that are encoded

    def encode(self) -> int:
        planes = self.codec.encode(self.frame, self.bases, self.about)
        return sum(plane.size_bytes for plane in planes)

    def with_base(self) -> int:
        for codec, planes, about in self.under:
            codec.decode(planes, [], about, np.empty(about.size_bytes, np.uint8).data)
        return self.encode()

    def with_all(self) -> int:
        frame = buffer_for("benchmark frame", self.about.size_bytes, np.dtype(np.uint8))
        frame[:] = np.frombuffer(self.frame, np.uint8)
        digest = frame_digest(frame.data)
        for codec, planes, about in self.under:
            base = buffer_for("benchmark base", about.size_bytes, np.dtype(np.uint8))
            codec.decode(planes, [], about, base.data)
            frame_digest(base.data)
        planes = self.codec.encode(frame.data, self.bases, self.about)
        return len(seal(frame.size, digest, planes).planes)


def kernel_tasks(model: StoredModel, new: Model, base: Model) -> Iterator[KernelTask]:
    """What the codecs alone have to do to store `new` as `model` does."""
    entries = model.packs.members.entries
    for name, tensor in new.items():
        stored = model.tensor(name)
        frames = getattr(stored, "frames", ())
        data, under = bytes_of(tensor), bytes_of(base[name])
        size = frame_bytes(stored.type)
        for placed in frames:
            entry = entries[placed.place]
            if entry.codec == "raw":
                continue
            at = placed.index * size
            about = about_frame(stored.type, tuple(tensor.shape), placed.index)
            encoded = []
            for place in entry.bases:
                member = model.packs.members.member(place)
                if member.codec == "planes":
                    planes = CODECS["planes"].encode(under[at : at + size].data, [], about)
                    encoded.append((CODECS["planes"], planes, about))
            bases = [under[at : at + size].data] * len(entry.bases)
            yield KernelTask(CODECS[entry.codec], data[at : at + size].data, bases, about, encoded)


@dataclass(frozen=True, slots=True)
class LoadTask:
    """A frame as it is stored, and the frame of its base, all where they lie on disk."""

    codec: Any
    planes: list[StoredPlane]
    about: FrameShape
    under: list[tuple[Any, list[StoredPlane]]]  # codec and planes of bases
    digest: bytes

    def base(self) -> list[memoryview]:
        found = []
        for codec, planes in self.under:
            if codec is None:
                found.append(memoryview(planes[0].data))
                continue
            room = buffer_for("benchmark base", self.about.size_bytes, np.dtype(np.uint8))
            codec.decode(planes, [], self.about, room.data)
            found.append(room.data)
        return found

    def decode(self, bases: list[memoryview]) -> memoryview:
        room = buffer_for("benchmark frame", self.about.size_bytes, np.dtype(np.uint8)).data
        if self.codec is None:
            room[:] = self.planes[0].data
        else:
            self.codec.decode(self.planes, bases, self.about, room)
        return room

    def all(self) -> bool:
        return frame_digest(self.decode(self.base())) == self.digest


def load_tasks(model: StoredModel) -> Iterator[LoadTask]:
    """What must be done to every frame of a model of depth 1."""
    members = model.packs.members

    def stored(number: int, frame: StoredFrame) -> list[StoredPlane]:
        pack = members.mapped_pack(number)
        assert pack is not None, "models of benchmarks lie on a local disk"
        return [
            StoredPlane(one.codec, pack[one.offset : one.offset + one.size_bytes])
            for one in frame.planes
        ]

    for name in model:
        tensor = model.tensor(name)
        for placed in tensor.frames:
            member, under = members.member(placed.place), []
            for base in members.entries[placed.place].bases:
                below = members.member(base)
                frame = below.frames[placed.index - below.first_frame]
                under.append((CODECS.get(below.codec), stored(base[0], frame)))
            about = about_frame(tensor.type, tensor.shape, placed.index)
            yield LoadTask(
                CODECS.get(placed.codec),
                stored(placed.place[0], placed.frame),
                about._replace(params=member.params),
                under,
                placed.frame.digest,
            )


def load_parts(tasks: list[LoadTask], rounds: int) -> dict[str, int]:
    """Nanoseconds of one thread's processor time by part of a load, each frame's least."""
    parts = dict.fromkeys(("base", "kernels", "blake3"), 0)
    for task in tasks:
        least = dict.fromkeys(parts, 1 << 62)
        for _ in range(rounds + 1):
            began = time.thread_time_ns()
            bases = task.base()
            decoding = time.thread_time_ns()
            frame = task.decode(bases)
            hashing = time.thread_time_ns()
            frame_digest(frame)
            ended = time.thread_time_ns()
            spent = (decoding - began, hashing - decoding, ended - hashing)
            least = {part: min(least[part], one) for part, one in zip(parts, spent, strict=True)}
        parts = {part: total + least[part] for part, total in parts.items()}
    return parts


def turns(rounds: int, sides: dict[str, Callable[[], Any]]) -> dict[str, tuple[float, float]]:
    """Least seconds of the clock and of the processor of each side, in turns."""
    found = {name: (float("inf"), float("inf")) for name in sides}
    for at in range(rounds + 1):
        for name, side in sides.items():
            began, worked = time.perf_counter(), time.process_time()
            made = side()
            seconds, work = time.perf_counter() - began, time.process_time() - worked
            del made
            if at:
                found[name] = min(found[name][0], seconds), min(found[name][1], work)
    return found


def figures(raw: int, found: dict[str, tuple[float, float]]) -> dict[str, float]:
    return {
        **{f"{name}_gb_per_second": round(raw / 1e9 / one[0], 2) for name, one in found.items()},
        **{f"{name}_cpu_ns_a_byte": round(one[1] * 1e9 / raw, 2) for name, one in found.items()},
    }


def save(dtype: str, *, joined: bool) -> Case:
    """A fine-tune of 20 steps against its base."""

    def case(folder: Path, options: Options) -> dict[str, Any]:
        base, new = (weights(step, dtype, joined=joined) for step in (0, 20))
        stored = Stored(folder / "objects")
        under = stored.put(base, DeltaOptions())
        against = DeltaOptions(under)
        model = stored.open(stored.put(new, against))
        tasks = list(kernel_tasks(model, new, base))
        raw = sum(tensor.nbytes for tensor in new.values())
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = turns(
                options.rounds,
                {
                    "ours": lambda: stored.put(new, against),
                    "kernels": lambda: sum(pool.map(KernelTask.encode, tasks)),
                    "kernels_and_base": lambda: sum(pool.map(KernelTask.with_base, tasks)),
                    "floor": lambda: sum(pool.map(KernelTask.with_all, tasks)),
                },
            )
        return {
            "share_of_kernels": round(found["kernels"][1] / found["ours"][1], 2),
            "share_of_kernels_and_base": round(found["kernels_and_base"][1] / found["ours"][1], 2),
            "most_share_of_kernels": round(found["kernels"][1] / found["floor"][1], 2),
            "share_of_floor": round(found["floor"][1] / found["ours"][1], 2),
            "share_of_raw": round(_own_bytes(model) / raw, 5),
            **figures(raw, found),
            "tensors": len(new),
            "pair": encoder.digest(*(encoder.load(tuned(), step) for step in (0, 20))),
            "goal": f"share_of_kernels >= {0.75 if joined else 0.6}",
        }

    return case


def _own_bytes(model: StoredModel) -> int:
    """Stored bytes of a model's tensors, without those of their bases."""
    return sum(
        member.stored_bytes for tensor in model.packs.stored.values() for member in tensor.members
    )


def save_alone(dtype: str) -> Case:
    """The encoder without a base, beside ZipNN."""

    def case(folder: Path, options: Options) -> dict[str, Any]:
        new = weights(20, dtype, joined=False)
        stored = Stored(folder / "objects")
        model = stored.open(stored.put(new, DeltaOptions()))
        raw = sum(tensor.nbytes for tensor in new.values())
        (folder / "data").write_bytes(b"".join(bytes_of(one).tobytes() for one in new.values()))
        theirs = []
        asked = {"file": str(folder / "data"), "dtype": DTYPES[dtype]}
        with closing(Peer(options, "model_cases/peer_zipnn.py", folder)) as peer:

            def zipnn() -> None:
                theirs.append(peer.ask("both", **asked))

            sides = {"ours": lambda: stored.put(new, DeltaOptions()), "zipnn": zipnn}
            found = turns(options.rounds, sides)
        encode = min(one["encode"] for one in theirs)
        return {
            "speed_to_zipnn": round(encode / found["ours"][1], 2),
            "size_to_zipnn": round(_own_bytes(model) / theirs[0]["bytes"], 4),
            "zipnn_cpu_ns_a_byte": round(encode * 1e9 / raw, 2),
            "ours_cpu_ns_a_byte": round(found["ours"][1] * 1e9 / raw, 2),
            "ours_gb_per_second": round(raw / 1e9 / found["ours"][0], 2),
            "goal": "speed_to_zipnn >= 1, size_to_zipnn <= 1",
        }

    return case


MALLOC_TRIM_THRESHOLD, MALLOC_MMAP_MAX = -1, -4  # of glibc's mallopt
MOST_WAITING = (128 << 20,)  # all that waits for results in `formats/native/result_memory.c`


def by_pages(rounds: int, ours: Callable[[], Any], torchs: Callable[[], Any]) -> dict[str, float]:
    """Torch's seconds over ours, least of each, where pages of results are new, or were used."""
    malloc, seconds = ctypes.CDLL(None), {}
    malloc.mallopt(MALLOC_MMAP_MAX, 0)
    malloc.mallopt(MALLOC_TRIM_THRESHOLD, 1 << 30)
    for pages in ("new", "used"):
        for _ in range(rounds + 1):
            for name, side in (("ours", ours), ("load_file", torchs)):
                if pages == "new":
                    new_result(MOST_WAITING, np.dtype(np.uint8))  # instead of all that waits
                    malloc.malloc_trim(0)  # all that is free, wherever it lies
                began = time.perf_counter()
                made = side()
                took = time.perf_counter() - began
                del made
                key = f"{name}_{pages}_pages_ms"
                seconds[key] = min(seconds.get(key, took), took)
    return {
        **{
            f"share_of_torch_{pages}_pages": round(
                seconds[f"load_file_{pages}_pages_ms"] / seconds[f"ours_{pages}_pages_ms"], 2
            )
            for pages in ("new", "used")
        },
        **{key: round(1e3 * one, 1) for key, one in seconds.items()},
    }


def load(dtype: str, *, joined: bool) -> Case:
    """A fine-tune of depth 1, warm, beside torch's `load_file` and a clone of each tensor."""

    def case(folder: Path, options: Options) -> dict[str, Any]:
        base, new = (weights(step, dtype, joined=joined) for step in (0, 20))
        stored = Stored(folder / "objects")
        entry = stored.put(new, DeltaOptions(stored.put(base, DeltaOptions())))
        save_file(new, path := folder / "model.safetensors")
        raw = sum(tensor.nbytes for tensor in new.values())
        del base, new
        tasks = list(load_tasks(stored.open(entry)))

        def ours() -> Model:
            return stored.open(entry).load(output="torch")

        def torchs() -> Model:
            return {name: one.clone() for name, one in load_file(path).items()}

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = turns(
                options.rounds,
                {
                    "ours": ours,
                    "floor": lambda: sum(pool.map(LoadTask.all, tasks)),
                    "load_file": torchs,
                },
            )
        parts = load_parts(tasks, options.rounds)
        return {
            "share_of_torch": round(found["load_file"][0] / found["ours"][0], 2),
            **by_pages(options.rounds, ours, torchs),
            "most_share_of_torch": round(found["load_file"][0] / found["floor"][0], 2),
            "share_of_floor": round(found["floor"][1] / found["ours"][1], 2),
            **figures(raw, found),
            **{f"{part}_cpu_ns_a_byte": round(one / raw, 2) for part, one in parts.items()},
            "goal": f"share_of_torch >= {0.6 if joined else 0.5}",
        }

    return case


def save_small(folder: Path, options: Options) -> dict[str, Any]:
    """Processor milliseconds for each of many small tensors: alone, and against a base."""
    rng = np.random.default_rng(SEED)
    result: dict[str, Any] = {}
    for name, (elements, count) in TINY.items():
        base = {
            f"blocks.{at}.scale": torch.from_numpy(rng.standard_normal(elements, dtype="f4"))
            for at in range(count)
        }
        new = {key: one + 1e-4 * torch.randn(elements) for key, one in base.items()}
        stored = Stored(folder / name)
        under = stored.put(base, DeltaOptions())
        sides = {
            "alone": lambda stored=stored, base=base: stored.put(base, DeltaOptions()),
            "delta": lambda stored=stored, new=new, under=under: stored.put(
                new, DeltaOptions(under)
            ),
        }
        found = turns(options.rounds, sides)
        result |= {
            f"{name}_{side}_cpu_ms": round(one[1] * 1e3 / count, 3) for side, one in found.items()
        }
    return {**result, "goal": "each at most 0.2"}


CASES: dict[str, Case] = {
    "save_f32": save("F32", joined=False),
    "save_bf16": save("BF16", joined=False),
    "save_f32_four": save("F32", joined=True),
    "save_bf16_four": save("BF16", joined=True),
    "save_alone_f32": save_alone("F32"),
    "save_alone_bf16": save_alone("BF16"),
    "save_small": save_small,
    "load_f32": load("F32", joined=False),
    "load_bf16": load("BF16", joined=False),
    "load_f32_four": load("F32", joined=True),
    "load_bf16_four": load("BF16", joined=True),
}
