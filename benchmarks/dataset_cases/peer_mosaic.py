"""Mosaic's side of an ingest; runs in the peers' environment, see `peer_support`.

Its writer is one process's: as its guide says, several write a folder each, merged in the end.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from torch import library

# Its import needs torchvision, whose operators are missing beside a torch from elsewhere; writing
# needs none of them: declared, they are enough.
_OPERATORS = library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor any) -> Tensor")

import streaming  # noqa: E402 - behind what it needs
from peer_support import arrays, jpegs, serve  # noqa: E402 - the same
from streaming.base.util import merge_index  # noqa: E402 - the same


def write(folder: Path, kind: str, place: Path, workers: int) -> None:
    share = write_images if kind == "jpeg" else write_rows
    context = multiprocessing.get_context("fork")
    parts = [
        context.Process(target=share, args=(folder, place / str(part), part, workers))
        for part in range(workers)
    ]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
        if part.exitcode:
            raise SystemExit("a writer failed")
    merge_index(str(place), keep_local=True)


def write_images(folder: Path, place: Path, part: int, parts: int) -> None:
    files = jpegs(folder)
    step = -(-len(files) // parts)
    columns = {"image": "bytes", "label": "int"}
    with streaming.MDSWriter(out=str(place), columns=columns) as out:
        for path, label in files[part * step :][:step]:
            out.write({"image": Path(path).read_bytes(), "label": label})


def write_rows(folder: Path, place: Path, part: int, parts: int) -> None:
    values, labels = arrays(folder)
    step = -(-len(values) // parts)
    columns = {"x": f"ndarray:uint8:{values.shape[1]}", "y": "int"}
    mine = slice(part * step, (part + 1) * step)
    with streaming.MDSWriter(out=str(place), columns=columns) as out:
        for row, label in zip(values[mine], labels[mine], strict=True):
            out.write({"x": row, "y": int(label)})


if __name__ == "__main__":
    serve(streaming.__version__, write)
