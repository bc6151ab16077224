"""The golden datasets: what they hold, and how they are written today.

`python -m tests.support.golden_dataset` writes the files anew: only when the format changes.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from tensorrepo.formats.codecs.buffers import Codec
from tensorrepo.formats.dataset.schema import (
    Bytes,
    ClassLabel,
    Column,
    Embedding,
    Image,
    Json,
    Scalar,
    Schema,
    Tensor,
    Text,
    Timestamp,
)
from tests.support.datasets import stored
from tests.support.objects import MemoryObjects

GOLDEN = Path(__file__).parents[1] / "golden" / "dataset"

EVERYTHING = Schema(
    (
        Column("flag", Scalar("bool")),
        Column("count", Scalar("int16"), nullable=True),
        Column("weight", Scalar("float64")),
        Column("wave", Scalar("complex64")),
        Column("label", ClassLabel(("cat", "dog"))),
        Column("when", Timestamp("ms", "UTC")),
        Column("pixels", Tensor("uint8", (16, 20))),
        Column("vector", Embedding("float16", 3)),
        Column("tokens", Tensor("int32", (None,)), nullable=True),
        Column("cloud", Tensor("float32", (None, 2, None))),
        Column("image", Image("png")),
        Column("raw", Bytes()),
        Column("caption", Text(), nullable=True),
        Column("extra", Json()),
    )
)
ROWS: list[dict[str, Any]] = [
    {
        "flag": at % 2 == 0,
        "count": None if at == 1 else at - 2,
        "weight": [0.0, float("nan"), -1.5, 1e300][at],
        "wave": complex(at, -at),
        "label": at % 2,
        "when": datetime(2026, 1, 1 + at),  # noqa: DTZ001  # taken as UTC
        "pixels": np.arange(320, dtype=np.uint8).reshape(16, 20) + at,
        "vector": [at, 0.5, -2],
        "tokens": None if at == 3 else list(range(at)),
        "cloud": np.full((at, 2, 3 - at % 3), at, np.float32),
        "image": b"\x89PNG" + bytes([at]) * 70 * at,
        "raw": bytes(range(at * 20)),
        "caption": [None, "", "ein Kätzchen", "🐕"][at],
        "extra": [{"a": [1, None]}, [], "text", 1.5][at],
    }
    for at in range(4)
]
LARGE = Schema.of({"number": "int64"})
NUMBERS = (np.arange(210, dtype=np.int64) * 1_000_003 - 5).tolist()
CASES: dict[str, tuple[Schema, list[list[dict[str, Any]]], dict[str, Any]]] = {
    # Everything stands in the root; two pages a column, in two fragments.
    "everything": (EVERYTHING, [ROWS[:3], ROWS[3:]], {"page_bytes": 700}),
    # The same in zstd frames: compared by value only.
    "zstd": (EVERYTHING, [ROWS * 8], {"codec": Codec.ZSTD}),
    "shuffled": (EVERYTHING, [ROWS * 8], {"codec": Codec.SHUFFLE_ZSTD}),
    # A page index and a chunk of their own: a page for each row.
    "large": (LARGE, [[{"number": n} for n in NUMBERS]], {"page_bytes": 8}),
    "empty": (EVERYTHING, [], {}),
}
COMPRESSED = ("zstd", "shuffled")


def golden_objects(case: str) -> dict[str, bytes]:
    """The objects of one case by file name, as this version writes them."""
    schema, batches, options = CASES[case]
    objects = MemoryObjects()
    stored(objects, schema, batches, seed=2026, **options)
    kinds = {digest: link.kind.name.lower() for digest, link in objects.links.items()}
    return {f"{case}.{kinds[digest]}.bin": whole for digest, whole in objects.stored.items()}


def golden_files(case: str) -> dict[str, bytes]:
    """The golden objects of one case by file name."""
    return {path.name: path.read_bytes() for path in sorted(GOLDEN.glob(f"{case}.*.bin"))}


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in CASES:
        for file, content in golden_objects(name).items():
            (GOLDEN / file).write_bytes(content)
