"""The codec "auto" against "none" on real data: bytes stored, writing, scans, streams, single rows.

Data of the machine itself, so that nothing is downloaded: facts of the files below the Python
installation, the text of its modules, JPEG tiles of scikit-learn's two photographs, and embeddings
of the text, the leading components of its words' frequencies; pixels of photographs and of scanned
digits. Times are of the processor, all threads; those over a link are the clock's.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import link
import numpy as np
import pyarrow as pa
from harness import SEED, Options, written

import tensorrepo as tr

CODECS = ("none", "auto")
ROWS_TAKEN = 300


def _files() -> pa.Table:
    """Facts of files: integers, moments and a share, 400,000 rows."""
    facts = []
    for folder, _, names in os.walk(Path(os.__file__).parent):
        for name in names:
            at = os.stat(os.path.join(folder, name), follow_symlinks=False)
            facts.append((at.st_size, at.st_mtime_ns, at.st_ino, at.st_mode, at.st_blocks))
    table = np.array(facts, np.int64)
    order = np.random.default_rng(SEED).integers(0, len(table), 400_000)
    names = ("size", "mtime_ns", "inode", "mode", "blocks")
    columns = {name: table[order, at] for at, name in enumerate(names)}
    columns["used"] = table[order, 0] / np.maximum(1, 512 * table[order, 4])
    return pa.table(columns)


def _texts() -> list[str]:
    """Paragraphs of the standard library's modules: about 60 MB with those of its packages."""
    found: list[str] = []
    size = 0
    for path in sorted(Path(os.__file__).parent.rglob("*.py")):
        text = path.read_text("utf-8", errors="ignore")
        parts = [part for part in text.split("\n\n") if part.strip()]
        found += parts
        size += len(text)
        if size > 60_000_000:
            break
    return found


def _text() -> pa.Table:
    return pa.table({"text": _texts()})


def _jpegs() -> pa.Table:
    from PIL import Image
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(SEED)
    found = []
    photos = load_sample_images().images
    for at in range(4000):
        photo = photos[at % 2]
        top, left = (int(rng.integers(0, size - 160)) for size in photo.shape[:2])
        file = io.BytesIO()
        Image.fromarray(photo[top : top + 160, left : left + 160]).save(file, "JPEG", quality=85)
        found.append(file.getvalue())
    return pa.table({"image": pa.array(found, pa.binary()), "label": np.arange(4000) % 2})


def _embeddings() -> pa.Table:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(max_features=5000).fit_transform(_texts()[:60_000])
    values = TruncatedSVD(256, random_state=SEED).fit_transform(words).astype(np.float32)
    flat = pa.array(values.reshape(-1))
    return pa.table({"embedding": pa.FixedSizeListArray.from_arrays(flat, 256)})


def _photos() -> pa.Table:
    """Uncompressed pictures: tiles of photographs."""
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(SEED)
    photos = load_sample_images().images
    rows = np.empty((4000, 96, 96), np.uint8)
    for at in range(len(rows)):
        photo = photos[at % 2]
        top, left = (int(rng.integers(0, size - 96)) for size in photo.shape[:2])
        rows[at] = photo[top : top + 96, left : left + 96, 1]
    return _pixels(rows)


def _digits() -> pa.Table:
    """Uncompressed pictures: scanned digits, as MNIST has them."""
    from sklearn.datasets import load_digits

    digits = load_digits().images.astype(np.uint8) * 15
    order = np.random.default_rng(SEED).integers(0, len(digits), 40_000)
    return _pixels(np.kron(digits[order], np.ones((1, 4, 4), np.uint8)))


def _pixels(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> pa.Table:
    size = rows[0].size
    return pa.table({"pixels": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), size)})


SCHEMAS: dict[str, Any] = {
    "files": {
        **dict.fromkeys(("size", "mtime_ns", "inode", "mode", "blocks"), "int64"),
        "used": "float64",
    },
    "text": {"text": tr.Text()},
    "jpeg": {"image": tr.Bytes(), "label": "int64"},
    "embeddings": {"embedding": tr.Embedding("float32", 256)},
    "photos": {"pixels": tr.Tensor("uint8", (96 * 96,))},
    "digits": {"pixels": tr.Tensor("uint8", (32 * 32,))},
}
TABLES: dict[str, Callable[[], pa.Table]] = {
    "files": _files, "text": _text, "jpeg": _jpegs, "embeddings": _embeddings,
    "photos": _photos,
    "digits": _digits,
}  # fmt: skip


def _case(name: str) -> Callable[[Path, Options], dict[str, Any]]:
    def measure(folder: Path, options: Options) -> dict[str, Any]:
        table = TABLES[name]()
        found: dict[str, Any] = {"rows": table.num_rows, "raw_mb": round(table.nbytes / 1e6, 1)}
        times: dict[str, list[float]] = {}
        for number in range(options.rounds):
            for codec in CODECS:
                place = folder / f"{codec}-{number}"
                with written(place.parent) as change:
                    _note(
                        times, f"write_{codec}", lambda c=codec, p=place: _write(p, name, table, c)
                    )
                found[f"stored_mb_{codec}"] = round(change.bytes / 1e6, 1)
                dataset = tr.open(place).dataset("x")
                _note(times, f"scan_{codec}", lambda d=dataset: _scan(d))
                _note(times, f"stream_{codec}", lambda d=dataset: _stream(d))
                _note(times, f"rows_{codec}", lambda d=dataset: _rows(d))
        for key, seconds in times.items():
            found[f"{key}_s"] = round(statistics.median(seconds), 3)
        return found

    return measure


def _note(times: dict[str, list[float]], key: str, work: Callable[[], object]) -> None:
    begun = time.process_time()
    work()
    times.setdefault(key, []).append(time.process_time() - begun)


def _write(place: Path, name: str, table: pa.Table, codec: str) -> None:
    with tr.init(place, author="Bench <b@example.org>").transaction(message="x") as change:
        change.create_dataset("x", columns=SCHEMAS[name]).append(table, codec=codec)


def _scan(dataset: tr.Dataset) -> None:
    for _ in dataset.stored.to_batches():
        pass


def _stream(dataset: tr.Dataset) -> None:
    for _ in dataset.stream(batch_size=256, shuffle="pages", seed=SEED):
        pass


def _rows(dataset: tr.Dataset) -> None:
    for row in np.random.default_rng(SEED).integers(0, len(dataset), ROWS_TAKEN).tolist():
        dataset[row]


MBIT, LATENCY_MS = 300, 5
CLIENT = """
import json, sys, time
import tensorrepo as tr
url, endpoint = sys.argv[1:]
access = {"endpoint": endpoint, "key": "any", "secret": "any", "region": "us-east-1"}
dataset = tr.open(url, storage_options=access).dataset("x")
begun, processor = time.perf_counter(), time.process_time()
for _ in dataset.stream(batch_size=256, shuffle="pages", seed=7):
    pass
print(json.dumps([time.perf_counter() - begun, time.process_time() - processor]))
"""


def _over_link(folder: Path, options: Options) -> dict[str, Any]:
    """Streams of all cases from an S3 server behind a link: seconds of the clock, none and auto."""
    bucket = folder / "server" / "bucket"
    bucket.mkdir(parents=True)
    for name, make in TABLES.items():
        table = make()
        for codec in CODECS:
            _write(bucket / f"{name}-{codec}", name, table, codec)
    seconds: dict[str, list[float]] = {}
    with (
        link.namespace(MBIT) as inside,
        link.server(folder / "server", LATENCY_MS, inside) as endpoint,
    ):
        for _ in range(options.rounds):
            for name in (f"{name}-{codec}" for name in TABLES for codec in CODECS):
                command = [*inside, sys.executable, "-c", CLIENT, f"s3://bucket/{name}", endpoint]
                with tempfile.TemporaryDirectory(dir=folder) as cache:  # nothing is there yet
                    there = {**os.environ, "XDG_CACHE_HOME": cache}
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=there)
                seconds.setdefault(name, []).append(json.loads(done.stdout)[0])
    told = {name: round(statistics.median(each), 2) for name, each in seconds.items()}
    return {"mbit": MBIT if inside else None, "latency_ms": LATENCY_MS, **told}


CASES = {**{f"auto_{name}": _case(name) for name in TABLES}, "auto_link": _over_link}
