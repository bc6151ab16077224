"""Plays the events of `reference.append` to the real code: two threads that move when told to."""

from __future__ import annotations

import random
import threading
from typing import Any

from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.checkpoints import Hint, encode_hint
from tensorrepo.repo.log.log_slots import HINT_KEY
from tensorrepo.repo.log.reader import RepositoryLog, Tip
from tests.support.builders.log import (
    IDENTITY,
    Bulks,
    Crash,
    Faulty,
    Request,
    landed_txns,
    lost_reply,
    new_backend,
    no_sleep,
    set_main,
)
from tests.support.reference.append import SEEKING, TOLD_OK, WAITING, Event, World, Writer


class Turnstile:
    """Lets one thread pass once for each `step`, and tells when it has come to rest."""

    def __init__(self) -> None:
        self._go = threading.Semaphore(0)
        self._rest = threading.Semaphore(0)
        self._gone = self._closed = False

    def wait(self) -> None:
        """In the thread: rest until told to go on."""
        self._rest.release()
        self._go.acquire()
        if self._closed:
            raise Crash

    def leave(self) -> None:
        """In the thread: come to rest for good."""
        self._gone = True
        self._rest.release()

    def await_rest(self) -> None:
        self._rest.acquire()

    def step(self) -> None:
        assert not self._gone, "its call came to an end before the model's did"
        self._go.release()
        self._rest.acquire()

    def close(self) -> None:
        """Let the thread end where it rests, if it does not end by itself."""
        if not self._gone:
            self._closed = True
            self.step()


class PacedLog(RepositoryLog):
    """A log whose `refresh`, with which every attempt begins, waits for its turn."""

    pace: Turnstile

    def refresh_tip(self, *, remember: bool = True) -> Tip:
        self.pace.wait()
        return super().refresh_tip(remember=remember)


class RealWriter:
    """One call of `append` in a thread. What it creates stays in flight until `land`."""

    def __init__(self, backend: Any, number: int) -> None:
        self.number = number
        self.txn = f"txn-{number}"
        self.sent: list[Request] = []
        self.outcome: object = None
        self.pace = Turnstile()
        self._waits_for: str | None = None
        self.log = PacedLog(Faulty(backend, self._rule), IDENTITY, Bulks())
        self.log.pace = self.pace
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.pace.await_rest()

    def step(self) -> None:
        self.pace.step()

    def stop(self) -> None:
        self.pace.close()
        self._thread.join()

    def described(self) -> Writer:
        """As the model says it."""
        if self.outcome is not None:
            return Writer(TOLD_OK, int(self.sent[-1].key[-25:-5]), len(self.sent))
        if self._waits_for is None:
            return Writer(SEEKING, 0, len(self.sent))
        return Writer(WAITING, int(self._waits_for[-25:-5]), len(self.sent))

    def _run(self) -> None:
        try:
            self.outcome = append(
                self.log, set_main(self.txn, self.number + 1), rng=random.Random(1), sleep=no_sleep
            )
        except BaseException as error:  # noqa: BLE001 -- the test looks at what it was
            self.outcome = error
        self.pace.leave()

    def _rule(self, request: Request) -> Any:
        if request.operation == "overwrite":
            return None  # the model moves the hint
        if request.operation == "create":
            self.sent.append(request)
            self._waits_for = request.key
            raise lost_reply()
        if request.key == self._waits_for:
            self.pace.wait()
            answer = request.perform()
            self._waits_for = None
            return answer
        return request.perform()


class Replay:
    """The real world, as far as the events have brought it."""

    def __init__(self) -> None:
        self.backend = new_backend()
        self.writers = [RealWriter(self.backend, number) for number in (0, 1)]

    def play(self, event: Event) -> None:
        if event.kind == "land":
            self.writers[event.writer].sent[event.send - 1].perform()
        elif event.kind == "hint":
            self.backend.overwrite(HINT_KEY, [encode_hint(Hint(event.slot, 0))])
        else:
            self.writers[event.writer].step()

    def agrees_with(self, world: World) -> bool:
        """Slots and writers are where the model says."""
        winners = [f"txn-{number}" for number in world.history]
        described = tuple(writer.described() for writer in self.writers)
        return described == world.writers and landed_txns(self.backend) == winners

    def finish(self) -> list[object]:
        """Kill what still runs; what each writer's call came to."""
        for writer in self.writers:
            writer.stop()
        return [writer.outcome for writer in self.writers]
