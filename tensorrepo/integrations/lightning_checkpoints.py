"""Lightning's checkpoints as those of a run, without Lightning: what its plug-ins are made of.

    Lightning saves to PATH  ->  .<random>.saving beside it: what is about to be stored for PATH
                             ->  runs/<run>/<step>, stored by the checkpointer's thread
                             ->  PATH, a small JSON file that names them, once that is durable
    Lightning loads PATH     ->  the checkpoint that the file names
    Lightning removes PATH   ->  its file; the checkpoint when no other file names it

Lightning looks for its checkpoints by listing folders, and so finds these. A file is written by the
thread that stored the checkpoint: a program that is killed leaves no file whose checkpoint is not
there. One that is killed between both leaves a checkpoint that no file names: the next training of
the run that saves into the folder writes the file, so that Lightning finds, keeps and removes it.
What Lightning removes because a newer checkpoint is better stays until the newer is durable.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.model.state.lossy import LossyState
from tensorrepo.formats.runs.run_record import RUNS, check_run_name
from tensorrepo.models.checkpointer import (
    Checkpointer,
    RetentionPolicy,
    Saved,
    checked_step,
    ref_of,
)
from tensorrepo.repo.errors import Error, InvalidInputError, NotFoundError, StorageError
from tensorrepo.repo.objects.cache import partial_name
from tensorrepo.repository import Repository
from tensorrepo.runs.run_context import note_checkpoint

TRAINING: Final = "tensorrepo_training"  # in a state: which training saved it
_MOST_FILE_BYTES: Final = 4096
_VERSION: Final = 1
_LOGGER = logging.getLogger(__name__)
_Told = TypeVar("_Told", bound=msgspec.Struct)
_KEEP: Final = RetentionPolicy(last=None)  # Lightning says what goes
_SAVING: Final = ".{}.saving"


class CheckpointFile(msgspec.Struct, frozen=True):
    """What lies at a path that Lightning saved to.

    Attributes:
        tensorrepo_checkpoint: version of this file, 1.
        repository: id of the repository that has the checkpoint.
        run: name of the run.
        step: step of the training.
        training: drawn by the training that saved it: a later one may save the step again.
    """

    tensorrepo_checkpoint: int
    repository: str
    run: str
    step: int
    training: str


class _Saving(msgspec.Struct, frozen=True):
    """What lies beside a path while its checkpoint is being stored.

    Attributes:
        file: name of the path's file.
        checkpoint: what that is to say.
    """

    file: str
    checkpoint: CheckpointFile


def read_checkpoint_file(path: Path) -> CheckpointFile | None:
    """What a path names; None where it is no such file."""
    found = _read(path, CheckpointFile)
    return found if found is not None and found.tensorrepo_checkpoint == _VERSION else None


def _read(path: Path, kind: type[_Told]) -> _Told | None:
    """What a small file says; None where it is another one."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_FILE_BYTES + 1), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class RunCheckpoints:
    """The checkpoints of one training, by the paths that Lightning gives them.

    Picklable until it saves first, as launchers that spawn processes want it.
    """

    def __init__(
        self,
        repository: Repository,
        run: str,
        *,
        optimizer: LossyState | None = None,
        start: str | None = None,
        staging: int | str = "4GiB",
    ) -> None:
        """Prepare; nothing is stored yet.

        Args:
            repository: what to save to.
            run: name of the run; that of the logger, where there is one.
            optimizer: as for `Repository.checkpointer`, and so are `start` and `staging`.
            start: the commit that the run began at.
            staging: bytes of copies that may wait to be stored.
        """
        self.run = check_run_name(run)
        self._repository = repository
        self._options: dict[str, Any] = {"optimizer": optimizer, "start": start, "staging": staging}
        self._training = secrets.token_hex(16)
        self._checkpointer: Checkpointer | None = None
        self._saving: list[Future[Saved]] = []
        self._leaving: list[Path] = []
        self._steps: dict[Path, int] = {}  # of this training; the storing thread reads them, too
        self._whole: set[int] = set()  # steps saved with all that a training resumes from
        self._announced: dict[int, list[Path]] = {}  # files of what is being stored, by step
        self._seen: set[Path] = set()  # folders in which nothing of a killed training is left
        self._failure: OSError | None = None  # of a file that the storing thread could not write
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        if self._checkpointer is not None:
            raise InvalidInputError(
                f"the checkpoints of run {self.run!r} cannot be sent to another process after the "
                "first was saved: make another plug-in there"
            )
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def save_checkpoint(
        self,
        checkpoint: Mapping[str, Any],
        path: str | os.PathLike[str],
        storage_options: Any = None,
    ) -> None:
        """Copy a checkpoint, and store it while training goes on.

        Raises:
            InvalidInputError: something in it that is no tensor, number or text; says where.
            Error: an earlier checkpoint could not be stored.
        """
        if storage_options is not None:
            raise InvalidInputError(
                "storage_options are not for this plug-in: give them to tensorrepo.open(URL, "
                "storage_options=...)"
            )
        place = _place(path)
        step = checked_step(checkpoint.get("global_step"))
        self._settle()
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            self._name_what_a_kill_left(place.parent)
        except OSError as error:
            raise StorageError(f"{place.parent}: {error.strerror}") from error
        whole = "optimizer_states" in checkpoint
        with self._lock:
            self._steps[place] = step
            stored = step in self._whole
        if stored and not whole:
            # Weights alone, of a step that is stored with all: they must not take its place.
            self.wait()
            self._write(place, step)
            return
        state = {**checkpoint, TRAINING: self._training}
        self._announce(place, step)
        try:
            future = self._made().save(step, state, metrics=_monitored(checkpoint))
        except InvalidInputError as error:
            self._take_back(step)
            error.add_note(
                f"Lightning puts it into the checkpoint of step {step}. on_save_checkpoint of the "
                "module or callback can turn it into numbers, text or tensors, or leave it out; "
                "save_hyperparameters(ignore=[...]) leaves out a hyperparameter."
            )
            raise
        self._saving.append(future)
        if whole:
            self._whole.add(step)

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any = None,
        weights_only: bool | None = None,  # noqa: ARG002  nothing is ever unpickled
    ) -> dict[str, Any]:
        """What was saved to a path.

        Args:
            path: as it was saved; or ``runs/<run>/<step>``, which needs no file; or ``runs/<run>``:
                the newest.
            map_location: device of its tensors; None: the CPU, from where Lightning moves them.
            weights_only: for torch's pickles, of which there are none.

        Raises:
            NotFoundError: no such path, or its checkpoint is gone.
            InvalidInputError: another kind of file, or of another repository.
        """
        self.wait()
        named = self._named(path)
        if named.repository != self._repository.id:
            raise InvalidInputError(
                f"{os.fspath(path)} is a checkpoint of repository {named.repository:.12}, and this "
                f"is {self._repository.id:.12}: open the other one for the plug-in"
            )
        saver = self._made() if named.run == self.run else self._repository.checkpointer(named.run)
        state = saver.load(named.step)
        training = state.pop(TRAINING, "")
        if named.training and training != named.training:
            raise NotFoundError(
                f"the checkpoint of {os.fspath(path)} is gone: a later training saved step "
                f"{named.step} of run {named.run!r} again. To go on from that one, give "
                f"{ref_of(named.run, named.step)!r} for the path"
            )
        if map_location is None or callable(map_location):
            return state
        if isinstance(map_location, Mapping):
            raise InvalidInputError(
                "map_location by devices: tensors are stored without one; give the device"
            )
        moved: dict[str, Any] = _moved(state, map_location)
        return moved

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a path, and its checkpoint where no other names it, once newer are durable."""
        self._leaving.append(_place(path))
        self._settle()

    def latest(self) -> str | None:
        """What to load to go on with the run, ``runs/<run>/<step>``; None where it has nothing."""
        self.wait()
        step = self._made().latest()
        return None if step is None else ref_of(self.run, step)

    def teardown(self) -> None:
        """A training ended: `wait`. Another may follow."""
        self.wait()

    def wait(self) -> None:
        """Until all is durable that was saved, and gone what was removed."""
        if self._checkpointer is not None:
            self._checkpointer.wait()
        self._settle()

    def _made(self) -> Checkpointer:
        if self._checkpointer is None:
            self._checkpointer = self._repository.checkpointer(
                self.run, keep=_KEEP, on_saved=self._name, **self._options
            )
            self._checkpointer.noted = _note_without_metrics
        return self._checkpointer

    def _named(self, path: str | os.PathLike[str]) -> CheckpointFile:
        text = os.fspath(path)
        place = Path(text)
        if place.is_file():
            found = read_checkpoint_file(place)
            if found is None:
                raise InvalidInputError(
                    f"{text} is no checkpoint of this plug-in. One that Lightning wrote itself is "
                    "loaded without the plug-in: resume once without it, and save"
                )
            return found
        step: str | int | None = None
        run = text.removeprefix(RUNS)
        if "/" in run:
            run, _, step = run.rpartition("/")
        if not text.startswith(RUNS) or not (step is None or str(step).isdecimal()):
            raise NotFoundError(
                f"there is no checkpoint {text}: expected a path that this plug-in saved to, or "
                f"runs/RUN/STEP, such as {self.latest() or ref_of(self.run, 100)}"
            )
        newest = self._repository.checkpointer(run).latest() if step is None else int(step)
        if newest is None:
            raise NotFoundError(f"run {run!r} has no checkpoint")
        return CheckpointFile(_VERSION, self._repository.id, run, newest, "")

    def _name(self, saved: Saved) -> None:
        """Write the files that name a checkpoint: called by the storing thread."""
        with self._lock:
            places = [place for place, step in self._steps.items() if step == saved.step]
        for place in places:
            try:
                self._write(place, saved.step)
            except OSError as error:
                self._failure = error
                return
        self._take_back(saved.step)

    def _write(self, place: Path, step: int) -> None:
        _put(place, self._told(step))

    def _told(self, step: int) -> CheckpointFile:
        return CheckpointFile(_VERSION, self._repository.id, self.run, step, self._training)

    def _announce(self, place: Path, step: int) -> None:
        """Say beside a path what is about to be stored for it."""
        beside = place.with_name(_SAVING.format(secrets.token_hex(8)))
        with self._lock:
            self._announced.setdefault(step, []).append(beside)
        with suppress(OSError):  # who writes the path's own file will tell
            _put(beside, _Saving(place.name, self._told(step)))

    def _take_back(self, step: int) -> None:
        with self._lock:
            announced = self._announced.pop(step, [])
        for path in announced:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _name_what_a_kill_left(self, folder: Path) -> None:
        """Write the files of checkpoints of this run that are stored, and were to be named here.

        A training that still runs writes the same.
        """
        if folder in self._seen:
            return
        self._seen.add(folder)
        for path in folder.glob(_SAVING.format("*")):
            left = _read(path, _Saving)
            if left is None or not self._is_of_another_training(left.checkpoint):
                continue
            place = folder / os.path.basename(left.file)
            try:
                if self._is_stored(left.checkpoint) and not place.exists():
                    _put(place, left.checkpoint)
            except Error as error:  # what is saved now need not fail for it
                _LOGGER.warning("%s was not looked at: %s", path, error)
                continue
            path.unlink(missing_ok=True)

    def _is_of_another_training(self, named: CheckpointFile) -> bool:
        """Whether an earlier training of this run saved it."""
        own = (self._repository.id, self.run)
        return (named.repository, named.run) == own and named.training != self._training

    def _is_stored(self, named: CheckpointFile) -> bool:
        """Whether this run's checkpoint of that step is the one that is named."""
        with suppress(NotFoundError):
            return bool(self._made().plain_value(named.step, TRAINING) == named.training)
        return False

    def _settle(self) -> None:
        """Remove what waits to be, if nothing waits to be stored."""
        if self._failure is not None:
            error, self._failure = self._failure, None
            raise StorageError(
                f"{error.filename}: {error.strerror}: a checkpoint is stored, but not its file. "
                f"It is loaded as {RUNS}{self.run}/STEP"
            ) from error
        if not all(future.done() for future in self._saving):
            return
        if any(future.exception() is not None for future in self._saving):
            return  # what should have taken their place is not there; the checkpointer says so
        self._saving.clear()
        while self._leaving:
            self._remove(self._leaving.pop(0))

    def _remove(self, place: Path) -> None:
        named = read_checkpoint_file(place)
        if named is None:
            if place.exists():
                _LOGGER.warning("%s is no checkpoint of this plug-in, and stays", place)
            return
        with suppress(FileNotFoundError):
            place.unlink()
        with self._lock:
            self._steps.pop(place, None)
            others = named.step in self._steps.values()
        if others or named.repository != self._repository.id or named.run != self.run:
            return
        # Another training may have saved the step again: then that is what another file names.
        if any(named == other for other in list(_beside(place))) or not self._is_stored(named):
            return
        self._whole.discard(named.step)
        with suppress(NotFoundError):
            self._made().delete(named.step)


def _note_without_metrics(run: str, step: int, _: Mapping[str, float]) -> list[ProvenanceEdge]:
    """The logger tells the run its metrics, by steps that Lightning counts from 0."""
    return note_checkpoint(run, step, {})


def _monitored(checkpoint: Mapping[str, Any]) -> dict[str, float]:
    """What Lightning's own callbacks watch, by name: the newest values."""
    found: dict[str, float] = {}
    callbacks = checkpoint.get("callbacks")
    for state in callbacks.values() if isinstance(callbacks, Mapping) else ():
        if not isinstance(state, Mapping):
            continue
        name, score = state.get("monitor"), state.get("current_score")
        with suppress(TypeError, ValueError):
            if isinstance(name, str) and score is not None:
                found[name] = float(score)
    return found


def _moved(value: Any, device: Any) -> Any:
    """A state whose tensors are on another device."""
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(item, device) for item in value)
    return value.to(device) if hasattr(value, "to") and hasattr(value, "device") else value


def _put(place: Path, told: msgspec.Struct) -> None:
    """Write a file whole, or not at all."""
    partial = place.with_name(partial_name())
    try:
        partial.write_bytes(msgspec.json.encode(told))
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)


def _beside(place: Path) -> Iterator[CheckpointFile]:
    """What other files of a folder name."""
    with suppress(FileNotFoundError), os.scandir(place.parent) as entries:
        for entry in entries:
            small = (
                entry.is_file(follow_symlinks=False) and entry.stat().st_size <= _MOST_FILE_BYTES
            )
            found = read_checkpoint_file(Path(entry.path)) if small else None
            if found is not None:
                yield found


def _place(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if "://" in text:
        raise InvalidInputError(
            f"{text:.200}: the checkpoints lie in the repository, and a path is a small file that "
            "names one: give a folder of this machine, as in ModelCheckpoint(dirpath='checkpoints')"
        )
    return Path(os.path.realpath(os.path.dirname(text))) / os.path.basename(text)
