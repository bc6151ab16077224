"""Options of a stream: name, type, default, bounds and description, each declared once.

`StreamOptions` and its groups `Sampling`, `Ranks` and `Loading` are what a caller may ask for.
Their checks, what travels to another process, which options streams of a mix must share, and the
arguments of `Dataset.stream` in the SDK and of ``dataset stream`` follow from the fields here,
or are held equal to them by a test.

What a caller leaves open is chosen by the rules at the end, from what is known before reading:
bytes of a batch, cores, where the data lies. Only the number of requests to a store is found by
trying (`load.requests`). `BatchStream.tuning` shows what was chosen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from numpy.typing import NDArray

from tensorrepo.formats.common import arguments
from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.dataset.selecting.select_rows import Where
from tensorrepo.formats.dataset.streaming import checks
from tensorrepo.formats.dataset.streaming.collate.batch import Batch, OutputForm, pins
from tensorrepo.formats.dataset.streaming.collate.decode import Decode, Decodes
from tensorrepo.formats.dataset.streaming.collate.error_policy import OnBadRow
from tensorrepo.formats.dataset.streaming.load.peers import CachePeers
from tensorrepo.formats.dataset.streaming.order.feedback import Feedback
from tensorrepo.formats.dataset.streaming.order.schedule import Last, Share
from tensorrepo.formats.dataset.streaming.plan.pages import Shuffle
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.cache import PageDiskCache

AHEAD_BATCHES = 4
_LEAST_AHEAD = 2
_AHEAD_BYTES = 256 << 20  # of batches that wait: what a pool keeps
_MOST_WORK_THREADS = 8
_AT_ONCE_BYTES = 16 << 20  # of steps that are gathered together, at most
_AT_ONCE_ROWS = 16384


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was chosen for a stream, by its user or by the rules here.

    Attributes:
        prefetch: batches made ahead.
        work_threads: threads that decode and transform; 0 where there is nothing to do.
        fetch_threads: threads that load runs; None: requests to a store, as many as it bears.
        steps_at_once: steps that are gathered together.
        kernel: kernel that gathers rows: "native", in C, or "numpy" where that was not built.
    """

    prefetch: int
    work_threads: int
    fetch_threads: int | None
    steps_at_once: int
    kernel: str

    def __str__(self) -> str:
        fetched = "as many requests as the store bears"
        if self.fetch_threads is not None:
            fetched = f"{self.fetch_threads} to load"
        work = f", {self.work_threads} to decode and transform" if self.work_threads else ""
        return (
            f"threads: {fetched}{work}; {counted(self.prefetch, 'batch', 'batches')} ahead; "
            f"{counted(self.steps_at_once, 'step')} gathered at once by the {self.kernel} kernel"
        )


def batches_ahead(batch_bytes: int) -> int:
    """How many batches are made ahead: fewer where they are large."""
    return max(_LEAST_AHEAD, min(AHEAD_BATCHES, _AHEAD_BYTES // max(1, batch_bytes)))


def usual_work_threads(cores: int | None) -> int:
    """How many threads decode and transform."""
    return min(_MOST_WORK_THREADS, cores or 1)


def steps_at_once(own_rows: int, item_bytes: int) -> int:
    """How many steps of `own_rows` rows are gathered together: what a call costs is shared."""
    own_rows = max(1, own_rows)
    step_bytes = own_rows * item_bytes
    return max(1, min(_AT_ONCE_BYTES // max(1, step_bytes), _AT_ONCE_ROWS // own_rows))


Transform = Callable[[Batch], Any]
_Call = TypeVar("_Call", bound=Callable[..., Any])
_Record = TypeVar("_Record")
Workers = Literal["thread", "process", "ray"]
# One number per row, the name of a column that holds them, or {"column": "balanced"}.
GivenWeights = NDArray[Any] | Sequence[float] | str | Mapping[str, str]

# "raise", a number, or a value by column, of which None leaves nulls as they are.
Nulls = float | str | Mapping[str, Any] | None

WINDOW_BYTES = 512 << 20
AHEAD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """Declaration of an option, beside its name, type and default.

    Attributes:
        text: noun phrase that describes it to the caller.
        check: function of name and value, gives the value in its usual form or raises; not called
            for None where that is the default.
        per_source: whether streams of one mix may differ in it.
    """

    text: str
    check: Callable[[str, Any], Any] | None = None
    per_source: bool = False


def option(
    default: Any,
    text: str,
    check: Callable[[str, Any], Any] | None = None,
    *,
    per_source: bool = False,
) -> Any:
    """A field of a record of options; see `OptionSpec`."""
    declaration = OptionSpec(text, check, per_source)
    return field(default=default, metadata={OptionSpec: declaration})


def declared(record: Any) -> dict[str, OptionSpec]:
    """Every option of a record, by the name of its field."""
    return {each.name: each.metadata[OptionSpec] for each in fields(record)}


def _option_lines(record: type, indent: str) -> str:
    return "".join(f"{indent}{name}: {option.text}.\n" for name, option in declared(record).items())


def _listed(record: type[_Record]) -> type[_Record]:
    """Decorator of a group of options: its docstring lists them, as `help` shows it."""
    record.__doc__ = f"{record.__doc__}\n\n    Attributes:\n{_option_lines(record, ' ' * 8)}    "
    return record


def check_record(record: Any) -> None:
    """Check each option of a frozen record by its declaration, and bring it to its usual form.

    Raises:
        InvalidInputError: an option that is something else than declared.
    """
    for each in fields(record):
        check, value = each.metadata[OptionSpec].check, getattr(record, each.name)
        if check is not None and not (value is None and each.default is None):
            object.__setattr__(record, each.name, check(each.name, value))


def _whole(least: int, most: int = arguments.MOST) -> Callable[[str, Any], int]:
    return partial(arguments.whole, least=least, most=most)


def _bytes(least: int) -> Callable[[str, Any], int]:
    return partial(arguments.byte_size, least=least)


def _group(kind: type) -> Callable[[str, Any], Any]:
    expected = f"a group of options, as tr.{kind.__name__}(...) gives it"
    return partial(arguments.check_instance, kinds=kind, expected=expected)


def _urls(name: str, value: Any) -> tuple[str, ...]:
    urls = (value,) if isinstance(value, str) else value
    if not isinstance(urls, list | tuple) or not all(isinstance(each, str) for each in urls):
        raise arguments.wrong(name, "a list of URLs", value)
    if len(set(urls)) != len(urls):
        raise InvalidInputError(f"{name} names a server twice: {list(urls)}")
    return tuple(urls)


def _cache(name: str, value: Any) -> Any:
    if value == "derived" and isinstance(value, str):
        return DerivedCache()
    if not isinstance(value, DerivedCache):
        raise arguments.wrong(name, "'derived' or a tr.DerivedCache(...)", value)
    return value


def _on_error(name: str, value: Any) -> Any:
    if value not in ("raise", "skip") and not callable(value):
        raise InvalidInputError(f"{name} is 'raise', 'skip' or a function, got {value!r:.80}")
    return value


@_listed
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampling:
    """Which rows come how often, what makes an item, and how far apart rows are mixed."""

    rows: Any = option(
        None, "rows to stream: a slice, row numbers, a mask, or row ids; None means all"
    )
    where: Where | None = option(
        None, "predicate that rows must fulfil too, or what else names rows for a draft"
    )
    weights: GivenWeights | None = option(
        None,
        "how often each row comes in an epoch, on average: a number per row, or the name of a "
        "column. 0 means never",
    )
    balance: str | None = option(None, "column whose classes come equally often")
    epoch_rows: int | None = option(
        None, "average length of an epoch, with `weights` or `balance`", _whole(1, (1 << 31) - 1)
    )
    pack: int | None = option(
        None,
        "number of elements of an item that the one column is cut into; `batch.segments` says "
        "which row each element is of. Then steps count items",
        _whole(1),
    )
    bucket: str | None = option(
        None, "column by whose length, or value, rows that are alike come together"
    )
    bucket_steps: int = option(
        64, "size of the windows, in steps, within which rows are sorted for `bucket`", _whole(2)
    )
    echo: int = option(
        1,
        "how often each row that comes is given in an epoch, though it is read once: for training "
        "that waits for reading. The times of a row stand as far apart as the window allows",
        _whole(1, 1 << 16),
    )
    feedback: Feedback | None = option(
        None,
        "weights that follow the losses which `Stream.report` is given, a `Feedback`",
        _group(Feedback),
    )
    window: int | str = option(
        WINDOW_BYTES, 'decoded bytes to shuffle in, for the whole job: "512MB" or a number',
        _bytes(1),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_record(self)
        if self.pack is not None and self.bucket is not None:
            raise InvalidInputError(
                "packed items are all of one length, so there is nothing for bucket= to sort: "
                "give pack= or bucket="
            )
        if self.pack is not None and self.echo > 1:
            raise InvalidInputError(
                "packed items are of several rows, which echo= would give next to each other: give "
                "pack= or echo="
            )
        if self.feedback is not None and (self.pack or self.weights is not None or self.balance):
            raise InvalidInputError(
                "feedback= makes the weights of rows: give no weights=, balance= or pack= with it"
            )

    @property
    def window_bytes(self) -> int:
        """Decoded bytes to shuffle in."""
        return arguments.byte_size("window", self.window)


@_listed
@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Which share of each step this process reads."""

    rank: int | None = option(
        None,
        "number of this process, from 0; None reads RANK, which more than one rank need",
        _whole(0),
    )
    world_size: int | None = option(
        None, "number of ranks that share the steps; None reads WORLD_SIZE", _whole(1)
    )
    replicate: int = option(
        1, "tensor-parallel group size: this many consecutive ranks get the same rows", _whole(1)
    )

    def __post_init__(self) -> None:
        check_record(self)
        if self.world_size is not None and self.world_size % self.replicate:
            raise InvalidInputError(
                f"replicate={self.replicate} ranks cannot have the same share in a world of "
                f"{self.world_size}: it has to divide it."
            )

    @property
    def count(self) -> int:
        """Number of ranks that share the steps: 1 where nobody said so."""
        return self.world_size or 1

    @property
    def place(self) -> tuple[int, int]:
        """(number, count) of the shares that differ: ranks with the same rows are one.

        Raises:
            InvalidInputError: a rank beyond the number of ranks.
        """
        if (self.rank or 0) >= self.count:
            raise InvalidInputError(
                f"rank={self.rank} and world_size={self.world_size}: expected a rank from 0 to "
                "below the number of ranks. Correct them."
            )
        return (self.rank or 0) // self.replicate, self.count // self.replicate


@_listed
@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How batches are made, how far ahead, and what is kept on the way."""

    workers: Workers = option(
        "thread",
        'where batches are made: on threads ("thread"), on those of a "process" of its own, which '
        'pays where the transform is much Python, or on those of workers of a "ray" cluster',
        checks.one_of(Workers),
    )
    processes: int = option(
        1,
        'number of these, with workers="process" or "ray": each makes its turns of the steps, '
        "opens their pages and has a window of its own, so n take the memory of n and do more "
        "reading. Pays where one is not fast enough for the transform",
        _whole(1, 256),
    )
    prefetch: int | None = option(
        None,
        "batches made ahead on threads; 0 makes them when asked for, None chooses by bytes",
        _whole(0),
    )
    fetch_threads: int | None = option(
        None, "number of threads that fetch; None chooses by where the data lies", _whole(1)
    )
    work_threads: int | None = option(
        None,
        "number of threads that decode and transform; None: one a core, up to 8, and one for each "
        'worker of "ray", which takes as many CPUs. 1 for what is not thread-safe',
        _whole(1),
    )
    ahead: int | str = option(
        AHEAD_BYTES,
        'decoded bytes that may be fetched ahead of their first use: "64MB" or a number',
        _bytes(1),
    )
    next_epoch: bool | None = option(
        None,
        "whether the first steps of the next epoch are planned and fetched, up to `ahead`, while "
        "the last ones of this epoch are handed out; None: once a second epoch is read. Threads "
        "only, see `workers`",
        arguments.flag,
    )
    pin: bool | None = option(
        None,
        "whether tensors are handed out in pinned memory; None: where torch has a GPU to copy "
        "them to",
        arguments.flag,
    )
    on_error: OnBadRow = option(
        "raise",
        'treatment of rows whose image or page is damaged: "raise"; "skip" leaves them out and '
        "counts them in `Stream.stats`; or a function of the error and the row's id, called by "
        "several threads, that gives encoded bytes or pixels for an image, or None",
        _on_error,
    )
    cache_dir: str | Path | None = option(
        None,
        "folder of its own in which pages of a remote dataset are kept for the next epochs; "
        "None: one below XDG_CACHE_HOME, for all streams of this machine",
        per_source=True,
    )
    cache_limit: int | str | None = option(
        None,
        'bytes that the pages in it may take, "20GB" or a number; None: what ``tensorrepo config '
        "cache.limit`` says, 20 GB if nothing. 0 keeps none. Local datasets are never cached",
        _bytes(0),
        per_source=True,
    )

    cache_peers: Sequence[str] = option(
        (),
        "URLs of servers near by that have a copy of the repository: pages are asked of them "
        "before the store, each of one of them, and proved. Each has to know your token",
        _urls,
    )

    def __post_init__(self) -> None:
        check_record(self)
        if self.processes > 1 and self.workers == "thread":
            raise InvalidInputError(
                f"processes={self.processes} are of workers='process' or 'ray': give both, or "
                "work_threads= for threads"
            )

    @property
    def ahead_bytes(self) -> int:
        """Decoded bytes that may be fetched ahead of their first use."""
        return arguments.byte_size("ahead", self.ahead)

    @property
    def own_work_threads(self) -> int:
        """Number of threads that decode and transform."""
        return self.work_threads or usual_work_threads(os.cpu_count())

    @property
    def ray_threads(self) -> int:
        """Number of threads of a worker of Ray, and of the CPUs that it takes."""
        return self.work_threads or 1

    @property
    def of_worker(self) -> Loading:
        """The same for one of the processes."""
        threads = self.ray_threads if self.workers == "ray" else self.work_threads
        return replace(self, workers="thread", processes=1, work_threads=threads)


@_listed
@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedCache:
    """Where what a transform made is kept, and what tells that the transform is another one."""

    version: str | None = option(
        None,
        "text that stands for what the transform computes, where its source does not say all: give "
        "another one whenever it computes something else",
        arguments.text,
    )
    folder: str | Path | None = option(
        None,
        "folder of its own in which rows are kept; None: one below XDG_CACHE_HOME, for all jobs of "
        "this machine",
    )
    limit: int | str | None = option(
        None,
        'bytes that the rows in it may take, "20GB" or a number; None: what ``tensorrepo config '
        "cache.limit`` says. What was not used for longest goes first",
        _bytes(0),
    )

    def __post_init__(self) -> None:
        check_record(self)


EVERY_ROW, RANKS, LOADING = Sampling(), Ranks(), Loading()  # where nothing is asked for


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamOptions:
    """What a caller may ask of a stream."""

    batch_size: int = option(
        MISSING, "rows of a step, over all ranks; items where these are packed", _whole(1)
    )
    columns: Sequence[str] | None = option(
        None, "names of the columns; None means all", checks.column_names, per_source=True
    )
    shuffle: Shuffle = option(
        "pages",
        '"pages" mixes rows of as many pages as fit the window, "global" is a full shuffle, '
        'cheap for data that fits the window or is local, "buffer" shuffles windows of storage '
        "order; False keeps the order",
        per_source=True,
    )
    seed: int = option(
        0,
        "seed of the order; with the epoch and the dataset it says all of it",
        arguments.word,
        per_source=True,
    )
    sampling: Sampling = option(
        EVERY_ROW,
        "which rows come how often, what makes an item, and in which window rows are mixed",
        _group(Sampling),
        per_source=True,
    )
    ranks: Ranks = option(RANKS, "which share of each step this process reads", _group(Ranks))
    decode: Decodes = option(
        None,
        "how image columns are decoded into arrays: a `Decode` for all of them, or one by "
        "column; True for pictures of their own size",
    )
    transform: Transform | None = option(
        None,
        "function called with every batch, by several threads at once; its result is handed "
        "out instead, in order",
        checks.function,
    )
    cache: DerivedCache | Literal["derived"] | None = option(
        None,
        '"derived" keeps what the transform made of each row on this machine\'s disk, for the next '
        "epochs and other jobs: for a transform that is expensive, makes the same of a row each "
        "time, and returns rows. A `DerivedCache` says where, how much, and of which version",
        _cache,
    )
    output: OutputForm = option(
        "numpy",
        'form of the values: "numpy" arrays, "torch" tensors or "jax" arrays of the same '
        'memory where they can be, or "arrow" arrays',
        checks.one_of(OutputForm),
    )
    pad: float | None = option(
        None, "value that fills up ragged columns, which are then stacked into one array"
    )
    last: Last = option(
        "short",
        'treatment of a last, short step: handed out "short", left out ("drop"), or filled up '
        'with rows of it again ("pad"), as many as `batch.repeated` says',
        checks.one_of(Last),
    )
    nulls: Nulls = option(
        None,
        'what stands for null, so that arrays are plain: "raise" refuses nulls, a number stands '
        "for them in all columns of numbers, a mapping has a value by column. None masks arrays of "
        "nullable columns",
    )
    loading: Loading = option(
        LOADING, "how batches are made, how far ahead, and what is kept", _group(Loading)
    )

    def __post_init__(self) -> None:
        check_record(self)
        if self.cache is not None:
            self._check_derived()
        if self.output == "arrow" and self.decode:
            raise InvalidInputError(
                "images are decoded to arrays: output is 'numpy', 'torch' or 'jax'"
            )
        if self.output == "arrow" and self.nulls not in (None, "raise"):
            raise InvalidInputError(
                "Arrow arrays have nulls: with output='arrow' nulls= is None or 'raise'"
            )
        if self.output == "arrow" and self.sampling.pack is not None:
            raise InvalidInputError("packed items are arrays: output is 'numpy', 'torch' or 'jax'")
        if self.shuffle == "global" and self.sampling.echo > 1:
            raise InvalidInputError(
                "shuffle='global' scatters the times of a row over the epoch, so echo= would read "
                "it each time: use shuffle='pages', which has them within the window"
            )
        if self.ranks.world_size is not None:  # else the environment may tell it yet
            self.share(0)
        pins(self.loading.pin, self.output)

    @property
    def derived(self) -> DerivedCache | None:
        """Where derived rows are kept; None: nowhere."""
        assert self.cache != "derived", "it was brought to its usual form"
        return self.cache

    def _check_derived(self) -> None:
        """See that what is made of a row is the same in every batch."""
        nothing = not self.transform and not self.decode
        for is_wrong, needed in (
            (nothing, "transform= or decode=, or there is nothing to keep"),
            (self.output == "jax", "another output than 'jax', whose arrays cannot be stored"),
            (self.pad is not None, "no pad=, which depends on the other rows of a batch"),
            (self.sampling.pack is not None, "no pack=, whose items are of several rows"),
            (self.loading.on_error != "raise", "on_error='raise': rows left out are no rows"),
        ):
            if is_wrong:
                raise InvalidInputError(f"cache='derived' keeps rows: give it {needed}")

    @property
    def pins(self) -> bool:
        """Whether tensors are handed out in pinned memory."""
        return pins(self.loading.pin, self.output)

    def in_process(self, output: OutputForm) -> StreamOptions:
        """The same for a process of its own, whose batches somebody else hands out."""
        return replace(
            self,
            output=output,
            loading=replace(self.loading.of_worker, pin=False),
        )

    def share(self, start: int, turn: int = 0, turns: int = 1) -> Share:
        """Steps of this rank from position `start` on, as one of `turns` workers."""
        return Share(self.batch_size, *self.ranks.place, start, self.last, turn, turns)


class KeepsRows(Protocol):
    """What makes rows once and keeps them; see `collate.derived_rows`."""

    def made(
        self, batch: Batch, make: Callable[[Batch], Any], count: Callable[[int, int], None]
    ) -> Any: ...


@dataclass(frozen=True, slots=True, eq=False)
class StreamSetup:
    """Options of a stream with nothing left to choose, and the means it works with.

    Attributes:
        options: options as the caller gave them.
        prefetch: batches made ahead.
        decodes: image columns to decode, and how.
        clock: clock in seconds, for statistics.
        page_cache: keeps a part of what is read from a store on this machine's disk.
        remake: maker of the same stream in another process: called there with the form of its
            values, see `StreamOptions.in_process`, and passed there as `multiprocessing` does.
        derived: rows that are made once, and kept.
        peers: servers near by that are asked before the store.
    """

    options: StreamOptions
    prefetch: int
    decodes: Mapping[str, Decode]
    clock: Callable[[], float]
    page_cache: PageDiskCache | None = None
    remake: Callable[[OutputForm], Any] | None = None
    derived: KeepsRows | None = None
    peers: CachePeers | None = None

    def __post_init__(self) -> None:
        if self.options.loading.workers != "thread" and self.remake is None:
            raise InvalidInputError(
                f"workers={self.options.loading.workers!r} opens the dataset once more in another "
                "process, and this one belongs to no repository with a URL: use workers='thread'"
            )


def described(record: type) -> Callable[[_Call], _Call]:
    """Decorator of a call of the SDK: its docstring describes the options of `record` first."""
    lines = _option_lines(record, " " * 12)

    def with_lines(call: _Call) -> _Call:
        text = call.__doc__ or ""
        known = text if "Args:\n" in text else f"{text.rstrip()}\n\n        Args:\n"
        call.__doc__ = known.replace("Args:\n", f"Args:\n{lines}", 1)
        return call

    return with_lines
