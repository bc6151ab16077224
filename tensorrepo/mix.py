"""Mix of streams, as the SDK shows it: several datasets trained on as one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tensorrepo.formats import arguments
from tensorrepo.formats.dataset.mix import mix
from tensorrepo.stream import Stream, StreamedDataset, check_data

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensorrepo.formats.dataset.streaming.ordering.mixing import Batching
    from tensorrepo.stream import StreamedDataset


class Mix(Stream):
    """Batches of several streams, each as often as it should come.

    ``tr.Mix([a.stream(batch_size=256), b.stream(batch_size=256)], weights=[3, 1])`` is used like a
    stream. `batch.source` says which of the streams each row is of.
    """

    def __init__(
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
        epoch: int = 0,
    ) -> None:
        """Mix `streams`, whose options and columns agree. The largest window is divided among them.

        Without `weights`, `repeat`, `choose`, `rows` and `steps` an epoch has every row of every
        source once.

        Args:
            streams: streams of any datasets; their positions mean nothing.
            weights: how often each comes. An epoch has `rows`, or as many as all sources together.
            repeat: how often an epoch goes through each; 0.5 is half of it.
            choose: rows of each in an epoch.
            rows: rows of an epoch, with `weights` or alone: then each comes as often as it is
                large.
            steps: length of an epoch in whole batches, instead of `rows`.
            batching: "random" shuffles sources, "stratified" gives every step as much of each,
                "per_source" makes steps of one, and the last ones of what is left of all.
            seed: seed of the mix; every stream has its own.
            epoch: first pass over the mix; `set_epoch` goes on.
        """
        keywords: dict[str, Any] = {
            "weights": weights,
            "repeat": repeat,
            "choose": choose,
            "rows": rows,
            "steps": steps,
            "batching": batching,
            "seed": seed,
            "epoch": epoch,
        }
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
