"""Creates go on at the same time, and what tells of them comes to its turn alone."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from tensorrepo.repo.backends.base import UploadTurns


def test_finish_waits_for_creates_that_began_and_later_ones_wait_for_it() -> None:
    turns, order = UploadTurns(), list[str]()

    def note(turn: AbstractContextManager[None], name: str) -> None:
        with turn:
            order.append(name)

    threads = [
        threading.Thread(target=note, args=(turns.finish(), "finish")),
        threading.Thread(target=note, args=(turns.create(), "later create")),
    ]
    with turns.create():
        with turns.create():  # at the same time
            threads[0].start()
            while not turns._finishing:
                pass
            threads[1].start()
        order.append("creates")
    for thread in threads:
        thread.join(10)
    assert order == ["creates", "finish", "later create"]
