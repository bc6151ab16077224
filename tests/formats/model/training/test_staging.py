"""Memory that is used is not given to others, and copies are what they are copies of."""

from __future__ import annotations

import threading

from tensorrepo.formats.model.training.staging import Staging


def test_what_is_held_goes_when_room_is_needed() -> None:
    staging, gone = Staging(100), threading.Event()
    staging.reserve(60)
    staging.hold(60, gone.set)
    staging.reserve(60)
    assert gone.is_set()
    assert staging.staged_bytes == 60


def test_who_needs_the_room_of_what_is_used_waits() -> None:
    staging, gone, reserved = Staging(100), threading.Event(), threading.Event()
    staging.reserve(60)
    staging.hold(60, gone.set)

    def reserve() -> None:
        staging.reserve(60)
        reserved.set()

    waits = threading.Thread(target=reserve, daemon=True)
    with staging.pinned():
        waits.start()
        assert not reserved.wait(0.2)
        assert not gone.is_set()
    assert reserved.wait(30)
    assert gone.is_set()
    assert staging.staged_bytes == 60
