"""Stream and mix handles of the SDK, and their adapter for torch's `DataLoader`.

The loader takes batches from its workers in turns. So worker w of n makes the whole steps w, w + n
and so on: the order is that of the stream, whatever n is. Each worker reads and opens the pages of
its own steps, which are most pages of a shuffled window; the cache keeps the network at once.

torch is imported when an adapter is made, and not before.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NoReturn, Protocol, Self

from tensorrepo import lazy
from tensorrepo.formats.common import arguments
from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.tensors import import_library
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.streaming import checks
from tensorrepo.formats.dataset.streaming.mix.blend import Batching, MixWish
from tensorrepo.formats.dataset.streaming.mix.feed import mix
from tensorrepo.formats.dataset.streaming.options import declared, described
from tensorrepo.formats.dataset.streaming.pipeline_plan import SECONDS as PLAN_SECONDS
from tensorrepo.formats.dataset.streaming.pipeline_plan import PipelinePlan, plan_pipeline
from tensorrepo.formats.dataset.streaming.profile import SECONDS, Profile, profile
from tensorrepo.formats.dataset.streaming.stream import BatchStream as StoredStream
from tensorrepo.formats.dataset.streaming.warm import WarmReport, warm
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tensorrepo.runs.run_context import CommittedEntry, note_streamed

# What all workers of a loader and its process share: `_CLAIM_WORKERS` of the loop `_CLAIM` use the
# place that was loaded. `_BEGUN` is 1 once a loop reads `_EPOCH`. From `_LOOPS` on lie pairs: the
# number of a loop of workers, and its epoch.
_EPOCH, _BEGUN, _CLAIM, _WORKERS, _LOADS, _CLAIM_WORKERS, _LOOPS = range(7)
_LOOP_PAIRS = 16
_PERSISTENT_LOOPS = 1 << 20  # loops of one set of workers, which numbers of loops leave room for
_WAIT_SECONDS, _POLL_SECONDS = 60.0, 0.001  # for the first worker of a loop
_OF_A_WORKER = ("turns", "batch_size")  # in the state of a worker only


class LoaderShare:
    """What a stream, the loaders that read it, and their workers know together.

    Attributes:
        shared: int64 tensor in shared memory; None until there is something for a loader.
        turns: number of workers that shared the steps of the loaded state; 0: any number.
        loads: number of loaded states that this process knows of.
        evaluates: what is read is for measuring models, not for training them.
    """

    def __init__(self) -> None:
        """Nothing is shared yet."""
        self.shared: Any = None
        self.turns = self.loads = 0
        self.evaluates = False
        self._loops = 0  # of this worker
        self._loaded_epoch: int | None = None  # by this worker, for its next loop

    def begin(self, stored: StoredStream) -> None:
        """Share what the workers of loaders have to know.

        Raises:
            UnsupportedError: torch is not installed.
        """
        if self.shared is None:
            torch = _torch()
            size = _LOOPS + 2 * _LOOP_PAIRS
            self.shared = torch.zeros(size, dtype=torch.int64).share_memory_()
            self.shared[_EPOCH], self.shared[_BEGUN] = stored.epoch, int(stored.begun)

    def notice(self, stored: StoredStream) -> None:
        """Outside of workers: follow those of a loader, which read on by themselves.

        The place that was loaded is used up once some began there.
        """
        if self.shared is None or _worker() is not None:
            return
        if stored.start and self.shared[_CLAIM]:
            stored.rewind()
            self.turns = 0
        if stored.epoch != self.shared[_EPOCH]:
            stored.set_epoch(int(self.shared[_EPOCH]))
        stored.begun = bool(self.shared[_BEGUN])

    def set_epoch(self, epoch: int) -> None:
        """Let workers begin `epoch` with their next loop."""
        if self.shared is not None:
            self.shared[_EPOCH], self.shared[_BEGUN] = epoch, 0

    def begin_loop(self, stored: StoredStream) -> None:
        """Outside of workers: let `stored` read the next epoch, as far as loaders know of it."""
        self.notice(stored)
        self.read_here()
        if self.shared is not None:
            stored.set_epoch(self._next_epoch())

    def _next_epoch(self) -> int:
        epoch = int(self.shared[_EPOCH] + self.shared[_BEGUN])
        self.shared[_EPOCH], self.shared[_BEGUN] = epoch, 1
        return epoch

    def epoch_of_loop(self, first_process: int, worker: int) -> int:
        """In a worker that begins a loop: the epoch that all workers of this loop read.

        The first worker chooses and tells it. Every worker begins each loop of its loader once,
        so their own counts agree, and name the loop together with the number of the first process.
        """
        loop = first_process * _PERSISTENT_LOOPS + self._loops
        pair = _LOOPS + 2 * (first_process % _LOOP_PAIRS)
        loaded, self._loaded_epoch = self._loaded_epoch, None
        self._loops += 1
        if worker:
            return self._told_epoch(loop, pair) if loaded is None else loaded
        if loaded is not None:
            self.shared[_EPOCH], self.shared[_BEGUN] = loaded, 0
        self.shared[pair + 1] = epoch = self._next_epoch()
        self.shared[pair] = loop  # last: who reads it reads the epoch next
        return epoch

    def _told_epoch(self, loop: int, pair: int) -> int:
        end = time.monotonic() + _WAIT_SECONDS
        while self.shared[pair] < loop and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        if self.shared[pair] != loop:
            raise InvalidInputError(
                "the first worker of this DataLoader did not say which epoch is read, or another "
                "loop began meanwhile: begin the loop again"
            )
        return int(self.shared[pair + 1])

    def load(self, epoch: int, turns: int = 0) -> None:
        """A state of `epoch` was loaded, for one loop."""
        self.turns = turns
        if self.shared is None:
            return
        self.shared[_EPOCH] = epoch
        self.shared[_CLAIM] = 0
        if _worker() is not None:
            self._loaded_epoch = epoch  # others of its loop may have begun it already
        else:
            self.shared[_BEGUN] = self.shared[_WORKERS] = 0
            self.shared[_LOADS] += 1
            self.loads = int(self.shared[_LOADS])

    def read_here(self) -> None:
        """Outside of workers: whoever reads next knows what was used."""
        if self.shared is not None and _worker() is None:
            self.shared[_WORKERS] = 0

    def check_place(self) -> None:
        """See that it is known in this process what was used.

        Raises:
            InvalidInputError: workers read.
        """
        if self.shared is not None and self.shared[_WORKERS]:
            raise InvalidInputError(
                "the workers of a DataLoader read this stream ahead, so it does not know what was "
                "used: state_dict(position=batch.position) of the last batch"
            )


class TorchStream:
    """Batches of a stream for torch's `DataLoader`, which must be told ``batch_size=None``.

    `set_epoch` and `load_state_dict` are those of the stream: it does not matter on which of both
    they are called. An epoch counts for the next iteration, also of workers that persist. A state
    has to be loaded before the loader starts its workers.
    """

    def __init__(self, stream: Stream) -> None:
        """Made by `Stream.torch`, which gives the steps of `stream`."""
        self.stream = stream
        self._next: int | None = None  # where the next step of this worker begins

    def __len__(self) -> int:
        """Steps that are left of this epoch, of all workers together."""
        return len(self.stream)

    def set_epoch(self, epoch: int) -> None:
        """Begin another pass over the data, in another order."""
        self.stream.note_reading()
        self.stream.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        info, loading, stored = _worker(), self.stream.loading, self.stream.stored
        _check_collation()
        if info is None:
            self.stream.note_reading()
            loading.begin_loop(stored)
            _check_turns(loading.turns, 0)
            return self._steps(0, 1)
        if stored.options.loading.workers != "thread":
            raise InvalidInputError(
                f"workers={stored.options.loading.workers!r} was asked for, and a DataLoader with "
                f"num_workers={info.num_workers}: use one of them"
            )
        if loading.loads != loading.shared[_LOADS]:
            # A state was loaded since this worker began, and it has not got it. torch hands over
            # what its steps raise, not what this does.
            return map(_missed, [None])
        if stored.options.sampling.feedback is not None:
            raise InvalidInputError(
                "losses are reported in this process, and the workers of a DataLoader would not "
                "learn of them: use num_workers=0, the stream has threads of its own"
            )
        loading.shared[_WORKERS] = info.num_workers
        # How many processes the parent of this one had begun with it.
        number: int = multiprocessing.current_process()._identity[-1]  # noqa: SLF001
        stored.set_epoch(loading.epoch_of_loop(number - info.id, info.id))
        if not self._claimed(number - info.id, info.num_workers):
            stored.rewind()
        if not loading.turns:
            return self._steps(info.id, info.num_workers)
        _check_turns(loading.turns, info.num_workers)
        return self._steps(0, info.num_workers)  # its place is that of its own next step

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Where reading stands: one state for all ranks and any number of workers.

        Args:
            position: `batch.position` of the batch used last; needed where the loader has workers,
                which read ahead. Inside of a worker (`StatefulDataLoader` asks there) None gives
                the worker's own place, for a loader with as many workers.

        Raises:
            InvalidInputError: workers read, and no position was given.
        """
        if position is None and self._next is not None and _worker() is not None:
            loading, options = self.stream.loading, self.stream.stored.options
            own = {"turns": int(loading.shared[_WORKERS]), "batch_size": options.batch_size}
            return self.stream.state_dict(self._next) | own
        return self.stream.state_dict(position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another stream of the same data stood.

        Raises:
            InvalidInputError: the state is of other data or another order, or of a worker that
                made steps of another size.
        """
        if isinstance(state, dict) and state.get("turns"):
            # The steps of a worker's own place have to be those of this stream.
            saved, own = state.get("batch_size"), self.stream.stored.options.batch_size
            if saved != own:
                raise InvalidInputError(
                    f"this state was taken inside of a loader's worker, amid steps of {saved} "
                    f"rows, and this stream has batch_size={own}: rows would be missing, and "
                    f"others come twice. Resume with batch_size={saved}. For any batch size and "
                    "number of workers, save `stream.state_dict(position=batch.position)` of the "
                    "last batch that was used."
                )
            plain = {name: value for name, value in state.items() if name not in _OF_A_WORKER}
            self.stream.load_state_dict(plain)
            self.stream.loading.load(self.stream.stored.epoch, int(state["turns"]))
        else:
            self.stream.load_state_dict(state)
        self._next = None

    def __reduce__(self) -> tuple[Any, ...]:
        loading = self.stream.loading
        return _restored, (self.stream, loading.shared, loading.turns, loading.loads)

    def __repr__(self) -> str:
        return f"<torch dataset: {self.stream!r}>"

    def _claimed(self, loop: int, workers: int) -> bool:
        """Whether the place that was loaded is for the workers of this `loop` over a loader.

        New workers begin every loop as copies of one object, but a state is for one loop only.
        Loops are told apart by the number of the process that is the first worker: `workers`
        processes follow each other, up to a few that somebody else begins in between. Seeds say
        nothing, since people set them anew before every loop.
        """
        shared = self.stream.loading.shared
        if not shared[_CLAIM]:
            shared[_CLAIM_WORKERS] = workers
            shared[_CLAIM] = loop
        return bool(loop - shared[_CLAIM] < shared[_CLAIM_WORKERS])

    def _steps(self, turn: int, turns: int) -> Iterator[Any]:
        stored = self.stream.stored
        start, batch_size, rows = stored.start, stored.options.batch_size, stored.rows
        self.stream.loading.turns = 0
        self._next = min(start + turn * batch_size, rows)
        return self._counted(iter(stored.in_turn(turn, turns)), turns * batch_size, rows)

    def _counted(self, steps: Iterator[Any], stride: int, rows: int) -> Iterator[Any]:
        for step in steps:
            assert self._next is not None, "set before"
            self._next = min(self._next + stride, rows)
            yield step


def _restored(stream: Stream, shared: Any, turns: int, loads: int) -> TorchStream:
    loading = stream.loading
    loading.shared, loading.turns, loading.loads = shared, turns, loads
    return _class()(stream)


def _missed(_first_step: object) -> NoReturn:
    raise InvalidInputError(
        "a state was loaded while the workers of this DataLoader persist, and they do not learn of "
        "it: load it before the loader's first loop, or make another loader"
    )


def _check_turns(taken: int, workers: int) -> None:
    """See that a place of one of `taken` workers is for a loader with as many."""
    if taken not in (0, workers):
        raise InvalidInputError(
            f"this state was taken inside of a loader with {counted(taken, 'worker')}, this one "
            f"has {workers}. For any number of workers, save "
            "`stream.state_dict(position=batch.position)` of the last batch that was used."
        )


def _check_collation() -> None:
    """See that the loader, which asks for the iterator, makes no batches of batches.

    torch tells a dataset nothing of its loader; only the fetcher that asks for an iterator knows.
    """
    asking = sys._getframe(2).f_locals  # noqa: SLF001
    if asking.get("auto_collation"):
        raise InvalidInputError(
            "a stream gives whole batches, and this DataLoader would make batches of them. Give "
            "the size to the stream, and batch_size=None to the loader: "
            "DataLoader(ds.stream(batch_size=32).torch(), batch_size=None)"
        )


def _worker() -> Any:
    """What torch says of the worker that this is; None outside of workers."""
    return _torch().utils.data.get_worker_info()


@lru_cache(maxsize=1)
def _class() -> type[TorchStream]:
    """`TorchStream` as the `IterableDataset` that a `DataLoader` looks for."""
    return type("TorchStream", (TorchStream, _torch().utils.data.IterableDataset), {})


def _torch() -> Any:
    missing = "a DataLoader needs torch, which is not installed: `pip install 'tensorrepo[torch]'`"
    return import_library("torch", missing)


class StreamedDataset(CommittedEntry, Protocol):
    """A dataset of a commit, as far as a stream of it is concerned."""

    @property
    def name(self) -> str: ...
    @property
    def stored(self) -> StoredDataset: ...


class Stream:
    """Batches of one dataset, for training. See `Dataset.stream`.

    A batch maps columns to arrays; `batch.position` counts the rows handed out with it, and
    `batch.row_ids` says which rows they are.
    """

    def __init__(
        self,
        dataset: StreamedDataset,
        stored: StoredStream,
        again: Callable[[], Stream],
        of_equal: Callable[[StoredDataset], StoredStream] | None = None,
        told: Mapping[str, Any] | None = None,
    ) -> None:
        """Made by `Dataset.stream`.

        Args:
            dataset: dataset that is read.
            stored: the format's stream.
            again: makes an equal stream, in any process.
            of_equal: streams an equal dataset likewise, to profile it; None: there are several.
            told: which rows these are, for lineage, where a text says it.
        """
        self.told = dict(told or {})
        self.dataset, self.stored = dataset, stored
        self._again, self._of_equal = again, of_equal
        self.loading = LoaderShare()

    def torch(self) -> TorchStream:
        """For torch's own `DataLoader`, which is to make no batches of them:
        ``DataLoader(stream.torch(), batch_size=None, num_workers=4)``. Epochs and states that are
        set here reach it.

        Raises:
            UnsupportedError: torch is not installed.
        """
        self.note_reading()
        self.loading.begin(self.stored)
        return _class()(self)

    def __iter__(self) -> Iterator[Any]:
        """The steps of the next epoch: the first loop reads epoch 0, each other one goes on.

        `set_epoch` and `load_state_dict` say where the next loop begins. Leaving a loop early
        leaves nothing behind.
        """
        self.note_reading()
        self.loading.begin_loop(self.stored)
        return iter(self.stored)

    def __len__(self) -> int:
        """Steps of a loop over this epoch, or of the next one where a state was loaded."""
        self.loading.notice(self.stored)
        return len(self.stored)

    @property
    def epoch(self) -> int:
        """Which pass over the data the newest loop reads; before the first, the one it will."""
        self.loading.notice(self.stored)
        return self.stored.epoch

    @property
    def rows(self) -> int:
        """Rows of this epoch, or packed items: what `batch_size` and positions count."""
        self.loading.notice(self.stored)
        return self.stored.rows

    def set_epoch(self, epoch: int) -> None:
        """Read this pass over the data, in its own order, with the next loop, here or in a loader
        that `torch` was given to, also of workers that persist. The loops after it go on from it.
        """
        self.loading.notice(self.stored)
        self.stored.set_epoch(epoch)
        self.loading.set_epoch(epoch)

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Where the stream stands, as JSON: one state for all ranks.

        Args:
            position: `batch.position` of the batch used last, where a loader reads ahead.

        Raises:
            InvalidInputError: the workers of a loader read, and no position was given.
        """
        if position is None:
            self.loading.check_place()
        self.loading.notice(self.stored)
        return self.stored.state_dict(position) | self._commits()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another stream of the same data stood, here or in a loader.

        Raises:
            InvalidInputError: the state is of other data or another order.
        """
        if not isinstance(state, dict):
            raise InvalidInputError(f"not a 'tensorrepo stream state': {state!r:.120}")
        self.stored.load_state_dict(self._plain(dict(state)))
        self.loading.load(self.stored.epoch)

    def sources(self) -> list[tuple[StreamedDataset, Callable[[], dict[str, Any]]]]:
        """What is read, and what tells how far: the details of a ``trained-on`` edge."""
        return [(self.dataset, self._place)]

    def explain(self) -> Any:
        """How it will read: order, resident bytes, requests. Reads nothing."""
        return self.stored.explain()

    def stats(self) -> Any:
        """What happened so far: rows, bytes, and what the consumer waited for."""
        return self.stored.stats()

    def profile(
        self, step: Callable[[Any], object] | None = None, *, seconds: float = SECONDS
    ) -> Profile:
        """What a training loop waits for: its step, preparing batches, or storage.

        The first steps of the epoch run three times: from storage, with every stored byte in
        memory, and with one batch over and over. What was read before by this machine, such as
        files that the system still holds in memory, makes storage look faster than it is.

        Args:
            step: what the loop does with a batch; None: nothing.
            seconds: time after which the first pass ends; the others run the same steps.

        Raises:
            UnsupportedError: a mix, whose streams read datasets of their own.
        """
        checks.function("step", step)
        if self._of_equal is None:
            raise UnsupportedError(
                "a mix reads several datasets, whose storage may differ: profile each of its "
                "streams, mix.streams[0].profile(step=...) and so on"
            )
        return profile(self.dataset.stored, self._of_equal, step=step, seconds=seconds)

    def plan_pipeline(
        self,
        *,
        step_seconds: float = 0.0,
        link: int | str | None = None,
        cores: int | None = None,
        seconds: float = PLAN_SECONDS,
    ) -> PipelinePlan:
        """Which steps of this pipeline would pay offline: resized, decoded or transformed rows.

        A sample of rows is read, decoded, transformed, and stored in other ways, on this machine.
        Print the answer for a table and what to do.

        Args:
            step_seconds: time that a training step takes; 0: as fast as rows come.
            link: bytes a second that storage will bring, ``"500MB"``; None: it is measured.
            cores: cores that will decode and transform; None: as this stream.
            seconds: time after which measuring the link ends.

        Raises:
            UnsupportedError: a mix, or a library is missing.
        """
        if self._of_equal is None:
            raise UnsupportedError(
                "a mix reads several datasets: plan each of its streams, as in "
                "mix.streams[0].plan_pipeline()"
            )
        given = None if link is None else arguments.byte_size("link", link, 1)
        return plan_pipeline(
            self.dataset.stored,
            self.stored.options,
            link_bytes_per_second=given,
            step_seconds=step_seconds,
            cores=cores,
            seconds=seconds,
        )

    def report(self, batch: Any, losses: Any) -> None:
        """Tell the losses of a batch's rows, from which the weights of the next epoch follow.

        Each rank reports what it saw. See ``Sampling(feedback=...)``.

        Args:
            batch: batch as this stream gave it.
            losses: one number for each of its rows, before they are averaged: ``(rows,)``.

        Raises:
            InvalidInputError: the stream has no feedback, or these are no losses of its rows.
        """
        self.stored.report(batch, losses)

    def importance(self, batch: Any) -> Any:
        """1 / weight of each row of a batch, float32 ``(rows,)``.

        Multiply losses with it, and their mean over an epoch is that over all rows, however often
        each of them came.
        """
        return self.stored.importance(batch)

    def warm(
        self,
        *,
        limit_rate: int | str | None = None,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> WarmReport:
        """Fetch what the next loop will read of a remote dataset into this machine's cache.

        What is there is not fetched again, so warming that was cut off goes on when it is called
        again. Without ranks, weights and `rows` that is all that any epoch reads.

        Args:
            limit_rate: bytes a second at most, such as ``"10MB"``.
            progress: callback for bytes that are in the cache, and those that will be.

        Raises:
            InvalidInputError: the stream keeps nothing, because of ``cache_limit=0``.
            CorruptError: a page came damaged twice.
        """
        if self.stored.setup.page_cache is None:
            raise InvalidInputError(
                "the limit of the cache is 0, so nothing would be kept: give Loading(cache_limit=) "
                "or set it with `tensorrepo config cache.limit`"
            )
        rate = None if limit_rate is None else lazy.rate_limit(limit_rate)
        return warm(self.stored, rate=rate, progress=progress)

    def close(self) -> None:
        """Stop reading ahead."""
        self.stored.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, index: object) -> NoReturn:
        # A DataLoader that is given the stream itself asks for items by number.
        raise TypeError(
            "a stream gives its batches in order and none by number: iterate over it, or give "
            "torch's DataLoader stream.torch(), as in "
            "DataLoader(stream.torch(), batch_size=None)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """What another process needs to begin where this one would."""
        return _with_state, (self._again, self.stored.next_state() | self._commits())

    def note_reading(self) -> None:
        """Tell the run that goes on here, if one does, that it reads this: it may have begun since
        the stream was made.
        """
        for origin, place in self.sources():
            note_streamed(origin, place, evaluated=self.loading.evaluates)

    def _place(self) -> dict[str, Any]:
        """Where the stream stands, as far as this process knows: loaders read ahead of it."""
        self.loading.notice(self.stored)
        state = self.stored.place()
        place = {key: state[key] for key in ("seed", "epoch", "position")}
        selection = state.get("items", {}).get("selection")
        try:
            self.loading.check_place()
        except InvalidInputError:
            del place["position"]
        return place | ({"selection": selection} | self.told if selection else {})

    def _commits(self) -> dict[str, Any]:
        return {"commit": self.dataset.commit, "name": self.dataset.name}

    def _plain(self, state: dict[str, Any]) -> dict[str, Any]:
        """`state` without what it says of commits, which have to have the same data."""
        commit, name = state.pop("commit", None), state.pop("name", None)
        check_data(self, state.get("dataset"), commit, name)
        return state

    def __repr__(self) -> str:
        return f"<stream of {self.dataset.name}: {self.stored!r}>"


def check_data(stream: Stream, digest: Any, commit: Any, name: Any) -> None:
    """Refuse the state of other data, by what it tells of them.

    Raises:
        InvalidInputError: it is of another dataset, or of another version of this one.
    """
    here = stream.dataset
    if digest in (None, here.stored.digest) or not isinstance(commit, str):
        return  # what else may be wrong, the format's stream says
    if commit == here.commit or name not in (None, here.name):
        other = "another dataset" if name in (None, here.name) else f"dataset {name!r}"
        raise InvalidInputError(
            f"this is the state of {other} at commit {commit:.12}, and {here.name!r} at commit "
            f"{here.commit:.12} is streamed. Load it into a stream of what it was saved for."
        )
    raise InvalidInputError(
        f"the state was saved at commit {commit:.12}, whose data differ from those of {here.name} "
        f"at commit {here.commit:.12}. Stream the commit that it was saved at, or start a new "
        "epoch without the state."
    )


def _with_state(again: Callable[[], Stream], state: dict[str, Any]) -> Stream:
    stream = again()
    stream.load_state_dict(state)
    return stream


_OF_A_MIX = {*declared(MixWish), "seed"}


class Mix(Stream):
    """Batches of several streams, each as often as it should come.

    ``tr.Mix([a.stream(batch_size=256), b.stream(batch_size=256)], weights=[3, 1])`` is used like a
    stream. `batch.source` says which of the streams each row is of.
    """

    @described(MixWish)
    def __init__(  # noqa: D417  the others are described where they are declared
        self,
        streams: Sequence[Stream],
        *,
        weights: Sequence[float] | None = None,
        repeat: Sequence[float] | None = None,
        choose: Sequence[int] | None = None,
        rows: int | None = None,
        steps: int | None = None,
        batching: Batching = "random",
        seed: int = 0,
    ) -> None:
        """Mix `streams`, whose options and columns agree. The largest window is divided among them.

        Without `weights`, `repeat`, `choose`, `rows` and `steps` an epoch has every row of every
        source once.

        Args:
            streams: streams of any datasets; their positions mean nothing.
            seed: seed of the mix; every stream has its own.
        """
        keywords = {name: each for name, each in locals().items() if name in _OF_A_MIX}
        _check_streams(streams)
        stored = mix([stream.stored for stream in streams], **keywords)
        super().__init__(streams[0].dataset, stored, partial(Mix, tuple(streams), **keywords))
        self.streams = tuple(streams)

    def sources(self) -> list[tuple[StreamedDataset, Callable[[], dict[str, Any]]]]:
        """What is read; how far is told of the mix."""
        return [(stream.dataset, partial(self._part, stream)) for stream in self.streams]

    def _part(self, stream: Stream) -> dict[str, Any]:
        return {"seed": stream.stored.seed, "mix": self._place()}

    def _commits(self) -> dict[str, Any]:
        sources = [stream.dataset for stream in self.streams]
        return {"commits": [ds.commit for ds in sources], "names": [ds.name for ds in sources]}

    def _plain(self, state: dict[str, Any]) -> dict[str, Any]:
        commits, names = state.pop("commits", None), state.pop("names", None)
        lists: list[Any] = [state.get("sources"), commits, names]
        if all(isinstance(each, list | tuple) for each in lists):
            for stream, source, commit, name in zip(self.streams, *lists, strict=False):
                digest = source.get("dataset") if isinstance(source, dict) else None
                check_data(stream, digest, commit, name)
        return state

    def __repr__(self) -> str:
        names = ", ".join(stream.dataset.name for stream in self.streams)
        return f"<mix of {names}: {self.stored!r}>"


def _check_streams(streams: Sequence[Stream]) -> None:
    if not isinstance(streams, list | tuple):
        raise arguments.wrong("a mix", "made of a list of streams", streams)
    for number, stream in enumerate(streams):
        if not isinstance(stream, Stream):
            name = f"source {number} of the mix"
            raise arguments.wrong(name, "a stream, as ds.stream(...) gives it", stream)
