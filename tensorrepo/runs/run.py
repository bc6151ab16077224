"""Run handle of the SDK: parameters, metrics, inputs and outputs of a training.

Handles of the SDK report what they read and write (see `run_context`), on whatever thread. Of
streams the newest of each dataset and seed is kept, and asked how far it is when the run is stored.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import Token
from html import escape
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import structs

from tensorrepo.context import Context
from tensorrepo.datasets.dataset import Dataset
from tensorrepo.datasets.stream import Stream
from tensorrepo.formats.common.arguments import check_instance, mapping, several, text, wrong
from tensorrepo.formats.common.json import as_plain
from tensorrepo.formats.common.provenance import (
    USED,
    public_place,
)
from tensorrepo.formats.runs.run_record import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    STATUSES,
    RunDocument,
    check_metric_name,
    check_run_name,
    new_attempt,
)
from tensorrepo.formats.runs.run_tags import TAGS, with_tags
from tensorrepo.models.checkpointer import Checkpointer, checkpointer_of, number
from tensorrepo.models.model import Model, model_at
from tensorrepo.repo.errors import ConflictError, Error, InvalidInputError
from tensorrepo.repo.json_rules import check_json
from tensorrepo.runs.files import log_figure, log_files, log_image
from tensorrepo.runs.record import (
    RunRecord,
    Runs,
    RunWriter,
    code_version,
    environment,
    find_record,
)
from tensorrepo.runs.run_context import CURRENT, RunNotes
from tensorrepo.runs.system_metrics import SAMPLE_SECONDS, SystemSampler, check_system_seconds
from tensorrepo.transaction import begin_transaction
from tensorrepo.verbs.provenance import named_edge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_ERROR: Final = 1000  # characters
_URL = re.compile(r"[\w+.-]{1,32}://\S+")
_QUERY = re.compile(r"(?<=\S)\?[\w.%~-]+=\S*")  # of a URL whose host is told apart from it


class Run:
    """A training that goes on. See `Repository.run`.

    Its methods may be called by any thread of the process that began it. In a job of several ranks
    rank 0 records; on the others the same calls do nothing. A program that ends without `end` has
    what was logged stored, and the run is stale then.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        *,
        params: Mapping[str, Any] | None = None,
        derived_from: Any = (),
        resume: bool = False,
        system_seconds: float | None = SAMPLE_SECONDS,
    ) -> None:
        """Made by `Repository.run`."""
        self.name = check_run_name(name)
        self.context = context
        self._given = _checked_params({} if params is None else params)
        self._derived_from = several(derived_from, Dataset, Model, Stream)
        self._resume = resume
        self._system_seconds = check_system_seconds(system_seconds)
        self._process = os.getpid()
        self._params: dict[str, Any] = {}
        self._params_lock = threading.Lock()
        self._attempts: RunDocument  # whose tags are those of the run, since it was begun
        self._ended = False
        self._notes: RunNotes | None = None
        self._writer: RunWriter | None = None
        self._sampler: SystemSampler | None = None
        self._token: Token[RunNotes | None] | None = None

    @property
    def id(self) -> str:
        """What lineage names the run by."""
        return self._begun().id

    def start(self) -> Self:
        """Begin, as entering its ``with`` does. Then `end` ends it."""
        if self._notes is not None:
            raise InvalidInputError(f"run {self.name!r} has begun already")
        before = find_record(self.context, self.name)
        if before is not None and not self._resume:
            raise ConflictError(_taken(before))
        document = self._attempts = self._document(before)
        self._params = {**document.params, **self._given}
        self._notes = RunNotes(
            self.name, document.id, self._log_checkpoint, document.inputs, document.outputs
        )
        try:
            for one in self._derived_from:
                self.use(one)
            if self.context.world()[0] == 0:
                held = None if before is None else before.commit
                writer = RunWriter(self.context, document, held, self._told)
                writer.start()
                self._writer = writer
                self._sampler = self._started_sampler(writer)
        except BaseException:
            self._notes = None  # it has not begun
            raise
        self._token = CURRENT.set(self._notes)
        return self

    def end(self, status: str = FINISHED, error: str | None = None) -> None:
        """Store all, and say how it ended: "finished", "failed" or "interrupted".

        Any thread may call it. It does nothing in a fork of the process that began the run, which
        goes on there; and nothing where the run has ended.

        Raises:
            Error: it could not be stored; says why. Another call tries again.
        """
        if status not in STATUSES or status == RUNNING:
            raise InvalidInputError(f"status {status!r}: expected one of {', '.join(STATUSES[1:])}")
        notes = self._begun()
        if self._is_fork():
            return
        notes.ended = True
        if self._token is not None:
            with suppress(ValueError):  # it belongs to the thread that began the run
                CURRENT.reset(self._token)
            self._token = None
        if self._sampler is not None:
            self._sampler.stop()
        if not self._ended and self._writer is not None:
            self._writer.end(status, None if error is None else _public_text(error))
        self._ended = True

    def log_metric(self, name: str, value: Any, step: int | None = None) -> None:
        """Log one value of a metric.

        Args:
            name: such as ``"loss"`` or ``"valid/accuracy"``.
            value: a number, or a tensor of one, also amid a graph of gradients; NaN and infinities
                are kept. A tensor on a GPU is waited for.
            step: step of the training; None: as many as the metric has points.
        """
        self.log_metrics({text("the name of a metric", name): value}, step)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log values of several metrics, of one step. They are stored by another thread.

        Raises:
            InvalidInputError: a value is no number; nothing was logged.
        """
        given = mapping("metrics", metrics, "numbers").items()
        numbers = {check_metric_name(name): number(name, value) for name, value in given}
        self._log(numbers, None if step is None else _step(step))

    def log_param(self, name: str, value: Any) -> None:
        """Note one parameter. `value` is JSON; the last one given counts."""
        self.log_params({text("the name of a parameter", name): value})

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Note parameters: JSON values by name."""
        self._recording()
        given = _checked_params(params)
        with self._params_lock:
            self._params = {**self._params, **given}

    def set_tag(self, name: str, value: Any) -> None:
        """Note a text by which people sort runs, such as who asked for it; None removes it."""
        self.set_tags({text("the name of a tag", name): value})

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Note tags: texts by name; what is no text is noted as `str` has it."""
        self._recording()
        given = mapping("tags", tags, "texts").items()
        changes = {name: None if value is None else str(value) for name, value in given}
        with self._params_lock:
            self._attempts = with_tags(self._attempts, changes)

    def log_artifact(self, path: str | PathLike[str], folder: str = "") -> None:
        """Keep a file, or a folder with all that is in it, among the files of the run.

        Weights that can be read (safetensors, state dicts of torch, ...) are kept as tensors,
        stored against similar models. It is durable when this returns.

        Args:
            path: what to keep.
            folder: where it lies among the files of the run.
        """
        if self._records_files():
            log_files(self.context, self.name, Path(path), folder)

    def log_image(self, image: Any, name: str, step: int | None = None) -> None:
        """Keep a picture: one of Pillow, or an array of numbers ``(height, width[, channels])``.

        Args:
            image: floats are from 0 to 1, whole numbers from 0 to 255.
            name: such as ``"samples.png"``, or with `step` a folder with a picture for each step.
            step: step of the training.
        """
        if self._records_files():
            log_image(self.context, self.name, image, name, None if step is None else _step(step))

    def log_figure(self, figure: Any, name: str) -> None:
        """Keep a figure of matplotlib, or another that can ``savefig``, as ``"loss.png"``."""
        if self._records_files():
            log_figure(self.context, self.name, figure, name)

    def use(self, origin: Any) -> None:
        """Note that the run reads something.

        Args:
            origin: a dataset, a model, a stream of a dataset; ``REF:datasets/NAME`` or
                ``REF:models/NAME``; or a URL of what is in no repository.
        """
        notes = self._recording()
        if isinstance(origin, Stream):
            for dataset, place in origin.sources():
                notes.streamed(dataset, place)
        elif isinstance(origin, Dataset | Model):
            notes.opened(origin)
        elif isinstance(origin, str):
            notes.add(named_edge(self.context.core, origin, USED))
        else:
            raise InvalidInputError(
                f"a run reads datasets, models, streams, and what 'REF:datasets/NAME' or a URL "
                f"names; got {type(origin).__name__}"
            )

    def stream(self, dataset: Dataset, *, evaluate: bool = False, **options: Any) -> Stream:
        """``dataset.stream(...)``, noted whatever thread reads it.

        Args:
            dataset: what to stream.
            evaluate: models are measured on it, not trained on it.
            options: options of `Dataset.stream`.
        """
        check_instance(
            "what a run streams", dataset, Dataset, "a dataset, as repo.dataset(...) gives it"
        )
        notes, stream = self._begun(), dataset.stream(**options)
        stream.loading.evaluates = evaluate
        for origin, place in stream.sources():
            notes.streamed(origin, place, evaluated=evaluate)
        return stream

    def evaluating(self) -> AbstractContextManager[None]:
        """A ``with`` in which models are measured on what is streamed, not trained on it."""
        return self._begun().evaluating()

    def save_model(
        self,
        name: str,
        tensors: Mapping[str, Any],
        *,
        branch: str = "main",
        message: str = "",
        **options: Any,
    ) -> Model:
        """Commit a model, which says what it was trained on, and in which run.

        Args:
            name: name by the path grammar.
            tensors: a state dict.
            branch: what to commit to.
            message: message of the commit.
            options: options of `Transaction.save_model`.
        """
        token = CURRENT.set(self._begun())
        try:
            with begin_transaction(self.context, branch, message) as transaction:
                transaction.save_model(name, tensors, **options)
            made = transaction.commit
            self._store_soon()
            return model_at(self.context, name, branch if made is None else made.digest)
        finally:
            CURRENT.reset(token)

    def checkpointer(self, **options: Any) -> Checkpointer:
        """`Repository.checkpointer` of this run: its checkpoints say what they were trained on, and
        the metrics that `save` is given are the run's, too.
        """
        made = checkpointer_of(self.context, self.name, **options)
        made.noted = self._begun().checkpoint
        return made

    def flush(self) -> None:
        """Store what was logged and noted until now. Does nothing in a fork."""
        self._begun()
        if self._is_fork():
            return
        self._recording()
        if self._writer is not None:
            self._writer.write()

    @property
    def record(self) -> RunRecord:
        """The run as it was last stored.

        Raises:
            NotFoundError: it was not.
        """
        return Runs(self.context)[self.name]

    def plot(self, *metrics: str, **options: Any) -> Figure:
        """Metrics as they were last stored, see `RunRecord.plot`; `flush` stores what is new."""
        return self.record.plot(*metrics, **options)

    def _repr_html_(self) -> str:
        stored = find_record(self.context, self.name) is not None
        return self.record._repr_html_() if stored else escape(repr(self))

    def __enter__(self) -> Self:
        return self if self._token is not None else self.start()

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        status, told = _outcome(error)
        try:
            self.end(status, told)
        except Error as failure:
            if error is None:
                raise
            error.add_note(f"The end of run {self.name!r} was not stored: {failure}")

    def __repr__(self) -> str:
        state = "not begun" if self._notes is None else "ended" if self._ended else RUNNING
        return f"<run {self.name}: {state}>"

    def _begun(self) -> RunNotes:
        if self._notes is None:
            raise InvalidInputError(
                f"run {self.name!r} has not begun: use it in a with, as in "
                f"with repo.run({self.name!r}) as run"
            )
        return self._notes

    def _recording(self) -> RunNotes:
        """The notes of a run that goes on here: what it is told now is stored."""
        notes = self._begun()
        if self._is_fork():
            raise InvalidInputError(
                f"run {self.name!r} was begun by process {self._process}, and this is a fork of "
                "it, whose values would be lost: log where the run began"
            )
        if self._ended:
            raise InvalidInputError(
                f"run {self.name!r} has ended: what it is told now would be lost. Go on with it in "
                f"repo.run({self.name!r}, resume=True)"
            )
        return notes

    def _records_files(self) -> bool:
        """Whether files are kept here: by rank 0 alone."""
        self._recording()
        return self._writer is not None

    def _is_fork(self) -> bool:
        return os.getpid() != self._process

    def _log(
        self, values: Mapping[str, float], step: int | None, *, of_checkpoint: bool = False
    ) -> None:
        self._recording()
        if self._writer is not None:
            self._writer.log(dict(values), step, of_checkpoint=of_checkpoint)

    def _log_checkpoint(self, values: Mapping[str, float], step: int) -> None:
        """The metrics of a checkpoint, which has them itself: it is kept when the run has ended."""
        if not self._ended:
            if values:
                self._log(values, step, of_checkpoint=True)
            self._store_soon()

    def _store_soon(self) -> None:
        """Who goes on from what was saved finds in the run what led to it."""
        if self._writer is not None:
            self._writer.store_soon()

    def _started_sampler(self, writer: RunWriter) -> SystemSampler | None:
        if self._system_seconds is None:
            return None
        sampler = SystemSampler(
            writer.log, writer.document.started_ns, every_seconds=self._system_seconds
        )
        sampler.start()
        return sampler

    def _told(self) -> dict[str, Any]:
        notes = self._begun()
        attempts = self._attempts.attempts
        noted = {"inputs": notes.inputs(), "outputs": notes.outputs()}
        return {"params": self._params, "attempts": attempts, **noted}

    def _document(self, before: RunRecord | None) -> RunDocument:
        now = time.time_ns()
        code = code_version(self.context.machine.cwd)
        if before is None:
            attempts = new_attempt(now, code, environment())
            author, drawn = self.context.author, secrets.token_hex(32)
            return RunDocument(self.name, drawn, RUNNING, author, now, now, now, attempts=attempts)
        told = environment() | ({TAGS: dict(before.tags)} if before.tags else {})
        attempts = new_attempt(now, code, told, before.document.attempts)
        return structs.replace(before.document, attempts=attempts)


def _checked_params(params: Mapping[str, Any]) -> dict[str, Any]:
    given = mapping("params", params, "JSON values").items()
    found = {check_metric_name(name): as_plain(value) for name, value in given}
    check_json(found, "params")
    return found


def _step(value: Any) -> int:
    try:
        return index(value)
    except TypeError as error:
        raise wrong("step", "a whole number", value) from error


def _outcome(error: BaseException | None) -> tuple[str, str | None]:
    """How a run ended, by what left its ``with``."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return FINISHED, None
    told = type(error).__name__
    with suppress(Exception):  # of an error that cannot say what it is
        told = f"{told}: {error}"
    return (INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED), told


def _public_text(error: str) -> str:
    """What ended a run, as it can be stored: URLs in it without what may be secret in them."""
    plain = error.encode("utf-8", "backslashreplace").decode()
    plain = _URL.sub(lambda url: public_place(url[0]), plain)
    return _QUERY.sub("", plain)[:_MOST_ERROR]


def _taken(run: RunRecord) -> str:
    return (
        f"run {run.name!r} is there already: it is {run.state()}. Go on with it by resume=True, or "
        "give this one another name."
    )
