"""The thread that writes live runs lives on, whatever happens to it."""

from __future__ import annotations

from threading import Event
from typing import Any, cast

from tensorrepo.api.live.writer import LiveWriter


class Failing:
    """Has no runs to tell of, for a reason that nobody foresaw."""

    def __init__(self) -> None:
        self.asked = [Event(), Event()]
        self._waiting = iter(self.asked)

    def going_on(self) -> list[Any]:
        next(self._waiting).set()
        raise RuntimeError("a bug")


def test_a_failure_that_nobody_foresaw_ends_one_turn_alone() -> None:
    points = Failing()
    writer = LiveWriter(cast(Any, points), cast(Any, None))
    writer.start()
    try:
        for asked in points.asked:
            writer.added(1 << 30)
            assert asked.wait(20)
    finally:
        writer.close()
