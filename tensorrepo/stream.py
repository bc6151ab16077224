"""A stream of batches, as the SDK shows it: the format's stream, and the dataset it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from tensorrepo.formats.dataset.profile import SECONDS, Profile, profile
from tensorrepo.formats.dataset.streaming import checks
from tensorrepo.noting import Origin, note_streamed
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.torch_stream import Loading, TorchStream, torch_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorrepo.formats.dataset.read import Dataset as StoredDataset
    from tensorrepo.formats.dataset.stream import Stream as StoredStream


class StreamedDataset(Origin, Protocol):
    """A dataset of a commit, as far as a stream of it needs one."""

    @property
    def name(self) -> str: ...
    @property
    def stored(self) -> StoredDataset: ...


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Stream:
    """Batches of one dataset, for training. See `Dataset.stream`.

    A batch maps columns to arrays; `batch.position` counts the rows handed out with it, and
    `batch.row_ids` says which rows they are.
    """

    dataset: StreamedDataset
    stored: StoredStream
    again: Callable[[], Stream]
    of_equal: Callable[[StoredDataset], StoredStream]  # streams an equal dataset likewise
    loading: Loading = field(default_factory=Loading, init=False)

    def torch(self) -> TorchStream:
        """For torch's own `DataLoader`, which is to make no batches of them:
        ``DataLoader(stream.torch(), batch_size=None, num_workers=4)``. Epochs and states that are
        set here reach it.
        """
        self._note()
        return torch_stream(self)

    def __iter__(self) -> Iterator[Any]:
        """The steps that are left of this epoch. Leaving the loop early leaves nothing behind."""
        self._note()
        self.loading.notice(self.stored)
        self.loading.read_here()
        return iter(self.stored)

    def __len__(self) -> int:
        """Steps that are left of this epoch."""
        self.loading.notice(self.stored)
        return len(self.stored)

    @property
    def epoch(self) -> int:
        """Which pass over the data is read next."""
        return self.stored.epoch

    @property
    def rows(self) -> int:
        """Rows of this epoch, or packed items: what `batch_size` and positions count."""
        return self.stored.rows

    def set_epoch(self, epoch: int) -> None:
        """Begin another pass over the data, in another order: with the next iteration, here or in
        a loader that `torch` was given to, also of workers that persist.
        """
        self.loading.notice(self.stored)
        self.stored.set_epoch(epoch)
        self.loading.set_epoch(epoch)

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Where the stream stands, as JSON: one state for all ranks.

        Args:
            position: of the batch used last (`batch.position`), where a loader reads ahead.

        Raises:
            InvalidInputError: the workers of a loader read, and no position was given.
        """
        if position is None:
            self.loading.check_place()
        return self.stored.state_dict(position) | self._commits()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another stream of the same data stood, here or in a loader.

        Raises:
            InvalidInputError: the state is of other data or another order.
        """
        if not isinstance(state, dict):
            raise InvalidInputError(f"not a 'tensorrepo stream state': {state!r:.120}")
        self.stored.load_state_dict(self._plain(dict(state)))
        self.loading.load(self.epoch)

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
            seconds: after which the first pass ends; the others run the same steps.
        """
        checks.function("step", step)
        return profile(self.dataset.stored, self.of_equal, step=step, seconds=seconds)

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
        return _with_state, (self.again, self.state_dict(self.stored.start))

    def _note(self) -> None:
        for origin, place in self.sources():
            note_streamed(origin, place, evaluated=self.loading.evaluates)

    def _place(self) -> dict[str, Any]:
        """Where the stream stands, as far as this process knows: loaders read ahead of it."""
        state = self.stored.state_dict()
        known = {key: state[key] for key in ("seed", "epoch", "position")}
        selection = state.get("items", {}).get("selection")
        try:
            self.loading.check_place()
        except InvalidInputError:
            del known["position"]
        return known | ({"selection": selection} if selection else {})

    def _commits(self) -> dict[str, Any]:
        """What a state says of commits."""
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
    if digest in (None, stream.stored.dataset.digest) or not isinstance(commit, str):
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
    found = again()
    found.load_state_dict(state)
    return found
