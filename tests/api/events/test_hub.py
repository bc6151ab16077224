"""Event streams within a process: bounded queues, and who reads too slowly."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import tensorrepo as tr
from tensorrepo.api.events import hub as hub_module
from tensorrepo.api.events.hub import QUEUED_EVENTS, Dropped, EventHub
from tensorrepo.api.repositories.opening import ServedRepository, open_served
from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.log.reader import LogView


def _served(folder: Path) -> ServedRepository:
    tr.init(folder / "repo")
    core = open_served(str(folder / "repo"), data=folder / "data", environment={})
    return ServedRepository("repo", core)


def test_who_reads_too_slowly_is_told_and_dropped(tmp_path: Path) -> None:
    async def listen() -> None:
        async with EventHub().subscribe(_served(tmp_path)) as subscription:
            for _ in range(QUEUED_EVENTS + 5):
                subscription.offer(())
            for _ in range(QUEUED_EVENTS):
                await subscription.next(1)
            with pytest.raises(Dropped, match="too slowly"):
                await subscription.next(1)

    asyncio.run(listen())


def test_the_poller_lives_on_whatever_happens_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event, turns = object(), iter([RuntimeError("a bug"), StorageError("no answer")])

    def news(_served: ServedRepository, view: LogView) -> tuple[LogView, tuple[Any, ...]]:
        if (failure := next(turns, None)) is not None:
            raise failure
        return view, (event,)

    monkeypatch.setattr(hub_module, "_news", news)

    async def listen() -> tuple[Any, ...]:
        async with EventHub(poll_seconds=0.01).subscribe(_served(tmp_path)) as subscription:
            return await subscription.next(20)

    assert asyncio.run(listen()) == (event,)


def test_the_poller_ends_with_the_last_listener(tmp_path: Path) -> None:
    async def listen() -> tuple[int, int]:
        hub, served = EventHub(), _served(tmp_path)
        async with hub.subscribe(served), hub.subscribe(served):
            while_listening = hub.listeners
        await asyncio.sleep(0)
        polling = sum(task.get_name() == "events" for task in asyncio.all_tasks())
        return while_listening, hub.listeners + polling

    assert asyncio.run(listen()) == (2, 0)
