"""Models between files and a repository, against the machine's own limits in the same run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import HERE, MIB, Case, Options, ratio, take_turns
from model_cases.models import AS_THEY_ARE, Stored, random_model

from tensorrepo.formats.exchange.checkpoints.safetensors import read_safetensors, write_safetensors
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter

MODEL_MIB = 1024
READ_BYTES = 16 * MIB


def make_file(folder: Path, options: Options) -> Path:
    path = folder / "model.safetensors"
    stored = Stored(folder / "made")
    entry = stored.put(random_model(MODEL_MIB * options.scale))
    write_safetensors(stored.open(entry), path)
    shutil.rmtree(folder / "made")
    return path


def store(folder: Path, source: Path, *, whole: bool) -> tuple[LocalBackend, Entry]:
    """A new repository's objects; `whole` keeps the file byte for byte, and checks that."""
    shutil.rmtree(folder, ignore_errors=True)
    backend = LocalBackend(folder)
    writer = ObjectWriter(ObjectStore(backend), ())
    reading = read_safetensors(source)
    model = reading if whole else ModelSource(reading.tensors)
    entry = write_model(writer, model, against=AS_THEY_ARE)
    writer.flush()
    return backend, entry


def store_again(backend: LocalBackend, entry: Entry, source: Path) -> None:
    writer = ObjectWriter(ObjectStore(backend), ())
    write_model(writer, ModelSource(read_safetensors(source).tensors), known=[entry])
    writer.flush()


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--reflink=never", source, target], check=True)
    with target.open("rb+") as file:
        os.fsync(file.fileno())


def read_all(source: Path) -> np.ndarray[Any, Any]:
    """All bytes into fresh memory, on one thread."""
    size = source.stat().st_size
    buffer = np.empty(size, np.uint8)
    file = os.open(source, os.O_RDONLY)
    try:
        for start in range(0, size, READ_BYTES):
            os.preadv(file, [buffer[start : start + READ_BYTES].data], start)
    finally:
        os.close(file)
    return buffer


def _store(folder: Path, source: Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    return (
        lambda: store(folder / "new", source, whole=False),
        lambda: copy(source, folder / "copy"),
    )


def _import(folder: Path, source: Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    return (
        lambda: store(folder / "new", source, whole=True),
        lambda: copy(source, folder / "copy"),
    )


def _again(folder: Path, source: Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    backend, entry = store(folder / "repository", source, whole=False)
    return lambda: store_again(backend, entry, source), lambda: read_all(source)


def _export(folder: Path, source: Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    backend, entry = store(folder / "repository", source, whole=False)
    model = open_model(ObjectStore(backend), entry)

    def export() -> None:
        target = folder / "out.safetensors"
        write_safetensors(model, target, overwrite=True)
        with target.open("rb+") as file:
            os.fsync(file.fileno())

    return export, lambda: copy(source, folder / "copy")


def _beside(prepare: Callable[[Path, Path], tuple[Callable[[], Any], Callable[[], Any]]]) -> Case:
    """GB/s of one side, and of a floor: what the machine does at best with as many bytes."""

    def case(folder: Path, options: Options) -> dict[str, Any]:
        source = make_file(folder, options)
        ours, floor = prepare(folder, source)
        size = source.stat().st_size
        seconds = take_turns(
            options.rounds, {"ours": lambda: _none(ours), "floor": lambda: _none(floor)}
        )
        return {
            "gb_per_second": round(size / 1e9 / min(seconds["ours"]), 2),
            "floor_gb_per_second": round(size / 1e9 / min(seconds["floor"]), 2),
            "share_of_floor": ratio(seconds["floor"], seconds["ours"]),
        }

    return case


def _none(call: Callable[[], Any]) -> None:
    call()


def import_memory(folder: Path, options: Options) -> dict[str, Any]:
    """Resident memory of a process of its own that imports the model."""
    source = make_file(folder, options)
    program = "import sys; from model_cases.transfer import import_alone; import_alone(sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", program, str(source)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return {"peak_mib": round(int(ran.stdout) / 1024), "model_mib": source.stat().st_size // MIB}


def import_alone(source: str) -> None:
    store(Path(source).parent / "alone", Path(source), whole=True)
    # Not `ru_maxrss`: on Linux a new program inherits that of the one that started it.
    status = Path("/proc/self/status").read_text("ascii")
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


CASES: dict[str, Case] = {
    "store": _beside(_store),
    "import_checked": _beside(_import),
    "store_again": _beside(_again),
    "export": _beside(_export),
    "import_memory": import_memory,
}
