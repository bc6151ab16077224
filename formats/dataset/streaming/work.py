"""What is done to a gathered batch before it is handed out, by which threads?

    decode images -> the user's transform -> pin, or hand to JAX

Decoding is cut into portions that several threads share; the rest is one call a batch.
"""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.dataset.streaming.batching.badsamples import BadSamples
from tensorrepo.formats.dataset.streaming.batching.batch import as_output, with_leaves_changed
from tensorrepo.formats.dataset.streaming.batching.decode import Decoder, Meter
from tensorrepo.formats.dataset.streaming.batching.outputs import numbers_as_jax, pinned
from tensorrepo.formats.dataset.streaming.pipeline import Decoding, Item

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorrepo.formats.dataset.streaming.batching.batch import Batch
    from tensorrepo.formats.dataset.streaming.options import StreamOptions, StreamSetup
    from tensorrepo.formats.dataset.streaming.stats import StreamStats

    Work = Callable[[Batch], Any]


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


def work_of(setup: StreamSetup, stats: StreamStats) -> Work | None:
    """What is done to every batch, images decoded, by several threads at once; None: nothing."""
    transform, clock = setup.options.transform, setup.clock
    finish = finish_of(setup.options) if setup.options.pins else None
    if transform is None:
        return finish
    lock = Lock()

    def transformed(batch: Batch) -> Any:
        began = clock()
        found = _transformed(transform, batch)
        with lock:
            stats.transform_seconds += clock() - began
        return found if finish is None else finish(found)

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
    """How the images of a batch are decoded, and what is done to it then.

    Args:
        decoder: decoder of the stream.
        work: what is done to a decoded batch.
        setup: setup of the stream.
        stats: where the time, and what became of bad images, is counted.
        key: key of the epoch's crops and flips.
    """
    bad = BadSamples(setup.options.on_error, stats)
    clock, lock = setup.clock, Lock()

    def finish(batch: Batch) -> Item:
        return batch.position, batch if work is None else work(batch)

    def spent(seconds: float) -> None:
        with lock:
            stats.decode_seconds += seconds

    def begin(batch: Batch) -> list[Callable[[], list[Item]]]:
        return decoder.begin(batch, key, bad, finish, Meter(clock, spent))

    return Decoding(begin, decoder.portions)


def finish_of(options: StreamOptions) -> Callable[[Any], Any]:
    """What is done last, in the process of the user, to what is handed out."""
    if options.output == "jax":
        return partial(with_leaves_changed, change=numbers_as_jax)
    return partial(with_leaves_changed, change=pinned) if options.pins else _unchanged


def _unchanged(item: Any) -> Any:
    return item
