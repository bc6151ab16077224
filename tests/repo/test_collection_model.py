"""Collection beside writers: every order of steps of a small world, and the code on some of them.

docs/design/collection.md says what the rules are for.
"""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from tensorrepo.repo.changes import leases
from tensorrepo.repo.errors import CollectedError
from tensorrepo.workspace import staged_lease
from tests.support.effort import check_each, sampled
from tests.support.reference import collection, packs, repack, shallow, shallow_replay
from tests.support.reference.collection import Event, Setting, World, beginning, events
from tests.support.reference.collection_replay import Replay

SETTINGS = {
    "as it is": Setting(),
    "graves name too much": Setting(false_positives=True),
    "from garbage alone": Setting(begins_live=False),
    "two that have only digests": Setting(writers="DD"),
}
LEASES = {
    "a staging area": Setting("L", drops=1, rounds=1, lapses=1, renewals=1),
    "a tree of what is staged": Setting("T", drops=1, rounds=1, lapses=1, renewals=1),
    "a part": Setting("P", drops=1, lapses=1),
    "a part beside who has bytes": Setting("SP", drops=1, rounds=1),
}
ALL = SETTINGS | LEASES
LONGEST = 40


@pytest.mark.parametrize("setting", sampled([*SETTINGS.values()], 1))
def test_with_all_rules_nothing_is_lost_and_everyone_can_finish(setting: Setting) -> None:
    explored = collection.explore(setting)
    assert (explored.problem, explored.way) == (None, [])
    assert explored.worlds > 10_000


@pytest.mark.parametrize("setting", sampled([*LEASES.values()], 2))
def test_what_a_lease_keeps_is_there_until_it_is_committed_or_given_up(setting: Setting) -> None:
    explored = collection.explore(setting)
    assert (explored.problem, explored.way) == (None, [])
    assert explored.worlds > 3000


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "setting",
    [
        Setting("SL", drops=1, rounds=1, lapses=1, renewals=1),
        Setting("DL", drops=1, rounds=1, lapses=1, renewals=1),
        Setting("LP", drops=1, rounds=1, lapses=1),
        Setting("L", lapses=2, renewals=1, false_positives=True),
        Setting("T", drops=1, lapses=1),
    ],
)
def test_so_it_is_with_more_of_everything_beside_a_lease(setting: Setting) -> None:
    assert collection.explore(setting).problem is None


@pytest.mark.parametrize(
    ("rule", "kind", "lapses"),
    [
        *(("leased", kind, 0) for kind in "LPT"),
        *(("late", kind, 0) for kind in "LPT"),
        ("renewed", "L", 1),
        ("staged", "L", 1),
        ("adopted", "P", 1),
    ],
)
def test_without_any_one_of_their_rules_a_lease_keeps_too_little(
    rule: str, kind: str, lapses: int
) -> None:
    setting = Setting(kind, drops=1, rounds=1, lapses=lapses, renewals=1)
    explored = collection.explore(setting, collection.RULES - {rule})
    assert explored.problem == "lost"
    assert explored.way[-1].kind == "delete"


@pytest.mark.soak
@pytest.mark.parametrize("writers", ["SDS", "SDD"])
def test_with_three_writers_nothing_is_lost_either(writers: str) -> None:
    assert collection.explore(Setting(writers, drops=1)).problem is None


@pytest.mark.parametrize("rule", sorted(collection.COMMIT_RULES))
@pytest.mark.parametrize("live", [True, False])
def test_without_any_one_of_the_rules_something_is_lost(rule: str, *, live: bool) -> None:
    explored = collection.explore(Setting(begins_live=live), collection.RULES - {rule})
    assert explored.problem == "lost"
    assert [event.kind for event in explored.way][-1] == "delete"


def test_looking_at_roots_alone_is_not_enough_where_listings_miss_nothing() -> None:
    setting = Setting(misses=False)
    explored = collection.explore(setting, collection.RULES - {"closure"})
    assert explored.problem == "lost"


@pytest.mark.parametrize("writers", sampled(["AR", "BR", "AB"], 2))
def test_a_repack_beside_writers_loses_nothing(writers: str) -> None:
    lost, way, worlds = repack.explore(repack.Setting(writers))
    assert (lost, way) == (frozenset(), [])
    assert worlds > 4000


@pytest.mark.soak
@pytest.mark.parametrize(
    "setting", [repack.Setting("ABR"), repack.Setting("AR", drops=2, rounds=2)]
)
def test_so_it_is_with_more_of_everything(setting: repack.Setting) -> None:
    assert repack.explore(setting)[0] == frozenset()


@pytest.mark.parametrize(
    ("rule", "writers", "lost"),
    [("fence", "BR", "n"), ("supersede", "AR", "P2"), ("links", "BR", "P")],
)
def test_without_any_one_of_the_rules_a_repack_loses_something(
    rule: str, writers: str, lost: str
) -> None:
    found, _, _ = repack.explore(repack.Setting(writers), repack.RULES - {rule})
    assert found == {lost}


PACKING = [
    packs.Setting("AK"),
    packs.Setting("KK", runs=1),
    packs.Setting("AK", runs=1, rounds=2, merges=1),
    packs.Setting("AA", drops=2, rounds=2, merges=1),
]


@pytest.mark.parametrize("setting", sampled(PACKING, 2))
def test_packing_and_merged_graves_beside_a_writer_and_a_collector_lose_nothing(
    setting: packs.Setting,
) -> None:
    lost, way, worlds = packs.explore(setting)
    assert (lost, way) == (False, [])
    assert worlds > 5000


@pytest.mark.soak
@pytest.mark.parametrize(
    "setting",
    [
        packs.Setting("AK", runs=3),
        packs.Setting("KK"),
        packs.Setting("AAK", drops=2),
        packs.Setting("AAK", runs=1, drops=2, rounds=2, merges=1),
    ],
)
def test_nor_do_they_with_more_of_everything(setting: packs.Setting) -> None:
    assert packs.explore(setting)[0] is False


@pytest.mark.parametrize(
    ("rule", "setting"),
    sampled(
        [
            ("fence", PACKING[0]),
            ("home", packs.Setting("AK", runs=3)),
            ("listed", PACKING[0]),
            ("worn", PACKING[0]),
            ("newest", PACKING[3]),
        ],
        3,
    ),
)
def test_without_any_one_of_its_rules_packing_loses_something(
    rule: str, setting: packs.Setting
) -> None:
    lost, way, _ = packs.explore(setting, packs.RULES - {rule})
    assert lost
    assert way[-1].startswith("delete")


def walk(setting: Setting, chance: random.Random) -> list[Event]:
    """One way through the model, to where nothing is left to do or far enough."""
    world: World = beginning(setting)
    way: list[Event] = []
    while len(way) < LONGEST:
        choices = list(events(world, setting, collection.RULES))
        if not choices:
            break
        event, world = chance.choice(choices)
        way.append(event)
    return way


def play(setting: Setting, way: list[Event], chance: random.Random) -> None:
    replay = Replay(setting, chance)
    for event in way:
        replay.play(event)
    replay.finish()


@pytest.mark.parametrize("setting", ALL.values(), ids=ALL)
@pytest.mark.parametrize("seed", sampled(range(75), 3))
def test_the_code_loses_nothing_on_any_way_through_the_model(seed: int, setting: Setting) -> None:
    chance = random.Random(seed)
    play(setting, walk(setting, chance), chance)


@pytest.mark.parametrize("opens", [leases, staged_lease], ids=["leases", "staging"])
def test_code_that_opens_leases_without_the_fence_is_caught(
    opens: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opens, "secure_kept", lambda *_: None)
    setting = LEASES["a part" if opens is leases else "a staging area"]
    unfenced = collection.explore(setting, collection.RULES - {"leased"})
    with pytest.raises(CollectedError):
        # A collection takes a part of what is dead, by chance.
        check_each(range(20), lambda seed: play(setting, unfenced.way, random.Random(seed)))


SHARES = 12


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("setting", ALL.values(), ids=ALL)
@pytest.mark.parametrize("share", range(SHARES))
def test_the_code_loses_nothing_on_any_step_of_the_model(share: int, setting: Setting) -> None:
    """Every step of every world that can be reached, each on some way from the beginning."""
    played = 0
    for number, way in enumerate(collection.covering_ways(setting)):
        if number % SHARES == share:
            play(setting, way, random.Random(number))
            played += len(way)
    assert played > 2000


SHALLOW = {
    "restore": shallow.Setting("RE"),
    "a ref": shallow.Setting("UE"),
    "deepened": shallow.Setting("DU", begins_shallow=True),
}


@pytest.mark.parametrize("setting", SHALLOW.values(), ids=SHALLOW)
def test_history_that_is_given_up_beside_writers_takes_nothing_that_they_need(
    setting: shallow.Setting,
) -> None:
    lost, way, worlds = shallow.explore(setting)
    assert (lost, way) == (frozenset(), [])
    assert worlds > 400


@pytest.mark.soak
@pytest.mark.parametrize("writers", ["RUE", "DRE", "DUE", "DRUE"])
@pytest.mark.parametrize("begins", [True, False])
def test_nor_does_it_with_all_of_them_at_once(writers: str, *, begins: bool) -> None:
    assert shallow.explore(shallow.Setting(writers, begins_shallow=begins))[0] == frozenset()


@pytest.mark.parametrize(
    ("rule", "setting", "lost"),
    [
        ("fence", SHALLOW["restore"], "X"),
        ("shortcut", SHALLOW["restore"], "X"),
        ("stop", SHALLOW["a ref"], "A"),
        ("deepen", shallow.Setting("D", begins_shallow=True), "A"),
    ],
)
def test_without_any_one_of_the_rules_given_up_history_takes_something(
    rule: str, setting: shallow.Setting, lost: str
) -> None:
    found, way, _ = shallow.explore(setting, shallow.RULES - {rule})
    assert (found, way[-1].kind) == ({lost}, "delete")


@pytest.mark.parametrize("setting", SHALLOW.values(), ids=SHALLOW)
@pytest.mark.parametrize("seed", sampled(range(100), 2))
def test_the_code_loses_nothing_on_any_way_through_given_up_history(
    seed: int, setting: shallow.Setting
) -> None:
    chance = random.Random(seed)
    replay = shallow_replay.Replay(setting, chance)
    world = shallow.beginning(setting)
    for _ in range(LONGEST):
        choices = list(shallow.events(world, setting, shallow.RULES))
        if not choices:
            break
        event, world = chance.choice(choices)
        replay.play(event)
    replay.finish()
