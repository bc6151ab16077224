from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorrepo.repo.ids import Buffer

Bytes: TypeAlias = NDArray[np.uint8]
Whole: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[Any]

def look_files(paths: bytes, found: Numbers, /) -> int: ...
def read_files(paths: bytes, found: Numbers, out: Bytes, /) -> int: ...
def jpeg_header(data: Buffer, /) -> tuple[int, int, int, int] | None: ...
def number_spans(data: Buffer, size: int, /) -> tuple[int, int, int, int]: ...
def result_room(size: int, /) -> Buffer: ...
def shuffle(
    keys: NDArray[np.uint64], counts: Whole, at: Whole, out: NDArray[np.uint32], /
) -> None: ...
def scatter(key: int, count: int, positions: Whole, out: Whole, /) -> None: ...
def find(start: Whole, rows: Whole, piece: Whole, place: Whole, /) -> None: ...
def look_up(
    shuffled: NDArray[np.uint32], slot: Whole, run: Whole, place: Whole, out: Whole, /
) -> None: ...
def walk_lanes(
    start: Whole,
    cut: Whole,
    first: Whole,
    lanes: int,
    bands: int,
    stride: int,
    key: int,
    blocks: tuple[int, int],
    own_bands: tuple[int, int],
    out: Whole,
    /,
) -> int: ...
def opened(run: Whole, is_open: NDArray[np.bool_], out: Whole, /) -> int: ...
def closed(
    run: Whole,
    busy: NDArray[np.bool_],
    following: Whole,
    is_open: NDArray[np.bool_],
    marks: Bytes,
    out: Whole,
    /,
) -> int: ...
def mix_cells(
    data: Bytes,
    offsets: Whole,
    valid: NDArray[np.bool_] | None,
    lanes: NDArray[np.uint64],
    /,
) -> None: ...
def sum_rows(
    data: Bytes, bounds: Whole, out: NDArray[np.uint32], copy: Bytes | None, /
) -> None: ...
def fill_pages(
    rows: list[Bytes],
    heads: list[bytes],
    rooms: list[Bytes],
    row_bytes: int,
    checksums: NDArray[np.uint64],
    /,
) -> None: ...
def unpack_numbers(packed: Bytes, width: int, minimum: int, size: int, out: Numbers, /) -> None: ...
def take_rows(
    live: Whole,
    at: Whole,
    sums_at: Whole | None,
    run: Whole,
    row: Whole,
    step_bytes: int,
    row_bytes: int,
    out: Numbers,
    threads: int,
    /,
) -> int: ...
def copy_rows(
    addresses: Whole, row_bytes: int, out: Numbers, sums_at: Whole | None, threads: int, /
) -> int: ...
def check_spans(
    addresses: Whole, lengths: Whole, sums: NDArray[np.uint64], threads: int, /
) -> int: ...
def copy_spans(addresses: Whole, lengths: Whole, out: Numbers, threads: int, /) -> int: ...
