from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorrepo.repo.ids import Buffer

Bytes: TypeAlias = NDArray[np.uint8]
Frequencies: TypeAlias = NDArray[np.uint16]
Counts: TypeAlias = NDArray[np.uint32]
Doubles: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[Any]

def count(symbols: Bytes, contexts: Bytes | None, counts: Counts, /) -> None: ...
def pack(
    symbols: Bytes, contexts: Bytes | None, frequencies: Frequencies, lanes: int, out: Bytes, /
) -> int: ...
def group_counts(
    counts: Counts, groups: Bytes, frequencies: Frequencies, counted: NDArray[np.int64], /
) -> tuple[int, float]: ...
def entropy(counts: Counts, /) -> float: ...
def encode_groups(groups: Bytes, frequencies: Frequencies, /) -> bytes: ...
def tables(data: Bytes, groups: Bytes, frequencies: Frequencies, /) -> int: ...
def unpack(
    data: Bytes, contexts: Bytes | None, frequencies: Frequencies, lanes: int, out: Bytes, /
) -> bool: ...
def differ(frame: Numbers, base: Numbers, size: int, magnitude: bool, out: Numbers, /) -> None: ...
def restore(
    distances: Numbers, base: Numbers, size: int, magnitude: bool, out: Numbers, /
) -> None: ...
def scan(
    frame: Numbers,
    base: Numbers,
    size: int,
    magnitude: bool,
    exponent: int,
    tokens: Bytes,
    counts: Counts,
    /,
) -> None: ...
def contexts(base: Numbers, size: int, exponent: int, groups: Bytes, out: Bytes, /) -> None: ...
def pack_bits(
    frame: Numbers, base: Numbers, tokens: Bytes, size: int, magnitude: bool, out: Bytes, /
) -> int: ...
def decode(
    plane: Bytes,
    base: Numbers,
    size: int,
    magnitude: bool,
    exponent: int,
    out: Numbers,
    is_long: bool,
    /,
) -> bool: ...
def decode_rows(
    plane: Bytes,
    base: Numbers,
    size: int,
    magnitude: bool,
    exponent: int,
    out: Numbers,
    is_long: bool,
    which: NDArray[np.bool_],
    marked: bool,
    columns: int,
    skipped: int,
    below: int,
    table: NDArray[np.uint16],
    /,
) -> bool: ...
def alike(
    frame: Numbers, base: Numbers, size: int, columns: int, skipped: int, rows: Counts, /
) -> None: ...
def step(
    base: Numbers, size: int, below: int, table: NDArray[np.uint16], out: Numbers, /
) -> None: ...
def step_product(
    base: Numbers,
    size: int,
    left: Doubles,
    right: Doubles,
    rank: int,
    columns: int,
    skipped: int,
    scale: float,
    out: Numbers,
    /,
) -> None: ...
def has_no_low_rank(
    frame: Numbers,
    base: Numbers,
    size: int,
    columns: int,
    rows_asked: Numbers,
    columns_asked: Numbers,
    noise: float,
    /,
) -> bool: ...
def moved_numbers(frame: Numbers, base: Numbers, size: int, out: Doubles, /) -> None: ...
def frequent(
    frame: Numbers,
    base: Numbers,
    size: int,
    below: int,
    stride: int,
    table: NDArray[np.uint16],
    /,
) -> int: ...
def encode(
    frame: Numbers, base: Numbers, size: int, magnitude: bool, exponent: int, way: int, /
) -> tuple[float, bool, bytes | None, int]: ...
def encode_layers(
    frame: Numbers, base: Numbers, size: int, magnitude: bool, exponent: int, /
) -> bytes: ...
def look_back(plane: Bytes, /) -> tuple[int, float]: ...
def pack_bytes(plane: Bytes, most: float, /) -> tuple[float, int, bytes | None, bool, int]: ...
def pack_planes(
    planes: Bytes, count: int, most: float, /
) -> list[tuple[int, bytes] | tuple[float, int, bytes | None]]: ...
def unpack_planes(
    pack: memoryview,
    offsets: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    codecs: Bytes,
    out: Bytes,
    /,
) -> list[int]: ...
def split(frame: Bytes, size: int, turn: bool, planes: tuple[Bytes, ...], /) -> None: ...
def join(planes: tuple[Bytes, ...], size: int, turn: bool, out: Bytes, /) -> None: ...
def join_stored(
    planes: Sequence[tuple[int, Buffer]], size: int, turn: bool, out: memoryview, /
) -> bool: ...
def take_rows(
    frame: Numbers,
    base: Numbers,
    size: int,
    columns: int,
    skipped: int,
    below: int,
    table: NDArray[np.uint16],
    marks: NDArray[np.bool_],
    moved: Numbers,
    moved_base: Numbers,
    calm: Numbers,
    calm_base: Numbers,
    /,
) -> tuple[int, int]: ...
def nearest_signatures(
    words: NDArray[np.uint64],
    known: NDArray[np.bool_],
    few: int,
    first: int,
    out: NDArray[np.int64],
    /,
) -> None: ...
def has_more_values(numbers: Numbers, size: int, most: int, /) -> bool: ...
def decode_scan(
    data: bytes,
    start: int,
    tables: Bytes,
    geometry: NDArray[np.int32],
    blocks: NDArray[np.int16],
    /,
) -> tuple[int, int]: ...
def encode_scan(
    blocks: NDArray[np.int16], tables: Bytes, geometry: NDArray[np.int32], padding: int, /
) -> bytes: ...
