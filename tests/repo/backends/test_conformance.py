"""A trial catches stores that break their promises, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import Guarantee
from tensorrepo.repo.backends.conformance import CHECKS
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.trial import Check, CheckFolder, CheckResult, Trial
from tensorrepo.repo.errors import PermissionDenied, UnsupportedError
from tests.support.faults.refusing import ExpiredLogin
from tests.support.faults.stores import FAULTY

CHECK = {check.name: check for check in CHECKS}


@pytest.mark.parametrize("name", CHECK)
def test_a_store_that_breaks_one_promise_is_caught(tmp_path: Path, name: str) -> None:
    backend = FAULTY[name](tmp_path / "store")
    result, *_ = Trial(backend, [CHECK[name]]).run()
    assert (result.what, result.level) == (name, CHECK[name].level)
    assert result.consequence == CHECK[name].consequence != ""
    assert result.expected


def test_whoever_checks_a_repository_in_use_touches_nothing_of_it(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path / "store")
    backend.create("repo.json", (b"{}",))
    before = sorted(tmp_path.rglob("*"))
    results = list(Trial(backend, CHECKS).run())
    assert [each for each in results if each.level != "ok"] == []
    assert [each.what for each in results if each.median_ms is not None] == [
        "small write", "small read", "small listing",
    ]  # fmt: skip
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_was_not_there_is_gone_again(tmp_path: Path) -> None:
    trial = Trial(LocalBackend(tmp_path / "a/store"), [CHECK["listing"]])
    assert [each.level for each in trial.run()] == ["ok"] * 4
    assert list(tmp_path.iterdir()) == []


def _interrupted(at: CheckFolder) -> str:
    at.put(b"here")
    raise KeyboardInterrupt


def test_ctrl_c_removes_what_was_made() -> None:
    backend = MemoryBackend()
    trial = Trial(backend, [CHECK["listing"], Check("stopped", _interrupted, "")])
    running = trial.run()
    assert next(running).level == "ok"
    assert list(backend.list(trial.prefix)) != []
    with pytest.raises(KeyboardInterrupt):
        next(running)
    assert list(backend.list("")) == []
    assert trial.removal() is None


class KeepsAll(MemoryBackend):
    def delete(self, key: str) -> None:
        raise PermissionDenied(f"nobody may delete {key}")


def test_what_cannot_be_removed_is_told() -> None:
    backend = KeepsAll()
    trial = Trial(backend, [CHECK["deleting"]])
    result, *_ = trial.run()
    removal = trial.removal()
    assert result.level == "error"
    assert "nobody may delete" in result.found
    assert removal is not None
    assert removal.found.startswith(f"{len(list(backend.list('')))} keys below {trial.place}")


def test_a_store_that_is_not_reached_is_an_error_and_no_list_of_faults() -> None:
    with pytest.raises(PermissionDenied):
        next(Trial(ExpiredLogin(MemoryBackend(), 1), CHECKS).run())


def test_checks_that_would_take_too_long_are_left_out() -> None:
    seconds = iter(range(0, 10_000, 100))
    trial = Trial(MemoryBackend(), [CHECK["ranges"]] * 3, clock=lambda: float(next(seconds)))
    levels = [(each.level, each.found[:9]) for each in trial.run()][:3]
    assert [level for level, _ in levels] == ["ok", "warning", "warning"]
    assert levels[1][1] == "not tried"


def test_what_is_not_promised_is_not_tried() -> None:
    backend = MemoryBackend()
    backend.guarantee = Guarantee.SINGLE_WRITER
    result: CheckResult = next(Trial(backend, [CHECK["race of threads"]]).run())
    assert (result.level, "one process may write" in result.found) == ("warning", True)
    backend.guarantee = Guarantee.READ_ONLY
    with pytest.raises(UnsupportedError, match="can only be read"):
        Trial(backend, CHECKS)
