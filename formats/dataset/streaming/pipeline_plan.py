"""Plan of an input pipeline: which of its steps pay offline, by measuring each of them here.

A loop gets rows no faster than storage brings their bytes, and no faster than the processor decodes
and transforms them. Work that is done once, before training, moves both: pictures that were made
smaller are fewer bytes and faster to decode, decoded ones are more bytes and need no decoding.
Which of these is faster depends on the link, the cores and the data. So a sample of rows is read,
decoded, transformed, and stored in each of these ways, and every number comes from this machine.

    rows/s of a way = min(bytes/s of the link / bytes of a row, cores / seconds of a row)
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import bytes_text, counted
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.common.tensors import import_library
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.values import BinaryValues, offsets_of
from tensorrepo.formats.dataset.streaming.collate.batch import Batch
from tensorrepo.formats.dataset.streaming.collate.decode import Decode, Decoder
from tensorrepo.formats.dataset.streaming.collate.error_policy import ErrorPolicy
from tensorrepo.formats.dataset.streaming.feed import DatasetFeed
from tensorrepo.formats.dataset.streaming.options import RANKS, Loading, Sampling, StreamOptions
from tensorrepo.formats.dataset.streaming.stats import StreamStats
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.formats.dataset.streaming.stream import stream as open_batches
from tensorrepo.repo.deferred_dataclass import dataclass

SECONDS: Final = 5.0
SAMPLE_ROWS: Final = 128
_SAMPLE_BYTES: Final = 64 << 20  # encoded, at most
_PASSES: Final = 2  # of which the faster one counts: the first one loads libraries
_QUALITY: Final = 90  # of JPEGs made anew: hard to tell from the original
_ROOM: Final = 8 / 7  # sides of what is cut at random later: 256 for 224
_PAYS: Final = 1.1  # times as fast, or it is not worth another copy of the data


@dataclass(frozen=True, slots=True)
class PipelineWay:
    """One way to store rows for training, and what it costs then.

    Attributes:
        name: what it is.
        row_bytes: stored bytes that a row takes, and that are read for it.
        decode_seconds: seconds of one core to decode the images of a row.
        transform_seconds: seconds of one core to transform a row.
        total_bytes: bytes of all rows.
        rows_per_second: rows that the loop can get.
        waits_for: "storage", "processor", or "step" where the loop itself is slower than both.
        what_to_do: how to get there.
    """

    name: str
    row_bytes: float
    decode_seconds: float
    transform_seconds: float
    total_bytes: int
    rows_per_second: float = 0.0
    waits_for: str = ""
    what_to_do: str = ""

    @property
    def seconds(self) -> float:
        """Seconds of one core that a row takes."""
        return self.decode_seconds + self.transform_seconds


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Ways to store rows, as they were measured, and which of them pays.

    Attributes:
        rows: rows of the dataset that are streamed.
        sampled_rows: rows that were measured.
        link_bytes_per_second: what storage brings.
        link_measured: whether that was measured, or given by the caller.
        cores: cores that decode and transform.
        wanted_rows_per_second: rows that the loop takes; 0: nobody said.
        ways: all of them, the present one first.
        advised: place of the advised one in `ways`.
    """

    rows: int
    sampled_rows: int
    link_bytes_per_second: float
    link_measured: bool
    cores: int
    wanted_rows_per_second: float
    ways: tuple[PipelineWay, ...]
    advised: int

    @property
    def advice(self) -> PipelineWay:
        return self.ways[self.advised]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"advice": asdict(self.advice)}

    def __str__(self) -> str:
        told = "measured here" if self.link_measured else "as given"
        wanted = self.wanted_rows_per_second
        lines = [
            f"{counted(self.sampled_rows, 'row')} of {self.rows:,} measured; storage brings "
            f"{bytes_text(round(self.link_bytes_per_second))}/s ({told}), "
            f"{counted(self.cores, 'core')} decode and transform"
            + (f", the loop takes {wanted:,.0f} rows/s" if wanted else ""),
            "",
            f"{'way':<28}{'bytes/row':>12}{'all rows':>12}{'ms/row':>10}{'rows/s':>12}  waits for",
        ]
        for place, way in enumerate(self.ways):
            mark = "*" if place == self.advised else " "
            lines.append(
                f"{mark} {way.name:<26}{bytes_text(round(way.row_bytes)):>12}"
                f"{bytes_text(way.total_bytes):>12}{way.seconds * 1e3:>10.3f}"
                f"{way.rows_per_second:>12,.0f}  {way.waits_for}"
            )
        return "\n".join([*lines, "", self._verdict()])

    def _verdict(self) -> str:
        present, best = self.ways[0], self.advice
        if best is present:
            return "Leave it as it is: nothing that was measured would be worth another copy."
        times = best.rows_per_second / max(present.rows_per_second, 1e-9)
        return f"{best.name}: {times:.1f}x the rows/s. {best.what_to_do}"


def plan_pipeline(
    dataset: StoredDataset,
    options: StreamOptions,
    *,
    link_bytes_per_second: float | None = None,
    step_seconds: float = 0.0,
    cores: int | None = None,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> PipelinePlan:
    """Measure the steps of a pipeline, and say which of them pay offline.

    Args:
        dataset: dataset that is streamed.
        options: options of the stream: its columns, rows, decoding and transform.
        link_bytes_per_second: what storage will bring; None: it is measured.
        step_seconds: time of a training step, of `options.batch_size` rows; 0: as fast as it goes.
        cores: cores that will decode and transform; None: as the options say.
        seconds: time after which measuring the link ends.
        clock: clock, in seconds.

    Raises:
        InvalidInputError: options that a stream of the dataset refuses.
    """
    plain = replace(options, cache=None, ranks=RANKS, output="numpy")
    whole = open_batches(dataset, replace(plain, decode=None, transform=None))
    link = link_bytes_per_second or _link(whole, seconds, clock)
    rows = whole.rows // max(1, options.sampling.echo)
    sample = _Sample(dataset, plain, whole, clock)
    wanted = options.batch_size / step_seconds if step_seconds else 0.0
    limits = _Limits(link, cores or options.loading.own_work_threads, wanted)
    ways = tuple(limits.applied(way) for way in sample.ways(rows))
    return PipelinePlan(
        rows,
        sample.count,
        link,
        link_bytes_per_second is None,
        limits.cores,
        wanted,
        ways,
        _advised(ways, wanted),
    )


@dataclass(frozen=True, slots=True)
class _Limits:
    """What a loop gets at most."""

    link: float
    cores: int
    wanted: float

    def applied(self, way: PipelineWay) -> PipelineWay:
        rates = {
            "storage": self.link / max(1e-9, way.row_bytes),
            "processor": self.cores / way.seconds if way.seconds else inf,
            "step": self.wanted or inf,
        }
        slowest = min(rates, key=rates.__getitem__)
        return replace(way, rows_per_second=rates[slowest], waits_for=slowest)


def _advised(ways: Sequence[PipelineWay], wanted: float) -> int:
    """The place of the way that takes the fewest bytes among those that are about the fastest; the
    present one where no other is clearly faster.
    """
    best = max(way.rows_per_second for way in ways)
    enough = min(best, wanted) if wanted else best
    if ways[0].rows_per_second * _PAYS >= enough:
        return 0
    fast = [at for at, way in enumerate(ways) if way.rows_per_second * _PAYS >= enough]
    return min(fast, key=lambda at: ways[at].row_bytes)


def _link(stream: BatchStream, seconds: float, clock: Callable[[], float]) -> float:
    """Bytes a second that come from storage, by a stream that only reads.

    What is local is read again and again, as planning is most of the time of a small dataset, and
    the first batch, for which libraries are loaded, does not count.
    """
    with stream:
        for _ in stream:
            break
        rows, began = 0, clock()
        while not (took := clock() - began) or took < seconds:
            batches = iter(stream)
            for batch in batches:
                rows += len(batch.rows)
                if clock() - began >= seconds:
                    break
            goodput = stream.stats().goodput
            batches.close()
            if goodput:
                return goodput
            if not rows:
                return 1.0
        return max(1.0, rows * _row_bytes(stream) / took)


def _row_bytes(stream: BatchStream) -> float:
    """Stored bytes of a row."""
    feed = _feed(stream)
    stored_bytes = sum(column.stored_bytes for column in feed.plan.columns)
    return stored_bytes / max(1, feed.dataset.rows)


def _feed(stream: BatchStream) -> DatasetFeed:
    assert isinstance(stream.feed, DatasetFeed), "a stream of one dataset"
    return stream.feed


class _Sample:
    """Some rows of the dataset, spread over it, and what is measured of them."""

    def __init__(
        self,
        dataset: StoredDataset,
        options: StreamOptions,
        whole: BatchStream,
        clock: Callable[[], float],
    ) -> None:
        self._dataset, self._options, self._clock = dataset, options, clock
        self._row_bytes = _row_bytes(whole)
        with open_batches(dataset, options) as stream:
            self._decodes = dict(stream.setup.decodes)
        most = max(1, int(_SAMPLE_BYTES // max(1.0, self._row_bytes)))
        rows = _chosen_rows(whole)
        places = np.unique(np.linspace(0, len(rows) - 1, min(SAMPLE_ROWS, most, len(rows))))
        self.rows: Ints = rows[places.astype(np.int64)]
        self.count = len(self.rows)

    def ways(self, rows: int) -> Iterator[PipelineWay]:
        """The present way first."""
        decode, transform, made_bytes = self._present()
        yield self._way("as it is", rows, self._row_bytes, decode, transform, "")
        for name, how in self._decodes.items():
            encoded = self._encoded(name)
            if not encoded:
                continue
            own = _mean_bytes(encoded)
            others = self._row_bytes - own
            own_decode = self._decoding(name, how, encoded)
            rest = max(0.0, decode - own_decode) if len(self._decodes) > 1 else 0.0
            for label, again, advice in _made_anew(name, how, encoded):
                seconds = self._decoding(name, how, again)
                row_bytes = others + _mean_bytes(again)
                yield self._way(label, rows, row_bytes, rest + seconds, transform, advice)
            if how.row_shape is not None and how.fit != "random":
                advice = (
                    f"Store {name!r} decoded: tx.derive(..., columns={{{name!r}: tr.Tensor("
                    f"'uint8', {how.row_shape})}}), and stream that without decode="
                )
                row_bytes = others + float(np.prod(how.row_shape))
                yield self._way(f"decoded {name}", rows, row_bytes, rest, transform, advice)
        if self._options.transform is not None and made_bytes is not None:
            yield self._way(
                "transformed", rows, made_bytes, 0.0, 0.0,
                "Keep what the transform makes, if it is the same in every epoch: tx.derive(...) "
                "stores it for all, cache='derived' on this machine's disk"
            )  # fmt: skip

    def _way(
        self, name: str, rows: int, row_bytes: float, decode: float, transform: float, advice: str
    ) -> PipelineWay:
        total = round(row_bytes * rows)
        return PipelineWay(name, row_bytes, decode, transform, total, what_to_do=advice)

    def _present(self) -> tuple[float, float, float | None]:
        """Seconds of decoding and of transforming a row, and bytes of what is handed out for it."""
        best, made = (inf, inf), None
        size = min(self._options.batch_size, self.count)
        for _ in range(_PASSES):
            made = 0.0
            with self._stream(self._options, size) as stream:
                for item in stream:
                    made = None if made is None else _added(made, _item_bytes(item))
                stats = stream.stats()
            took = stats.decode_seconds / self.count, stats.transform_seconds / self.count
            best = min(best, took, key=sum)
        return best[0], best[1], None if made is None else made / self.count

    def _encoded(self, name: str) -> list[bytes]:
        """The pictures of the sample, those that are null left out."""
        plain = replace(self._options, decode=None, transform=None, columns=(name,))
        with self._stream(plain, self.count) as stream:
            return [bytes(each) for batch in stream for each in batch[name] if each is not None]

    def _stream(self, options: StreamOptions, batch_size: int) -> BatchStream:
        return open_batches(
            self._dataset,
            replace(
                options,
                batch_size=batch_size,
                shuffle=False,
                sampling=Sampling(rows=self.rows),
                loading=Loading(prefetch=0, work_threads=1, pin=False),
            ),
            clock=self._clock,
        )

    def _decoding(self, name: str, how: Decode, encoded: Sequence[bytes]) -> float:
        """Seconds of one core to decode one of these pictures."""
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        data = np.frombuffer(b"".join(encoded), np.uint8)
        values = BinaryValues(offsets_of(lengths), data)
        decoder = Decoder({name: how}, lambda pixels: pixels, rows=len(encoded), prefetch=0)
        bad = ErrorPolicy("raise", StreamStats())
        best = inf
        for _ in range(_PASSES):
            batch = Batch(
                {name: values},
                position=0,
                rows=np.arange(len(encoded)),
                identify=lambda rows: rows,
            )
            took: list[float] = []
            for call in decoder.begin(batch, 0, bad, lambda done: done, self._clock, took.append):
                call()
            best = min(best, sum(took))
        return best / len(encoded)


def _chosen_rows(whole: BatchStream) -> NDArray[np.int64]:
    """Numbers of the rows that come."""
    feed = _feed(whole)
    rows, selection = feed.dataset.rows, feed.plan.selection
    if selection is None:
        return np.arange(rows)
    return np.flatnonzero(selection.chosen.counts(0, rows))


def _made_anew(
    name: str, how: Decode, encoded: Sequence[bytes]
) -> Iterator[tuple[str, list[bytes], str]]:
    """Other encodings of pictures: what they are, the pictures, and how to get there."""
    if how.shape is not None:
        room = _ROOM if how.fit == "random" else 1.0
        side = max(1, round(max(how.shape) * room))
        smaller = [_recoded(each, how, side) for each in encoded]
        advice = (
            f"Store {name!r} with its shorter side at {side} pixels, as JPEG of quality "
            f"{_QUALITY}: tx.derive(...) does that once, and again for what changes"
        )
        yield f"{name} resized to {side}", smaller, advice
    again = [_recoded(each, how, None) for each in encoded]
    advice = f"Store {name!r} as JPEG of quality {_QUALITY} at full size, with tx.derive(...)"
    yield f"{name} recompressed", again, advice


def _recoded(data: bytes, how: Decode, side: int | None) -> bytes:
    """A picture as JPEG, its shorter side made `side` pixels long where it is longer.

    For its bytes and the time it takes to decode: which way up it is does not matter.
    """
    pillow = import_library(
        "PIL.Image", "planning for images needs Pillow: `pip install 'tensorrepo[images]'`"
    )
    with pillow.open(io.BytesIO(data)) as opened:
        picture = opened.convert("L" if how.mode == "L" else "RGB")
    if side is not None and min(picture.size) > side:
        times = side / min(picture.size)
        size = tuple(max(1, round(each * times)) for each in picture.size)
        picture = picture.resize(size, pillow.Resampling.BILINEAR)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()


def _mean_bytes(encoded: Sequence[bytes]) -> float:
    return sum(map(len, encoded)) / len(encoded)


def _added(total: float, more: float | None) -> float | None:
    return None if more is None else total + more


def _item_bytes(item: Any) -> float | None:
    """Bytes of what is handed out for a step; None where it holds more than arrays."""
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, tuple | list):
        parts = [_item_bytes(each) for each in item]
        return None if None in parts else sum(part for part in parts if part is not None)
    if isinstance(item, bytes | str):
        return float(len(item))
    size = getattr(item, "nbytes", None)
    return float(size) if isinstance(size, int) else None
