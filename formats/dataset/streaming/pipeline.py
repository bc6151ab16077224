"""How do the batches of one iteration reach the loop that uses them?

Batches are gathered some at a time. Where nothing is left to do to them, one thread makes them
ahead; where they are decoded or transformed, several threads draw them, work on them, and hand them
over in order. `StreamIterator` is what the loop holds: dropping it ends every thread behind it.
"""

from __future__ import annotations

import _thread
import weakref
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tensorrepo.repo.threads import OrderedMap, is_own_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from tensorrepo.formats.dataset.streaming.assemble import Reading
    from tensorrepo.formats.dataset.streaming.batching.batch import Batch
    from tensorrepo.formats.dataset.streaming.stats import StreamStats

Item = tuple[int, Any]  # a position, and what is handed out for the step that ends there


class Decoding(NamedTuple):
    """How batches are decoded by several threads at once.

    `begin` gives what is to be done for a batch; the call that is done last gives its item, the
    others none. There are up to `portions` calls.
    """

    begin: Callable[[Batch], list[Callable[[], list[Item]]]]
    portions: int


class Items(Protocol):
    """Items, some at a time; closing ends what makes them."""

    def __iter__(self) -> Iterator[list[Item]]: ...

    def __next__(self) -> list[Item]: ...

    def close(self) -> None: ...


def items_ahead(
    reading: Reading,
    work: Callable[[Batch], Any] | None,
    *,
    prefetch: int,
    steps_at_once: int,
    threads: int,
    decoding: Decoding | None = None,
) -> Items:
    """What is handed out for each step, made ahead on threads unless `prefetch` is 0.

    Args:
        reading: the gathered batches, up to `steps_at_once` at a time.
        work: makes of a batch what is handed out; None hands the batch out.
        prefetch: steps that are made ahead.
        steps_at_once: see `reading`.
        threads: how many work at once.
        decoding: what is done instead of `work`, and ends with it.
    """
    groups, stop = reading
    if decoding is not None:
        return _decoded(reading, decoding, prefetch, threads)
    if work is None:
        plain = _plain(groups)
        ahead = -(-prefetch // steps_at_once)
        if not ahead:
            return plain
        # One more than are ready: the thread makes the next one meanwhile.
        return OrderedMap(plain, _as_it_is, threads=1, ahead=ahead + 1, name="batches", stop=stop)
    if not prefetch:
        return _worked(groups, work)
    return OrderedMap(
        _single(groups),
        lambda batch: [(batch.position, work(batch))],
        threads=threads,
        ahead=max(prefetch, threads + 1),
        name="batches",
        stop=stop,
    )


def _as_it_is(items: list[Item]) -> list[Item]:
    return items


def _decoded(reading: Reading, decoding: Decoding, prefetch: int, threads: int) -> Items:
    calls = _calls(reading.groups, decoding)
    if not prefetch:
        return _called(calls)
    return OrderedMap(
        calls,
        lambda call: call(),
        threads=threads,
        ahead=max(prefetch * decoding.portions, threads + 1),
        name="batches",
        stop=reading.stop,
    )


def _calls(
    groups: Generator[list[Batch], None, None], decoding: Decoding
) -> Generator[Callable[[], list[Item]], None, None]:
    with closing(_single(groups)) as batches:
        for batch in batches:
            yield from decoding.begin(batch)


def _called(
    calls: Generator[Callable[[], list[Item]], None, None],
) -> Generator[list[Item], None, None]:
    with closing(calls):
        for call in calls:
            yield call()


def _plain(groups: Generator[list[Batch], None, None]) -> Generator[list[Item], None, None]:
    with closing(groups):
        for group in groups:
            yield [(batch.position, batch) for batch in group]


def _single(groups: Generator[list[Batch], None, None]) -> Generator[Batch, None, None]:
    with closing(groups):
        for group in groups:
            yield from group


def _worked(
    groups: Generator[list[Batch], None, None], work: Callable[[Batch], Any]
) -> Generator[list[Item], None, None]:
    with closing(_single(groups)) as batches:
        for batch in batches:
            yield [(batch.position, work(batch))]


class StreamIterator:
    """One pass over an epoch. Dropping it stops its threads."""

    def __init__(
        self,
        items: Items,
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
        self._ready: Iterator[Item] = iter(())
        # The threads know nothing of this object, so it can be collected while they run.
        self._finalizer = weakref.finalize(self, _abandoned, items, report)

    def __iter__(self) -> StreamIterator:
        return self

    def __next__(self) -> Any:
        found = next(self._ready, None)
        if found is None:
            found = self._next_items()
        position, item = found
        self._moved_to(position, self.token)
        return item

    def close(self) -> None:
        """Stop, and wait for the threads. What was handed out stays valid."""
        self._ready = iter(())
        if self._finalizer.detach() is not None:
            _close(self._items, self._report)

    def _next_items(self) -> Item:
        began = self._clock()
        try:
            while not (found := next(self._items)):  # a part of a batch was done
                pass
        except BaseException:  # the end, a failure, or Ctrl-C: nothing follows
            self.close()
            raise
        self._stats.waited_seconds += self._clock() - began
        self._ready = iter(found)
        return next(self._ready)


def _abandoned(items: Items, report: Callable[[], None] | None) -> None:
    """Close on whichever thread found that nobody holds the iterator any more.

    Where that is one of a stream's own, amid a collection of garbage, it may hold the lock that
    closing needs, and cannot wait for itself: another thread closes.
    """
    if is_own_thread():
        # `Thread.start` takes a lock of `threading`, which this thread may hold as well.
        _thread.start_new_thread(_close, (items, report))
    else:
        _close(items, report)


def _close(items: Items, report: Callable[[], None] | None) -> None:
    items.close()
    if report is not None:
        report()
