"""What every importer must do with what others wrote: a format is a parameter here.

Samples are made by hand or by the format's own library, never by ours. Those that we also write are
held to more in `test_exchange`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.formats.exchange.registry import export, read, recognise
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    UnsupportedError,
)
from tests.support.architecture.sources import ROOT
from tests.support.builders.foreign import dataset_of, forbidden, png, rows_of, store
from tests.support.builders.objects import MemoryObjects

ROWS = 12
PICTURES = [png(np.full((3, 4), row, np.uint8)) for row in range(ROWS)]


@dataclass(frozen=True)
class Sample:
    """A format, what makes a sample of it in a folder, and the file of it that gets damaged.

    `numbers` is a column whose values are 0 to `ROWS`. `huge` makes a sample that promises far
    more than it holds.
    """

    format: str
    make: Callable[[Path], Path]
    file: str
    numbers: str
    huge: Callable[[Path], Path]
    needs: str = ""

    def made(self, folder: Path) -> Path:
        if self.needs:
            pytest.importorskip(self.needs)
        folder.mkdir(exist_ok=True)
        return self.make(folder)

    def damaged(self, folder: Path, content: bytes) -> Path:
        path = self.made(folder)
        (path / self.file if path.is_dir() else path).write_bytes(content)
        return path

    def content(self, folder: Path) -> bytes:
        path = self.made(folder)
        return (path / self.file if path.is_dir() else path).read_bytes()


def _pictures(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for row, data in enumerate(PICTURES):
        (folder / f"{row:02}.png").write_bytes(data)


def _labels_csv(folder: Path) -> Path:
    _pictures(folder)
    lines = "".join(f"{row:02}.png,{row}\n" for row in range(ROWS))
    (folder / "metadata.csv").write_text(f"file_name,number\n{lines}")
    return folder


def _labels_json(folder: Path) -> Path:
    _pictures(folder)
    rows = [{"file_name": f"{row:02}.png", "number": row} for row in range(ROWS)]
    (folder / "labels.json").write_text(json.dumps(rows))
    return folder


def _coco(folder: Path) -> Path:
    _pictures(folder / "val")
    images = [{"id": row, "file_name": f"{row:02}.png"} for row in range(ROWS)]
    notes = [{"image_id": row, "category_id": 1, "bbox": [0, 0, 1, row]} for row in range(ROWS)]
    form = {"images": images, "annotations": notes, "categories": [{"id": 1, "name": "cat"}]}
    (folder / "instances_val.json").write_text(json.dumps(form))
    return folder


def _yolo(folder: Path) -> Path:
    _pictures(folder / "images")
    (folder / "labels").mkdir(exist_ok=True)
    for row in range(ROWS):
        (folder / "labels" / f"{row:02}.txt").write_text(f"{row} 0.5 0.5 0.25 1\n")
    return folder


def _hdf5(folder: Path) -> Path:
    import h5py

    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("number", data=np.arange(ROWS), chunks=(5,), compression="gzip")
        file["image"] = np.zeros((ROWS, 3, 4), np.uint8)
    return folder / "x.h5"


def _huggingface(folder: Path) -> Path:
    import pyarrow as pa

    numbers = pa.record_batch({"number": pa.array(range(ROWS))})
    with (
        pa.OSFile(str(folder / "a.arrow"), "wb") as out,
        pa.ipc.new_stream(out, numbers.schema) as writer,
    ):
        writer.write_batch(numbers)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    form = {"features": {"number": {"dtype": "int64", "_type": "Value"}}}
    (folder / "dataset_info.json").write_text(json.dumps(form))
    return folder


def _huge_text(make: Callable[[Path], Path], file: str) -> Callable[[Path], Path]:
    """A sample whose text file nests deeper than anybody's stack."""

    def huge(folder: Path) -> Path:
        path = make(folder)
        (path / file).write_text("[" * 1_000_000)
        return path

    return huge


def _huge_csv(folder: Path) -> Path:
    path = _labels_csv(folder)
    (path / "metadata.csv").write_text("file_name,number\n" + '"' + "x" * (9 << 20))
    return path


def _huge_yolo(folder: Path) -> Path:
    path = _yolo(folder)
    (path / "labels" / "00.txt").write_text("0 " + "0.5 " * (5 << 20))
    return path


def _huge_hdf5(folder: Path) -> Path:
    import h5py

    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("number", (1 << 45,), "f8", chunks=(1 << 10,))
    return folder / "x.h5"


def _huge_arrow(folder: Path) -> Path:
    path = _huggingface(folder)
    data = bytearray((path / "a.arrow").read_bytes())
    data[4:8] = (1 << 30).to_bytes(4, "little")  # bytes of the schema's message
    (path / "a.arrow").write_bytes(data)
    return path


SAMPLES = [
    Sample("images", _labels_csv, "metadata.csv", "number", _huge_csv),
    Sample(
        "images", _labels_json, "labels.json", "number", _huge_text(_labels_json, "labels.json")
    ),
    Sample(
        "coco", _coco, "instances_val.json", "image_id", _huge_text(_coco, "instances_val.json")
    ),
    Sample("yolo", _yolo, "labels/03.txt", "categories", _huge_yolo),
    Sample("hdf5", _hdf5, "", "number", _huge_hdf5, needs="h5py"),
    Sample("huggingface", _huggingface, "a.arrow", "number", _huge_arrow),
]
every_sample = pytest.mark.parametrize(
    "sample", SAMPLES, ids=lambda sample: f"{sample.format}-{sample.make.__name__}"
)


@every_sample
def test_rows_are_read_in_order(sample: Sample, tmp_path: Path) -> None:
    rows = rows_of(store(read(sample.made(tmp_path / "x"))))
    numbers = [row[sample.numbers] for row in rows]
    assert [number[0] if isinstance(number, list) else number for number in numbers] == [
        *range(ROWS)
    ]


@every_sample
def test_the_format_is_recognised(sample: Sample, tmp_path: Path) -> None:
    assert recognise(sample.made(tmp_path / "x")).name == sample.format


@every_sample
def test_reading_says_rows_bytes_and_origin(sample: Sample, tmp_path: Path) -> None:
    path = sample.made(tmp_path / "x")
    reading = read(path)
    assert reading.rows in (ROWS, None)
    assert reading.bytes > 0
    assert (reading.origin.path, reading.origin.format) == (str(path), sample.format)


@every_sample
def test_progress_only_grows(sample: Sample, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    reading = read(sample.made(tmp_path / "x"))
    write_dataset(
        MemoryObjects(),
        reading.schema,
        reading.batches,
        progress=lambda rows, done: told.append((rows, done)),
    )
    assert told == sorted(told)
    assert told[-1][0] == ROWS


@every_sample
def test_nothing_is_passed_over_unasked(sample: Sample, tmp_path: Path) -> None:
    reading = read(sample.made(tmp_path / "x"))
    store(reading)
    assert (reading.damage.count, reading.damage.skipped) == (0, [])


@every_sample
@pytest.mark.parametrize("part", [0.01, 0.3, 0.5, 0.9])
def test_a_file_cut_short_is_refused(sample: Sample, part: float, tmp_path: Path) -> None:
    content = sample.content(tmp_path / "x")
    cut = content[: int(part * len(content))].rstrip(b"\n,0123456789")
    with pytest.raises((InvalidInputError, NotFoundError)):
        store(read(sample.damaged(tmp_path / "x", cut + b"\x01"), sample.format))


@every_sample
@pytest.mark.parametrize("seed", range(3))
def test_damaged_bytes_are_refused_or_harmless(sample: Sample, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    outcomes = set()
    for _ in range(10):
        damaged = bytearray(sample.content(tmp_path / "x"))
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        outcomes.add(_outcome(sample.damaged(tmp_path / "x", bytes(damaged)), sample.format))
    assert outcomes <= {"read", "refused"}


# In a process of its own, since a peak is of all that a process ever did; in one for all, since its
# start takes longer than the reading. Prints what became of each, and by how many KiB it all grew.
READ_ALONE = """
import json, resource, sys
from tensorrepo.formats.exchange.registry import read
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tests.support.builders.foreign import store
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
outcomes = {}
for path, name, options in json.loads(sys.argv[1]):
    try:
        store(read(path, name, **options))
        outcomes[path] = "read"
    except (InvalidInputError, UnsupportedError):
        outcomes[path] = "refused"
print(json.dumps([outcomes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]))
"""


@pytest.mark.soak
def test_what_promises_more_than_it_holds_is_refused_without_taking_memory(tmp_path: Path) -> None:
    readings = []
    for number, sample in enumerate(SAMPLES):
        sample.made(tmp_path / str(number))
        # A broken table is only looked at when it is asked for.
        options = {"labels": sample.file} if sample.format == "images" else {}
        readings.append((str(sample.huge(tmp_path / str(number))), sample.format, options))
    command = [sys.executable, "-c", READ_ALONE, json.dumps(readings)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    outcomes, grown_kib = json.loads(done.stdout)
    assert outcomes == {path: "refused" for path, _, _ in readings}
    assert grown_kib * 1024 < 32 * BATCH_BYTES


@every_sample
def test_a_path_that_is_not_there_is_not_found(sample: Sample, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such"):
        read(tmp_path / "nowhere", sample.format)


@every_sample
def test_what_may_not_be_read_says_so(sample: Sample, tmp_path: Path) -> None:
    path = sample.made(tmp_path / "x")
    with forbidden(path), pytest.raises(PermissionDenied, match="permission"):
        store(read(path, sample.format))


@every_sample
def test_unknown_options_are_named(sample: Sample, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no option 'colour'"):
        read(sample.made(tmp_path / "x"), colour="red")


@pytest.mark.parametrize("name", ["hdf5", "beton", "lmdb"])
def test_a_format_that_is_only_read_is_not_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="read only; written are images, "):
        export(dataset_of({"a": "int64"}), tmp_path / "out", name)
    assert list(tmp_path.iterdir()) == []


def _outcome(path: Path, name: str) -> str:
    try:
        store(read(path, name))
    except (InvalidInputError, CorruptError, UnsupportedError, NotFoundError):
        return "refused"
    return "read"
