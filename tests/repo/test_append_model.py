from __future__ import annotations

import pytest

from tensorrepo.repo.errors import CommitOutcomeUnknown
from tensorrepo.repo.log.append import Appended, resolve
from tests.support.builders.log import Crash, landed_txns, open_log
from tests.support.effort import sampled
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

WAYS = explore()[1]
FINAL = [world for world in WAYS if is_final(world)]
OTHERS = [world for world in WAYS if not is_final(world)][::20]
OUTCOMES = {SEEKING: Crash, WAITING: CommitOutcomeUnknown, TOLD_OK: Appended}


def test_the_rules_of_appending_have_no_violation() -> None:
    assert explore(FIXED)[0] is None
    assert len(WAYS) == 8024  # all of them: the bound was not hit


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


@pytest.mark.parametrize("world", sampled([*FINAL, *OTHERS], 40))
def test_the_code_goes_where_the_model_goes(world: World) -> None:
    replay = replayed(WAYS[world])
    agrees = replay.agrees_with(world)
    outcomes = replay.finish()
    assert agrees
    expected = [OUTCOMES[writer.step] for writer in world.writers]
    assert [type(outcome) for outcome in outcomes] == expected


@pytest.mark.parametrize("world", sampled([world for world in OTHERS if world.flying], 30))
def test_every_unknown_outcome_resolves_to_the_truth_whatever_lands_later(world: World) -> None:
    replay = replayed(WAYS[world])
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
