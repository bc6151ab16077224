"""Worker of a Ray cluster that makes batches, which come over as frames (see `process`).

    task, on any machine:  stream -> decode, transform -> frame -> Ray's object store
    here:                  a copy of the frame -> views of it -> the training loop

A task that yields one frame after the other makes the steps of one turn. Ray holds it up while a
few frames were not taken yet. It gets what it works on by Ray's pickles, in which functions of a
notebook come by value; nothing but numbers, text, arrays and containers comes back.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.ray_tasks import cluster_text, connected_ray, died_of, task_failed
from tensorrepo.formats.dataset.streaming.collate.batch import Identify
from tensorrepo.formats.dataset.streaming.collate.batch_frame import BatchFrame, read_frame
from tensorrepo.formats.dataset.streaming.collate.process import (
    MADE_PARTS,
    MESSAGES,
    FrameReady,
    WorkEnded,
    WorkerMain,
    WorkerMessage,
    WorkFailed,
    as_error,
)
from tensorrepo.formats.dataset.streaming.collate.turns import WorkerDied
from tensorrepo.repo.errors import InvalidInputError

_FRAMES_AHEAD: Final = 4  # that a worker makes before the first of them is taken
_TOLD_SECONDS: Final = 30.0  # after which it is said that a worker does not begin

Yielded = tuple[bytes, float, NDArray[np.uint8]]  # a message, seconds it took, the frame


class RayItems:
    """Items that a task of Ray makes. It is submitted with the first one."""

    def __init__(
        self,
        errand: WorkerMain,
        *,
        cpus: int,
        identify: Identify,
        finish: Callable[[Any], Any],
        stats_moved: Callable[[dict[str, Any]], None],
    ) -> None:
        """Prepare for the `errand` of a task that takes `cpus`; else as `ProcessItems`."""
        self._ray = connected_ray()
        self._errand, self._cpus = errand, cpus
        self._identify, self._finish, self._stats_moved = identify, finish, stats_moved
        self._frames: Any = None  # Ray's generator of references
        self._closed = self._begun = False
        self.step_seconds = 0.0

    def __iter__(self) -> RayItems:
        return self

    def start(self) -> None:
        """Submit the task, if that was not done."""
        if self._frames is not None or self._closed:
            return
        task = self._ray.remote(_frames).options(
            num_cpus=self._cpus,
            num_returns="streaming",
            max_retries=0,  # it would begin with the first step again
            scheduling_strategy="SPREAD",
            name="tensorrepo-stream",
            _generator_backpressure_num_objects=_FRAMES_AHEAD,
        )
        try:
            self._frames = task.remote(self._errand)
        except TypeError as error:  # what Ray raises where pickle fails
            raise InvalidInputError(
                f"workers='ray' could not pass the work to the cluster: {error}. Let the transform "
                "not hold open files, locks or connections."
            ) from error

    def wait(self, seconds: float) -> bool:
        """Whether the next item, or the end of the task, is there within so many seconds."""
        self.start()
        if self._closed:
            return True
        until = time.monotonic() + seconds
        while not self._begun and time.monotonic() + _TOLD_SECONDS < until:
            if self._is_there(_TOLD_SECONDS):
                return True
            warnings.warn(
                f"a worker of this stream has not begun yet: {cluster_text(self._ray)}, and "
                f"workers='ray' takes {self._cpus} of them for each of its processes. Give fewer "
                "processes, or wait for other work to end.",
                stacklevel=2,
            )
            self._begun = True  # said once
        return self._is_there(max(0.0, until - time.monotonic()))

    def __next__(self) -> list[tuple[int, Any]]:
        if self._closed:
            raise StopIteration
        self.start()
        message, frame = self._received()
        if isinstance(message, FrameReady):
            position, item, stats = read_frame(
                frame, message.description_at, message.description_bytes, self._identify
            )
            self._stats_moved(stats)
            return [(position, self._finish(item))]
        self.close()
        if isinstance(message, WorkFailed):
            raise as_error(message)
        raise StopIteration

    def close(self) -> None:
        """Stop the task. What was handed out stays valid. Safe to call more than once."""
        closed, self._closed = self._closed, True
        frames, self._frames = self._frames, None
        if closed or frames is None or not self._ray.is_initialized():
            return
        with suppress(self._ray.exceptions.RayError, ValueError):  # it has ended
            self._ray.cancel(frames, force=True)

    def _is_there(self, seconds: float) -> bool:
        ready, _ = self._ray.wait([self._frames], timeout=seconds)
        self._begun = self._begun or bool(ready)
        return bool(ready)

    def _received(self) -> tuple[WorkerMessage, NDArray[np.uint8]]:
        """What the task yields next; the frame is a copy, which may be written to."""
        frames = self._frames
        try:
            told, self.step_seconds, frame = self._ray.get(next(frames))
        except StopIteration:  # it ends with a message, if it ends by itself
            self.close()
            raise WorkerDied("a worker of the cluster ended without a word.") from None
        except self._ray.exceptions.RayTaskError as error:
            self.close()
            raise task_failed(error) from error
        except self._ray.exceptions.RayError as error:
            if self._closed:
                return WorkEnded(), np.empty(0, np.uint8)
            self.close()
            raise WorkerDied(died_of(error)) from error
        self._begun = True
        return MESSAGES.decode(told), np.array(frame)


def _frames(errand: WorkerMain) -> Generator[Yielded, None, None]:
    """What the task does."""
    none = np.empty(0, np.uint8)
    last: WorkerMessage = WorkEnded()
    try:
        made, began = errand(), time.perf_counter()
        try:
            for item in made:
                frame = BatchFrame(item, MADE_PARTS)
                memory = np.empty(frame.bytes, np.uint8)
                frame.write(memory)
                described = frame.description_at, frame.description_bytes
                ready = FrameReady(0, frame.bytes, frame.bytes, *described)
                yield msgspec.msgpack.encode(ready), time.perf_counter() - began, memory
                began = time.perf_counter()
        finally:
            made.close()
    except Exception as error:  # noqa: BLE001  raised where the stream is read
        last = WorkFailed(type(error).__name__, str(error), traceback.format_exc())
    yield msgspec.msgpack.encode(last), 0.0, none
