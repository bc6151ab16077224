"""Checkpoints are whole, come back as they were, and go when the policy says so."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.formats.model.layout.placement import Placement, decode_placement
from tensorrepo.formats.model.state.state_dict import take_apart
from tensorrepo.models import checkpointer as checkpointer_module
from tensorrepo.models.checkpointer import state_entry
from tensorrepo.repo.changes.gc_fence import closure
from tensorrepo.repo.objects.incarnations import parse_object_key
from tests.support.effort import sampled
from tests.support.processes.forked_python import start_python
from tests.support.processes.interrupts import interrupts


@pytest.fixture
def repository(tmp_path: Path) -> tr.Repository:
    return tr.init(tmp_path / "repo", author="Ada <ada@example.org>")


def state_of(step: int, rows: int = 100) -> dict[str, Any]:
    weights = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8) + step
    return {"model": {"weight": weights, "bias": weights[0].copy()}, "step": step}


def same(found: Any, expected: Any) -> bool:
    """Compared apart: tensors bit by bit, the rest as JSON."""
    one, other = take_apart({"state": found}), take_apart({"state": expected})
    equal = [
        name in one.tensors
        and np.asarray(one.tensors[name]).tobytes() == np.asarray(value).tobytes()
        for name, value in other.tensors.items()
    ]
    return all(equal) and one.skeleton == other.skeleton


def test_a_state_comes_back_as_it_was(repository: tr.Repository) -> None:
    with repository.checkpointer("exp1") as checkpointer:
        checkpointer.save(10, state_of(10))
        checkpointer.wait()
        assert same(checkpointer.load(output="numpy"), state_of(10))


def test_a_training_of_torch_resumes_exactly(repository: tr.Repository) -> None:
    torch = pytest.importorskip("torch")

    def training() -> tuple[Any, Any, Any, Callable[[], float]]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

        def step() -> float:
            optimizer.zero_grad()
            loss = model(torch.randn(8, 16)).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss.item()

        return model, optimizer, scheduler, step

    model, optimizer, scheduler, step = training()
    with repository.checkpointer("exp1") as checkpointer:
        for _ in range(5):
            step()
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "random": torch.get_rng_state(),
        }
        checkpointer.save(5, state)
        expected = [step() for _ in range(5)]
    model, optimizer, scheduler, step = training()
    found = repository.checkpointer("exp1").load()
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    scheduler.load_state_dict(found["scheduler"])
    torch.set_rng_state(found["random"])
    assert [step() for _ in range(5)] == expected


def test_what_changes_after_save_is_not_stored(repository: tr.Repository) -> None:
    state = state_of(1, rows=100_000)
    expected = state["model"]["weight"].copy()
    with repository.checkpointer("exp1") as checkpointer:
        checkpointer.save(1, state)
        state["model"]["weight"][:] = -1
    found = repository.checkpointer("exp1").load(output="numpy")
    assert np.array_equal(found["model"]["weight"], expected)


def test_checkpoints_are_beside_each_other(repository: tr.Repository) -> None:
    with repository.transaction("main") as tx:
        tx.save_file("readme", b"began here")
    with repository.checkpointer("exp1") as checkpointer:
        saved = [checkpointer.save(step, state_of(step)) for step in (1, 2)]
    parents = [repository.resolve(one.result().commit).commit.parents for one in saved]
    assert parents == [(repository.resolve("main").digest,)] * 2


def test_the_policy_drops_in_the_record_that_saves(repository: tr.Repository) -> None:
    with repository.checkpointer("exp1", keep=tr.RetentionPolicy(last=2, every=4)) as checkpointer:
        saved = [checkpointer.save(step, state_of(step)) for step in range(1, 8)]
        checkpointer.wait()
        assert checkpointer.steps() == [4, 6, 7]
    assert [one.result().dropped for one in saved] == [(), (), (1,), (2,), (3,), (), (5,)]


def test_metrics_outlive_the_weights(repository: tr.Repository) -> None:
    with repository.checkpointer("exp1", keep=tr.RetentionPolicy(last=1)) as checkpointer:
        for step, loss in ((1, 0.5), (2, 0.25), (3, 0.125)):
            checkpointer.save(step, state_of(step), metrics={"loss": loss})
    reopened = repository.checkpointer("exp1")
    assert reopened.steps() == [3]
    assert reopened.metrics() == {1: {"loss": 0.5}, 2: {"loss": 0.25}, 3: {"loss": 0.125}}


def test_the_best_stays(repository: tr.Repository) -> None:
    keep = tr.RetentionPolicy(last=1, best="loss")
    with repository.checkpointer("exp1", keep=keep) as checkpointer:
        for step, loss in ((1, 0.5), (2, 0.1), (3, 0.9), (4, 0.8)):
            checkpointer.save(step, state_of(step), metrics={"loss": loss})
        checkpointer.wait()
        assert checkpointer.steps() == [2, 4]


def test_a_run_goes_on_in_another_process(repository: tr.Repository) -> None:
    with repository.checkpointer("exp1") as checkpointer:
        checkpointer.save(1, state_of(1), metrics={"loss": 1.0})
    with tr.open(repository.url, author="Bob <b@example.org>").checkpointer("exp1") as later:
        assert later.latest() == 1
        later.save(2, state_of(2), metrics={"loss": 0.5})
    assert repository.checkpointer("exp1").metrics() == {1: {"loss": 1.0}, 2: {"loss": 0.5}}


def test_a_step_can_be_saved_again(repository: tr.Repository) -> None:
    with repository.checkpointer("exp1") as checkpointer:
        checkpointer.save(1, state_of(1))
        checkpointer.save(1, state_of(99))
        checkpointer.wait()
        assert same(checkpointer.load(1, output="numpy"), state_of(99))


def test_a_checkpoint_can_be_named_like_any_commit(repository: tr.Repository) -> None:
    with repository.checkpointer("exp1") as checkpointer:
        checkpointer.save(7, state_of(7))
    model = repository.model("state", ref="runs/exp1/7")
    assert model.keys() == ("model.bias", "model.weight")


def test_a_checkpoint_that_is_missing_is_named_with_those_there_are(
    repository: tr.Repository,
) -> None:
    with repository.checkpointer("exp1") as checkpointer:
        checkpointer.save(7, state_of(7))
        with pytest.raises(tr.NotFoundError, match="step 8; the newest are 7"):
            checkpointer.load(8)


def test_what_cannot_be_stored_is_named_before_training_goes_on(
    repository: tr.Repository,
) -> None:
    with (
        repository.checkpointer("exp1") as checkpointer,
        pytest.raises(tr.InvalidInputError, match=r"optimizer\.hooks\.0 is of type function"),
    ):
        checkpointer.save(1, {"optimizer": {"hooks": [lambda: None]}})


def test_a_module_instead_of_its_state_is_refused(repository: tr.Repository) -> None:
    class Module:
        def state_dict(self) -> dict[str, Any]:
            return {}

    checkpointer, module = repository.checkpointer("exp1"), Module()
    with pytest.raises(tr.InvalidInputError, match="names as keys"):
        checkpointer.save(1, module)  # type: ignore[arg-type]  # what is refused
    with (
        pytest.raises(tr.InvalidInputError, match="give its state_dict"),
        repository.transaction() as tx,
    ):
        tx.save_model("m", module)  # type: ignore[arg-type]  # what is refused


def test_a_failure_in_the_background_is_raised(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = repository.checkpointer("exp1")

    def fail(*_: object, **__: object) -> None:
        raise tr.StorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("tensorrepo.models.checkpointer.commit_checkpoint", fail)
        checkpointer.save(1, state_of(1))
        with pytest.raises(tr.StorageError, match="disk is full"):
            checkpointer.wait()
    checkpointer.save(2, state_of(2))
    checkpointer.close()
    assert repository.checkpointer("exp1").steps() == [2]


def test_who_saves_too_fast_waits(repository: tr.Repository) -> None:
    state = state_of(1, rows=1 << 15)  # 1 MiB
    stored, most = threading.Semaphore(0), []
    checkpointer = repository.checkpointer(
        "exp1", staging="3MiB", on_saved=lambda _: stored.release()
    )
    with checkpointer:
        for step in range(6):
            checkpointer.save(step, state)
            most.append(checkpointer._staging.staged_bytes)
    assert max(most) <= 3 << 20
    assert all(stored.acquire(blocking=False) for _ in range(6))


def adam_state(step: int) -> dict[str, Any]:
    random = np.random.default_rng(step)
    weight, moment = random.normal(size=(2, 3000)).astype(np.float32)
    state = {0: {"step": np.float32(step), "exp_avg": moment, "exp_avg_sq": moment**2}}
    return {"weight": weight, "optimizer": {"state": state, "param_groups": [{"lr": 0.1}]}}


def test_an_approximate_state_is_within_its_bound_and_says_so(repository: tr.Repository) -> None:
    with repository.checkpointer("exp1", optimizer=tr.LossyState(relative=2**-8)) as checkpointer:
        saved = [checkpointer.save(step, adam_state(step)) for step in (1, 2)]
        with pytest.warns(UserWarning, match="run 'exp1', step 2: 2 tensors of optimizer state"):
            found = checkpointer.load(output="numpy")
    expected, moments = adam_state(2), found["optimizer"]["state"][0]
    assert np.array_equal(found["weight"], expected["weight"])
    assert moments["step"] == 2
    exact = expected["optimizer"]["state"][0]["exp_avg"]
    assert not np.array_equal(moments["exp_avg"], exact)
    assert (np.abs(moments["exp_avg"] - exact) <= 2**-8 * np.abs(exact)).all()
    told = saved[1].result().approximate
    assert told == repository.checkpointer("exp1").approximation()
    assert told is not None
    assert told.relative == 2**-8


def test_an_exact_state_makes_no_promise(repository: tr.Repository) -> None:
    with repository.checkpointer("exp1") as checkpointer:
        checkpointer.save(1, adam_state(1))
        assert checkpointer.approximation(1) is None


_TRAINING = """
import sys, numpy as np, tensorrepo as tr
repository = tr.open(sys.argv[1], author="Ada <ada@example.org>")
with repository.checkpointer("exp1", keep=tr.RetentionPolicy(last=2)) as checkpointer:
    for step in range(1, 1000):
        checkpointer.save(step, {"weight": np.full(50_000, step, np.float32), "step": step})
        print(step, flush=True)
"""


@pytest.mark.parametrize("after", sampled([3, 1, 6], 1))
def test_a_killed_training_leaves_whole_checkpoints(repository: tr.Repository, after: int) -> None:
    with start_python("-c", _TRAINING, repository.url) as training:
        for _ in range(after):
            training.stdout.readline()
        training.kill()
    with tr.open(repository.url, author="Ada <ada@example.org>").checkpointer("exp1") as again:
        for step in again.steps():
            found = again.load(step, output="numpy")
            assert (found["weight"] == step).all()
        again.save(5000, {"weight": np.zeros(10, np.float32), "step": 5000})
        again.wait()
        assert again.latest() == 5000


def moved(steps: int) -> dict[str, Any]:
    """A state that so many small steps have moved: a difference takes less than half of it."""
    rng = np.random.default_rng(7)
    weights = rng.normal(size=(400, 256)).astype(np.float32)
    for _ in range(steps):
        weights *= 1 + rng.integers(-30, 30, weights.shape).astype(np.float32) * np.float32(2**-24)
    return {"weight": weights, "frozen": np.arange(60_000, dtype=np.float32), "step": steps}


def objects_of(repository: tr.Repository) -> dict[str, tuple[str, int]]:
    """Key and bytes of every object, by digest."""
    listed = [
        (parse_object_key(one.key), one) for one in repository.context.core.backend.list("objects/")
    ]
    return {found[0]: (one.key, one.bytes) for found, one in listed if found is not None}


def reached_by(repository: tr.Repository) -> set[str]:
    """Digests of all that refs lead to."""
    state = repository.context.core.log.refresh().state
    return set(closure(repository.context.core.objects, state.refs.values(), state.supersedes))


def test_what_expired_is_freed(repository: tr.Repository) -> None:
    alone = moved(0)["weight"].nbytes
    reached = []
    with repository.checkpointer("exp1", keep=tr.RetentionPolicy(last=2)) as checkpointer:
        for step in range(10):
            checkpointer.save(step, moved(step))
            checkpointer.wait()
            held = objects_of(repository)
            reached.append(sum(held[one][1] for one in reached_by(repository)))
    stored = sum(size for _, size in held.values())
    live = reached_by(repository)
    for digest, (key, _) in held.items():
        if digest not in live:
            repository.context.core.backend.delete(key)
    left = sum(size for _, size in objects_of(repository).values())
    assert left == reached[-1] < stored / 2
    assert max(reached) < 3.5 * alone
    again = tr.open(repository.url).checkpointer("exp1")
    assert same(again.load(9, output="numpy"), moved(9))
    assert same(again.load(8, output="numpy"), moved(8))


@pytest.mark.soak
def test_where_all_are_kept_each_is_the_difference_from_the_one_before(
    repository: tr.Repository,
) -> None:
    with repository.checkpointer("exp1", keep=tr.RetentionPolicy(last=None)) as checkpointer:
        saved = [checkpointer.save(step, moved(step)) for step in range(6)]
        placements = [_placement(repository, one.result().commit) for one in saved]
    depths = [max(one.depth for at in each.tensors for one in at.members) for each in placements]
    assert depths == [0, 1, 2, 3, 4, 5]


def test_one_that_stays_for_good_needs_none_that_goes(repository: tr.Repository) -> None:
    with repository.checkpointer("exp1", keep=tr.RetentionPolicy(last=1, every=3)) as checkpointer:
        saved = [checkpointer.save(step, moved(step)) for step in range(1, 4)]
        found = _placement(repository, saved[-1].result().commit)
    assert not found.bases


def _placement(repository: tr.Repository, commit: Any) -> Placement:
    digest = state_entry(repository.context, commit).storage
    assert digest is not None
    return decode_placement(repository.context.core.objects.get(digest).payload, digest)


_ENDING = """
import sys, numpy as np, tensorrepo as tr
repository = tr.open(sys.argv[1], author="Ada <ada@example.org>")
checkpointer = repository.checkpointer("exp1")
weights = np.random.default_rng(0).standard_normal((4, 1000, 500)).astype(np.float32)
checkpointer.save(1, {str(at): weight for at, weight in enumerate(weights)})
"""


@pytest.mark.parametrize(
    ("end", "code"),
    sampled([("raise RuntimeError('no more memory')", 1), ("", 0), ("sys.exit(3)", 3)], 1),
)
def test_what_is_being_stored_when_the_program_ends_is_stored(
    repository: tr.Repository, end: str, code: int
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ENDING + end, repository.url], check=False, capture_output=True
    )
    assert ended.returncode == code, ended.stderr
    assert repository.checkpointer("exp1").steps() == [1]


@pytest.mark.soak
def test_what_cannot_be_stored_when_the_program_ends_is_told(repository: tr.Repository) -> None:
    full = """
import tensorrepo.models.checkpointer
def fail(*_, **__):
    raise tr.StorageError("the disk is full")
tensorrepo.models.checkpointer.commit_checkpoint = fail
"""
    before, save = _ENDING.rsplit("weights = ", 1)
    ended = subprocess.run(
        [sys.executable, "-c", f"{before}{full}weights = {save}", repository.url],
        check=False,
        capture_output=True,
        text=True,
    )
    assert "checkpoints of run 'exp1' were not stored" in ended.stderr
    assert "StorageError: the disk is full" in ended.stderr


def test_a_save_that_is_refused_gives_its_room_back(repository: tr.Repository) -> None:
    state = state_of(1, rows=1 << 15)  # 1 MiB
    with repository.checkpointer("exp1", staging="1MiB") as checkpointer:
        noted = checkpointer.noted

        def refuse(*_: object) -> Any:
            raise tr.InvalidInputError("no such run")

        checkpointer.noted = refuse
        with pytest.raises(tr.InvalidInputError, match="no such run"):
            checkpointer.save(1, state)
        assert checkpointer._staging.staged_bytes == 0
        checkpointer.noted = noted
        checkpointer.save(2, state)
        checkpointer.wait()
        assert checkpointer.steps() == [2]


def test_a_closed_checkpointer_says_that_it_is(repository: tr.Repository) -> None:
    checkpointer = repository.checkpointer("exp1")
    checkpointer.close()
    with pytest.raises(tr.InvalidInputError, match="is closed, step 1 was not saved"):
        checkpointer.save(1, state_of(1))
    assert checkpointer._staging.staged_bytes == 0


@pytest.mark.parametrize("name", ["", "a\nb", 7])
def test_a_metric_without_a_name_is_refused_before_anything_waits(
    repository: tr.Repository, name: Any
) -> None:
    with repository.checkpointer("exp1") as checkpointer:
        with pytest.raises(tr.InvalidInputError, match="printable characters, such as 'loss'"):
            checkpointer.save(1, state_of(1), metrics={name: 1.0})
        assert checkpointer._staging.staged_bytes == 0


@pytest.mark.parametrize("step", [True, -1, 1.5, "7", None, 1 << 63])
def test_what_is_no_step_is_refused(repository: tr.Repository, step: Any) -> None:
    with (
        repository.checkpointer("exp1") as checkpointer,
        pytest.raises(tr.InvalidInputError, match="step is a whole number, at least 0"),
    ):
        checkpointer.save(step, state_of(1))


def test_numbers_of_libraries_are_steps(repository: tr.Repository) -> None:
    torch = pytest.importorskip("torch")
    with repository.checkpointer("exp1") as checkpointer:
        checkpointer.save(np.int64(5), state_of(5))  # type: ignore[arg-type]  # as an int
        saved = checkpointer.save(torch.tensor(6), state_of(6)).result()
        assert type(saved.step) is int
        assert checkpointer.steps() == [5, 6]
        assert same(checkpointer.load(torch.tensor(5), output="numpy"), state_of(5))
        checkpointer.delete(np.int64(5))  # type: ignore[arg-type]  # as an int
        assert checkpointer.steps() == [6]


def test_who_is_interrupted_while_waiting_still_hears_of_the_failure(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    storing, go_on = threading.Event(), threading.Event()

    def fail(*_: object, **__: object) -> None:
        storing.set()
        go_on.wait()
        raise tr.StorageError("the disk is full")

    monkeypatch.setattr("tensorrepo.models.checkpointer.commit_checkpoint", fail)
    checkpointer = repository.checkpointer("exp1")
    checkpointer.save(1, state_of(1))
    storing.wait()
    with interrupts() as interrupt:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            checkpointer.wait()
    go_on.set()
    with pytest.raises(tr.StorageError, match="disk is full"):
        checkpointer.wait()


def test_a_save_that_is_interrupted_as_it_is_handed_over_stops_no_other(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(deque[Any]):
        def append(self, item: Any) -> None:
            super().append(item)
            raise KeyboardInterrupt

    go_on = threading.Event()
    commit = checkpointer_module.commit_checkpoint
    monkeypatch.setattr(
        checkpointer_module,
        "commit_checkpoint",
        lambda *given, **named: (go_on.wait(), commit(*given, **named))[1],
    )
    with repository.checkpointer("exp1") as checkpointer:
        checkpointer.save(1, state_of(1))
        monkeypatch.setattr(checkpointer, "_waiting", Interrupted(checkpointer._waiting))
        with pytest.raises(KeyboardInterrupt):
            checkpointer.save(2, state_of(2))
        monkeypatch.setattr(checkpointer, "_waiting", deque(checkpointer._waiting))
        go_on.set()
        checkpointer.save(3, state_of(3))
        checkpointer.wait()
        assert checkpointer.steps() == [1, 3]


def test_a_callback_that_fails_is_told_and_what_is_stored_counts(
    repository: tr.Repository, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(saved: tr.Saved) -> None:
        raise RuntimeError(f"nobody listens to {saved.step}")

    with repository.checkpointer("exp1", on_saved=fail) as checkpointer:
        assert checkpointer.save(1, state_of(1)).result().step == 1
        checkpointer.save(2, state_of(2))
        checkpointer.wait()
        assert checkpointer.steps() == [1, 2]
    assert "on_saved failed for step 2 of run 'exp1'" in caplog.text
    assert "nobody listens to 2" in caplog.text


def test_going_back_drops_the_past_that_was_given_up(repository: tr.Repository) -> None:
    with repository.checkpointer(
        "exp1", keep=tr.RetentionPolicy(last=3, every=400)
    ) as checkpointer:
        for step in (100, 200, 300, 400):
            checkpointer.save(step, state_of(step))
        checkpointer.wait()
        gone = [checkpointer.save(step, state_of(step)) for step in (210, 220, 230)]
        checkpointer.wait()
        assert [one.result().dropped for one in gone] == [(300, 400), (), (200,)]
        assert checkpointer.steps() == [210, 220, 230]
        assert same(checkpointer.load(output="numpy"), state_of(230))


def test_only_what_went_is_said_to_have_gone(
    repository: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorrepo.models.checkpointer.MOST_DROPPED", 2)
    monkeypatch.setattr("tensorrepo.repo.changes.transaction.MOST_DROPPED", 2)
    with repository.checkpointer("exp1", keep=tr.RetentionPolicy(last=None)) as checkpointer:
        for step in (10, 20, 30, 40, 50):
            checkpointer.save(step, state_of(step))
        checkpointer.wait()
        checkpointer.keep = tr.RetentionPolicy(last=1)
        assert checkpointer.save(35, state_of(35)).result().dropped == (40, 50)
        assert checkpointer.steps() == [10, 20, 30, 35]
        assert checkpointer.save(36, state_of(36)).result().dropped == (10, 20)
