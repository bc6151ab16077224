"""Mutated copies of foreign files, read in a process of its own.

A process reads copy after copy and prints what went wrong with any. That it ends, and how, is the
answer for native libraries.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.formats.exchange.registry import read
from tensorrepo.repo.errors import Error
from tests.support.architecture.sources import ROOT
from tests.support.builders import models
from tests.support.builders.foreign import store

LIMIT_SECONDS = 10
LIMIT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class MutationSeed:
    """A whole file or folder, the file of it that gets mutated, and the name of its format.

    `format` is "model" for what is read as a model.
    """

    path: str
    mutated: str
    format: str


def mutate(content: bytes, rng: random.Random) -> bytes:
    """A copy with bytes changed, cut off, doubled, taken out or overwritten by extreme numbers."""
    return rng.choice(_MUTATIONS)(bytearray(content), rng)


def _flip(data: bytearray, rng: random.Random) -> bytes:
    near = min(200, len(data))
    for _ in range(rng.randrange(1, 5)):
        at = rng.choice([rng.randrange(near), -1 - rng.randrange(near), rng.randrange(len(data))])
        data[at] = rng.randrange(256)
    return bytes(data)


def _cut(data: bytearray, rng: random.Random) -> bytes:
    return bytes(data[: rng.randrange(len(data))])


def _splice(data: bytearray, rng: random.Random) -> bytes:
    start, at = rng.randrange(len(data)), rng.randrange(len(data))
    piece = data[start : start + rng.randrange(1, 64)]
    return bytes(data[:at] + piece + data[at + rng.choice([0, len(piece)]) :])


def _remove(data: bytearray, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return bytes(data[:at] + data[at + rng.randrange(1, 64) :])


def _extreme(data: bytearray, rng: random.Random) -> bytes:
    width = rng.choice([1, 2, 4, 8])
    number = rng.choice([0, (1 << 8 * width - 1) - 1, 1 << 8 * width - 1, (1 << 8 * width) - 1])
    at = rng.choice([rng.randrange(len(data)), rng.randrange(min(200, len(data)))])
    data[at : at + width] = number.to_bytes(width, rng.choice(["little", "big"]))
    return bytes(data)


_MUTATIONS: tuple[Callable[[bytearray, random.Random], bytes], ...] = (
    _flip,
    _cut,
    _splice,
    _remove,
    _extreme,
)


def faults_alone(seeds: Sequence[MutationSeed], copies: int) -> list[str]:
    """What went wrong with `copies` mutants of each seed, read in one process."""
    request = json.dumps([[asdict(seed) for seed in seeds], copies])
    command = [sys.executable, "-m", "tests.support.faults.mutants", request]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        return [f"ended with {done.returncode} after {done.stdout[-500:]}: {done.stderr[-2000:]}"]
    return [line.removeprefix("FAULT ") for line in done.stdout.splitlines() if line[:1] == "F"]


def _fault(seed: MutationSeed, path: Path) -> str | None:
    """What is wrong with the reading of one mutant; None when it is read, or refused by us."""
    started = time.process_time()
    try:
        if seed.format == "model":
            models.stored(read_model(path))
        else:
            store(read(path, seed.format))
    except Error:
        pass
    except Exception as problem:  # noqa: BLE001 - any other is what is looked for
        return f"raised {type(problem).__name__}: {problem}"
    if (seconds := time.process_time() - started) > LIMIT_SECONDS:
        return f"took {seconds:.1f} s"
    if (peak := peak_bytes()) > LIMIT_BYTES:
        return f"took {peak} bytes"
    return None


def peak_bytes() -> int:
    """Most resident memory of this process so far.

    Linux's `ru_maxrss` outlives exec, so it would tell what pytest's worker took.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (line,) = (each for each in status.read_text().splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(request: str) -> None:
    """Read mutants, each named before it is read, and print the faults."""
    seeds, copies = json.loads(request)
    for seed in (MutationSeed(**each) for each in seeds):
        whole = Path(seed.path)
        for number in range(copies):
            _say(seed.format, whole.name, number)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / whole.name
                (shutil.copytree if whole.is_dir() else shutil.copy)(whole, path)
                inner = path / seed.mutated if seed.mutated else path
                inner.write_bytes(
                    mutate(inner.read_bytes(), random.Random(f"{whole.name} {number}"))
                )
                if (fault := _fault(seed, path)) is not None:
                    _say("FAULT", seed.format, whole.name, number, fault)


if __name__ == "__main__":
    main(sys.argv[1])
