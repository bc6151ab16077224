"""How are the points of metrics stored, so that a million of them take a few MB?

An object holds some points of some metrics: of each metric the steps, the times and the values,
each as eight byte planes. Steps and times are differences from the point before, so that most of
their planes are zeros; values keep every bit, NaN's as well. The store compresses the whole.

Source:
    docs/spec/run.md, section "Metrics".
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tensorrepo.formats.model.canonical import decode_canonical, encode_canonical
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from tensorrepo.repo.ids import Buffer, Digest

VERSION: Final = 1
CHUNK_POINTS: Final = 1 << 16  # of one object
_WIDTH: Final = 8  # bytes of a step, a time, a value
_NS_IN_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Points of one metric, in the order in which they were logged.

    Attributes:
        steps: int64 ``(n,)``.
        values: float64 ``(n,)``.
        times_ms: int64 ``(n,)``, since 1970 in UTC.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    times_ms: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, rows: slice) -> Points:
        return Points(self.steps[rows], self.values[rows], self.times_ms[rows])

    @property
    def times_ns(self) -> NDArray[np.int64]:
        return self.times_ms * _NS_IN_MS


class _Series(msgspec.Struct, frozen=True, array_like=True):
    name: str
    points: int
    steps: bytes
    times: bytes
    values: bytes


class _Chunk(msgspec.Struct, frozen=True):
    series: tuple[_Series, ...]
    version: int = VERSION


def encode_points(by_name: Mapping[str, Points]) -> bytes:
    """Payload of an object of metrics."""
    series = tuple(
        _Series(
            name,
            len(points),
            _planes(_differences(points.steps)),
            _planes(_differences(points.times_ms)),
            _planes(points.values),
        )
        for name, points in sorted(by_name.items())
    )
    return encode_canonical(_Chunk(series), "metrics")


def decode_points(payload: Buffer, digest: Digest, only: str | None = None) -> dict[str, Points]:
    """What `encode_points` wrote into the payload of object `digest`; `only` one metric of it.

    Raises:
        CorruptError: not well-formed.
        UnsupportedError: another version.
    """
    chunk = decode_canonical(payload, _Chunk, f"metrics {digest:.12}", _check, version=VERSION)
    return {
        one.name: Points(
            np.cumsum(_words(one.steps, "<i8"), dtype=np.int64),
            _words(one.values, "<f8"),
            np.cumsum(_words(one.times, "<i8"), dtype=np.int64),
        )
        for one in chunk.series
        if only in (None, one.name)
    }


def join_points(parts: Iterable[Points]) -> Points:
    """One after the other."""
    found = list(parts)
    if len(found) == 1:
        return found[0]
    return Points(
        np.concatenate([np.empty(0, np.int64), *(part.steps for part in found)]),
        np.concatenate([np.empty(0, np.float64), *(part.values for part in found)]),
        np.concatenate([np.empty(0, np.int64), *(part.times_ms for part in found)]),
    )


def _check(chunk: _Chunk) -> None:
    for before, after in pairwise(chunk.series):
        if before.name >= after.name:
            raise InvalidInputError(f"metric {after.name!r:.80} is out of order or twice there")
    for one in chunk.series:
        sizes = {len(one.steps), len(one.times), len(one.values)}
        if one.points < 1 or sizes != {one.points * _WIDTH}:
            raise InvalidInputError(
                f"metric {one.name!r:.80}: {one.points} points in {sorted(sizes)} bytes"
            )


def _differences(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each from the one before, the first from 0; they wrap around, as their sums do again."""
    return np.diff(numbers, prepend=np.int64(0))


def _planes(numbers: NDArray[Any]) -> bytes:
    """All lowest bytes, then all second lowest, ..."""
    little = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(-1, _WIDTH).T.tobytes()


def _words(planes: bytes, dtype: str) -> NDArray[Any]:
    found = np.frombuffer(planes, np.uint8).reshape(_WIDTH, -1).T
    return np.ascontiguousarray(found).view(dtype).reshape(-1)
