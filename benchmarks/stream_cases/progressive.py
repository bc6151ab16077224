"""Small pictures from a part of their bytes: progressive columns of images beside ordinary ones.

Both kinds are measured: files stored as scans ("instead"), and small pictures "beside" files.

The pictures are parts of the photographs that packages of the development environment bring
(scikit-learn, matplotlib), 500 x 375, in three qualities, as many people store them. Told are the
bytes that an epoch reads, how near the pixels are to those of whole files, and what it costs: the
time of an epoch at several sizes, of reading whole files, and of storing them.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEED, Options, ratio, reopen, store_dataset
from numpy.typing import NDArray
from PIL import Image as Pillow

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Image, Schema
from tensorrepo.formats.dataset.streaming.collate.decode import Decode
from tensorrepo.formats.dataset.streaming.options import StreamOptions
from tensorrepo.formats.dataset.streaming.stream import BatchStream, stream

PHOTOS = (
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
    ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
)
ROWS, BATCH = 600, 64
WIDTH, HEIGHT = 500, 375
QUALITIES = (75, 90, 95)
SIZES = (32, 64, 96, 128, 160, 224)
KINDS = {"whole": False, "instead": True, "beside": "beside"}
Pixels = NDArray[np.uint8]


def progressive(folder: Path, options: Options) -> dict[str, Any]:
    """Bytes, nearness and pictures a second of progressive columns, by size."""
    pictures = photographs(round(ROWS * options.scale))
    stored, seconds = {}, {}
    for name, kind in KINDS.items():
        begun = time.perf_counter()
        stored[name] = _stored(folder / name, pictures, kind)
        seconds[name] = time.perf_counter() - begun
        assert [row["x"] for row in stored[name]] == pictures, "pictures that came back otherwise"
    whole = stored["whole"]
    size_bytes = sum(map(len, pictures))
    return {
        "rows": len(pictures),
        "mean_bytes": size_bytes // len(pictures),
        "stored": {
            name: round(each.stored_bytes / whole.stored_bytes, 3) for name, each in stored.items()
        },
        "stored_mb_per_s": {
            name: round(size_bytes / 1e6 / each, 1) for name, each in seconds.items()
        },
        "sizes": {size: _of_size(stored, size, options.rounds) for size in SIZES},
        "whole_files": _beside(_files, stored, options.rounds),
        "goal": "bytes at 96: 0.5; whole files: 0.95",
    }


def photographs(count: int) -> list[bytes]:
    """JPEGs of parts of photographs, the same for the same versions of the packages."""
    whole = []
    for package, path in PHOTOS:
        spec = find_spec(package)
        assert spec is not None, f"{package} brings photographs"
        assert spec.origin is not None, f"{package} is a folder"
        whole.append(Pillow.open(Path(spec.origin).parent / path).convert("RGB"))
    rng = np.random.default_rng(SEED)
    found = []
    for at in range(count):
        photo = whole[at % len(whole)]
        part = rng.uniform(0.7, 1.0)
        width = int(min(photo.width, photo.height * WIDTH / HEIGHT) * part)
        height = width * HEIGHT // WIDTH
        left = int(rng.integers(photo.width - width + 1))
        top = int(rng.integers(photo.height - height + 1))
        box = (left, top, left + width, top + height)
        out = io.BytesIO()
        cut = photo.resize((WIDTH, HEIGHT), Pillow.Resampling.LANCZOS, box=box)
        cut.save(out, "JPEG", quality=QUALITIES[at // len(whole) % len(QUALITIES)])
        found.append(out.getvalue())
    return found


def _stored(folder: Path, pictures: list[bytes], kind: Any) -> StoredDataset:
    schema = Schema.of({"x": Image("jpeg", progressive=kind)})
    digest = store_dataset(str(folder), {}, schema, iter([{"x": pictures}]))
    return reopen(str(folder), {}, digest)


def _stream(dataset: StoredDataset, size: int, scans: Any) -> BatchStream:
    how = Decode(size=size, scans=scans)
    return stream(dataset, StreamOptions(batch_size=BATCH, shuffle=False, decode={"x": how}))


def _of_size(stored: dict[str, StoredDataset], size: int, rounds: int) -> dict[str, Any]:
    streams = {name: _stream(each, size, "auto") for name, each in stored.items()}
    pairs = list(zip(_pixels(streams["instead"]), _pixels(streams["whole"]), strict=True))
    signal = [_psnr(*pair) for pair in pairs]
    likeness = [_ssim(*pair) for pair in pairs]
    read = {name: each.explain().read_bytes for name, each in streams.items()}
    return {
        "bytes": {name: round(each / read["whole"], 3) for name, each in read.items()},
        "psnr": round(statistics.mean(signal), 1),
        "least_psnr": round(min(signal), 1),
        "ssim": round(statistics.mean(likeness), 4),
        "speed": _beside(lambda ds: _epoch(ds, size), stored, rounds),
    }


def _beside(
    run: Callable[[StoredDataset], None], stored: dict[str, StoredDataset], rounds: int
) -> dict[str, Any]:
    """Pictures a second and processor time of each, and ratios of both to whole files, in turns.

    Above 1 is faster than whole files; the first round does not count.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in stored}
    for turn in range(rounds + 1):
        for name, dataset in stored.items():
            before = time.perf_counter(), time.process_time()
            run(dataset)
            after = time.perf_counter(), time.process_time()
            if turn:
                found[name].append((after[0] - before[0], after[1] - before[1]))
    rows = len(stored["whole"])
    walls = {name: [wall for wall, _ in each] for name, each in found.items()}
    cpus = {name: [cpu for _, cpu in each] for name, each in found.items()}
    other = ("instead", "beside")
    return {
        "per_s": {name: round(rows / statistics.median(each)) for name, each in walls.items()},
        "cpu_us": {
            name: round(statistics.median(each) / rows * 1e6) for name, each in cpus.items()
        },
        "ratio": {name: ratio(walls["whole"], walls[name]) for name in other},
        "ratio_by_cpu": {name: ratio(cpus["whole"], cpus[name]) for name in other},
    }


def _epoch(dataset: StoredDataset, size: int) -> None:
    rows = sum(len(batch.rows) for batch in _stream(dataset, size, "auto"))
    assert rows == len(dataset), "not every row came"


def _files(dataset: StoredDataset) -> None:
    batches = stream(dataset, StreamOptions(batch_size=BATCH, shuffle=False))
    total = sum(len(each) for batch in batches for each in batch["x"])
    assert total, "no bytes came"


def _pixels(opened: BatchStream) -> list[Pixels]:
    return [np.asarray(each) for batch in opened for each in batch["x"]]


def _psnr(one: Pixels, other: Pixels) -> float:
    error = float(((one.astype(np.float64) - other) ** 2).mean())
    return 99.0 if not error else 10 * float(np.log10(255**2 / error))


def _ssim(one: Pixels, other: Pixels) -> float:
    """Structural similarity of brightness (Wang et al. 2004), in windows of 7 x 7."""
    a, b = (each.astype(np.float64) @ (0.299, 0.587, 0.114) for each in (one, other))
    mean_a, mean_b = _windows(a), _windows(b)
    var_a, var_b = _windows(a * a) - mean_a**2, _windows(b * b) - mean_b**2
    both = _windows(a * b) - mean_a * mean_b
    low, high = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    found = (2 * mean_a * mean_b + low) * (2 * both + high)
    found /= (mean_a**2 + mean_b**2 + low) * (var_a + var_b + high)
    return float(found.mean())


def _windows(plane: NDArray[np.float64]) -> NDArray[np.float64]:
    views = np.lib.stride_tricks.sliding_window_view(plane, (7, 7))
    means: NDArray[np.float64] = views.mean(axis=(-1, -2))
    return means


CASES = {"progressive": progressive}
