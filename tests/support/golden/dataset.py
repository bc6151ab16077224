"""The golden datasets: what they hold, and how they are written today.

`python -m tests.support.golden.dataset` writes the files anew: only when the format changes.
"""

from __future__ import annotations

import decimal
import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.buffer_codecs import Codec, CodecChoice
from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.evolve import (
    add_column,
    drop_column,
    rename_column,
    widen_column,
)
from tensorrepo.formats.dataset.metadata import boundaries, span_write
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnType,
    Date,
    Decimal,
    Duration,
    Embedding,
    Image,
    Json,
    Link,
    LinkValue,
    List,
    Map,
    Null,
    Scalar,
    Schema,
    Struct,
    Tensor,
    Text,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.objects.envelope import ObjectLink
from tests.support.architecture.sources import ROOT
from tests.support.builders.datasets import Rows, stored
from tests.support.builders.jpegs import baseline, progressive
from tests.support.builders.objects import MemoryObjects

GOLDEN = ROOT / "tests/golden/dataset"
SEED = 2026
PNG = bytes.fromhex("89504e470d0a1a0a0000000d494844520000000300000002080200000012f07fc8")  # 3 x 2
SMALL_CUTS = {"MIN_BYTES": 192, "MEAN_BYTES": 384, "MAX_BYTES": 640}

EVERYTHING = Schema(
    (
        Column("flag", Scalar("bool")),
        Column("count", Scalar("int16"), nullable=True),
        Column("weight", Scalar("float64")),
        Column("wave", Scalar("complex64")),
        Column("small", Scalar("bfloat16")),
        Column("tiny", Tensor("float8_e4m3fn", (2,))),
        Column("least", Tensor("float8_e5m2", (None,)), nullable=True),
        Column("label", ClassLabel(("cat", "dog"))),
        Column("when", Timestamp("ms", "UTC")),
        Column("pixels", Tensor("uint8", (16, 20))),
        Column("vector", Embedding("float16", 3)),
        Column("tokens", Tensor("int32", (None,)), nullable=True),
        Column("cloud", Tensor("float32", (None, 2, None))),
        Column("image", Image()),
        Column("raw", Bytes()),
        Column("caption", Text(), nullable=True),
        Column("extra", Json()),
        Column("elsewhere", Link(), nullable=True),
    )
)
ROWS: Rows = [
    {
        "flag": at % 2 == 0,
        "count": None if at == 1 else at - 2,
        "weight": [0.0, float("nan"), -1.5, 1e300][at],
        "wave": complex(at, -at),
        "small": ml_dtypes.bfloat16(at / 3),
        "tiny": np.array([at, -0.5], ml_dtypes.float8_e4m3fn),
        "least": None if at == 2 else np.full(at, at, ml_dtypes.float8_e5m2),
        "label": at % 2,
        "when": datetime(2026, 1, 1 + at),  # noqa: DTZ001  # taken as UTC
        "pixels": np.arange(320, dtype=np.uint8).reshape(16, 20) + at,
        "vector": [at, 0.5, -2],
        "tokens": None if at == 3 else list(range(at)),
        "cloud": np.full((at, 2, 3 - at % 3), at, np.float32),
        "image": [PNG, b"no image", PNG, b""][at],
        "raw": bytes(range(at * 20)),
        "caption": [None, "", "ein Kätzchen", "🐕"][at],
        "extra": [{"a": [1, None]}, [], "text", 1.5][at],
        "elsewhere": None if at == 0 else LinkValue(f"s3://bucket/{at}", at, 99, size=99 * at),
    }
    for at in range(4)
]
VOLUMES = Schema(
    (
        Column("volume", Tensor("int16", (None, 3, None), tile=(4, 2, 16)), nullable=True),
        Column("name", Text()),
    )
)
SIGNALS = Schema((Column("x", Tensor("int16", (40,)), nullable=True), Column("n", Scalar("int32"))))


@dataclass(frozen=True)
class Case:
    """A dataset, the rows that it must have, and whether compressors made its bytes."""

    dataset: StoredDataset
    rows: Rows
    is_compressed: bool = False


class Making:
    """One dataset as it is made and changed."""

    def __init__(self, schema: Schema, rows: Rows, *more: Rows, **options: Any) -> None:
        self.objects = MemoryObjects()
        self.dataset = stored(self.objects, schema, [rows, *more], seed=SEED, **options)
        self._seed = SEED

    def take(self, link: ObjectLink) -> None:
        self.dataset = open_dataset(self.objects, link.digest)

    def change(self, verb: Callable[..., ObjectLink], *given: Any, **options: Any) -> None:
        self.take(verb(self.objects, self.dataset, *given, **options))

    def append(self, rows: Rows) -> None:
        schema = self.dataset.schema.visible.without_ids()
        self._seed += 1
        uids = random.Random(self._seed)
        self.take(write_dataset(self.objects, schema, [rows], base=self.dataset, rng=uids))


def _signals(first: int, stop: int) -> Rows:
    return [
        {"x": None if at % 17 == 5 else np.full(40, at, np.int16), "n": at}
        for at in range(first, stop)
    ]


def _plain(codec: CodecChoice = Codec.NONE) -> Case:
    rows = ROWS if codec is Codec.NONE else ROWS * 3
    made = Making(EVERYTHING, rows[:3], rows[3:], page_bytes=700, codec=codec)
    return Case(made.dataset, rows, is_compressed=codec is not Codec.NONE)


def _empty() -> Case:
    return Case(Making(EVERYTHING, []).dataset, [])


def _large() -> Case:
    """A page index and a chunk of their own: a page for each row."""
    rows = [{"number": at * 1_000_003 - 5} for at in range(210)]
    return Case(Making(Schema.of({"number": "int64"}), rows, page_bytes=8).dataset, rows)


def _tiled(codec: CodecChoice = Codec.NONE) -> Case:
    shapes = [(6, 3, 20), (0, 3, 2), None, (9, 3, 33), (4, 3, 16)]
    rows: Rows = [
        {"volume": None if shape is None else _volume(shape, at), "name": f"row {at}"}
        for at, shape in enumerate(shapes)
    ]
    made = Making(VOLUMES, rows, codec=codec)
    made.change(update_rows, [1, 2], {"volume": [None, _volume((1, 3, 9), 7)]})
    rows[1]["volume"], rows[2]["volume"] = None, _volume((1, 3, 9), 7)
    return Case(made.dataset, rows, is_compressed=codec is not Codec.NONE)


def _volume(shape: tuple[int, ...], first: int) -> Any:
    return np.arange(first, first + int(np.prod(shape)), dtype=np.int16).reshape(shape)


def _deleted() -> Case:
    """Few rows of a fragment by their offsets, many of another in a bitmap."""
    rows = _signals(0, 120)
    made = Making(SIGNALS, rows[:70])
    made.append(rows[70:])
    gone = {3, 40, *range(80, 110, 2)}
    made.change(delete_rows, sorted(gone))
    return Case(made.dataset, [row for at, row in enumerate(rows) if at not in gone])


def _patched() -> Case:
    """Patches, some laid over others; in another fragment pages are replaced."""
    rows = _signals(0, 100)
    made = Making(SIGNALS, rows)
    made.append(_signals(100, 180))
    rows += _signals(100, 180)
    changes: list[dict[int, Any]] = [
        {2: np.full(40, -2), 5: np.full(40, -5), 90: None},
        {2: None, 90: np.full(40, -90), 91: np.full(40, -91)},
        {at: np.full(40, -at) for at in range(100, 150)},
    ]
    for change in changes:
        made.change(update_rows, list(change), {"x": list(change.values())})
        for at, value in change.items():
            rows[at] = rows[at] | {"x": value}
    made.change(update_rows, [7], {"n": 7000})
    rows[7] = rows[7] | {"n": 7000}
    return Case(made.dataset, rows)


def _columns() -> Case:
    """Columns came, went and changed; rows were appended at the end and patched in between."""
    rows = [row | {"old": f"{row['n']}"} for row in _signals(0, 90)]
    made = Making(Schema((*SIGNALS.columns, Column("old", Text()))), rows)
    made.change(update_rows, [4], {"x": [np.full(40, -4)]})
    made.change(add_column, Column("mean", Scalar("float32"), default=0.5))
    made.change(add_column, Column("note", Text(), nullable=True))
    made.change(add_column, Column("square", Scalar("int64")), [row["n"] ** 2 for row in rows])
    made.change(rename_column, "n", "number")
    made.change(drop_column, "old")
    made.change(widen_column, "x", Tensor("float32", (None,)))
    made.change(widen_column, "number", "int64", nullable=True)
    found = [
        {
            "x": row["x"],
            "number": row["n"],
            "mean": np.float32(0.5),
            "note": None,
            "square": row["n"] ** 2,
        }
        for row in rows
    ]
    found[4]["x"] = np.full(40, -4)
    made.append([{"x": [0.25], "number": None, "mean": 1.5, "note": "new", "square": -1}])
    found.append({"x": [0.25], "number": None, "mean": 1.5, "note": "new", "square": -1})
    made.change(update_rows, [0], {"note": "first"})
    found[0]["note"] = "first"
    return Case(made.dataset, found)


def _compacted() -> Case:
    """Rows of three fragments in one, and what was appended since."""
    rows = _signals(0, 120)
    made = Making(SIGNALS, rows[:50])
    made.append(rows[50:90])
    made.append(rows[90:])
    made.change(delete_rows, list(range(30, 70, 3)))
    made.change(update_rows, [0], {"x": [np.full(40, -1)]})
    made.change(compact_dataset, codec=Codec.NONE, rng=random.Random(7))
    made.append(_signals(120, 125))
    rows[0] = rows[0] | {"x": np.full(40, -1)}
    kept = [row for at, row in enumerate(rows) if at not in range(30, 70, 3)]
    return Case(made.dataset, kept + _signals(120, 125))


def _leaves() -> Case:
    """Boundaries close enough for several leaves, all of them objects but the last."""
    rows = [{"n": at} for at in range(40)]
    with small_cuts():
        made = Making(Schema.of({"n": "int64"}), rows[:1])
        for at in range(1, 40):
            made.append([rows[at]])
        made.change(delete_rows, [3, 30])
    return Case(made.dataset, [row for at, row in enumerate(rows) if at not in (3, 30)])


def _types() -> Case:
    """Types that Arrow has beyond numbers, some in another Arrow form than the usual one."""
    nested = Struct({"a": "int16", "b": List(Map(Text(), Decimal(5, 2))), "c": List(Date(), 2)})
    row = {
        "day": date(2026, 1, 31),
        "time": time(12, 30, 1),
        "exact_time": np.timedelta64(86_399_999_999_999, "ns"),
        "took": np.timedelta64(-5, "ms"),
        "price": decimal.Decimal("-12.50"),
        "long": decimal.Decimal("12345678901234567890.12"),
        "longest": decimal.Decimal(-1),
        "nothing": None,
        "id": b"0123456789abcdef",
        "word": "ä",
        "some": [1, None, 3],
        "box": {"a": 1, "b": [[("k", decimal.Decimal("1.50")), ("l", None)], None], "c": None},
    }
    kinds: dict[str, tuple[ColumnType, pa.DataType | None]] = {
        "day": (Date(), pa.date64()),
        "time": (Time("s"), None),
        "exact_time": (Time("ns"), None),
        "took": (Duration("ms"), None),
        "price": (Decimal(9, 2), pa.decimal256(9, 2)),
        "long": (Decimal(38, 2), None),
        "longest": (Decimal(76), None),
        "nothing": (Null(), None),
        "id": (Bytes(16), pa.uuid()),
        "word": (Text(), pa.dictionary(pa.int32(), pa.string())),
        "some": (List("int8"), pa.list_(pa.int8())),
        "box": (nested, None),
    }
    columns = [Column(name, kind, True, arrow=form) for name, (kind, form) in kinds.items()]
    rows: Rows = [row, dict.fromkeys(kinds), {**row, "some": [], "box": {"a": None, "b": []}}]
    rows[2]["box"] = {"a": None, "b": [], "c": [date(1969, 12, 31), None]}
    return Case(Making(Schema(tuple(columns)), rows).dataset, rows)


def small_cuts() -> ExitStack:
    """Boundaries so close that a few fragments make several leaves and indexes."""
    stack = ExitStack()
    for name, size in SMALL_CUTS.items():
        stack.enter_context(patch.object(boundaries, name, size))
    stack.enter_context(patch.object(span_write, "INLINE_INDEX_BYTES", 300))
    stack.enter_context(patch.object(span_write, "INLINE_LEAF_BYTES", SMALL_CUTS["MIN_BYTES"]))
    return stack


def _progressive() -> Case:
    """Pictures of every kind, in chunks and inline, and one that was set later."""
    pictures = [
        baseline(48, 64, seed=1),
        baseline(37, 53, seed=2, interval=3, padding=0, behind=b"\xff\xd9 and more"),
        None,
        baseline(90, 70, ((1, 1),), seed=3),
        progressive(64, 64, seed=4),
        b"no picture",
        baseline(50, 66, ((2, 1), (1, 1), (1, 1)), seed=5),
        baseline(33, 40, ((1, 1),) * 4, seed=6, interval=1),
        b"",
    ]
    rows: Rows = [{"image": each, "n": at} for at, each in enumerate(pictures)]
    image = Column("image", Image(progressive=True), nullable=True)
    schema = Schema((image, Column("n", Scalar("int32"))))
    made = Making(schema, rows[:7], page_bytes=6000)
    made.append(rows[7:])
    made.change(update_rows, [3], {"image": [baseline(16, 16, seed=7)]})
    rows[3]["image"] = baseline(16, 16, seed=7)
    return Case(made.dataset, rows, is_compressed=True)


CASES: dict[str, Callable[[], Case]] = {
    "everything": _plain,
    "zstd": lambda: _plain(Codec.ZSTD),
    "shuffled": lambda: _plain(Codec.SHUFFLE_ZSTD),
    "bitpacked": lambda: replace(_plain(Codec.BITPACK), is_compressed=False),  # by our own code
    "empty": _empty,
    "large": _large,
    "tiled": _tiled,
    "tiled-shuffled": lambda: _tiled(Codec.SHUFFLE_ZSTD),
    "deleted": _deleted,
    "patched": _patched,
    "columns": _columns,
    "compacted": _compacted,
    "leaves": _leaves,
    "types": _types,
    "progressive": _progressive,
}


def golden_objects(dataset: StoredDataset) -> dict[str, bytes]:
    """The objects that a dataset is made of by file name: its root, and what that leads to."""
    objects = dataset.objects
    assert isinstance(objects, MemoryObjects), "cases are made in memory"
    found, waiting = {dataset.digest: "root.bin"}, [dataset.digest]
    while waiting:
        for link in objects.get(waiting.pop(0)).links:
            if link.digest not in found:
                kind = link.kind.label.replace(" ", "_")
                found[link.digest] = f"{kind}.{len(found)}.bin"
                waiting.append(link.digest)
    return {name: objects.stored[digest] for digest, name in found.items()}


def golden_files(case: str) -> dict[str, bytes]:
    """The golden objects of one case by file name."""
    return {path.name: path.read_bytes() for path in sorted((GOLDEN / case).glob("*.bin"))}


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for name, make in CASES.items():
        (GOLDEN / name).mkdir(parents=True)
        for file, content in golden_objects(make().dataset).items():
            (GOLDEN / name / file).write_bytes(content)
