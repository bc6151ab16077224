from __future__ import annotations

from functools import cache

import pytest

from tensorrepo.repo.errors import CommitOutcomeUnknown
from tensorrepo.repo.log.append import Appended, resolve
from tests.support.builders.log import Crash, landed_txns, open_log
from tests.support.effort import check_each, sampled
from tests.support.reference.append import (
    FIXED,
    SEEKING,
    TOLD_OK,
    WAITING,
    Event,
    World,
    explore,
    is_final,
)
from tests.support.reference.append_replay import Replay

OUTCOMES = {SEEKING: Crash, WAITING: CommitOutcomeUnknown, TOLD_OK: Appended}


@cache
def ways() -> dict[World, list[Event]]:
    """All worlds of the model, when a test asks: they take longer than most modules to load."""
    return explore()[1]


def others() -> list[World]:
    """A twentieth of the worlds in which something is left to happen."""
    return [world for world in ways() if not is_final(world)][::20]


def test_the_rules_of_appending_have_no_violation() -> None:
    assert explore(FIXED)[0] is None
    assert len(ways()) == 8024  # all of them: the bound was not hit


@pytest.mark.parametrize(
    ("dropped", "violation"),
    [
        ("resend", "transaction 0 is there twice"),
        ("permanent", "writer 0 was told that it won, and did not"),
    ],
)
def test_without_either_rule_a_promise_breaks(dropped: str, violation: str) -> None:
    assert explore(FIXED - {dropped})[0] == violation


def replayed(way: list[Event]) -> Replay:
    replay = Replay()
    for event in way:
        replay.play(event)
    return replay


def test_the_code_goes_where_the_model_goes() -> None:
    final = [world for world in ways() if is_final(world)]
    check_each(sampled([*final, *others()], 40), _goes_alike)


def _goes_alike(world: World) -> None:
    replay = replayed(ways()[world])
    agrees = replay.agrees_with(world)
    outcomes = replay.finish()
    assert agrees
    expected = [OUTCOMES[writer.step] for writer in world.writers]
    assert [type(outcome) for outcome in outcomes] == expected


def test_every_unknown_outcome_resolves_to_the_truth_whatever_lands_later() -> None:
    check_each(sampled([world for world in others() if world.flying], 30), _resolves_to_the_truth)


def _resolves_to_the_truth(world: World) -> None:
    replay = replayed(ways()[world])
    unknown = [outcome for outcome in replay.finish() if isinstance(outcome, CommitOutcomeUnknown)]
    log = open_log(replay.backend)
    told = {found.txn: resolve(log, found.txn, found.generation, settle=True) for found in unknown}
    for writer in replay.writers:
        for request in writer.sent:
            request.perform()
    landed = landed_txns(replay.backend)
    assert {txn: "landed" if txn in landed else "lost" for txn in told} == told
    assert len([txn for txn in landed if txn.startswith("txn-")]) == len(
        {txn for txn in landed if txn.startswith("txn-")}
    )
