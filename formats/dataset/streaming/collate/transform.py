"""Pipeline behind gathering: decode images, transform, pin, and hand over in order.

    decode images -> the caller's transform -> pin, or hand to JAX

Where nothing is left to do to batches, one thread makes them ahead; where they are decoded or
transformed, several threads draw them, work on them, and hand them over in order (`repo.threads`).
`StreamIterator` is what the training loop holds: dropping it ends every thread behind it.
"""

from __future__ import annotations

import _thread
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple, Protocol

from tensorrepo.formats.dataset.streaming.collate.assemble import BatchReading
from tensorrepo.formats.dataset.streaming.collate.batch import (
    Batch,
    as_output,
    numbers_as_jax,
    pinned,
    with_leaves_changed,
)
from tensorrepo.formats.dataset.streaming.collate.decode import Decoder
from tensorrepo.formats.dataset.streaming.collate.error_policy import ErrorPolicy
from tensorrepo.formats.dataset.streaming.options import StreamOptions, StreamSetup
from tensorrepo.formats.dataset.streaming.stats import StreamStats
from tensorrepo.repo.threads import OrderedMap, is_own_thread

Work = Callable[[Batch], Any]


PositionedItem = tuple[int, Any]  # a position, and what is handed out for the step that ends there


class Decoding(NamedTuple):
    """How batches are decoded by several threads at once.

    `begin` gives what is to be done for a batch; the call that is done last gives its item, the
    others none. There are up to `portions` calls.
    """

    begin: Callable[[Batch], list[Callable[[], list[PositionedItem]]]]
    portions: int


class ItemSource(Protocol):
    """Items, some at a time; closing ends what makes them."""

    def __iter__(self) -> Iterator[list[PositionedItem]]: ...

    def __next__(self) -> list[PositionedItem]: ...

    def close(self) -> None: ...


def items_ahead(
    reading: BatchReading,
    work: Work | None,
    *,
    prefetch: int,
    threads: int,
    decoding: Decoding | None = None,
) -> ItemSource:
    """What is handed out for each step, made ahead on threads unless `prefetch` is 0.

    Args:
        reading: gathered batches, some at a time.
        work: function that makes of a batch what is handed out; None hands the batch out.
        prefetch: number of steps that are made ahead.
        threads: number of threads that work.
        decoding: calls that are made instead of `work`, and end with it.
    """
    items: Generator[Any, None, None]
    do: Callable[[Any], list[PositionedItem]]
    if decoding is not None:
        items, do = _calls(reading.groups, decoding), lambda call: call()
        ahead = max(prefetch * decoding.portions, threads + 1)
    elif work is not None:
        items, do = _single(reading.groups), lambda batch: [(batch.position, work(batch))]
        ahead = max(prefetch, threads + 1)
    else:
        # One more than are ready: the thread makes the next one meanwhile.
        items, do, threads = reading.groups, _handed_out, 1
        ahead = 1 - (-prefetch // reading.steps_at_once)
    if not prefetch:
        return _in_turn(items, do)
    return OrderedMap[Any, list[PositionedItem]](
        items, do, threads=threads, ahead=ahead, name="batches", stop=reading.stop
    )


def _in_turn(
    items: Generator[Any, None, None], do: Callable[[Any], list[PositionedItem]]
) -> Generator[list[PositionedItem], None, None]:
    with closing(items):
        yield from map(do, items)


def _handed_out(group: list[Batch]) -> list[PositionedItem]:
    return [(batch.position, batch) for batch in group]


def _calls(
    groups: Generator[list[Batch], None, None], decoding: Decoding
) -> Generator[Callable[[], list[PositionedItem]], None, None]:
    with closing(_single(groups)) as batches:
        for batch in batches:
            yield from decoding.begin(batch)


def _single(groups: Generator[list[Batch], None, None]) -> Generator[Batch, None, None]:
    with closing(groups):
        yield from chain.from_iterable(groups)


class StreamIterator:
    """One pass over an epoch. Dropping it stops its threads."""

    def __init__(
        self,
        items: ItemSource,
        moved_to: Callable[[int, object], None],
        clock: Callable[[], float],
        stats: StreamStats,
        report: Callable[[], None] | None = None,
    ) -> None:
        """Made by iterating over a stream, whose `moved_to` is told how far its rows were used.

        `report` is called once, when this ends.
        """
        self.token = object()  # says which iterator this is without keeping it alive
        self._items = items
        self._moved_to = moved_to
        self._stats = stats
        self._clock = clock
        self._report = report
        self._ready: Iterator[PositionedItem] = iter(())
        # The threads know nothing of this object, so it can be collected while they run.
        self._finalizer = weakref.finalize(self, _abandoned, items, report)

    def __iter__(self) -> StreamIterator:
        return self

    def __next__(self) -> Any:
        ready = next(self._ready, None)
        if ready is None:
            ready = self._next_items()
        position, item = ready
        self._moved_to(position, self.token)
        return item

    def close(self) -> None:
        """Stop, and wait for the threads. What was handed out stays valid."""
        self._ready = iter(())
        if self._finalizer.detach() is not None:
            _close(self._items, self._report)

    def _next_items(self) -> PositionedItem:
        began = self._clock()
        try:
            while not (items := next(self._items)):  # a part of a batch was done
                pass
        except BaseException:  # the end, a failure, or Ctrl-C: nothing follows
            self.close()
            raise
        self._stats.waited_seconds += self._clock() - began
        self._ready = iter(items)
        return next(self._ready)


def _abandoned(items: ItemSource, report: Callable[[], None] | None) -> None:
    """Close on whichever thread found that nobody holds the iterator any more.

    Where that is one of a stream's own, amid a collection of garbage, it may hold the lock that
    closing needs, and cannot wait for itself: another thread closes.
    """
    if is_own_thread():
        # `Thread.start` takes a lock of `threading`, which this thread may hold as well.
        _thread.start_new_thread(_close, (items, report))
    else:
        _close(items, report)


def _close(items: ItemSource, report: Callable[[], None] | None) -> None:
    items.close()
    if report is not None:
        report()


def decoder_of(setup: StreamSetup) -> Decoder | None:
    """What decodes the images of a stream; None where there are none to decode."""
    if not setup.decodes:
        return None
    share = setup.options.share(0)
    return Decoder(
        setup.decodes,
        partial(as_output, output=setup.options.output),
        rows=-(-share.batch_size // share.world),
        prefetch=setup.prefetch,
    )


def work_of(setup: StreamSetup, stats: StreamStats, decoded: Work | None = None) -> Work | None:
    """What is done to every batch, by several threads at once; None: nothing.

    With derived rows it begins before images are decoded, and `decoded` does that; else they are.
    """
    transform, clock, derived = setup.options.transform, setup.clock, setup.derived
    finish = finish_of(setup.options) if setup.options.pins else None
    if transform is None and derived is None:
        return finish
    lock = Lock()

    def make(batch: Batch) -> Any:
        ready = batch if decoded is None else decoded(batch)
        return ready if transform is None else _transformed(transform, ready)

    def count(found: int, made: int) -> None:
        with lock:
            stats.derived_found += found
            stats.derived_made += made

    def transformed(batch: Batch) -> Any:
        rows, began = batch.rows, clock()  # it may change the batch
        result = make(batch) if derived is None else derived.made(batch, make, count)
        with lock:
            stats.note_transform(clock() - began, rows)
        return result if finish is None else finish(result)

    return transformed


def _transformed(transform: Work, batch: Batch) -> Any:
    """What the transform returns; what it raises says on which batch."""
    position = batch.position  # it may change the batch
    try:
        return transform(batch)
    except StopIteration as error:  # passed on, it would end the loop unseen
        raise RuntimeError(
            f"the transform raised StopIteration on the batch that ends at position {position}"
        ) from error
    except Exception as error:
        error.add_note(f"the transform failed on the batch that ends at position {position}")
        raise


def decoding_of(
    decoder: Decoder, work: Work | None, setup: StreamSetup, stats: StreamStats, key: int
) -> Decoding:
    """How the images of a batch are decoded, and the `work` that is done to it then.

    `key` is that of the epoch's crops and flips.
    """
    bad, lock = ErrorPolicy(setup.options.loading.on_error, stats), Lock()

    def finish(batch: Batch) -> PositionedItem:
        return batch.position, batch if work is None else work(batch)

    def spent(seconds: float) -> None:
        with lock:
            stats.decode_seconds += seconds

    begin = partial(decoder.begin, key=key, bad=bad, finish=finish, clock=setup.clock, spent=spent)
    return Decoding(begin, decoder.portions)


def decoded_at_once(decoder: Decoder, setup: StreamSetup, stats: StreamStats, key: int) -> Work:
    """What decodes the images of a batch on the thread that calls, `key` as for `decoding_of`."""
    bad, lock = ErrorPolicy(setup.options.loading.on_error, stats), Lock()

    def spent(seconds: float) -> None:
        with lock:
            stats.decode_seconds += seconds

    def decoded(batch: Batch) -> Batch:
        calls = decoder.begin(batch, key, bad, lambda done: done, setup.clock, spent)
        done: list[Batch] = [each for call in calls for each in call()]
        return done[0]

    return decoded


def finish_of(options: StreamOptions) -> Callable[[Any], Any]:
    """What is done last, in the process of the user, to what is handed out."""
    if options.output == "jax":
        return partial(with_leaves_changed, change=numbers_as_jax)
    return partial(with_leaves_changed, change=pinned) if options.pins else lambda item: item
