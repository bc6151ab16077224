"""What every foreign format must do: a format is a parameter here."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    Image,
    Json,
    Schema,
    Tensor,
    Text,
)
from tensorrepo.formats.dataset.schema.types import as_type
from tensorrepo.formats.exchange.formats import FORMATS
from tensorrepo.formats.exchange.registry import export, read, recognise
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    UnsupportedError,
)
from tests.support.builders.foreign import dataset_of, forbidden, png, rows_of, store
from tests.support.effort import sampled, soaking
from tests.support.faults.damage import unrefused

if TYPE_CHECKING:
    import pyarrow as pa


ROWS = 60
RNG = np.random.default_rng(3)
NAMES = ("cat", "dög", "a/b")
LABELS = ClassLabel(NAMES)


@dataclass(frozen=True)
class Case:
    """A format, columns that it holds exactly, and which of its files can be damaged.

    `damages` says how often one test damages it: seldom where each reading starts a library.
    """

    format: str
    target: str
    columns: dict[str, Any] | Schema
    rows: dict[str, Any]
    file: str = ""
    cut_shows: bool = True
    holds_no_rows: bool = True
    repeats: bool = True
    needs: str = ""
    damages: int = 3

    def dataset(self, rows: int = ROWS) -> StoredDataset:
        if self.needs:
            pytest.importorskip(self.needs)
        return _dataset(self.name, rows)

    @property
    def name(self) -> str:
        return f"{self.format}-{self.target}"

    def export(self, folder: Path) -> Path:
        """An export of its own, which a test may spoil: made once, and written again."""
        self.dataset()
        for place, content in _exported(self.name).items():
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder / self.target

    def damaged(self, path: Path, folder: Path, content: bytes) -> Path:
        """A copy of `path` in which the file that can be damaged has `content`."""
        copy = folder / self.target
        if path.is_dir() and not copy.exists():
            shutil.copytree(path, copy)
        self.inner(copy).write_bytes(content)
        return copy

    def content(self, path: Path) -> bytes:
        return self.inner(path).read_bytes()

    def inner(self, path: Path) -> Path:
        """The file of an export that can be damaged: some formats choose its name."""
        return next(path.glob(self.file)) if self.file and path.is_dir() else path


@dataclass(frozen=True)
class Failing:
    """A dataset whose second page turns out damaged."""

    dataset: StoredDataset

    @property
    def schema(self) -> Schema:
        return self.dataset.schema

    @property
    def properties(self) -> dict[str, Any]:
        return self.dataset.properties

    def __len__(self) -> int:
        return len(self.dataset)

    def to_batches(
        self, columns: Iterable[str] | None = None, *, max_bytes: int = 0
    ) -> Iterator[pa.RecordBatch]:
        yield next(self.dataset.to_batches(columns))
        raise CorruptError("page 1 is damaged")


_PIXELS = RNG.integers(0, 256, (ROWS, 5, 7), dtype=np.uint8)
_NUMBERS = RNG.integers(0, 3, ROWS)
_TEXT = [f'row {row} é\n"quoted", and more' for row in range(ROWS)]
_MANY = {
    "image": Tensor("uint8", (5, 7)),
    "label": LABELS,
    "ragged": Tensor("int16", (None,)),
    "complex": "complex64",
    "flag": "bool",
    "text": Text(),
}
_MANY_ROWS = {
    "image": _PIXELS,
    "label": _NUMBERS,
    "ragged": [np.arange(row % 5) for row in range(ROWS)],
    "complex": RNG.normal(size=ROWS) + 1j,
    "flag": _NUMBERS > 1,
    "text": _TEXT,
}
_PLAIN = {"number": "int64", "real": "float64", "text": Text(), "flag": "bool"}
_PLAIN_ROWS = {
    "number": RNG.integers(-(1 << 62), 1 << 62, ROWS),
    "real": RNG.normal(size=ROWS),
    "text": _TEXT,
    "flag": _NUMBERS > 1,
}
_NAMED = ("image", "label", "ragged", "flag", "text")
_FIXED = ("image", "label", "complex", "flag", "text")
# In the order of their paths, as a walk meets them.
_PLACES = sorted((("cat", "dög", "a%2Fb")[row % 3], f"{row:03}.png") for row in range(ROWS))
_CLASS = {"cat": 0, "dög": 1, "a%2Fb": 2}

_SAMPLE = {
    "__key__": Text(),
    "image": Image("png"),
    "label": LABELS,
    "caption": Text(),
    "boxes": Tensor("float32", (None, 4)),
    "info": Json(),
    "real": "float64",
    "bytes": Bytes(),
}
_SAMPLE_ROWS = {
    "__key__": [f"dög/{row:03}" for row in range(ROWS)],
    "image": [png(pixels) for pixels in _PIXELS],
    "label": _NUMBERS,
    "caption": _TEXT,
    "boxes": [RNG.normal(size=(row % 4, 4)).astype("f4") for row in range(ROWS)],
    "info": [{"row": row} for row in range(ROWS)],
    "real": RNG.normal(size=ROWS),
    "bytes": [bytes(range(row)) for row in range(ROWS)],
}
_LISTS = {
    "image": Image("png"),
    "number": "int64",
    "real": "float32",
    "text": Text(),
    "bytes": Bytes(),
    "vector": Tensor("float32", (3,)),
    "tokens": Tensor("int64", (None,)),
}
_LISTS_ROWS = {
    "image": _SAMPLE_ROWS["image"],
    "number": _PLAIN_ROWS["number"],
    "real": RNG.normal(size=ROWS).astype("f4"),
    "text": _TEXT,
    "bytes": [bytes([255, *range(row)]) for row in range(ROWS)],
    "vector": RNG.normal(size=(ROWS, 3)).astype("f4"),
    "tokens": [_PLAIN_ROWS["number"][: row % 5] for row in range(ROWS)],
}

_OBJECTS = {
    "image": Image("png"),
    "file": Text(),
    "image_id": "int64",
    "width": "int64",
    "height": "int64",
    "boxes": Tensor("float32", (None, 4)),
    "categories": Tensor("int64", (None,)),
    "names": Json(),
    "iscrowd": Tensor("bool", (None,)),
    "area": Tensor("float32", (None,)),
}
_OBJECTS_ROWS = {
    "image": _SAMPLE_ROWS["image"],
    "file": [f"images/{row:03}.png" for row in range(ROWS)],
    "image_id": np.arange(ROWS)[::-1],
    "width": np.full(ROWS, 7),
    "height": np.full(ROWS, 5),
    "boxes": [RNG.uniform(0, 1, (1 + row % 4, 4)).astype("f4") for row in range(ROWS)],
    "categories": [np.arange(1 + row % 4) for row in range(ROWS)],
    "names": [["a", "b", "c", "d"][: 1 + row % 4] for row in range(ROWS)],
    "iscrowd": [np.arange(1 + row % 4) % 2 == 0 for row in range(ROWS)],
    "area": [RNG.uniform(1, 9, 1 + row % 4).astype("f4") for row in range(ROWS)],
}
_YOLO = ("image", "file", "width", "height", "boxes", "categories", "names")
_COCO = Schema(
    tuple(
        Column(name, as_type(kind), nullable=name in ("width", "height"))
        for name, kind in _OBJECTS.items()
    )
)

CASES = [
    Case("parquet", "t.parquet", _MANY, _MANY_ROWS),
    Case("arrow", "t.arrow", _MANY, _MANY_ROWS),
    Case(
        "npz",
        "t.npz",
        {name: _MANY[name] for name in _FIXED},
        {name: _MANY_ROWS[name] for name in _FIXED},
    ),
    Case("npy", "image.npy", {"image": _MANY["image"]}, {"image": _PIXELS}),
    Case(
        "idx",
        "mnist",
        {"image": _MANY["image"], "label": LABELS},
        {"image": _PIXELS, "label": _NUMBERS},
        file="images-idx3-ubyte",
    ),
    Case(
        "idx",
        "image-idx3-ubyte.gz",
        {"image": _MANY["image"]},
        {"image": _PIXELS},
    ),
    Case(
        "images",
        "pictures",
        {"image": Image("png"), "label": LABELS, "file": Text()},
        {
            "image": [png(pixels) for pixels in _PIXELS],
            "label": [_CLASS[folder] for folder, _ in _PLACES],
            "file": ["/".join(place) for place in _PLACES],
        },
        file="/".join(_PLACES[4]),
        holds_no_rows=False,
    ),
    Case("webdataset", "t.tar", _SAMPLE, _SAMPLE_ROWS, holds_no_rows=False),
    Case("webdataset", "t.tar.gz", _SAMPLE, _SAMPLE_ROWS, holds_no_rows=False),
    Case(
        "webdataset",
        "shards",
        _SAMPLE,
        _SAMPLE_ROWS,
        file="shards-000000.tar",
        holds_no_rows=False,
    ),
    Case("tfrecord", "t.tfrecord", _LISTS, _LISTS_ROWS, holds_no_rows=False),
    Case("tfrecord", "t.tfrecord.gz", _LISTS, _LISTS_ROWS, holds_no_rows=False),
    Case(
        "huggingface",
        "saved",
        {name: _MANY[name] for name in _NAMED},
        {name: _MANY_ROWS[name] for name in _NAMED},
        file="*.arrow",
    ),
    # Lance writes its own metadata in an order of chance.
    Case(
        "lance",
        "t.lance",
        _MANY,
        _MANY_ROWS,
        file="data/*.lance",
        repeats=False,
        needs="lance",
        damages=2,  # tests/formats/exchange/tables/test_lance.py damages it in more ways
    ),
    Case(
        "coco",
        "objects",
        _COCO,
        _OBJECTS_ROWS,
        file="annotations/instances.json",
        holds_no_rows=False,
    ),
    Case(
        "yolo",
        "objects",
        {name: _OBJECTS[name] for name in _YOLO},
        {name: _OBJECTS_ROWS[name] for name in _YOLO},
        file="images/003.png",
        holds_no_rows=False,
    ),
    Case("csv", "t.csv", _PLAIN, _PLAIN_ROWS, cut_shows=False, holds_no_rows=False),
    Case("jsonl", "t.jsonl", _PLAIN, _PLAIN_ROWS, cut_shows=False, holds_no_rows=False),
]
IDS = [case.name for case in CASES]
BY_NAME = {case.name: case for case in CASES}


@cache
def _dataset(name: str, rows: int) -> StoredDataset:
    case = BY_NAME[name]
    return dataset_of(case.columns, {name: values[:rows] for name, values in case.rows.items()})


@cache
def _exported(name: str) -> dict[Path, bytes]:
    """The files of a case's export, by their places in its folder."""
    case = BY_NAME[name]
    with TemporaryDirectory() as kept:
        export(case.dataset(), Path(kept, case.target), case.format)
        files = [path for path in Path(kept).rglob("*") if path.is_file()]
        return {path.relative_to(kept): path.read_bytes() for path in files}


every_case = pytest.mark.parametrize("case", CASES, ids=IDS)
every_whole = pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.cut_shows],
    ids=[name for name, case in zip(IDS, CASES, strict=True) if case.cut_shows],
)


def test_every_format_that_is_written_is_a_parameter_here() -> None:
    written = {known.name for known in FORMATS if known.write is not None}
    assert {case.format for case in CASES} == written


@every_case
def test_what_is_exported_reads_back_as_the_same_rows(case: Case, tmp_path: Path) -> None:
    back = store(read(case.export(tmp_path)))
    assert rows_of(back) == rows_of(case.dataset())


@every_whole
def test_what_is_exported_reads_back_with_the_same_columns(case: Case, tmp_path: Path) -> None:
    back = read(case.export(tmp_path))
    assert back.schema == case.dataset().schema.without_ids()


@every_case
def test_an_export_is_recognised_without_being_told_the_format(case: Case, tmp_path: Path) -> None:
    assert recognise(case.export(tmp_path)).name == case.format


@every_case
def test_reading_says_rows_bytes_and_origin(case: Case, tmp_path: Path) -> None:
    path = case.export(tmp_path)
    reading = read(path)
    assert reading.rows in (ROWS, None)
    assert reading.bytes > 0
    assert (reading.origin.path, reading.origin.format) == (str(path), case.format)


@pytest.mark.parametrize("case", [case for case in CASES if case.repeats])
def test_two_exports_of_one_dataset_are_the_same_bytes(case: Case, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first, again = (
        export(case.dataset(), folder / case.target, case.format)
        for folder in (tmp_path, tmp_path / "again")
    )
    assert case.content(first) == case.content(again)


@every_case
def test_progress_of_an_export_only_grows(case: Case, tmp_path: Path) -> None:
    told: list[int] = []

    def progress(rows: int, total: int) -> None:
        assert total == ROWS
        told.append(rows)

    export(case.dataset(), tmp_path / case.target, case.format, progress=progress)
    assert told == sorted(told)
    assert told[-1] > 0


@every_case
def test_names_may_be_unicode(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "дані 数据"
    folder.mkdir()
    assert len(store(read(case.export(folder)))) == ROWS


PARTS = (0.0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)


@every_whole
def test_a_file_cut_short_is_refused(case: Case, tmp_path: Path) -> None:
    whole = case.export(tmp_path)
    content = case.content(whole)
    (tmp_path / "cut").mkdir()

    def read_cut(length: int) -> None:
        _read_all(case.damaged(whole, tmp_path / "cut", content[:length]), case)

    lengths = [int(part * len(content)) for part in PARTS]
    lengths += [len(content) - missing for missing in (1, 2, 9)]
    lengths = sampled(lengths, case.damages)
    assert unrefused(lengths, read_cut, (InvalidInputError, CorruptError)) == {}


@every_whole
def test_every_cut_into_the_first_bytes_is_refused(case: Case, tmp_path: Path) -> None:
    whole = case.export(tmp_path)
    content = case.content(whole)
    (tmp_path / "cut").mkdir()
    cuts = [
        case.damaged(whole, tmp_path / "cut", content[:at]) and _outcome(tmp_path / "cut", case)
        for at in sampled(range(min(100, len(content))), case.damages)
    ]
    assert set(cuts) == {"refused"}


@every_case
def test_damaged_bytes_are_refused_or_harmless_and_nothing_else(case: Case, tmp_path: Path) -> None:
    whole = case.export(tmp_path)
    (tmp_path / "bad").mkdir()
    rng = random.Random(0)
    outcomes = {
        case.damaged(whole, tmp_path / "bad", _flipped(case.content(whole), rng))
        and _outcome(tmp_path / "bad", case)
        for _ in range(160 if soaking() else case.damages)
    }
    assert outcomes <= {"refused", "read"}


@every_case
def test_another_file_in_its_place_is_refused(case: Case, tmp_path: Path) -> None:
    whole = case.export(tmp_path)
    (tmp_path / "other").mkdir()
    other = case.damaged(whole, tmp_path / "other", b"\0\1\2\3 no such format" * 100)
    with pytest.raises((InvalidInputError, CorruptError)):
        _read_all(other, case)


@every_case
def test_an_empty_file_is_refused(case: Case, tmp_path: Path) -> None:
    whole = case.export(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError):
        _read_all(case.damaged(whole, tmp_path / "empty", b""), case)


@every_case
def test_a_path_that_is_not_there_is_not_found(case: Case, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such"):
        read(tmp_path / case.target, case.format)


@every_case
def test_a_file_that_may_not_be_read_says_so(case: Case, tmp_path: Path) -> None:
    path = case.export(tmp_path)
    with forbidden(path), pytest.raises(PermissionDenied, match="permission"):
        _read_all(path, case)


@every_case
def test_a_folder_that_may_not_be_written_says_so(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    dataset = case.dataset()
    with forbidden(folder), pytest.raises(PermissionDenied, match="permission"):
        export(dataset, folder / case.target, case.format)


@every_case
def test_an_export_overwrites_nothing_unless_told_to(case: Case, tmp_path: Path) -> None:
    path = case.export(tmp_path)
    before = case.content(path)
    with pytest.raises(InvalidInputError, match="exists"):
        export(case.dataset(3), path, case.format)
    assert case.content(path) == before
    export(case.dataset(3), path, case.format, overwrite=True)
    assert len(store(read(path))) == 3


@every_case
def test_a_failed_export_leaves_nothing_behind(case: Case, tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="page 1"):
        export(Failing(case.dataset()), tmp_path / case.target, case.format)
    assert list(tmp_path.iterdir()) == []


@every_case
def test_zero_rows_are_written_and_read_back_or_refused(case: Case, tmp_path: Path) -> None:
    path = export(case.dataset(0), tmp_path / case.target, case.format)
    assert _outcome(tmp_path, case) == ("read" if case.holds_no_rows else _without_rows(path))


@every_case
def test_unknown_options_are_named(case: Case, tmp_path: Path) -> None:
    path = case.export(tmp_path)
    with pytest.raises(InvalidInputError, match="no option 'colour'"):
        read(path, colour="red")
    with pytest.raises(InvalidInputError, match="no option 'colour'"):
        export(case.dataset(), tmp_path / "new", case.format, colour="red")


@every_case
def test_nulls_are_kept_or_refused_with_the_column_named(case: Case, tmp_path: Path) -> None:
    given = case.dataset(1).schema.without_ids()
    columns = [replace(column, nullable=True) for column in given.columns]
    first = {name: values[0] for name, values in case.rows.items()}
    dataset = dataset_of(Schema(tuple(columns)), [first, dict.fromkeys(first)])
    assert _kept_or_named(dataset, tmp_path / case.target, case) in ("kept", "named")


def _kept_or_named(dataset: StoredDataset, path: Path, case: Case) -> str:
    try:
        export(dataset, path, case.format)
    except InvalidInputError as problem:
        return "named" if "column" in str(problem) and "null" in str(problem) else str(problem)
    back = rows_of(store(read(path)))
    return "kept" if back == rows_of(dataset) else str(back)


def _without_rows(path: Path) -> str:
    """What a format does that keeps no columns without rows."""
    return "read" if path.suffix == ".csv" else "refused"


def _read_all(path: Path, case: Case) -> int:
    reading = read(path, case.format)
    return sum(len(next(iter(batch.values()))) for batch in reading.batches)


def _outcome(folder: Path, case: Case) -> str:
    try:
        _read_all(folder / case.target, case)
    except (InvalidInputError, CorruptError, UnsupportedError):
        return "refused"
    return "read"


def _flipped(content: bytes, rng: random.Random) -> bytes:
    """`content` with a few bytes changed, mostly where headers and footers lie."""
    damaged = bytearray(content)
    for _ in range(rng.randrange(1, 5)):
        near = min(200, len(damaged))
        at = rng.choice(
            [rng.randrange(near), -1 - rng.randrange(near), rng.randrange(len(damaged))]
        )
        damaged[at] = rng.randrange(256)
    return bytes(damaged)
