"""What the cases of benchmarks share: repositories, turns, peers, a slow S3."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.objects.envelope import ObjectLink
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MIB = 1 << 20
CODE = ("repo", "formats", "query", "migrations", "api", "tensorrepo", "benchmarks")
SEED = 7
FEW_ROUNDS = 3  # of cases in which a round takes half a minute and more


@dataclass(frozen=True)
class Options:
    """How to measure.

    `peers` is the python of an environment that has the peers, if there is; `scale` shrinks, or
    grows, the data of the cases that say so; `patience` is how many seconds to wait for rounds that
    nobody else disturbs.
    """

    rounds: int
    peers: str | None
    scale: float = 1.0
    patience: float = 0.0


Case = Callable[[Path, Options], dict[str, Any]]


def run(cases: Mapping[str, Case], about: str, *, rounds: int, fewer: Collection[str] = ()) -> None:
    """What a benchmark does on the command line: one line of JSON for each case asked for.

    Cases of `fewer` have `FEW_ROUNDS` of their own accord: their peers take minutes for more.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(cases)}; none: all")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("--rounds", type=int, help=f"of each case; else {rounds}, or its own")
    parser.add_argument("--peers", help="python of an environment with benchmarks/peers.txt")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the data, where a case says so"
    )
    parser.add_argument(
        "--patience", type=float, default=0.0, help="seconds to wait for quiet, where a case can"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases alone")
    chosen = parser.parse_args()
    if chosen.list:
        print(*cases, sep="\n")
        return
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        for name in chosen.cases or cases:
            place = Path(folder) / name
            place.mkdir()
            turns = chosen.rounds or (FEW_ROUNDS if name in fewer else rounds)
            options = Options(turns, chosen.peers, chosen.scale, chosen.patience)
            try:
                found = cases[name](place, options)
            except Skipped as why:
                found = {"skipped": str(why)}
            print(json.dumps({"case": name, "rounds": turns, **found, **machine()}), flush=True)
            shutil.rmtree(place)


def machine() -> dict[str, Any]:
    """Where, when and of what commit a figure is."""
    today = time.strftime("%Y-%m-%d", time.gmtime())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "date": today,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),  # above the cores: others worked, too
        "commit": code_version(),
    }


def _processor() -> str:
    """What Linux calls the processor; elsewhere its kind."""
    with suppress(OSError):
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        if found is not None:
            return found[1]
    return platform.machine()


def code_version() -> str:
    """The last commit that changed what is measured, or measures; "+" behind it: changed since.

    Figures and texts are left out: storing results makes no result old.
    """
    paths = [*CODE, ":(exclude)benchmarks/results"]
    last = _git("log", "-1", "--format=%h", "--", *paths)
    return last + ("+" if _git("status", "--porcelain", "--", *paths) else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


class Skipped(Exception):
    """The case cannot be measured here; says why."""


def take_turns(
    rounds: int, sides: Mapping[str, Callable[[], float | None]], *, mixed: bool = False
) -> dict[str, list[float]]:
    """Seconds of each side, in turns, so that a noisy neighbour hits all of them.

    A side that gives a number measured itself (a peer in its own process); else its call is timed.
    `mixed` turns come in another order each round: after a side that gives back much memory, whose
    pages a virtual machine's host takes, the next one waits for new ones.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    order, chance = list(sides.items()), random.Random(SEED)
    for _ in range(rounds):
        if mixed:
            chance.shuffle(order)
        for name, side in order:
            begun = time.perf_counter()
            own = side()
            found[name].append(time.perf_counter() - begun if own is None else own)
    return found


def medians_ms(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    return {f"{name}_ms": round(statistics.median(each) * 1e3, 2) for name, each in seconds.items()}


def ratio(above: list[float], below: list[float]) -> float:
    """The median of the rounds' ratios."""
    return round(statistics.median(a / b for a, b in zip(above, below, strict=True)), 2)


# ------------------------------------------------------------------------------ ours


def store_dataset(url: str, environment: Mapping[str, str], schema: Schema, batches: Any) -> str:
    """The digest of a dataset of these batches in a repository's objects at `url`."""
    writer = ObjectWriter(ObjectStore(open_backend(url, environment=environment)), ())
    link = write_dataset(writer, schema, batches)
    writer.flush()
    return link.digest


def reopen(url: str, environment: Mapping[str, str], digest: Any) -> StoredDataset:
    """The dataset as a process sees it that has just begun."""
    return open_dataset(CountingStore(open_backend(url, environment=environment)), digest)


class CountingStore(ObjectStore):
    """Counts requests for ranges, and their bytes."""

    requests = 0
    bytes = 0

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Any:
        self.requests += 1
        self.bytes += stop - start
        return super().read_range(link, start, stop)


def reset_counts(dataset: StoredDataset) -> CountingStore:
    objects = dataset.objects
    assert isinstance(objects, CountingStore)
    objects.requests = objects.bytes = 0
    return objects


@dataclass
class Written:
    """Bytes of the files that are new or differ in a folder."""

    bytes: int = 0


@contextmanager
def written(folder: Path) -> Iterator[Written]:
    """What the body writes below `folder`, where no file is written twice: all of a repository."""
    found = Written()
    before = _files(folder)
    yield found
    after = _files(folder)
    found.bytes = sum(size for name, (size, at) in after.items() if before.get(name) != (size, at))


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    statuses = ((str(path), path.stat()) for path in folder.rglob("*") if path.is_file())
    return {name: (status.st_size, status.st_mtime_ns) for name, status in statuses}


# ------------------------------------------------------------------------------ memory


def begin_peak() -> float:
    """Forget the peak of memory so far; MiB in memory now, mapped files too."""
    Path("/proc/self/clear_refs").write_text("5")
    return process_mib("VmRSS")


def process_mib(name: str) -> float:
    """What Linux says of this process's memory under a name such as ``VmRSS``, in MiB."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, "Linux says so"
    return int(found[1]) / 1024


# ------------------------------------------------------------------------------ peers


class Peer:
    """A peer in a process and an environment of its own, asked by lines of JSON."""

    def __init__(self, options: Options, script: str, folder: Path) -> None:
        if options.peers is None:
            raise Skipped("needs --peers PYTHON, of an environment with benchmarks/peers.txt")
        self._process = subprocess.Popen(
            [options.peers, str(HERE / script), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise Skipped(f"the peer ended with code {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# ------------------------------------------------------------------------------ a slow S3


@contextmanager
def slow_s3(folder: Path, latency_ms: float) -> Iterator[tuple[str, dict[str, str]]]:
    """Our S3 server in a process of its own: the URL of a bucket, and how to reach it."""
    (folder / "s3").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "examples/s3_server.py"), "--root", str(folder / "s3")]
    command += ["--port", "0", "--latency-ms", str(latency_ms), "--bucket", "bucket"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield (
            "s3://bucket",
            {
                "AWS_ACCESS_KEY_ID": "bench",
                "AWS_SECRET_ACCESS_KEY": "bench",
                "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
                "AWS_REGION": "us-east-1",
            },
        )
    finally:
        server.terminate()
        server.wait()


def portions(count: int, step: int) -> Iterable[slice]:
    return (slice(start, min(count, start + step)) for start in range(0, count, step))
