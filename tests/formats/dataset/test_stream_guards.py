"""Streams: nothing damaged comes out, no thread stays behind, memory is bounded, errors say why."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.read import StoredDataset, column_index
from tensorrepo.formats.dataset.streaming.load import downloads
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.envelope import ObjectLink
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import (
    ROWS,
    SCHEMA,
    WINDOW,
    MappedObjects,
    lasting_stream_threads,
    own_threads,
    stream,
    stream_threads,
)
from tests.support.effort import soaking

MOMENTS = 25 if soaking() else 5
STORES = [MappedObjects, MemoryObjects]


@pytest.fixture(scope="module")
def dataset() -> StoredDataset:
    return stored(MappedObjects(), SCHEMA, [ROWS], page_bytes=8192)


@pytest.fixture(scope="module")
def remote() -> StoredDataset:
    return stored(MemoryObjects(), SCHEMA, [ROWS], page_bytes=8192)


@pytest.fixture(scope="module", autouse=True)
def _no_thread_of_other_tests() -> None:
    """What tests before these left to a collection."""
    gc.collect()
    lasting_stream_threads()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert stream_threads() == []


# ------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("codec", Codec)
def test_no_damaged_page_is_handed_out(store: type[MemoryObjects], codec: Codec) -> None:
    objects = store()
    ds = stored(objects, SCHEMA, [ROWS], page_bytes=8192, codec=codec)
    index = column_index(ds, "x")
    page = 20
    chunk = index.chunks[index.chunk[page]]
    entry = index.entries[page]
    data = bytearray(objects.stored[chunk.digest])  # type: ignore[union-attr]
    start = len(data) - int.from_bytes(data[16:24], "little") + int(entry["offset"])
    data[start + 100] ^= 1
    objects.stored[chunk.digest] = bytes(data)  # type: ignore[union-attr]
    handed_out: list[int] = []
    found = stream(ds, batch_size=8, window=WINDOW)
    with pytest.raises(CorruptError, match=r"column 'x', page 20 \(rows"):
        handed_out.extend(row for batch in found for row in batch.rows.tolist())
    rows = range(*index.first_row[page : page + 2].tolist())
    assert not set(rows) & set(handed_out)


def test_a_page_whose_directory_lies_is_refused_though_its_checksum_is_right() -> None:
    objects = MappedObjects()
    ds = stored(objects, SCHEMA, [ROWS], page_bytes=8192)
    index = column_index(ds, "x")
    chunk = index.chunks[index.chunk[3]]
    assert not isinstance(chunk, memoryview)
    data = bytearray(objects.stored[chunk.digest])
    payload = memoryview(data)[len(data) - int.from_bytes(data[16:24], "little") :]
    start = int(index.entries["offset"][3])
    page = payload[start : start + int(index.entries["stored_bytes"][3])]
    page[16] ^= 8  # the length of the values
    lying = index.entries.copy()
    lying["checksum"][3] = xxh3_64_intdigest(page)
    object.__setattr__(index, "entries", lying)
    objects.stored[chunk.digest] = data  # type: ignore[assignment]
    with pytest.raises(CorruptError, match=r"page 3 .*directory"):
        list(stream(ds, batch_size=8, window=WINDOW, columns=["x"]))


def test_damage_that_comes_between_epochs_is_found() -> None:
    objects = MappedObjects()
    ds = stored(objects, SCHEMA, [ROWS], page_bytes=8192)
    shared = {digest: bytearray(data) for digest, data in objects.stored.items()}
    objects.stored = shared  # type: ignore[assignment]
    found = stream(ds, batch_size=8, window=WINDOW, columns=["x"])
    assert len(list(found)) == 125
    chunk = next(link for link in column_index(ds, "x").chunks if not isinstance(link, memoryview))
    shared[chunk.digest][-70_000] ^= 1
    with pytest.raises(CorruptError):
        list(found)
    found.close()  # the third epoch may be on its way


# ------------------------------------------------------------------------------ threads


@pytest.mark.parametrize("prefetch", [0, 3])
def test_an_abandoned_iterator_leaves_no_thread(remote: StoredDataset, prefetch: int) -> None:
    batches = iter(stream(remote, batch_size=8, window=WINDOW, prefetch=prefetch))
    next(batches)
    assert stream_threads()
    del batches
    gc.collect()
    assert stream_threads() == []


def test_an_iterator_that_dies_on_its_own_thread_and_behind_its_lock_ends_its_threads(
    remote: StoredDataset,
) -> None:
    held: list[Any] = []
    died = threading.Event()
    away = threading.Lock()  # held while this thread is in the iterator, and so refers to it

    def clock() -> float:
        behind_the_lock = sys._getframe(1).f_code is downloads.Downloads._next.__code__
        if behind_the_lock and away.acquire(blocking=False):
            held.clear()
            died.set()
            away.release()
        return time.perf_counter()

    with away:
        held.append(iter(stream(remote, batch_size=8, window=WINDOW, clock=clock, ahead=1)))
        next(held[0])
    while not died.wait(0.2):  # all that may be ahead was there already: make room
        with away:
            if held:
                next(held[0])
    for thread in own_threads():
        thread.join(60)
    assert stream_threads() == []


def test_closing_a_stream_ends_its_iterators(remote: StoredDataset) -> None:
    with stream(remote, batch_size=8, window=WINDOW) as found:
        batches = iter(found)
        next(batches)
    assert stream_threads() == []
    assert list(batches) == []


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failing_transform_reaches_the_caller_and_ends_the_threads(
    dataset: StoredDataset, prefetch: int, failure: type[BaseException]
) -> None:
    def transform(batch: Any) -> Any:
        if batch.position > 100:
            raise failure("no")
        return batch

    batches = iter(stream(dataset, batch_size=50, transform=transform, prefetch=prefetch))
    assert [next(batches).position for _ in range(2)] == [50, 100]
    with pytest.raises(failure):
        next(batches)
    assert stream_threads() == []
    assert list(batches) == []


@pytest.mark.parametrize("prefetch", [0, 3])
def test_no_page_is_read_before_a_batch_is_asked_for(remote: StoredDataset, prefetch: int) -> None:
    found = stream(remote, batch_size=8, window=WINDOW, prefetch=prefetch)
    remote.objects.reads.clear()  # type: ignore[attr-defined]
    found.explain()
    iter(found).close()
    assert remote.objects.reads == []  # type: ignore[attr-defined]


class SlowObjects(MemoryObjects):
    """Reads of pages wait to be let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let_go = threading.Event(), threading.Event()

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        self.asked.set()
        assert self.let_go.wait(60)
        return super().read_range(link, start, stop)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_ctrl_c_interrupts_the_wait_for_a_batch(prefetch: int) -> None:
    objects = SlowObjects()
    ds = stored(objects, SCHEMA, [ROWS], page_bytes=8192)
    main = threading.get_ident()

    def press() -> None:
        objects.asked.wait(60)
        signal.pthread_kill(main, signal.SIGINT)
        objects.let_go.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(stream(ds, batch_size=8, window=WINDOW, prefetch=prefetch))
    finally:
        signal.signal(signal.SIGINT, before)
    assert stream_threads() == []


def same(batch: Any) -> Any:
    return batch


def used_up(found: Any, presser: threading.Thread) -> None:
    for _ in found:
        pass
    presser.join(60)  # it was faster: the interrupt comes here


@pytest.mark.parametrize("transform", [None, same])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_ctrl_c_at_any_moment_leaves_no_thread(prefetch: int, transform: Any) -> None:
    """A lock that the interrupt leaves locked keeps threads for ever: there were such moments."""
    main = threading.get_ident()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for moment in range(MOMENTS):
            objects = SlowObjects()
            objects.let_go.set()
            ds = stored(objects, SCHEMA, [ROWS], page_bytes=8192)
            options: dict[str, Any] = {"transform": transform, "work_threads": 2}
            found = stream(ds, batch_size=8, window=WINDOW, prefetch=prefetch, **options)

            def press(asked: threading.Event, seconds: float) -> None:
                asked.wait(60)
                time.sleep(seconds)
                signal.pthread_kill(main, signal.SIGINT)

            presser = threading.Thread(target=press, args=(objects.asked, moment / MOMENTS * 0.005))
            presser.start()
            with pytest.raises(KeyboardInterrupt):
                used_up(found, presser)
            presser.join(60)
            assert lasting_stream_threads() == []
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("transform", [None, same])
def test_closing_waits_for_no_thread_but_those_whose_reads_hang(
    transform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_LANDING_SECONDS", 0.05)
    objects = SlowObjects()
    objects.let_go.set()
    ds = stored(objects, SCHEMA, [ROWS], page_bytes=8192)
    options: dict[str, Any] = {"ahead": WINDOW, "transform": transform, "work_threads": 4}
    found = stream(ds, batch_size=8, window=WINDOW, prefetch=1, **options)
    batches = iter(found)
    next(batches)
    objects.let_go.clear()
    objects.asked.clear()
    puller = threading.Thread(target=list, args=(batches,))
    puller.start()
    assert objects.asked.wait(60)
    found.close()
    puller.join()
    hanging = [each for each in threading.enumerate() if each.name in stream_threads()]
    assert {each.name.rpartition("-")[0] for each in hanging} == {"tensorrepo-fetch"}
    objects.let_go.set()
    [each.join() for each in hanging]


def test_reading_ahead_is_bounded_in_bytes(remote: StoredDataset) -> None:
    found = stream(
        remote,
        batch_size=4,
        window=WINDOW,
        columns=["x"],
        prefetch=0,
        ahead=20_000,
        fetch_threads=2,
    )
    remote.objects.reads.clear()  # type: ignore[attr-defined]
    batches = iter(found)
    next(batches)
    first_runs = 4
    batches.close()
    read_bytes = sum(stop - start for _, start, stop in remote.objects.reads)  # type: ignore[attr-defined]
    assert read_bytes <= first_runs * 8192 + 20_000 + 2 * 8192


# ------------------------------------------------------------------------------ asking


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"window": 0}, "window"),
        ({"shuffle": "rows"}, "shuffle"),
        ({"output": "tensors"}, "output"),
        ({"last": "long"}, "last"),
        ({"world_size": 4, "replicate": 3}, "replicate=3"),
        ({"world_size": 4, "replicate": 0}, "replicate is a whole number"),
        ({"prefetch": -1}, "prefetch"),
        ({"fetch_threads": 0}, "fetch_threads"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"seed": -1}, "seed"),
        ({"epoch": 1 << 64}, "epoch"),
        ({"columns": []}, "column"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    dataset: StoredDataset, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        stream(dataset, **({"batch_size": 8} | wrong))


def test_an_unknown_column_is_named(dataset: StoredDataset) -> None:
    with pytest.raises(NotFoundError, match="'z'"):
        stream(dataset, batch_size=8, columns=["z"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2, "world_size": 3}, "cannot be shared"),
        ({"batch_size": 333}, "last='drop'"),
    ],
)
def test_a_rank_without_rows_is_refused_when_reading_starts(
    dataset: StoredDataset, options: dict[str, Any], message: str
) -> None:
    found = stream(dataset, **({"world_size": 3} | options))
    with pytest.raises(InvalidInputError, match=message):
        iter(found)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "something"},
        {"dataset": "0" * 64},
        {"columns": ["x"]},
        {"position": 1001},
        {"lanes": 3},
        {"bands": 0},
        {"order": "random"},
        {"more": 1},
        {"seed": "1"},
    ],
)
def test_a_state_of_something_else_is_refused(
    dataset: StoredDataset, change: dict[str, Any]
) -> None:
    found = stream(dataset, batch_size=8, window=WINDOW)
    with pytest.raises(InvalidInputError):
        found.load_state_dict(found.state_dict() | change)


def test_a_stream_explains_itself_before_reading(dataset: StoredDataset) -> None:
    explained = stream(dataset, batch_size=4, window=WINDOW, columns=["x", "y"]).explain()
    assert (explained.order, explained.rows, explained.steps) == ("pages", 1000, 250)
    assert explained.lanes <= 8
    assert explained.distinct_runs[1] == 4
    assert explained.distinct_runs[64] > explained.distinct_runs[16] > 4
    assert explained.read_bytes == sum(column.read_bytes for column in explained.columns)
    assert "x: leading" in str(explained)
    assert json.dumps(explained.to_dict())


def test_a_stream_tells_what_it_did(dataset: StoredDataset) -> None:
    ticks = iter(range(10**9))
    found = stream(dataset, batch_size=64, columns=["x"], clock=lambda: float(next(ticks)))
    list(found)
    stats = found.stats()
    assert (stats.batches, stats.rows) == (16, 1000)
    assert stats.runs == column_index(dataset, "x").pages
    assert stats.run_bytes == column_index(dataset, "x").raw_bytes
    assert min(stats.gather_seconds, stats.fetch_seconds, stats.waited_seconds) > 0


def test_streams_do_not_load_torch_unless_asked() -> None:
    code = (
        "import sys, tensorrepo.formats.dataset.streaming.stream; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LEFT_OPEN = """
import numpy as np
from tensorrepo.formats.dataset.schema.schema import Schema
from tests.support.builders.streams import stream
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects

ds = stored(MemoryObjects(), Schema.of({"y": "int64"}), [{"y": np.arange(5000)}], page_bytes=512)
batches = iter(stream(ds, batch_size=8, window=5000))
print(len(next(batches)["y"]))
"""


def test_a_process_ends_though_an_iterator_is_left_open() -> None:
    found = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN], check=True, capture_output=True, text=True, timeout=120
    )
    assert (found.stdout, found.stderr) == ("8\n", "")
